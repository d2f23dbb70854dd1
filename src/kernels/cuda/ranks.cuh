/* ranks.cuh - pairs of floats that GPUs store in each other's memory (cuda_ranks.h).
 *
 * A thread has a pair. It stores it, with a mark of the sum beside each float, in a line of every other GPU's
 * memory, and then reads the lines that the others have stored in its own until they have that mark (NCCL's
 * LL protocol). So a sum takes the time of one store over the link: no thread waits for another of its own
 * GPU, and neither barriers nor fences are needed.
 *
 * Lines are used in turn for sums with even and odd numbers. Who stores in a line again has read what its
 * owner has sent for the sum in between, and its owner sent that after it had read the line: in a launch of
 * several parts because a thread has the same lines in each of them, all of one length; in another launch
 * because launches are in order. */
#ifndef NIB_KERNELS_CUDA_RANKS_CUH
#define NIB_KERNELS_CUDA_RANKS_CUH

#include "kernels/cuda/cuda_kernels.h"

/* A line: two floats, each with a mark. */
struct line {
    uint32_t x, first, y, second;
};

/* What marks the floats of a sum. A half of a line may be seen before the other one, so both marks change
 * with every sum; and both together are those of no other sum. They are not 0, as in lines that were not used
 * yet. */
struct marks {
    uint32_t first, second;
};
__device__ __forceinline__ marks marks_of(uint64_t number) {
    const uint32_t low = (uint32_t)(2 * number + 1), high = (uint32_t)(number >> 31);
    return marks{low, low + high * 0x9e3779b8u};
}

__device__ __forceinline__ void line_store(line *to, float2 v, marks m) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(__float_as_uint(v.x)),
                 "r"(m.first), "r"(__float_as_uint(v.y)), "r"(m.second)
                 : "memory");
}
__device__ __forceinline__ bool line_load(const line *from, float2 *v, marks m) {
    line l;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(l.x), "=r"(l.first), "=r"(l.y), "=r"(l.second)
                 : "l"(from)
                 : "memory");
    *v = make_float2(__uint_as_float(l.x), __uint_as_float(l.y));
    return l.first == m.first && l.second == m.second;
}

__device__ __forceinline__ line *line_of(const cuda_ranks &a, int of, int from, uint64_t number, int64_t i) {
    return (line *)a.places[of] + ((int64_t)(number & 1) * a.n_rank + from) * a.max_pair + i;
}

__device__ __forceinline__ uint64_t now_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* A thread's waiting for lines. */
struct line_wait {
    uint64_t since; /* of its first look at the clock; 0: none yet */
    uint32_t spins;
};
/* Whether to wait no longer: a rank has given the pass up, or this one does, after 4 s without a sign of
 * another GPU, which has failed then. */
__device__ __forceinline__ bool gives_up(const cuda_ranks &a, int64_t pass, line_wait *w) {
    enum { SPINS = 4096 /* between two looks at the clock, and at what the host says: about a ms */ };
    volatile int64_t *const failed = a.failed;
    if (++w->spins % SPINS)
        return false;
    const uint64_t now = now_ns();
    if (*failed >= pass)
        return true;
    w->since = w->since ? w->since : now;
    if (now - w->since < 4000000000ull)
        return false;
    *failed = pass;
    return true;
}

__device__ __forceinline__ uint64_t number_of(const cuda_ranks &a, int64_t pass) {
    return ((uint64_t)pass << CUDA_REDUCE_SHIFT) + (uint64_t)a.first;
}

/* Sends pair i of a sum to the other ranks. */
__device__ __forceinline__ void pair_send(const cuda_ranks &a, uint64_t number, int64_t i, float2 own) {
    const marks m = marks_of(number);
    for (int r = 0; r < a.n_rank; r++)
        if (r != a.rank)
            line_store(line_of(a, r, a.rank, number, i), own, m);
}
/* Pair i of another rank; after a failure other numbers. */
__device__ __forceinline__ float2 pair_wait(const cuda_ranks &a, int64_t pass, uint64_t number, int64_t i,
                                            int rank) {
    const line *const from = line_of(a, a.rank, rank, number, i);
    const marks m = marks_of(number);
    line_wait w = {0, 0};
    float2 v;
    while (!line_load(from, &v, m) && !gives_up(a, pass, &w))
        ;
    return v;
}
/* Adds pair i of all ranks, in their order. */
__device__ __forceinline__ float2 pair_add(const cuda_ranks &a, int64_t pass, uint64_t number, int64_t i,
                                           float2 own) {
    float2 sum = own;
    for (int r = 0; r < a.n_rank; r++) {
        const float2 v = r == a.rank ? own : pair_wait(a, pass, number, i, r);
        sum = r == 0 ? v : make_float2(__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y));
    }
    return sum;
}

#endif

/* reduce_many.cu - many rows added over the GPUs of one host: each rank adds some tiles of the rows and sends
 * their sums to the others, so that a rank sends and receives each number about twice, whatever the number of
 * ranks.
 *
 * Tiles go as they are, without a mark beside each float, and a flag follows the tiles of a block: the link
 * carries half of what it does for few rows (reduce.cu), but a fence comes before the flag. A place is stored
 * in again when its owner has read it: who sends a part of a tile has got the sum of that tile in the part
 * before, and who sends a sum has got the parts of the tile from a rank that has ended the launch, or the
 * part, before. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/ranks.cuh"

enum {
    MANY_THREADS = 256,
    MANY_BLOCKS = 128, /* at most; all must run at the same time */
    EACH = 4,          /* quads of a thread in a tile */
    TILE_QUADS = EACH * MANY_THREADS
};
static_assert((int)TILE_QUADS == (int)CUDA_TILE_QUADS, "the memory is that of tiles");

struct many_job {
    cuda_reduce a;
    uint32_t row_quads, quads; /* of a row; of all rows */
    int tiles, each;           /* tiles of a part; of a block in a part */
    int64_t max_tiles, own;    /* tiles that a rank's memory holds; that a rank owns of them, at most */
};

/* The memory of rank `of` behind its lines: parts of tiles from each rank, sums of tiles, their flags. */
struct many_place {
    float4 *parts, *sums;
    uint64_t *part_flags, *sum_flags;
};
__device__ __forceinline__ many_place place_of(const many_job &j, int of) {
    const cuda_ranks &a = j.a.of;
    many_place p;
    p.parts = (float4 *)((line *)a.places[of] + 2 * a.n_rank * a.max_pair);
    p.sums = p.parts + a.n_rank * j.own * TILE_QUADS;
    p.part_flags = (uint64_t *)(p.sums + j.max_tiles * TILE_QUADS);
    p.sum_flags = p.part_flags + a.n_rank * j.max_tiles;
    return p;
}
/* The part of tile t from a rank, at its owner. */
__device__ __forceinline__ float4 *part_at(const many_job &j, int from, int t) {
    const int n = j.a.of.n_rank;
    return place_of(j, t % n).parts + (from * j.own + t / n) * TILE_QUADS;
}
__device__ __forceinline__ uint64_t *part_flag(const many_job &j, int from, int t) {
    return place_of(j, t % j.a.of.n_rank).part_flags + from * j.max_tiles + t;
}

__device__ __forceinline__ void flag_set(uint64_t *flag, uint64_t number) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(number) : "memory");
}
__device__ __forceinline__ void flag_wait(const cuda_ranks &a, const uint64_t *flag, uint64_t number,
                                          int64_t pass) {
    line_wait w = {0, 0};
    uint64_t is;
    do
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(is) : "l"(flag) : "memory");
    while (is != number && !gives_up(a, pass, &w));
}

/* A thread's quads of tile t of the part that begins at quad `begin`. */
struct many_quad {
    int64_t x, out; /* floats */
    bool there;
};
__device__ __forceinline__ many_quad quad_of(const many_job &j, uint32_t begin, int t, int i) {
    const uint32_t q = begin + (uint32_t)t * TILE_QUADS + (uint32_t)i * MANY_THREADS + threadIdx.x,
                   row = q / j.row_quads;
    const int64_t at = 4 * (int64_t)(q - row * j.row_quads);
    return many_quad{row * j.a.ldx + at, row * j.a.ldo + at, q < j.quads};
}

__device__ __forceinline__ float4 quad_add(float4 a, float4 b) {
    return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}

__device__ __forceinline__ void parts_send(const many_job &j, uint32_t begin, int first, int end,
                                           uint64_t number) {
    const cuda_ranks &of = j.a.of;
    for (int t = first; t < end; t++) {
        if (t % of.n_rank == of.rank)
            continue;
        float4 *const to = part_at(j, of.rank, t), v[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const many_quad q = quad_of(j, begin, t, i);
            v[i] = q.there ? __ldcg((const float4 *)(j.a.x + q.x)) : make_float4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < EACH; i++)
            to[i * MANY_THREADS + threadIdx.x] = v[i];
    }
    __syncthreads();
    if (first + (int)threadIdx.x < end)
        __threadfence_system();
    for (int t = first + (int)threadIdx.x; t < end; t += MANY_THREADS)
        if (t % of.n_rank != of.rank)
            flag_set(part_flag(j, of.rank, t), number);
}

/* Adds this rank's tiles, and sends them to the others as they are in `out`, which all ranks have alike
 * before. */
__device__ __forceinline__ void sums_send(const many_job &j, uint32_t begin, int first, int end,
                                          uint64_t number, int64_t pass) {
    const cuda_ranks &of = j.a.of;
    for (int t = first; t < end; t++) {
        if (t % of.n_rank != of.rank)
            continue;
        if ((int)threadIdx.x < of.n_rank && (int)threadIdx.x != of.rank)
            flag_wait(of, part_flag(j, threadIdx.x, t), number, pass);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const many_quad q = quad_of(j, begin, t, i);
            float4 sum = make_float4(0, 0, 0, 0);
            if (!q.there)
                continue;
            for (int r = 0; r < of.n_rank; r++) {
                const float4 v = r == of.rank ? __ldcg((const float4 *)(j.a.x + q.x))
                                              : __ldcg(part_at(j, r, t) + i * MANY_THREADS + threadIdx.x);
                sum = r == 0 ? v : quad_add(sum, v);
            }
            float4 *const out = (float4 *)(j.a.out + q.out);
            if (j.a.adds)
                sum = quad_add(__ldcg(out), sum);
            *out = sum;
            for (int r = 0; r < of.n_rank; r++)
                if (r != of.rank)
                    place_of(j, r).sums[t * TILE_QUADS + i * MANY_THREADS + threadIdx.x] = sum;
        }
    }
    __syncthreads();
    if (first + (int)threadIdx.x < end)
        __threadfence_system();
    for (int t = first + (int)threadIdx.x; t < end; t += MANY_THREADS)
        for (int r = 0; r < of.n_rank && t % of.n_rank == of.rank; r++)
            if (r != of.rank)
                flag_set(place_of(j, r).sum_flags + t, number);
}

__device__ __forceinline__ void sums_take(const many_job &j, uint32_t begin, int first, int end,
                                          uint64_t number, int64_t pass) {
    const cuda_ranks &of = j.a.of;
    const many_place here = place_of(j, of.rank);
    for (int t = first; t < end; t++) {
        if (t % of.n_rank == of.rank)
            continue;
        if (threadIdx.x == 0)
            flag_wait(of, here.sum_flags + t, number, pass);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const many_quad q = quad_of(j, begin, t, i);
            if (q.there)
                *(float4 *)(j.a.out + q.out) =
                    __ldcg(here.sums + t * TILE_QUADS + i * MANY_THREADS + threadIdx.x);
        }
    }
}

__global__ void __launch_bounds__(MANY_THREADS) reduce_many(const __grid_constant__ many_job j) {
    const int first = (int)blockIdx.x * j.each;
    launch_next();
    launch_wait();
    const int64_t pass = *j.a.of.pass;
    uint64_t number = number_of(j.a.of, pass);
    for (uint32_t begin = 0; begin < j.quads; begin += (uint32_t)j.tiles * TILE_QUADS, number++) {
        const int left = (int)((j.quads - begin + TILE_QUADS - 1) / TILE_QUADS),
                  end = min(first + j.each, min(left, j.tiles));
        parts_send(j, begin, first, end, number);
        sums_send(j, begin, first, end, number, pass);
        sums_take(j, begin, first, end, number, pass);
    }
}

int reduce_many_launch(const cuda_reduce *a, cuda_stream s) {
    /* From so many bytes on, by the link's 450 GB/s: two fences and a second way take about 5 us. */
    enum { WORTH = 9 << 18 };
    many_job j = {*a};
    const int64_t n = a->of.n_rank, quads = a->n_row * (a->n / 4);
    if (a->leaves.data || a->n % 4 || a->ldx % 4 || a->ldo % 4 || n < 2 || quads >= 1 << 30 ||
        a->n_row * a->n * 8 * (n - 1) * (n - 1) / n < WORTH)
        return CUDA_UNSUPPORTED;
    const int64_t all = (quads + TILE_QUADS - 1) / TILE_QUADS, most = cuda_ranks_tiles(a->of.max_pair);
    const int max = device_sm_count() < MANY_BLOCKS ? device_sm_count() : MANY_BLOCKS;
    j.row_quads = (uint32_t)(a->n / 4);
    j.quads = (uint32_t)quads;
    j.max_tiles = most;
    j.own = (most + n - 1) / n;
    j.tiles = (int)(all < most ? all : most);
    j.each = (j.tiles + max - 1) / max;
    const int e = prepare(reduce_many, 0);
    return e ? e
             : launch(reduce_many, dim3((unsigned)((j.tiles + j.each - 1) / j.each)), dim3(MANY_THREADS), 0,
                      s, j);
}

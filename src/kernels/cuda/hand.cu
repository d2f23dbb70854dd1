/* hand.cu - hands rows of experts to the host, which computes the experts that are not here, and takes their
 * outputs. Both sides poll counters in host memory, so a graph of a whole token has no gap but the wait. */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

#include <atomic>
#include <chrono>

enum { HAND_THREADS = 256 };

__device__ __forceinline__ uint32_t read_system(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

/* Blocks: a row each. The last one counts. */
__global__ void __launch_bounds__(HAND_THREADS) hand_rows_down(const __grid_constant__ cuda_hand_down a) {
    const int64_t row = blockIdx.x;
    const int k = (int)a.k, n = 2 * (int)a.n_used;
    const float *const x = a.x + row * a.ldx, *const chosen = a.chosen + row * a.ldc;
    float *const to = a.to_x + row * k;
    launch_next();
    launch_wait();
    if (k % 4 == 0 && ((uintptr_t)x | (uintptr_t)to) % 16 == 0)
        for (int i = threadIdx.x; i < k / 4; i += HAND_THREADS)
            ((float4 *)to)[i] = __ldcg((const float4 *)x + i);
    else
        for (int i = threadIdx.x; i < k; i += HAND_THREADS)
            to[i] = __ldcg(x + i);
    for (int i = threadIdx.x; i < n; i += HAND_THREADS)
        a.to_chosen[row * n + i] = __ldcg(chosen + i);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    if (a.n_row > 1) {
        if (atomicAdd(a.ended, 1u) != (unsigned)a.n_row - 1)
            return;
        *a.ended = 0;
        __threadfence_system();
    }
    const uint32_t count = a.mail.here[0] + 1;
    a.mail.here[0] = count;
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(a.mail.down), "r"(count) : "memory");
}

struct hand_up_job {
    cuda_hand_up a;
    codes_row leaves;
};

/* The first block waits for the host and tells the others, so that one thread reads over the link. */
__device__ __forceinline__ void wait_for_host(const cuda_mail &mail) {
    if (threadIdx.x == 0) {
        const uint32_t count = read_system(mail.here);
        const bool first = blockIdx.x == 0 && blockIdx.y == 0;
        const uint32_t *const at = first ? mail.up : mail.here + 1;
        while ((int32_t)(read_system(at) - count) < 0)
            __nanosleep(first ? 100 : 200);
        __threadfence_system();
        if (first)
            asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(mail.here + 1), "r"(count) : "memory");
    }
    __syncthreads();
}

__global__ void __launch_bounds__(HAND_THREADS) hand_rows_up(const __grid_constant__ hand_up_job j) {
    const cuda_hand_up &a = j.a;
    const int i = blockIdx.x * HAND_THREADS + threadIdx.x, row = blockIdx.y, n_used = (int)a.n_used;
    const int64_t first = (int64_t)row * n_used;
    const float *const chosen = a.chosen + row * a.ldc;
    launch_next();
    launch_wait();
    wait_for_host(a.mail);
    if (i >= a.n)
        return;
    float v = 0.0f;
    for (int u = 0; u < n_used; u++) {
        const bool is_here = a.here && a.here[(int)chosen[u]] >= 0;
        const float *const from = (is_here ? a.part : a.host) + (first + u) * a.n + i;
        const float x = is_here ? __ldcg(from) : __ldcv(from);
        v = __fadd_rn(v, a.weighted ? __fmul_rn(x, chosen[n_used + u]) : x);
    }
    float *const y = a.y + row * a.ldy + i;
    v = a.adds ? __fadd_rn(*y, v) : v;
    *y = v;
    if (j.leaves.codes)
        group_leave(j.leaves, i, v, j.leaves.norm ? j.leaves.norm[i] : 1.0f);
}

int hand_down_launch(const cuda_hand_down *a, cuda_stream s) {
    if (a->n_row < 1 || a->k < 1 || a->n_used < 1)
        return CUDA_UNSUPPORTED;
    const int e = prepare(hand_rows_down, 0);
    return e ? e : launch(hand_rows_down, dim3((unsigned)a->n_row), dim3(HAND_THREADS), 0, s, *a);
}

int hand_up_launch(const cuda_hand_up *a, cuda_stream s) {
    hand_up_job j = {*a};
    if (a->n_row < 1 || a->n_row > 65535 || a->n < 1 || (a->leaves.data && (a->n_row > 1 || a->n % 32)))
        return CUDA_UNSUPPORTED;
    if (a->leaves.data)
        j.leaves = codes_of(a->leaves, a->n);
    const int e = prepare(hand_rows_up, 0);
    return e ? e
             : launch(hand_rows_up,
                      dim3((unsigned)((a->n + HAND_THREADS - 1) / HAND_THREADS), (unsigned)a->n_row),
                      dim3(HAND_THREADS), 0, s, j);
}

/* A stream that has failed never counts, so it is asked once a second: not more often, because the driver may
 * be busy with another thread's call that waits for the device. */
int handed_down(const uint32_t *down, uint32_t count, cuda_stream s) {
    const auto *const at = reinterpret_cast<const std::atomic<uint32_t> *>(down);
    auto asked = std::chrono::steady_clock::now();
    for (unsigned turn = 1;; turn++) {
        if (at->load(std::memory_order_acquire) == count)
            return 0;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (turn % 1024)
            continue;
        const auto now = std::chrono::steady_clock::now();
        if (now - asked < std::chrono::seconds(1))
            continue;
        asked = now;
        const cudaError_t e = cudaStreamQuery((cudaStream_t)s);
        if (e == cudaErrorNotReady)
            (void)cudaGetLastError(); /* or the next launch would report it */
        if (e != cudaSuccess && e != cudaErrorNotReady)
            return (int)e;
        if (e == cudaSuccess && at->load(std::memory_order_acquire) != count)
            return (int)cudaErrorUnknown;
    }
}

/* move.cu - copies keys and values of a layer between the host's pages and the GPU's. Both have pages of
 * CUDA_PAGE positions in halves. Values have the same order; a head's keys are [CUDA_PAGE / 16][d_head][16]
 * on the host (kernels/kv_layout.h) and [CUDA_PAGE][d_head] on the GPU.
 *
 * A block copies a head's keys or values of one page. It reads and writes the host's memory directly, 16
 * bytes a thread, and reorders keys in shared memory, 16 positions at a time. */
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum {
    MOVE_THREADS = 256,
    TOGETHER = 16 /* positions whose keys are stored together on the host */,
    EIGHT = 8
};

/* Copies the keys of 16 positions, [d][16] at `host` and [16][d] at `here`. */
__device__ __forceinline__ void move_keys(uint4 *host, uint4 *here, int d, bool up, __half *shared) {
    const int n = TOGETHER * d / EIGHT;
    const uint4 *from = up ? host : here;
    for (int i = threadIdx.x; i < n; i += MOVE_THREADS)
        ((uint4 *)shared)[i] = from[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += MOVE_THREADS) {
        __half eight[EIGHT];
        const int at = i * EIGHT;
#pragma unroll
        for (int e = 0; e < EIGHT; e++)
            eight[e] = up ? shared[(at % d + e) * TOGETHER + at / d]
                          : shared[(at % TOGETHER + e) * d + at / TOGETHER];
        (up ? here : host)[i] = *(const uint4 *)eight;
    }
    __syncthreads();
}

__global__ void __launch_bounds__(MOVE_THREADS) move_pages(const __grid_constant__ cuda_move a) {
    __shared__ __align__(16) __half shared[TOGETHER * 256];
    const int d = (int)a.here.d_head, n = CUDA_PAGE * d / EIGHT;
    const bool is_value = blockIdx.z;
    launch_next();
    launch_wait();
    const int2 pair = ((const int2 *)a.pairs)[blockIdx.x];
    const int64_t head = (int64_t)blockIdx.y * CUDA_PAGE * d;
    uint4 *here = (uint4 *)((__half *)(is_value ? a.here.v : a.here.k) + pair.x * a.here.page + head);
    uint4 *host = (uint4 *)((__half *)(is_value ? a.host_v : a.host_k) + pair.y * a.here.page + head);
    if (is_value)
        for (int i = threadIdx.x; i < n; i += MOVE_THREADS)
            *((a.up ? here : host) + i) = (a.up ? host : here)[i];
    else
        for (int p = 0; p < CUDA_PAGE / TOGETHER; p++)
            move_keys(host + p * TOGETHER * d / EIGHT, here + p * TOGETHER * d / EIGHT, d, a.up, shared);
}

int move_launch(const cuda_move *a, cuda_stream s) {
    const int64_t d = a->here.d_head;
    if (d < 8 || d > 256 || d % 8 || a->n_page < 0 || a->here.n_kv_head > 65535)
        return CUDA_UNSUPPORTED;
    if (a->n_page == 0)
        return 0;
    const int e = prepare(move_pages, 0);
    return e ? e
             : launch(move_pages, dim3((unsigned)a->n_page, (unsigned)a->here.n_kv_head, 2),
                      dim3(MOVE_THREADS), 0, s, *a);
}

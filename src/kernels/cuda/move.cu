/* move.cu - copies keys and values of a layer between the host's pages and the GPU's. Both have pages of
 * CUDA_PAGE positions in halves. Values have the same order; a head's keys are [CUDA_PAGE / 16][d_head][16]
 * on the host (kernels/kv_layout.h) and [CUDA_PAGE][d_head] on the GPU.
 *
 * A block copies a head's keys or values of one page. It reads and writes the host's memory directly, 16
 * bytes a thread, and reorders keys in shared memory, 16 positions at a time. Codes of 8 and 4 bits have
 * another order on each side (code_order.h): a block reads all of a head's into shared memory. */
#include "kernels/cuda/code_order.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum {
    MOVE_THREADS = 256,
    TOGETHER = 16 /* positions whose keys are stored together on the host */,
    EIGHT = 8,
    MAX_CODES = CUDA_MAX_SHARED * (CUDA_PAGE + 8) /* bytes of a head's codes, scales and minima */
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
    __shared__ __align__(16) __half shared[TOGETHER * CUDA_MAX_SHARED];
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

/* The code at a place of a head's block. */
__device__ __forceinline__ uint32_t code_of(const uint8_t *codes, int bits, int place) {
    return bits == 8 ? codes[place] : codes[place / 2] >> place % 2 * 4 & 15;
}

/* The four bytes of the other order that begin at byte `at`. */
__device__ __forceinline__ uint32_t four_bytes(const uint8_t *from, code_block b, int at, bool up) {
    const int n = 32 / b.bits, first = at * 8 / b.bits;
    uint32_t sum = 0;
    for (int i = 0; i < n; i++) {
        const code_at x = up ? code_device_at(b, first + i) : code_host_at(b, first + i);
        const int place = up ? code_host_place(b, x) : code_device_place(b, x);
        sum |= code_of(from, b.bits, place) << i * b.bits;
    }
    return sum;
}

__global__ void __launch_bounds__(MOVE_THREADS) move_codes(const __grid_constant__ cuda_move a) {
    __shared__ __align__(16) uint8_t shared[MAX_CODES];
    const code_block b = {a.here.code_bits, ((int)a.here.d_head + 31) / 32 * 32, blockIdx.z != 0};
    const int n = b.d_pad * CUDA_PAGE * b.bits / 8, n_scale = 2 * b.d_pad, n_group = b.d_pad / 32;
    const int all = n + 2 * n_scale * (int)sizeof(uint16_t);
    launch_next();
    launch_wait();
    const int2 pair = ((const int2 *)a.pairs)[blockIdx.x];
    const int64_t head = (int64_t)blockIdx.y * all;
    uint8_t *here = (uint8_t *)((__half *)(b.is_value ? a.here.v : a.here.k) + pair.x * a.here.page) + head;
    uint8_t *host = (uint8_t *)((__half *)(b.is_value ? a.host_v : a.host_k) + pair.y * a.here.page) + head;
    for (int i = threadIdx.x; i < all / 16; i += MOVE_THREADS)
        ((uint4 *)shared)[i] = ((const uint4 *)(a.up ? host : here))[i];
    __syncthreads();
    uint8_t *const to = a.up ? here : host;
    for (int i = threadIdx.x; i < n / 4; i += MOVE_THREADS)
        ((uint32_t *)to)[i] = four_bytes(shared, b, i * 4, a.up);
    const uint16_t *scales = (const uint16_t *)(shared + n);
    for (int i = threadIdx.x; i < 2 * n_scale; i += MOVE_THREADS) {
        const int first = i / n_scale * n_scale, k = i % n_scale;
        const int of = !b.is_value ? k
                       : a.up      ? k % CUDA_PAGE * n_group + k / CUDA_PAGE
                                   : k % n_group * CUDA_PAGE + k / n_group;
        ((uint16_t *)(to + n))[i] = scales[first + of];
    }
}

int move_launch(const cuda_move *a, cuda_stream s) {
    const int64_t d = a->here.d_head;
    const unsigned n_kind = a->here.v ? 2 : 1; /* keys, and values */
    if (d < 8 || d > (a->here.v ? 256 : (int64_t)CUDA_MAX_SHARED) || d % 8 || a->n_page < 0 ||
        a->here.n_kv_head > 65535)
        return CUDA_UNSUPPORTED;
    if (a->n_page == 0)
        return 0;
    const auto kernel = a->here.code_bits ? move_codes : move_pages;
    const int e = prepare(kernel, 0);
    return e ? e
             : launch(kernel, dim3((unsigned)a->n_page, (unsigned)a->here.n_kv_head, n_kind),
                      dim3(MOVE_THREADS), 0, s, *a);
}

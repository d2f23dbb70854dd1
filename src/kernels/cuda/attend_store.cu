/* attend_store.cu - stores keys and values of many rows in their pages: as halves, and as whole blocks of
 * codes. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum { STORE_THREADS = 128, PACK_THREADS = 256, MAX_HEAD = 256 };

/* Whether the launch also has rows two blocks later in the same sequence, which are stored at this row's
 * address. */
__device__ __forceinline__ bool is_overtaken(const cuda_attend &a, int row, int position) {
    const int64_t then = row + 2 * CUDA_PAGE - position % CUDA_PAGE;
    return a.kv.code_bits && then < a.n_row && a.first_page[then] == a.first_page[row];
}

/* A block has a row. A thread stores one pair of the key after the other, and the same pairs of the value. */
__global__ void __launch_bounds__(STORE_THREADS) store_rows(const __grid_constant__ cuda_attend a) {
    const int d = (int)a.kv.d_head, row = blockIdx.x, n_pair = (int)a.kv.n_kv_head * d / 2;
    launch_next();
    launch_wait();
    const int position = a.position[row];
    const int32_t *pages = a.pages + a.first_page[row];
    if (is_overtaken(a, row, position))
        return;
    __half *k = (__half *)recent_at(a, false, pages, position / CUDA_PAGE, 0),
           *v = (__half *)recent_at(a, true, pages, position / CUDA_PAGE, 0);
#pragma unroll 4
    for (int n = threadIdx.x; n < n_pair; n += STORE_THREADS) {
        const int head = n / (d / 2), i = n % (d / 2);
        const int2 at = pair_elements(a, i);
        const float *value = a.v + row * a.ldv + head * d;
        const float2 x = key_pair(a, row, position, head, i);
        const int to = (head * CUDA_PAGE + position % CUDA_PAGE) * d;
        k[to + at.x] = __float2half_rn(x.x);
        k[to + at.y] = __float2half_rn(x.y);
        v[to + at.x] = __float2half_rn(value[at.x]);
        v[to + at.y] = __float2half_rn(value[at.y]);
    }
}

/* Gathers the keys or values of one head of the block that ends with `row`: from the launch's rows, and older
 * ones from the page of newest positions. */
__device__ __forceinline__ void block_gather(const cuda_attend &a, bool is_value, int row, int head,
                                             __half *to) {
    const int d = (int)a.kv.d_head, position = a.position[row], first = row - (CUDA_PAGE - 1);
    const __half *old = recent_at(a, is_value, a.pages + a.first_page[row], position / CUDA_PAGE, head);
    for (int n = threadIdx.x; n < CUDA_PAGE * d / 2; n += PACK_THREADS) {
        const int p = n / (d / 2), i = n % (d / 2), from = first + p;
        const bool is_row = from >= 0 && a.first_page[from] == a.first_page[row];
        const int2 at = is_value ? make_int2(2 * i, 2 * i + 1) : pair_elements(a, i);
        const float *value = a.v + from * a.ldv + head * d;
        if (!is_row) {
            to[p * d + at.x] = old[p * d + at.x];
            to[p * d + at.y] = old[p * d + at.y];
            continue;
        }
        const float2 x = is_value ? make_float2(value[at.x], value[at.y])
                                  : key_pair(a, from, position - (CUDA_PAGE - 1) + p, head, i);
        to[p * d + at.x] = __float2half_rn(x.x);
        to[p * d + at.y] = __float2half_rn(x.y);
    }
}

/* A thread block has one KV head of one row. It does nothing unless the row ends a block of positions. */
__global__ void __launch_bounds__(PACK_THREADS) pack_rows(const __grid_constant__ cuda_attend a) {
    __shared__ __align__(16) __half block[CUDA_PAGE * MAX_HEAD];
    const int d = (int)a.kv.d_head, row = blockIdx.x, head = blockIdx.y, bits = a.kv.code_bits;
    launch_next();
    launch_wait();
    const int position = a.position[row], page = position / CUDA_PAGE;
    const int32_t *pages = a.pages + a.first_page[row];
    if (position % CUDA_PAGE != CUDA_PAGE - 1)
        return;
    block_gather(a, false, row, head, block);
    __syncthreads();
    pack_keys(bits, d, block, (uint8_t *)page_at(a, a.kv.k, bits, pages, page, head));
    __syncthreads();
    block_gather(a, true, row, head, block);
    __syncthreads();
    pack_values(bits, d, block, (uint8_t *)page_at(a, a.kv.v, bits, pages, page, head));
}

static bool can_store(const cuda_attend *a) {
    const int64_t d = a->kv.d_head;
    return d >= 8 && d <= MAX_HEAD && d % 8 == 0 && a->n_rot <= d && a->n_row >= 1 && a->n_row <= 65535 &&
           a->kv.n_kv_head <= 65535;
}

int store_launch(const cuda_attend *a, cuda_stream s) {
    if (!can_store(a))
        return CUDA_UNSUPPORTED;
    const int e = prepare(store_rows, 0);
    return e ? e : launch(store_rows, dim3((unsigned)a->n_row), dim3(STORE_THREADS), 0, s, *a);
}

int pack_launch(const cuda_attend *a, cuda_stream s) {
    if (!can_store(a) || (a->kv.code_bits != 8 && a->kv.code_bits != 4))
        return CUDA_UNSUPPORTED;
    const int e = prepare(pack_rows, 0);
    return e ? e
             : launch(pack_rows, dim3((unsigned)a->n_row, (unsigned)a->kv.n_kv_head), dim3(PACK_THREADS), 0,
                      s, *a);
}

/* attend_store.cu - stores keys and values of many rows in their pages: as halves, and as whole blocks of
 * codes. Keys that are the values too are stored once (a.v is not read). */
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
    const bool has_values = a.kv.v != nullptr;
    __half *k = (__half *)recent_at(a, false, pages, position / CUDA_PAGE, 0),
           *v = has_values ? (__half *)recent_at(a, true, pages, position / CUDA_PAGE, 0) : nullptr;
#pragma unroll 4
    for (int n = threadIdx.x; n < n_pair; n += STORE_THREADS) {
        const int head = n / (d / 2), i = n % (d / 2);
        const int2 at = pair_elements(a, i);
        const float *value = a.v + row * a.ldv + head * d;
        const float2 x = key_pair(a, row, position, head, i);
        const int to = (head * CUDA_PAGE + position % CUDA_PAGE) * d;
        k[to + at.x] = __float2half_rn(x.x);
        k[to + at.y] = __float2half_rn(x.y);
        if (!has_values)
            continue;
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

/* Packs keys that are the values too: a warp has one half of the positions of 32 channels. */
__global__ void __launch_bounds__(64) pack_shared(const __grid_constant__ cuda_attend a) {
    const int d = (int)a.kv.d_head, d_pad = (d + 31) / 32 * 32, bits = a.kv.code_bits, row = blockIdx.x,
              side = threadIdx.x / 32, c = blockIdx.y * 32 + threadIdx.x % 32;
    launch_next();
    launch_wait();
    const int position = a.position[row], page = position / CUDA_PAGE;
    const int32_t *pages = a.pages + a.first_page[row];
    if (position % CUDA_PAGE != CUDA_PAGE - 1)
        return;
    const __half *old = recent_at(a, false, pages, page, 0);
    uint8_t *to = (uint8_t *)page_at(a, a.kv.k, bits, pages, page, 0);
    __half *const scales = (__half *)(to + d_pad * CUDA_PAGE * bits / 8) + side * d_pad + c;
    float x[32];
#pragma unroll
    for (int p = 0; p < 32; p++) {
        const int at = side * 32 + p, from = row - (CUDA_PAGE - 1) + at;
        const bool is_row = from >= 0 && a.first_page[from] == a.first_page[row];
        const __half h = c >= d   ? __float2half_rn(0.0f)
                         : is_row ? __float2half_rn(a.k[from * a.ldk + c])
                                  : old[at * d + c];
        x[p] = __half2float(h);
    }
    const code_group g = group_of(x, 32, bits);
    scales[0] = g.scale;
    scales[2 * d_pad] = g.min;
#pragma unroll
    for (int p = 0; p < 32; p++)
        codes_store(bits, to, (side * 32 + p) * d_pad + c, g.code(x[p]));
}

static bool can_store(const cuda_attend *a) {
    const int64_t d = a->kv.d_head, most = a->kv.v ? (int64_t)MAX_HEAD : (int64_t)CUDA_MAX_SHARED;
    return d >= 8 && d <= most && d % 8 == 0 && a->n_rot <= d && a->n_row >= 1 && a->n_row <= 65535 &&
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
    if (!a->kv.v) {
        const dim3 grid((unsigned)a->n_row, (unsigned)((a->kv.d_head + 31) / 32));
        const int e = a->cos_sin ? (int)CUDA_UNSUPPORTED : prepare(pack_shared, 0);
        return e ? e : launch(pack_shared, grid, dim3(64), 0, s, *a);
    }
    const int e = prepare(pack_rows, 0);
    return e ? e
             : launch(pack_rows, dim3((unsigned)a->n_row, (unsigned)a->kv.n_kv_head), dim3(PACK_THREADS), 0,
                      s, *a);
}

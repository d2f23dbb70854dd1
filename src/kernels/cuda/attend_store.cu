/* attend_store.cu - stores keys and values of many rows in their pages: as halves, and as whole blocks of
 * codes. Keys that are the values too are stored once (a.v is not read). */
#include "kernels/cuda/attend_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum { STORE_THREADS = 128, PACK_THREADS = 256, MAX_HEAD = 256 };

/* Whether the launch also has rows of the next block of the same sequence, which are stored in the same
 * page. */
__device__ __forceinline__ bool is_overtaken(const cuda_attend &a, int row, int position) {
    const int64_t then = row + CUDA_PAGE - position % CUDA_PAGE;
    return a.kv.code_bits && then < a.n_row && a.first_page[then] == a.first_page[row];
}

/* A block has a row. A thread stores eight elements of a key after the other, and those of the value. */
__global__ void __launch_bounds__(STORE_THREADS) store_rows(const __grid_constant__ cuda_attend a) {
    const int d = (int)a.kv.d_head, row = blockIdx.x, eights = d / 8, n = (int)a.kv.n_kv_head * eights;
    launch_next();
    launch_wait();
    const int position = a.position[row];
    const int32_t *pages = a.pages + a.first_page[row];
    if (is_overtaken(a, row, position))
        return;
    const bool has_values = a.kv.v != nullptr;
    __half *k = (__half *)recent_at(a, false, pages, position / CUDA_PAGE, 0),
           *v = has_values ? (__half *)recent_at(a, true, pages, position / CUDA_PAGE, 0) : nullptr;
#pragma unroll 2
    for (int i = threadIdx.x; i < n; i += STORE_THREADS) {
        const int head = i / eights, u = i % eights,
                  to = (head * CUDA_PAGE + position % CUDA_PAGE) * d + u * 8;
        float key[8], value[8];
        eight_at(new_at(a, false, row, head) + u * 8, key);
        if (has_values)
            eight_at(new_at(a, true, row, head) + u * 8, value);
        *(uint4 *)(k + to) = eight_finish(a, false, row, position, head, u, key);
        if (has_values)
            *(uint4 *)(v + to) = eight_finish(a, true, row, position, head, u, value);
    }
}

/* A thread block has `each` rows and the keys or the values of one head. Rows that end a block of positions
 * pack it. */
template <int D>
__global__ void __launch_bounds__(PACK_THREADS, 4)
    pack_rows(const __grid_constant__ cuda_attend a, int each) {
    extern __shared__ __align__(16) uint8_t shared[];
    __half *const block = (__half *)shared;
    const int d = D ? D : (int)a.kv.d_head, line = d + 8 /* lines begin in different banks */,
              head = blockIdx.y, bits = a.kv.code_bits, row0 = blockIdx.x * each,
              end = min(row0 + each, (int)a.n_row);
    const bool is_value = blockIdx.z;
    launch_next();
    launch_wait();
    for (int base = row0; base < end; base += 32) {
        const int mine = min(base + (int)threadIdx.x % 32, end - 1);
        uint32_t ends = __ballot_sync(~0u, a.position[mine] % CUDA_PAGE == CUDA_PAGE - 1);
        ends &= end - base >= 32 ? ~0u : (1u << (end - base)) - 1;
        for (; ends; ends &= ends - 1) {
            const int row = base + __ffs(ends) - 1, page = a.position[row] / CUDA_PAGE;
            const int32_t *pages = a.pages + a.first_page[row];
            block_gather<D, 2, false>(
                a, is_value, head, page * CUDA_PAGE, row - (CUDA_PAGE - 1), row, threadIdx.x, PACK_THREADS,
                [&](int p, int u, uint4 h) { *(uint4 *)(block + p * line + u * 8) = h; });
            __syncthreads();
            if (is_value)
                pack_values(bits, d, block, line, (uint8_t *)page_at(a, a.kv.v, bits, pages, page, head));
            else
                pack_keys(bits, d, block, line, (uint8_t *)page_at(a, a.kv.k, bits, pages, page, head));
            __syncthreads();
        }
    }
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
    const size_t block = CUDA_PAGE * (size_t)(a->kv.d_head + 8) * sizeof(__half);
    /* one block of a prompt's; of generated rows any may end one */
    const int each = a->n_row > CUDA_MAX_ROWS ? CUDA_PAGE : 4;
    const dim3 grid((unsigned)((a->n_row + each - 1) / each), (unsigned)a->kv.n_kv_head, 2);
    const auto kernel = a->kv.d_head == 64    ? pack_rows<64>
                        : a->kv.d_head == 128 ? pack_rows<128>
                                              : pack_rows<0>;
    const int e = prepare(kernel, block);
    return e ? e : launch(kernel, grid, dim3(PACK_THREADS), block, s, *a, each);
}

/* rows.cu - kernels over whole rows: norms, element-wise ops, the embedding look-up; and conversion between
 * Q-tile and G-tile. */
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/tile_value.cuh"

enum { ROW_THREADS = 256 };

/* ---- norms ---- */

/* A thread has each 256th element of a group, at most KEEP of them, and keeps them in registers (KEEP 0: it
 * reads them again). */
template <int KEEP>
__global__ void __launch_bounds__(ROW_THREADS) norm_rows(const __grid_constant__ cuda_norm a) {
    enum { SLOTS = KEEP ? KEEP : 1 };
    __shared__ float shared[ROW_THREADS / 32];
    const int d = (int)(a.k / a.n_group), begin = threadIdx.x;
    const bool second = blockIdx.x >= a.n_group;
    const int64_t at = (blockIdx.x - (second ? a.n_group : 0)) * d;
    const float *const x = (second ? a.x2 + blockIdx.y * a.ldx2 : a.x + blockIdx.y * a.ldx) + at,
                       *w = second ? a.w2 : a.w, *b = second ? a.b2 : a.b;
    float *const out = (second ? a.out2 + blockIdx.y * a.ldo2 : a.out + blockIdx.y * a.ldo) + at;
    float kept[SLOTS], scale[SLOTS], shift[SLOTS], sum = 0.0f, centre = 0.0f;
    if (a.w_full) {
        w = w ? w + at : w;
        b = b ? b + at : b;
    }
    auto keep = [&](float(&to)[SLOTS], const float *from) {
#pragma unroll
        for (int m = 0; m < KEEP; m++)
            to[m] = from && begin + m * ROW_THREADS < d ? from[begin + m * ROW_THREADS] : 0.0f;
    };
    /* Calls f(element, its value, its slot). */
    auto each = [&](auto f) {
        if (KEEP) {
#pragma unroll
            for (int m = 0; m < KEEP; m++)
                if (begin + m * ROW_THREADS < d)
                    f(begin + m * ROW_THREADS, kept[KEEP ? m : 0], KEEP ? m : 0);
        } else
            for (int i = begin; i < d; i += ROW_THREADS)
                f(i, x[i], 0);
    };
    keep(scale, w);
    keep(shift, b);
    launch_next();
    launch_wait();
    keep(kept, x);
    if (a.kind == NORM_LAYER) {
        each([&](int, float v, int) { sum = __fadd_rn(sum, v); });
        centre = __fdiv_rn(block_sum<ROW_THREADS / 32>(sum, shared), (float)d);
        sum = 0.0f;
    }
    each([&](int, float v, int) {
        const float t = __fsub_rn(v, centre);
        sum = __fmaf_rn(t, t, sum);
    });
    sum = block_sum<ROW_THREADS / 32>(sum, shared);
    const float factor = norm_factor_of(sum, (float)d, a.eps);
    each([&](int i, float v, int m) {
        float y = __fmul_rn(__fsub_rn(v, centre), factor);
        y = w ? __fmul_rn(y, KEEP ? scale[m] : w[i]) : y;
        out[i] = b ? __fadd_rn(y, KEEP ? shift[m] : b[i]) : y;
    });
}

/* Norms of small groups, as the heads of q and k are: a warp has a group of a row. */
enum { GROUP_MAX = 256 };
__global__ void __launch_bounds__(ROW_THREADS) norm_groups(const __grid_constant__ cuda_norm a) {
    const int d = (int)(a.k / a.n_group), lane = threadIdx.x % 32, all = (int)(a.n_group + a.n_group2);
    const int64_t unit = (int64_t)blockIdx.x * (ROW_THREADS / 32) + threadIdx.x / 32, row = unit / all;
    const int group = (int)(unit - row * all);
    const bool second = group >= a.n_group;
    const int64_t at = (group - (second ? a.n_group : 0)) * d, weights = a.w_full ? at : 0;
    const float *x = (second ? a.x2 + row * a.ldx2 : a.x + row * a.ldx) + at, *w = second ? a.w2 : a.w,
                *b = second ? a.b2 : a.b;
    float *const out = (second ? a.out2 + row * a.ldo2 : a.out + row * a.ldo) + at;
    float v[GROUP_MAX / 32], sum = 0.0f, centre = 0.0f;
    launch_next();
    launch_wait();
    if (row >= a.n_row)
        return;
#pragma unroll
    for (int i = 0; i < GROUP_MAX / 32; i++)
        v[i] = lane + 32 * i < d ? __ldcg(x + lane + 32 * i) : 0.0f;
    if (a.kind == NORM_LAYER) {
#pragma unroll
        for (int i = 0; i < GROUP_MAX / 32; i++)
            sum = __fadd_rn(sum, v[i]);
        centre = __fdiv_rn(pairs_sum(sum, 32), (float)d);
        sum = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < GROUP_MAX / 32; i++) {
        v[i] = __fsub_rn(v[i], centre);
        sum = lane + 32 * i < d ? __fmaf_rn(v[i], v[i], sum) : sum;
    }
    const float factor = norm_factor_of(pairs_sum(sum, 32), (float)d, a.eps);
#pragma unroll
    for (int i = 0; i < GROUP_MAX / 32; i++) {
        const int e = lane + 32 * i;
        if (e >= d)
            break;
        float y = __fmul_rn(v[i], factor);
        y = w ? __fmul_rn(y, w[weights + e]) : y;
        out[e] = b ? __fadd_rn(y, b[weights + e]) : y;
    }
}

int norm_launch(const cuda_norm *a, cuda_stream s) {
    if (a->n_group < 1 || a->k % a->n_group || a->n_row < 1 || a->n_row > 65535)
        return CUDA_UNSUPPORTED;
    const int64_t all = a->n_group + a->n_group2;
    if (a->n_group > 1 && a->k / a->n_group <= GROUP_MAX) {
        const int e = prepare(norm_groups, 0);
        const int64_t blocks = (a->n_row * all + ROW_THREADS / 32 - 1) / (ROW_THREADS / 32);
        return e ? e : launch(norm_groups, dim3((unsigned)blocks), dim3(ROW_THREADS), 0, s, *a);
    }
    const int64_t each = (a->k / a->n_group + ROW_THREADS - 1) / ROW_THREADS;
    const auto kernel = each <= 4    ? norm_rows<4>
                        : each <= 16 ? norm_rows<16>
                        : each <= 32 ? norm_rows<32>
                                     : norm_rows<0>;
    const int e = prepare(kernel, 0);
    return e ? e : launch(kernel, dim3((unsigned)all, (unsigned)a->n_row), dim3(ROW_THREADS), 0, s, *a);
}

/* ---- element by element ---- */

__device__ __forceinline__ float sigmoid_of(float x) {
    return 1.0f / (1.0f + expf(-x));
}
__device__ __forceinline__ float xielu_value(const xielu &by, float x) {
    if (x > 0)
        return __fmul_rn(x, __fmaf_rn(by.positive, x, by.linear));
    return __fmaf_rn(by.linear, x, __fmul_rn(__fsub_rn(expm1f(fminf(x, by.limit)), x), by.negative));
}
__device__ __forceinline__ float position_scale(const cuda_each &a, int row) {
    const float steps = floorf(__fdiv_rn((float)(a.position[row] + a.offset), (float)a.every));
    return __fadd_rn(1.0f, __fmul_rn(a.value, logf(1.0f + steps)));
}

__global__ void __launch_bounds__(ROW_THREADS)
    each_element(const __grid_constant__ cuda_each a, const __grid_constant__ codes_row leaves) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x;
    const int row = blockIdx.y;
    const float norm = leaves.norm && i < a.n ? leaves.norm[i] : 1.0f;
    launch_next();
    launch_wait();
    if (i >= a.n)
        return;
    const float x = a.x[row * a.ldx + (a.kind == OP_SHARE ? i / a.each : i)], *y = a.y + row * a.ldy + i;
    float v;
    switch (a.kind) {
    case OP_ACT: v = act_value(a.act, x); break;
    case OP_GATE: v = gate_value(a.act, x, *y); break;
    case OP_ADD:
        v = __fadd_rn(x, __fmul_rn(*y, a.z ? __fmul_rn(a.value, sigmoid_of(a.z[row * a.ldz])) : a.value));
        break;
    case OP_TIMES:
    case OP_SHARE: v = __fmul_rn(x, *y); break;
    case OP_SOFTPLUS: v = x > 20.0f ? x : log1pf(expf(x)); break;
    case OP_XIELU: v = xielu_value(a.xielu, x); break;
    case OP_SCALE_POS: v = __fmul_rn(x, position_scale(a, row)); break;
    case OP_SCALE: v = __fmul_rn(x, a.value); break;
    case OP_CLAMP: v = x < -a.value ? -a.value : x > a.value ? a.value : x; break;
    default: v = __fmul_rn(a.value, tanhf(__fdiv_rn(x, a.value)));
    }
    a.out[row * a.ldo + i] = v;
    if (leaves.codes)
        group_leave(leaves, (int)i, v, norm);
}

/* OP_ADD with `by`. Every block computes the row's product: its weights are in registers before the row is
 * there, and both are few. */
template <int TYPE>
__global__ void __launch_bounds__(ROW_THREADS)
    add_by(const __grid_constant__ cuda_each a, const __grid_constant__ codes_row leaves) {
    enum { AHEAD = 2, STEP = 4 * ROW_THREADS };
    __shared__ float shared[ROW_THREADS / 32];
    const int i = (int)(blockIdx.x * ROW_THREADS + threadIdx.x), row = blockIdx.y, k = (int)a.by.k,
              at = 4 * (int)threadIdx.x;
    const uint8_t *const by = (const uint8_t *)a.by.data;
    const float *const z = a.z + row * a.ldz;
    const bool there = i < a.n;
    float4 w[AHEAD];
#pragma unroll
    for (int m = 0; m < AHEAD; m++)
        if (at + m * STEP < k)
            w[m] = four_weights<TYPE>(by, at + m * STEP);
    const float norm = leaves.norm && there ? leaves.norm[i] : 1.0f;
    launch_next();
    launch_wait();
    const float x = there ? __ldcg(a.x + row * a.ldx + i) : 0.0f,
                y = there ? __ldcg(a.y + row * a.ldy + i) : 0.0f,
                before = there && a.total ? __ldcg(a.total + row * a.ldt + i) : 0.0f;
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < AHEAD; m++)
        if (at + m * STEP < k)
            sum = four_fma(w[m], four_inputs(z, at + m * STEP, k), sum);
    for (int e = at + AHEAD * STEP; e < k; e += STEP)
        sum = four_fma(four_weights<TYPE>(by, e), four_inputs(z, e, k), sum);
    sum = block_sum<ROW_THREADS / 32>(sum, shared);
    const float v = __fadd_rn(x, __fmul_rn(y, __fmul_rn(a.value, sigmoid_of(sum))));
    if (!there)
        return;
    a.out[row * a.ldo + i] = v;
    if (!a.total)
        return;
    const float total = __fadd_rn(before, v);
    a.total[row * a.ldt + i] = total;
    if (leaves.codes)
        group_leave(leaves, i, total, norm);
}

static int add_launch(const cuda_each *a, const codes_row &leaves, dim3 grid, cuda_stream s) {
    if (a->kind != OP_ADD || a->by.format.layout != PACK_ROWS || a->by.n != 1 || !a->y || !a->z ||
        (leaves.codes && !a->total))
        return CUDA_UNSUPPORTED;
    void (*const kernel)(const cuda_each, const codes_row) =
        a->by.format.type == TYPE_F32    ? add_by<TYPE_F32>
        : a->by.format.type == TYPE_F16  ? add_by<TYPE_F16>
        : a->by.format.type == TYPE_BF16 ? add_by<TYPE_BF16>
                                         : nullptr;
    const int e = kernel ? prepare(kernel, 0) : (int)CUDA_UNSUPPORTED;
    return e ? e : launch(kernel, grid, dim3(ROW_THREADS), 0, s, *a, leaves);
}

int each_launch(const cuda_each *a, cuda_stream s) {
    const bool known =
        a->kind >= OP_ACT && (a->kind <= OP_XIELU || a->kind == OP_SCALE_POS || a->kind == OP_TIMES ||
                              (a->kind == OP_SHARE && a->each > 0) || a->kind == OP_SOFTPLUS);
    if (!known || a->n < 1 || a->n_row < 1 || a->n_row > 65535 ||
        (a->leaves.data && (a->n_row > 1 || a->n % 32)))
        return CUDA_UNSUPPORTED;
    const codes_row leaves = a->leaves.data ? codes_of(a->leaves, a->n) : codes_row{};
    const dim3 grid((unsigned)((a->n + ROW_THREADS - 1) / ROW_THREADS), (unsigned)a->n_row);
    if (a->by.data)
        return add_launch(a, leaves, grid, s);
    const int e = prepare(each_element, 0);
    return e ? e : launch(each_element, grid, dim3(ROW_THREADS), 0, s, *a, leaves);
}

__global__ void __launch_bounds__(ROW_THREADS) columns_copy(const __grid_constant__ cuda_columns a) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x, each = a.n + a.n_zero;
    const int64_t group = i / each, in = i % each;
    launch_next();
    launch_wait();
    if (group < a.n_group)
        a.out[blockIdx.y * a.ldo + a.at + group * a.step + in] =
            in < a.n ? a.x[blockIdx.y * a.ldx + a.at_in + group * a.step_in + in] : 0.0f;
}

int columns_launch(const cuda_columns *a, cuda_stream s) {
    const int64_t all = a->n_group * (a->n + a->n_zero);
    if (all < 1 || a->n_row < 1 || a->n_row > 65535)
        return CUDA_UNSUPPORTED;
    const int e = prepare(columns_copy, 0);
    return e ? e
             : launch(columns_copy,
                      dim3((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)a->n_row),
                      dim3(ROW_THREADS), 0, s, *a);
}

/* A thread rotates a pair. */
__global__ void __launch_bounds__(ROW_THREADS) rope_pairs(const __grid_constant__ cuda_rope a) {
    const int64_t i = (int64_t)blockIdx.x * ROW_THREADS + threadIdx.x, half = a.n_rot / 2;
    const int64_t head = i / half, pair = i % half;
    launch_next();
    launch_wait();
    if (head >= a.n_head)
        return;
    const float *const by = a.cos_sin + blockIdx.y * a.n_rot;
    float *const x = a.x + blockIdx.y * a.ldx + head * a.d_head;
    const int64_t first = a.style == ROPE_HALF ? pair : 2 * pair,
                  second = a.style == ROPE_HALF ? pair + half : first + 1;
    const float u = x[first], v = x[second], c = by[pair], s = by[half + pair];
    x[first] = __fsub_rn(__fmul_rn(u, c), __fmul_rn(v, s));
    x[second] = __fadd_rn(__fmul_rn(v, c), __fmul_rn(u, s));
}

int rope_launch(const cuda_rope *a, cuda_stream s) {
    const int64_t all = a->n_head * (a->n_rot / 2);
    if (all < 1 || a->n_row < 1 || a->n_row > 65535)
        return CUDA_UNSUPPORTED;
    const int e = prepare(rope_pairs, 0);
    return e ? e
             : launch(rope_pairs, dim3((unsigned)((all + ROW_THREADS - 1) / ROW_THREADS), (unsigned)a->n_row),
                      dim3(ROW_THREADS), 0, s, *a);
}

/* ---- embedding ---- */

struct embed_job {
    const uint8_t *data;
    int type, rows; /* float rows: type and stride in bytes */
    tile_source tiles;
    int64_t n, k /* columns that are read */, column, offset, ldo;
    bool adds;
    const int32_t *row;
    float factor, *out;
};

/* Values at to at + 3 of a row of floats; zeros beyond its end. */
__device__ static float4 float_values(const embed_job &j, const uint8_t *row, int at) {
    float v[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (at + i >= j.k)
            break;
        switch (j.type) {
        case TYPE_F32: v[i] = ((const float *)row)[j.column + at + i]; break;
        case TYPE_F16: v[i] = half_of(row + 2 * (j.column + at + i)); break;
        default: v[i] = __uint_as_float((uint32_t)((const uint16_t *)row)[j.column + at + i] << 16);
        }
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

__global__ void __launch_bounds__(ROW_THREADS) embed_rows(const __grid_constant__ embed_job j) {
    launch_next();
    launch_wait();
    const int at = 4 * (blockIdx.x * ROW_THREADS + threadIdx.x);
    const int64_t r = j.row[blockIdx.y] + j.offset;
    if (at >= j.k || r < 0 || r >= j.n)
        return;
    const float4 four = j.type == TYPE_COUNT ? tile_values(j.tiles, r, (int)j.column + at)
                                             : float_values(j, j.data + r * j.rows, at);
    const float v[4] = {four.x, four.y, four.z, four.w};
    float *const out = j.out + blockIdx.y * j.ldo + at;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = __fmul_rn(v[i], j.factor);
        if (at + i < j.k)
            out[i] = j.adds ? __fadd_rn(out[i], x) : x;
    }
}

int embed_launch(const cuda_embed *a, cuda_stream s) {
    const view *w = &a->w;
    const pack_format *f = &w->format;
    embed_job j = {(const uint8_t *)w->data};
    if (a->n_row < 1 || a->n_row > 65535 || a->n < 1 || a->column < 0 || a->column + a->n > w->k ||
        a->column % 4 || !cuda_embeds(f))
        return CUDA_UNSUPPORTED;
    j.n = w->n;
    j.k = a->n;
    j.column = a->column;
    j.row = a->row;
    j.offset = a->offset;
    j.factor = a->factor;
    j.adds = a->adds;
    j.out = a->out;
    j.ldo = a->ldo;
    j.type = f->layout == PACK_ROWS ? f->type : TYPE_COUNT;
    if (f->layout == PACK_ROWS)
        j.rows = (int)(rows_stride(w->k) * (f->type == TYPE_F32 ? 4 : 2));
    else
        j.tiles = tile_source_of(w);
    enum { BLOCK = 4 * ROW_THREADS /* values */ };
    const dim3 grid((unsigned)((a->n + BLOCK - 1) / BLOCK), (unsigned)a->n_row);
    const int e = prepare(embed_rows, 0);
    return e ? e : launch(embed_rows, grid, dim3(ROW_THREADS), 0, s, j);
}

/* ---- the order of matrices ---- */

struct order_job {
    uint8_t *data;
    int64_t panel_bytes, chunk_bytes;
    int n_tile, bits, planes, to_gpu;
};

/* A block of 256 threads moves one tile, part by part; a part is at most 256 dwords. */
__global__ void __launch_bounds__(ROW_THREADS) gtile_move(const __grid_constant__ order_job j) {
    launch_wait();
    const int64_t panel = blockIdx.x / j.n_tile, tile = blockIdx.x % j.n_tile;
    uint32_t *part = (uint32_t *)(j.data + panel * j.panel_bytes + tile / TILE_CHUNK * j.chunk_bytes +
                                  tile % TILE_CHUNK * 128 * j.bits);
    for (int low = j.bits, w = j.planes ? 1 : 8; low > 0;) {
        while (!j.planes && !(j.bits & w))
            w /= 2;
        const int n_line = 2 * w, i = threadIdx.x, line = i / PACK_PANEL, row = i % PACK_PANEL;
        uint32_t u = 0;
        int to = 0;
        if (line < n_line) {
            const int g = gtile_dword(n_line, line, row);
            u = part[j.to_gpu ? i : g];
            to = j.to_gpu ? g : i;
        }
        __syncthreads();
        if (line < n_line)
            part[to] = u;
        part += n_line * PACK_PANEL;
        low -= w;
        w = j.planes ? 1 : w / 2;
    }
}

int gtile_launch(const view *w, bool to_gpu, cuda_stream s) {
    const pack_format *f = &w->format;
    if (f->layout != PACK_TILE)
        return 0;
    order_job j = {(uint8_t *)w->data,
                   tile_panel_bytes(f, w->k),
                   tile_chunk_bytes(f, TILE_CHUNK),
                   (int)tile_count(w->k),
                   f->bits,
                   f->packing == PACK_PLANES,
                   to_gpu};
    const int64_t blocks = (w->n + PACK_PANEL - 1) / PACK_PANEL * j.n_tile;
    if (blocks < 1 || blocks > INT32_MAX)
        return CUDA_UNSUPPORTED;
    const int e = prepare(gtile_move, 0);
    return e ? e : launch(gtile_move, dim3((unsigned)blocks), dim3(ROW_THREADS), 0, s, j);
}

/* ---- for benchmarks ---- */

enum { READ_THREADS = 512 };

__global__ void __launch_bounds__(READ_THREADS, 2) read_bytes(const uint4 *data, size_t n, unsigned *sink) {
    unsigned sum = 0;
    const size_t step = (size_t)gridDim.x * READ_THREADS;
    launch_next();
    for (size_t i = blockIdx.x * (size_t)READ_THREADS + threadIdx.x; i < n; i += 8 * step) {
        uint4 u[8];
#pragma unroll
        for (int c = 0; c < 8; c++)
            u[c] = i + c * step < n ? __ldcs(data + i + c * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum |= u[c].x ^ u[c].y ^ u[c].z ^ u[c].w;
    }
    launch_wait(); /* like kernels that read the output of the previous launch */
    if (sum == 0)
        *sink = 1;
}

int read_all_launch(const void *data, size_t bytes, unsigned *sink, cuda_stream s) {
    /* For a short read, one block a multiprocessor leaves resources for a block of the next launch. */
    enum { SHORT = 1 << 28 };
    const unsigned blocks = (unsigned)device_sm_count() * (bytes < SHORT ? 1 : 2);
    const int e = prepare(read_bytes, 0);
    return e ? e
             : launch(read_bytes, dim3(blocks), dim3(READ_THREADS), 0, s, (const uint4 *)data, bytes / 16,
                      sink);
}

__global__ void __launch_bounds__(ROW_THREADS)
    random_bytes(uint32_t *data, size_t n, int64_t panel, int64_t chunk, int codes, int last_codes,
                 int n_full, float scale, uint64_t seed) {
    size_t i = blockIdx.x * (size_t)ROW_THREADS + threadIdx.x;
    for (; i < n; i += (size_t)gridDim.x * ROW_THREADS) {
        const int64_t in = (int64_t)(4 * i) % panel;
        const bool is_code = in / chunk < n_full ? in % chunk < codes : in - n_full * chunk < last_codes;
        uint64_t u = (i + seed) * 0x9e3779b97f4a7c15u;
        u = (u ^ u >> 29) * 0xbf58476d1ce4e5b9u;
        u ^= u >> 32;
        const __half2 h = __floats2half2_rn(scale * (1.0f + (float)(u & 255) / 512.0f),
                                            scale * (1.0f + (float)(u >> 8 & 255) / 512.0f));
        data[i] = is_code ? (uint32_t)u : *(const uint32_t *)&h;
    }
}

int random_matrix_launch(const view *w, float scale, uint64_t seed, cuda_stream s) {
    const pack_format *f = &w->format;
    if (f->layout != PACK_TILE || f->scale != PACK_SCALE_F16)
        return CUDA_UNSUPPORTED;
    const size_t bytes = (size_t)((w->n + PACK_PANEL - 1) / PACK_PANEL * tile_panel_bytes(f, w->k));
    const int64_t tiles = tile_count(w->k);
    random_bytes<<<8 * device_sm_count(), ROW_THREADS, 0, (cudaStream_t)s>>>(
        (uint32_t *)w->data, bytes / 4, tile_panel_bytes(f, w->k), tile_chunk_bytes(f, TILE_CHUNK),
        (int)(TILE_CHUNK * tile_code_bytes(f)), (int)(tiles % TILE_CHUNK * tile_code_bytes(f)),
        (int)(tiles / TILE_CHUNK), scale, seed);
    return (int)cudaGetLastError();
}

/* wide_float.cu - products of many rows with matrices of halves and bf16 (PACK_ROWS) on sm_90a.
 *
 * Rows are images (wide.cuh) in the order of K: halves, scaled by a power of two for each row. Weights are
 * loaded into the registers of the matrix instruction. Halves stay as they are. Bf16 is converted to halves,
 * times a power of two that a warp keeps for its 16 rows of weights. It begins at 2^BF16_SHIFT. If a weight
 * would be too large, the power is lowered, and the sums so far are multiplied by the same factor, which
 * changes no bit of their significands. So weights are exact, except bf16 below 2^-(BF16_SHIFT + 17), which
 * are rounded to multiples of 2^-(BF16_SHIFT + 24), or, with larger weights in the warp, to 2^-40 of the
 * largest.
 *
 * Two blocks are a cluster. Each has 128 outputs of the same N rows of x. So each copies half of the images,
 * which arrive in both blocks. A block has two groups of 4 warps that multiply, 16 outputs a warp. In a third
 * group two warps are feeders, each with its own ring. One copies weights (64 of K of 128 rows, by tensor
 * copies, which swizzle 16-byte pieces like images), the other images. In gated products a warp has 8 outputs
 * of gate and the same 8 of up. Clusters go through units of work in turn, and feeders continue with the next
 * unit while results are written.
 *
 * Two arrivals need care. A slot of weights is released only after the instruction that multiplies them has
 * been queued, because only then are they in registers: an arrival does not wait for loads from shared
 * memory. A slot of images is released to both blocks by an arrival without a fence.
 *
 * A result is summed in the order of K, so it depends neither on the other rows nor on N. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wide_float.cuh"
#include "kernels/cuda/wide_rounds.cuh"

/* ---- products ---- */

/* Loads four 8 x 8 matrices of 16 bits. Lane 8i + r gives the address of row r of matrix i; lane 4g + t gets
 * elements 2t and 2t + 1 of row g of each matrix. */
__device__ __forceinline__ void fragment_load(uint32_t (&a)[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(at)
                 : "memory");
}

/* Two weights as halves, times `scale`. */
template <int TYPE> __device__ __forceinline__ uint32_t two_as_halves(uint32_t u, float scale) {
    if (TYPE == TYPE_F16)
        return u;
    const __half2 h = __floats2half2_rn(__fmul_rn(__uint_as_float(u << 16), scale),
                                        __fmul_rn(__uint_as_float(u & 0xffff0000u), scale));
    return *(const uint32_t *)&h;
}

/* A warp's position in the block's rings, and the scale of its weights. */
template <int TYPE, int N> struct unit_walk {
    unit_rings<N> r;
    turn wt, xt;
    uint32_t line; /* byte offset of the line of weights whose address the lane gives */
    int lane;
    float scale;
    uint32_t limit; /* bits of the smallest bf16 that is too large */
    int w_read;     /* slot of the weights that are multiplied next */

    __device__ __forceinline__ void begin(bool gated) {
        const int warp = threadIdx.x / 32, high = lane / 8 % 2;
        line = 128 * (lane % 8 + (gated ? BOX_ROWS * high + 8 * warp : 8 * high + 16 * warp));
    }
    __device__ __forceinline__ void scale_begin() {
        scale = TYPE == TYPE_BF16 ? (float)(1 << BF16_SHIFT) : 1.0f;
        limit = (127 + 16 - BF16_SHIFT) << 7;
    }
    /* Lowers the scale so that weights of this magnitude are below 2^16, and multiplies the sums so far by
     * the same factor. */
    template <int M> __device__ __forceinline__ void scale_change(float (&d)[M], uint32_t max_bits) {
        const int e = (int)(max_bits >> 7);
        const float next = __uint_as_float((uint32_t)(127 + 142 - e) << 23), by = __fdiv_rn(next, scale);
        wgmma_wait<0>();
        wgmma_read(d);
#pragma unroll
        for (int i = 0; i < M; i++)
            d[i] = __fmul_rn(d[i], by);
        scale = next;
        limit = (uint32_t)(e + 1) << 7;
    }
    /* Loads the next tile of weights as operands of four instructions. */
    template <int M> __device__ __forceinline__ void take(uint32_t (&a)[4][4], float (&d)[M]) {
        const uint32_t at = shared_address(r.w) + wt.slot * W_STAGE + line, piece = lane / 16, in = lane % 8;
        bar_wait<false>(r.w_full + wt.slot, wt.phase);
#pragma unroll
        for (int s = 0; s < 4; s++)
            fragment_load(a[s], at + ((2 * s + piece) ^ in) * 16);
        wt.next(unit_rings<N>::W_STAGES);
        if (TYPE == TYPE_F16)
            return;
        uint32_t max_bits = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            max_bits = __vmaxu2(max_bits, a[i / 4][i % 4] & 0x7fff7fffu);
        max_bits = max_warp(max(max_bits & 0xffff, max_bits >> 16));
        if (max_bits >= limit)
            scale_change(d, max_bits);
#pragma unroll
        for (int i = 0; i < 16; i++)
            a[i / 4][i % 4] = two_as_halves<TYPE>(a[i / 4][i % 4], scale);
    }
    /* Multiplies a tile of weights with the next tile of x asynchronously. The weights are in registers then,
     * so their slot is released. */
    template <int ROWS>
    __device__ __forceinline__ void multiply(float (&d)[ROWS / 2], const uint32_t (&a)[4][4]) {
        bar_wait<false>(r.x_full + xt.slot, xt.phase);
        const uint64_t b = wgmma_operand(shared_address(r.x + xt.slot * unit_rings<N>::X_STAGE));
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++)
            wgmma<ROWS>::add(d, a[s], b + 2 * s);
        wgmma_end_group();
        xt.next(unit_rings<N>::X_STAGES);
        if (lane == 0)
            bar_arrive(r.w_empty + w_read);
        w_read = w_read + 1 == unit_rings<N>::W_STAGES ? 0 : w_read + 1;
    }
    /* Tells the feeders of both blocks that this warp has read the images in `slot`. */
    __device__ __forceinline__ void give(int slot) {
        if (lane < TOGETHER)
            read_arrive(r.x_empty + slot, lane);
    }
    /* Sums all of K in d. */
    template <int ROWS> __device__ __forceinline__ void run(const unit_job &j, float (&d)[ROWS / 2]) {
        uint32_t a[2][4][4];
        int before = 0;
        scale_begin();
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++)
            d[i] = 0.0f;
        take(a[0], d);
        for (int i = 0; i < j.n_tile; i += 2) {
#pragma unroll
            for (int odd = 0; odd < 2; odd++) {
                if (i + odd >= j.n_tile)
                    break;
                const int slot = xt.slot;
                multiply<ROWS>(d, a[odd]);
                if (i + odd > 0) {
                    wgmma_wait<1>();
                    give(before);
                }
                before = slot;
                if (i + odd + 1 < j.n_tile)
                    take(a[1 - odd], d);
            }
        }
        wgmma_wait<0>();
        give(before);
        wgmma_read(d);
    }
};

/* ---- results ---- */

/* Four outputs of a lane, of which the matrix has n. */
struct four_of {
    float bias[4];
    float *y;
    int64_t ld;
    int n;
    bool whole; /* all four exist, and are aligned in every row */
};
__device__ __forceinline__ four_of four_at(const unit_job &j, int matrix, int at) {
    four_of f = {
        {0.0f, 0.0f, 0.0f, 0.0f}, j.y[matrix] + at, j.ldy[matrix], max(0, min(4, j.n[matrix] - at)), false};
    f.whole = f.n == 4 && (uintptr_t)f.y % sizeof(float4) == 0 && f.ld % 4 == 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (j.bias[matrix] && i < f.n)
            f.bias[i] = j.bias[matrix][at + i];
    return f;
}
/* Converts a row's sums to outputs: factor, scale, bias. */
__device__ __forceinline__ void four_scale(float v[4], float factor, float scale, const four_of &f) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = __fadd_rn(__fmul_rn(__fmul_rn(v[i], factor), scale), f.bias[i]);
}
__device__ __forceinline__ void four_write(const four_of &f, int64_t row, const float v[4], bool adds) {
    float *const to = f.y + row * f.ld;
    if (f.whole) {
        float4 u = make_float4(v[0], v[1], v[2], v[3]);
        if (adds) {
            const float4 w = *(const float4 *)to;
            u = make_float4(__fadd_rn(w.x, u.x), __fadd_rn(w.y, u.y), __fadd_rn(w.z, u.z),
                            __fadd_rn(w.w, u.w));
        }
        *(float4 *)to = u;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < f.n)
            to[i] = adds ? __fadd_rn(to[i], v[i]) : v[i];
}
__device__ __forceinline__ void four_load(float v[4], const float *from) {
    const float4 u = *(const float4 *)from;
    v[0] = u.x, v[1] = u.y, v[2] = u.z, v[3] = u.w;
}

/* Writes a warp's outputs of RESULT_ROWS rows from row0 on. Gated: outputs 0..7 are those of gate, 8..15
 * those of up. */
__device__ __forceinline__ void results_write(const unit_job &j, const four_of &f, const four_of &up,
                                              int row0, float scale, const float *results) {
    const int lane = threadIdx.x % 32, across = j.gated ? 2 : 4, o = lane % across * 4, step = 32 / across;
#pragma unroll 2
    for (int in = lane / across; in < RESULT_ROWS; in += step) {
        const int row = row0 + in;
        if (row >= j.n_row)
            break;
        const float factor = __ldcg(j.factor + row);
        float v[4], u[4];
        four_load(v, results + in * RESULT_LINE + o);
        four_scale(v, factor, scale, f);
        if (j.gated) {
            four_load(u, results + in * RESULT_LINE + 8 + o);
            four_scale(u, factor, scale, up);
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fmul_rn(j.act == ACT_SILU ? silu_fast(v[i]) : act_value(j.act, v[i]), u[i]);
        } else if (j.acts)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = act_value(j.act, v[i]);
        four_write(f, row, v, j.adds);
    }
}

/* Writes all results of a warp, in a loop with short code. A lane has rows g and g + 8 of the warp's 16 rows
 * of weights, and columns 2t and 2t + 1 of each eight rows of x. */
template <int ROWS>
__device__ __forceinline__ void results_leave(const unit_job &j, const unit_place &at, float scale,
                                              float *results, const float (&d)[ROWS / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int m = j.gated ? 0 : matrix_of(j, at.tile);
    const int o = j.gated ? at.tile * BOX_ROWS + 8 * warp + lane % 2 * 4
                          : (at.tile - j.first[m]) * UNIT_OUTPUTS + 16 * warp + lane % 4 * 4;
    const four_of f = four_at(j, m, o), up = four_at(j, j.gated ? 1 : m, o);
    float *const to = results + lane % 4 * 2 * RESULT_LINE + lane / 4;
#pragma unroll 1
    for (int p = 0; p < ROWS / RESULT_ROWS && at.row + p * RESULT_ROWS < j.n_row; p++) {
#pragma unroll
        for (int c = 0; c < ROWS / RESULT_ROWS; c++)
            if (c == p) {
#pragma unroll
                for (int i = 0; i < RESULT_ROWS / 2; i++)
                    to[(i / 4 * 8 + i % 2) * RESULT_LINE + i / 2 % 2 * 8] = d[c * (RESULT_ROWS / 2) + i];
            }
        __syncwarp();
        results_write(j, f, up, at.row + p * RESULT_ROWS, 1.0f / scale, results);
        __syncwarp();
    }
}

template <int TYPE, int N, int ROWS>
__device__ __forceinline__ void unit_run(const unit_job &j, unit_walk<TYPE, N> *on, int unit,
                                         float *results) {
    const unit_place at = place_of<N>(j, unit);
    float d[ROWS / 2];
    if (at.row >= j.n_row)
        return;
    on->template run<ROWS>(j, d);
    launch_wait();
    results_leave<ROWS>(j, at, on->scale, results, d);
}

template <int TYPE, int N>
__global__ void __launch_bounds__(UNIT_THREADS, 1) wide_float(const __grid_constant__ unit_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t bars[4 * UNIT_STAGES];
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const unit_rings<N> r = {x,
                             x + unit_rings<N>::X_STAGES * unit_rings<N>::X_STAGE,
                             bars,
                             bars + UNIT_STAGES,
                             bars + 2 * UNIT_STAGES,
                             bars + 3 * UNIT_STAGES};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < UNIT_STAGES; i++) {
            bar_init(r.x_full + i, 1), bar_init(r.w_full + i, 1);
            bar_init(r.x_empty + i, TOGETHER * UNIT_WARPS), bar_init(r.w_empty + i, UNIT_WARPS);
        }
        async_fence();
    }
    __syncthreads();
    cluster_barrier();
    launch_next();
    if (warp >= UNIT_WARPS) {
        registers_keep<40>();
        if (warp == UNIT_WARPS && lane == 0)
            weights_feed<N>(j, r);
        if (warp == UNIT_WARPS + 1 && lane == 0) {
            launch_wait();
            images_feed<N>(j, r);
        }
        __syncwarp();
    } else {
        registers_take<232>();
        unit_walk<TYPE, N> on = {r, {0, 0}, {0, 0}, 0, lane, 0.0f, 0, 0};
        float *const results = (float *)(r.w + unit_rings<N>::W_STAGES * W_STAGE) + warp * RESULT_WARP;
        on.begin(j.gated);
        for (int unit = blockIdx.x; unit < j.n_unit; unit += gridDim.x)
            if (unit < j.n_whole)
                unit_run<TYPE, N, N>(j, &on, unit, results);
            else
                unit_run<TYPE, N, N / 2>(j, &on, unit, results);
    }
    cluster_barrier(); /* the other block writes to this one until then */
#endif
}

/* ---- launching ---- */

/* The driver's function that describes a matrix to tensor copies; null: an old driver. */
typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                              CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                              CUtensorMapFloatOOBfill);
static encode_fn encode_find() {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult how;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &how);
    return e == cudaSuccess && how == cudaDriverEntryPointSuccess ? (encode_fn)found : nullptr;
}

static bool map_make(const view *w, CUtensorMap *map) {
    static const encode_fn encode = encode_find();
    const cuuint64_t size[] = {(cuuint64_t)w->k, (cuuint64_t)w->n},
                     step[] = {(cuuint64_t)rows_stride(w->k) * 2};
    const cuuint32_t box[] = {TILE_K, BOX_ROWS}, each[] = {1, 1};
    return encode &&
           encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 2, (void *)(uintptr_t)w->data, size, step, box, each,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool job_make(const cuda_linear *a, unit_job *j, int *blocks) {
    const view *w = &a->w[0];
    const type_id type = (type_id)w->format.type;
    *j = unit_job{};
    if (!wide_mma_is_built() || !matrices_are(a) || w->format.layout != PACK_ROWS ||
        (type != TYPE_F16 && type != TYPE_BF16) || w->k < 1 || w->k > MAX_PACK_ROW || a->n_row < 1 ||
        a->n_row > CUDA_MAX_WIDE || a->codes || a->leaves.data)
        return false;
    for (int i = 0; i < a->n_w; i++) {
        const view *v = &a->w[i];
        if (v->format.layout != PACK_ROWS || v->format.type != w->format.type || v->k != w->k ||
            !map_make(v, &j->map[i]))
            return false;
    }
    *blocks = outputs_set(a, a->gated ? BOX_ROWS : UNIT_OUTPUTS, j);
    j->n_row = (int)a->n_row;
    j->n_tile = (int)tile_count(w->k);
    j->act = a->act;
    j->gated = a->gated;
    j->acts = a->acts;
    j->adds = a->adds;
    j->x = (const uint8_t *)a->scratch;
    j->factor = wide_factors(a);
    return true;
}

/* Cycles of a unit of n rows: the larger of those of the matrix instruction and those of copying its
 * operands. */
static uint64_t unit_cycles(const unit_job *j, unsigned n) {
    enum {
        BEGIN_AND_END = 5000,
        ROW = 4 /* cycles of a row's tile */,
        RATE = 40 /* bytes copied in a cycle */
    };
    const unsigned bytes = W_STAGE + n * 128 / TOGETHER,
                   tile = ROW * n > bytes / RATE ? ROW * n : bytes / RATE;
    return (uint64_t)j->n_tile * tile + BEGIN_AND_END;
}

template <int TYPE, int N> static int unit_launch(const unit_job &j, unsigned clusters, cuda_stream s) {
    const size_t shared_bytes = unit_rings<N>::BYTES + 1024;
    const unsigned n = (unsigned)j.n_unit < clusters ? (unsigned)j.n_unit : clusters;
    const int e = prepare(wide_float<TYPE, N>, shared_bytes);
    return e ? e
             : launch_cluster(wide_float<TYPE, N>, dim3(n, 1, TOGETHER), dim3(UNIT_THREADS), TOGETHER,
                              shared_bytes, s, j);
}

int wide_float_launch(const cuda_linear *a, cuda_stream s) {
    unit_job j;
    int blocks;
    const unsigned clusters = (unsigned)device_sm_count() / TOGETHER;
    if (!job_make(a, &j, &blocks))
        return CUDA_UNSUPPORTED;
    const wide_rounds by = wide_rounds_of((unsigned)j.n_row, ((unsigned)blocks + TOGETHER - 1) / TOGETHER,
                                          clusters, [&](unsigned n) { return unit_cycles(&j, n); });
    j.n_across = by.n_across;
    j.n_whole = by.n_whole;
    j.n_half = by.n_half;
    j.n_unit = by.n_unit;
    const int n = by.rows, e = wide_images_launch(a, true, s);
    if (e)
        return e;
    if (a->w[0].format.type == TYPE_F16)
        return n == 256 ? unit_launch<TYPE_F16, 256>(j, clusters, s)
                        : unit_launch<TYPE_F16, 128>(j, clusters, s);
    return n == 256 ? unit_launch<TYPE_BF16, 256>(j, clusters, s)
                    : unit_launch<TYPE_BF16, 128>(j, clusters, s);
}

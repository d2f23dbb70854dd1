/* wide_mma.cu - products of many rows on sm_90a: packed weights go through registers to the matrix
 * instruction.
 *
 * A block has 8 panels (128 outputs) and N rows of x. One of its warps, the feeder, asks for what all of them
 * read: chunks of panels, and images of x (wide.cuh), each through a ring of stages in shared memory; it is
 * in a group of its own, which leaves its registers to the others. Two groups of 4 warps have 4 panels each,
 * a warp one: it converts a tile (64 of K) of its panel to halves, w = scale * (code - zero) + min, rounded
 * once or twice. The group multiplies the tile with the image in the background, while it converts the next
 * tile. Gate and up are the two groups'.
 *
 * A result has one order of sums, that of K: it depends neither on the rows beside it nor on N. */
#include "kernels/cuda/wide.cuh"

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/wgmma.cuh"

enum { MMA_GROUPS = 2, MMA_WARPS = 4 * MMA_GROUPS, MMA_THREADS = 32 * MMA_WARPS + 128, MMA_STAGES = 8 };
enum { ANY_SCALE = -1 /* the job says which */ };

#ifdef NIB_SM90A
bool wide_mma_is_built(void) {
    return device_major() == 9;
}
#else
bool wide_mma_is_built(void) {
    return false;
}
#endif

/* Of the group's threads from here on; what one group gives the others may take. */
template <int N> __device__ __forceinline__ void registers_keep() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void registers_take() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

/* A place in a ring. */
struct turn {
    int slot;
    uint32_t phase;
    __device__ void next(int n) {
        if (++slot == n) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* Codes of dword i of the tile's half h, in bytes. */
template <int BITS> __device__ __forceinline__ uint32_t four_codes(const tile_lane<BITS> &v, int h, int i) {
    if (BITS == 8)
        return v.d[4 * h + i];
    uint32_t u = 0;
    if (BITS & 4)
        u |= field(v.d[i], 4 * h, 4, BITS & 3);
    if (BITS & 2)
        u |= field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, BITS & 1);
    if (BITS & 1)
        u |= field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, 0);
    return u;
}

/* Scale and minimum of a row's group, twice each. */
struct scale_two {
    __half2 scale, min;
};
template <int KIND>
__device__ __forceinline__ scale_two scale_of(const wide_job &j, const uint8_t *scales, int group, int row,
                                              scale_two whole) {
    const uint8_t *at = scales + j.scale_start + group * j.scale_step + row;
    switch (KIND == ANY_SCALE ? j.scale_kind : KIND) {
    case SCALE_HALF: whole.scale = __half2half2(*(const __half *)(at + row)); break;
    case SCALE_HALF_MIN:
        whole.scale = __half2half2(*(const __half *)(at + row));
        whole.min = __half2half2(*(const __half *)(at + row + 32));
        break;
    case SCALE_SUPER_MIN:
        whole.min = __float2half2_rn(
            __fmul_rn(half_at(scales + 32 + 2 * row), (float)(int8_t)at[16])); /* fall through */
    case SCALE_SUPER:
        whole.scale = __float2half2_rn(__fmul_rn(half_at(scales + 2 * row), (float)(int8_t)*at));
        break;
    case SCALE_BYTE: whole.scale = __float2half2_rn((float)*at); break;
    case SCALE_E8M0: whole.scale = __float2half2_rn(power_scale(*at)); break;
    default: break;
    }
    return whole;
}

__device__ __forceinline__ __half2 as_halves(uint32_t u) {
    return *(const __half2 *)&u;
}

/* Two codes, exact in halves, by their scale and minimum. */
template <int KIND>
__device__ __forceinline__ uint32_t two_weights(const wide_job &j, __half2 codes, const scale_two &s) {
    const __half2 w = KIND == ANY_SCALE && j.asym ? __hfma2(codes, s.scale, s.min) : __hmul2(codes, s.scale);
    return *(const uint32_t *)&w;
}

/* The number of a warp's codes of 0, and its parts. */
struct code_zero {
    __half2 low /* 1024 + zero */, high /* -(64 + zero) */;
};

/* The four weights of dword i of the tile's half h: those of K 0, 2 and of 1, 3. A code in the low bits of
 * the half 1024 is 1024 + code; one that lies 4 bits higher is 1024 + 16 code. */
template <int BITS, int KIND>
__device__ __forceinline__ void four_weights(const wide_job &j, const tile_lane<BITS> &v, int h, int i,
                                             const code_zero &zero, const scale_two &s, uint32_t *even,
                                             uint32_t *odd) {
    const uint32_t one = 0x64006400u;
    __half2 x, y;
    if (BITS == 4) {
        const uint32_t low = v.d[i], next = v.d[i] >> 8;
        const __half2 part = __float2half2_rn(1.0f / 16);
        if (h == 0) {
            x = __hsub2(as_halves((low & 0x000f000fu) | one), zero.low);
            y = __hsub2(as_halves((next & 0x000f000fu) | one), zero.low);
        } else {
            x = __hfma2(as_halves((low & 0x00f000f0u) | one), part, zero.high);
            y = __hfma2(as_halves((next & 0x00f000f0u) | one), part, zero.high);
        }
    } else {
        const uint32_t codes = four_codes(v, h, i);
        x = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4240)), zero.low);
        y = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4341)), zero.low);
    }
    *even = two_weights<KIND>(j, x, s);
    *odd = two_weights<KIND>(j, y, s);
}

/* A tile of the warp's panel as operands of four instructions. */
template <int BITS, bool HALVES, int KIND, int TABLE>
__device__ __forceinline__ void tile_halves(const wide_job &j, const uint8_t *stage, int tile, int n_tile,
                                            const code_zero &zero, const scale_two whole[2],
                                            const lane_tables<TABLE> &tables, uint32_t (&a)[4][4]) {
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, g = lane / 4;
    const uint8_t *scales = stage + n_tile * BITS * 128;
    tile_lane<CODE> v;
    tile_take<BITS, TABLE>(&v, stage + tile * BITS * 128, lane, tables);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        scale_two s[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half == 0 || HALVES) {
                const int group = (HALVES ? 4 * tile + 2 * h + half : 2 * tile + h) >> j.group_shift;
                s[0] = scale_of<KIND>(j, scales, group, g, whole[0]);
                s[1] = scale_of<KIND>(j, scales, group, g + 8, whole[1]);
            }
            uint32_t *to = a[2 * h + half];
            four_weights<CODE, KIND>(j, v, h, 2 * half, zero, s[0], to, to + 2);
            four_weights<CODE, KIND>(j, v, h, 2 * half + 1, zero, s[1], to + 1, to + 3);
        }
    }
}

/* A block's rows and panels begin there; gated panels are counted once. */
struct place {
    int row, panel;
};
/* Blocks [0, n_whole) have N rows; those behind have half as many, so that the last round is a short one. The
 * blocks that have the same panels are neighbours. */
template <int N> __device__ __forceinline__ place place_of(const wide_job &j) {
    const int b = blockIdx.x, behind = b - j.n_whole, panels = j.gated ? WIDE_PANELS / 2 : WIDE_PANELS;
    const int unit = behind < 0 ? b : j.n_whole + behind / j.n_half,
              half = behind < 0 ? 0 : behind % j.n_half;
    return {(behind < 0 ? unit % j.n_across : unit % j.n_across * 2 + half) * N, unit / j.n_across * panels};
}
/* Which matrix a panel of the block's is of, and its number there. */
__device__ __forceinline__ int wide_panel(const wide_job &j, const place &at, int i, int *matrix) {
    if (j.gated) {
        *matrix = i / (WIDE_PANELS / 2);
        return at.panel + i % (WIDE_PANELS / 2);
    }
    const int p = at.panel + i;
    *matrix = (p >= j.first[1]) + (p >= j.first[2]);
    return p - j.first[*matrix];
}
__device__ __forceinline__ bool wide_is_there(const wide_job &j, const place &at, int i) {
    return at.panel + (j.gated ? i % (WIDE_PANELS / 2) : i) < j.n_panel;
}

/* The block's rings: [stages] of images [N][128 bytes], of chunks of WIDE_PANELS panels; their barriers. */
struct rings {
    uint8_t *x, *w;
    uint64_t *x_full, *x_empty, *w_full, *w_empty;
    float *factors; /* [N], of the block's rows */
};

/* What the block reads, asked for by its feeder: lane i asks for panel i's chunks, the lanes behind for rows
 * of images. */
struct feed {
    const uint8_t *from;  /* the lane's next */
    int w_bytes, x_bytes; /* of a stage */
    turn x, w;
};
template <int N> __device__ __forceinline__ feed feed_of(const wide_job &j, const place &at) {
    const int lane = threadIdx.x % 32, image0 = at.row / WIDE_ROWS, i = lane - WIDE_PANELS;
    const int n_image = min(N / WIDE_ROWS, (j.n_row + WIDE_ROWS - 1) / WIDE_ROWS - image0);
    feed f = {nullptr, 0, max(n_image, 0) * WIDE_IMAGE, {0, 1}, {0, 1}};
    for (int p = 0; p < WIDE_PANELS; p++)
        f.w_bytes += wide_is_there(j, at, p);
    if (lane < WIDE_PANELS && wide_is_there(j, at, lane)) {
        int matrix;
        const int p = wide_panel(j, at, lane, &matrix);
        f.from = j.w[matrix] + p * j.panel_bytes;
    } else if (i >= 0 && i < n_image)
        f.from = j.x + (int64_t)(image0 + i) * j.n_tile * WIDE_IMAGE;
    return f;
}
__device__ __forceinline__ void feed_weights(const wide_job &j, const rings &r, feed *f, int chunk) {
    const int lane = threadIdx.x % 32, bytes = chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    bar_wait<false>(r.w_empty + f->w.slot, f->w.phase);
    if (lane == 0)
        bar_expect(r.w_full + f->w.slot, f->w_bytes * bytes);
    __syncwarp();
    if (lane < WIDE_PANELS && f->from) {
        bulk_copy<false>(r.w + (f->w.slot * WIDE_PANELS + lane) * j.stage_bytes, f->from, bytes,
                         r.w_full + f->w.slot);
        f->from += j.chunk_bytes;
    }
    f->w.next(j.w_stages);
}
template <int N> __device__ __forceinline__ void feed_images(const wide_job &j, const rings &r, feed *f) {
    const int lane = threadIdx.x % 32;
    bar_wait<false>(r.x_empty + f->x.slot, f->x.phase);
    if (lane == 0)
        bar_expect(r.x_full + f->x.slot, f->x_bytes);
    __syncwarp();
    if (lane >= WIDE_PANELS && f->from) {
        bulk_copy<false>(r.x + f->x.slot * (N * 128) + (lane - WIDE_PANELS) * WIDE_IMAGE, f->from, WIDE_IMAGE,
                         r.x_full + f->x.slot);
        f->from += WIDE_IMAGE;
    }
    f->x.next(j.x_stages);
}
/* All of K; weights a chunk ahead of images, the rows' factors last. */
template <int N>
__device__ __forceinline__ void feed_all(const wide_job &j, const place &at, const rings &r) {
    feed f = feed_of<N>(j, at);
    feed_weights(j, r, &f, 0);
    if (j.n_chunk > 1)
        feed_weights(j, r, &f, 1);
    launch_wait();
    for (int chunk = 0; chunk < j.n_chunk; chunk++) {
        if (chunk > 0 && chunk + 1 < j.n_chunk)
            feed_weights(j, r, &f, chunk + 1);
        const int n = chunk == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
        for (int i = 0; i < n; i++)
            feed_images<N>(j, r, &f);
    }
    for (int i = threadIdx.x % 32; i < N; i += 32)
        r.factors[i] = at.row + i < j.n_row ? j.factor[at.row + i] : 0.0f;
    warps_barrier(1, MMA_WARPS + 1);
}

/* Results in shared memory: [N rows][RESULT_LINE], so that what a warp writes lies in different banks. */
enum { WIDE_OUTPUTS = WIDE_PANELS * PACK_PANEL, RESULT_LINE = WIDE_OUTPUTS + 4 };
__device__ __forceinline__ const float4 *result_at(const rings &r, int row, int output) {
    return (const float4 *)((const float *)r.x + row * RESULT_LINE + output);
}
template <int N> __device__ __forceinline__ void results_leave(const float (&d)[N / 2], float *room) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *const to = room + 2 * t * RESULT_LINE + threadIdx.x / 32 * PACK_PANEL + g;
#pragma unroll
    for (int e = 0; e < N / 8; e++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(8 * e + i % 2) * RESULT_LINE + i / 2 * 8] = d[4 * e + i];
}

/* Four outputs of a panel, of which `n` are there: what they are multiplied with and what is added. */
struct four_outputs {
    float4 scale, bias;
    float *y;
    int64_t ld;
    int n;
    bool whole; /* all are there, and aligned in every row */
};
__device__ __forceinline__ four_outputs outputs_of(const wide_job &j, const place &in, int o) {
    int matrix;
    const int panel = wide_panel(j, in, o / PACK_PANEL, &matrix), at = panel * PACK_PANEL + o % PACK_PANEL;
    const bool there = wide_is_there(j, in, o / PACK_PANEL);
    four_outputs f = {make_float4(1.0f, 1.0f, 1.0f, 1.0f),
                      make_float4(0.0f, 0.0f, 0.0f, 0.0f),
                      j.y[matrix] + at,
                      j.ldy[matrix],
                      there ? max(0, min(4, j.n[matrix] - at)) : 0,
                      false};
    f.whole = f.n == 4 && (uintptr_t)f.y % sizeof(float4) == 0 && f.ld % 4 == 0;
    const uint8_t *tail = j.w[matrix] + panel * j.panel_bytes + j.tail_at + 2 * (o % PACK_PANEL);
    const float *bias = j.bias[matrix];
    if (there && j.tail && j.scale_kind != SCALE_NONE)
        f.scale = make_float4(half_at(tail), half_at(tail + 2), half_at(tail + 4), half_at(tail + 6));
    if (bias)
        f.bias = make_float4(f.n > 0 ? bias[at] : 0.0f, f.n > 1 ? bias[at + 1] : 0.0f,
                             f.n > 2 ? bias[at + 2] : 0.0f, f.n > 3 ? bias[at + 3] : 0.0f);
    return f;
}

/* Those of a row: the sums times their factors. */
__device__ __forceinline__ float4 outputs_value(float4 v, float factor, const four_outputs &f) {
    v.x = __fadd_rn(__fmul_rn(__fmul_rn(v.x, factor), f.scale.x), f.bias.x);
    v.y = __fadd_rn(__fmul_rn(__fmul_rn(v.y, factor), f.scale.y), f.bias.y);
    v.z = __fadd_rn(__fmul_rn(__fmul_rn(v.z, factor), f.scale.z), f.bias.z);
    v.w = __fadd_rn(__fmul_rn(__fmul_rn(v.w, factor), f.scale.w), f.bias.w);
    return v;
}
__device__ __forceinline__ float4 four_add(float4 v, float4 u) {
    return make_float4(__fadd_rn(v.x, u.x), __fadd_rn(v.y, u.y), __fadd_rn(v.z, u.z), __fadd_rn(v.w, u.w));
}

/* Four outputs of row `row`, of which f.n are there. `before`: what is there, when it is added to. */
__device__ __forceinline__ float4 outputs_before(const four_outputs &f, int64_t row, bool adds) {
    const float *from = f.y + row * f.ld;
    if (!adds)
        return make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (f.whole)
        return *(const float4 *)from;
    return make_float4(f.n > 0 ? from[0] : 0.0f, f.n > 1 ? from[1] : 0.0f, f.n > 2 ? from[2] : 0.0f,
                       f.n > 3 ? from[3] : 0.0f);
}
__device__ __forceinline__ void outputs_write(const four_outputs &f, int64_t row, float4 v, bool adds,
                                              float4 before) {
    float *to = f.y + row * f.ld;
    if (adds)
        v = four_add(before, v);
    if (f.whole) {
        *(float4 *)to = v;
        return;
    }
    const float all[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (i < f.n)
            to[i] = all[i];
}

/* Results of the block, to memory: a thread has four outputs of a row. What several rows need is on its way
 * together. */
template <int N>
__device__ __forceinline__ void results_write(const wide_job &j, const place &in, const rings &r) {
    enum { BATCH = N / 16, ACROSS = WIDE_OUTPUTS / 4, STEP = 32 * MMA_WARPS / ACROSS };
    const int o = threadIdx.x % ACROSS * 4, n = min(N, j.n_row - in.row);
    const four_outputs f = outputs_of(j, in, o);
    for (int first = threadIdx.x / ACROSS; first < n; first += BATCH * STEP) {
        float4 before[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            before[i] = outputs_before(f, in.row + first + i * STEP, j.adds && first + i * STEP < n);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            if (row < n)
                outputs_write(f, in.row + row, outputs_value(*result_at(r, row, o), r.factors[row], f),
                              j.adds, before[i]);
        }
    }
}

/* x / (1 + e^-x), to some units in the last place. */
__device__ __forceinline__ float silu_fast(float x) {
    return __fdividef(x, 1.0f + __expf(-x));
}
template <bool SILU> __device__ __forceinline__ float4 four_gate(int act, float4 v, float4 u) {
    return make_float4(__fmul_rn(SILU ? silu_fast(v.x) : act_value(act, v.x), u.x),
                       __fmul_rn(SILU ? silu_fast(v.y) : act_value(act, v.y), u.y),
                       __fmul_rn(SILU ? silu_fast(v.z) : act_value(act, v.z), u.z),
                       __fmul_rn(SILU ? silu_fast(v.w) : act_value(act, v.w), u.w));
}
/* The same of gated products: half of the outputs. */
template <int N, bool SILU>
__device__ __forceinline__ void results_gate(const wide_job &j, const place &in, const rings &r) {
    enum { BATCH = !SILU ? 1 : N / 32, ACROSS = WIDE_OUTPUTS / 8, STEP = 32 * MMA_WARPS / ACROSS };
    const int o = threadIdx.x % ACROSS * 4, n = min(N, j.n_row - in.row);
    const four_outputs f = outputs_of(j, in, o), up = outputs_of(j, in, WIDE_OUTPUTS / 2 + o);
    for (int first = threadIdx.x / ACROSS; first < n; first += BATCH * STEP) {
        float4 v[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP; /* below N in every batch */
            const float4 *from = result_at(r, row, o);
            v[i] = four_gate<SILU>(j.act, outputs_value(from[0], r.factors[row], f),
                                   outputs_value(from[ACROSS], r.factors[row], up));
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            if (row < n)
                outputs_write(f, in.row + row, v[i], j.adds, outputs_before(f, in.row + row, j.adds));
        }
    }
}

/* Where a warp is in the block's rings. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE> struct walk {
    const wide_job &j;
    rings r;
    int warp, lane;
    code_zero zero;
    scale_two whole[2];
    lane_tables<TABLE> tables;
    turn wt, xt;
    int tile, n_tile, chunk; /* the next tile of its chunk, the chunk's tiles, its number */

    /* The next tile of weights. */
    __device__ __forceinline__ void take(uint32_t (&a)[4][4]) {
        if (tile == 0)
            bar_wait<false>(r.w_full + wt.slot, wt.phase);
        tile_halves<BITS, HALVES, KIND, TABLE>(j, r.w + (wt.slot * WIDE_PANELS + warp) * j.stage_bytes, tile,
                                               n_tile, zero, whole, tables, a);
        if (++tile < n_tile)
            return;
        bar_arrive(r.w_empty + wt.slot);
        wt.next(j.w_stages);
        tile = 0;
        n_tile = ++chunk == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
    }
    /* Multiplies one of weights with the next of x, in the background. */
    __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4][4]) {
        bar_wait<false>(r.x_full + xt.slot, xt.phase);
        const uint64_t b = wgmma_operand(shared_address(r.x + xt.slot * (N * 128)));
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++)
            wgmma<N>::add(d, a[s], b + 2 * s);
        wgmma_end_group();
        xt.next(j.x_stages);
    }
};

/* All of K, in d. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE>
__device__ __forceinline__ void multiply_all(const wide_job &j, const place &at, const rings &r,
                                             float (&d)[N / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    walk<BITS, HALVES, N, KIND, TABLE> on = {
        j,
        r,
        warp,
        lane,
        {__float2half2_rn((float)(1024 + j.zero)), __float2half2_rn(-(float)(64 + j.zero))}};
    on.n_tile = j.n_chunk == 1 ? j.last_tiles : TILE_CHUNK;
    tables_load<BITS>(&on.tables, j.table, nullptr);
    if (KIND == ANY_SCALE && j.scale_kind == SCALE_NONE && wide_is_there(j, at, warp)) {
        int matrix;
        const int panel = wide_panel(j, at, warp, &matrix);
        const uint8_t *tail = j.w[matrix] + panel * j.panel_bytes + j.tail_at + 2 * g;
        tables_load<BITS>(&on.tables, j.table, tail - 2 * g + TILE_LINE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            on.whole[i].scale = __half2half2(*(const __half *)(tail + 16 * i));
            if (j.asym)
                on.whole[i].min = __half2half2(*(const __half *)(tail + 16 * i + 32));
        }
    }
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    uint32_t a[2][4][4];
    on.take(a[0]);
    for (int i = 0; i < j.n_tile; i += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            if (i + odd >= j.n_tile)
                break;
            const int slot = on.xt.slot;
            on.multiply(d, a[odd]);
            if (i + odd > 0) {
                /* What was multiplied before has been read: its place is free, and so are its weights. */
                wgmma_wait<1>();
                if (lane == 0)
                    bar_arrive(r.x_empty + (slot ? slot : j.x_stages) - 1);
            }
            if (i + odd + 1 < j.n_tile)
                on.take(a[1 - odd]);
        }
    }
    wgmma_wait<0>();
    wgmma_read(d);
}

/* What a block does. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE>
__device__ __forceinline__ void block_run(const wide_job &j, const rings &r) {
    const place at = place_of<N>(j);
    if (at.row >= j.n_row)
        return;
    if (threadIdx.x / 32 >= MMA_WARPS) {
        registers_keep<24>();
        if (threadIdx.x / 32 == MMA_WARPS)
            feed_all<N>(j, at, r);
    } else {
        registers_take<240>();
        float d[N / 2];
        multiply_all<BITS, HALVES, N, KIND, TABLE>(j, at, r, d);
        warps_barrier(1, MMA_WARPS + 1); /* all have read the rings, and factors are there */
        results_leave<N>(d, (float *)r.x);
        launch_wait();
        warps_barrier(2, MMA_WARPS);
        if (j.gated && j.act == ACT_SILU)
            results_gate<N, true>(j, at, r);
        else if (j.gated)
            results_gate<N, false>(j, at, r);
        else
            results_write<N>(j, at, r);
    }
}

template <int BITS, bool HALVES, int N, int KIND, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(MMA_THREADS, 1) wide_mma(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t bars[4 * MMA_STAGES];
    __shared__ float factors[N];
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const rings r = {x,
                     x + j.x_stages * (N * 128),
                     bars,
                     bars + MMA_STAGES,
                     bars + 2 * MMA_STAGES,
                     bars + 3 * MMA_STAGES,
                     factors};
    if (threadIdx.x == 0) {
        for (int i = 0; i < MMA_STAGES; i++) {
            bar_init(r.x_full + i, 1), bar_init(r.w_full + i, 1);
            bar_init(r.x_empty + i, MMA_WARPS), bar_init(r.w_empty + i, 32 * MMA_WARPS);
        }
        async_fence();
    }
    __syncthreads();
    launch_next();
    if ((int)blockIdx.x < j.n_whole)
        block_run<BITS, HALVES, N, KIND, TABLE>(j, r);
    else
        block_run<BITS, HALVES, N / 2, KIND, TABLE>(j, r);
#endif
}

/* ---- launching ---- */

typedef void (*wide_kernel)(const wide_job);

template <int N> static wide_kernel kernel_of(const wide_job *j, const pack_format *f) {
    const int bits = f->bits;
    const bool halves = f->group == 16;
    static const wide_kernel all[9] = {nullptr,
                                       nullptr,
                                       wide_mma<2, false, N, ANY_SCALE>,
                                       UNLESS_FEW(wide_mma<3, false, N, ANY_SCALE>),
                                       wide_mma<4, false, N, ANY_SCALE>,
                                       UNLESS_FEW(wide_mma<5, false, N, ANY_SCALE>),
                                       UNLESS_FEW(wide_mma<6, false, N, ANY_SCALE>),
                                       UNLESS_FEW(wide_mma<7, false, N, ANY_SCALE>),
                                       UNLESS_FEW(wide_mma<8, false, N, ANY_SCALE>)};
    if (table_kind_of(f) == TABLE_SHARED)
        return wide_mma<4, false, N, ANY_SCALE, TABLE_SHARED>;
    if (table_kind_of(f) == TABLE_BOOK)
        return bits == 3 ? wide_mma<3, false, N, ANY_SCALE, TABLE_BOOK>
                         : UNLESS_FEW(wide_mma<4, false, N, ANY_SCALE, TABLE_BOOK>);
    if (bits == 4 && j->scale_kind == SCALE_HALF)
        return wide_mma<4, false, N, SCALE_HALF>;
    if (!halves)
        return all[bits];
    return bits == 3   ? wide_mma<3, true, N, ANY_SCALE>
           : bits == 2 ? UNLESS_FEW(wide_mma<2, true, N, ANY_SCALE>)
           : bits == 6 ? UNLESS_FEW(wide_mma<6, true, N, ANY_SCALE>)
                       : nullptr;
}

/* Shared memory of a block of n rows: what images leave is for weights. 0: there is not enough. */
static size_t job_shared_bytes(wide_job *j, int n) {
    enum { STATIC = 1536, ALIGN = 1024, MIN_WEIGHTS = 2, MIN_IMAGES = 4 };
    const int all = device_shared_bytes() - STATIC - ALIGN;
    const int weights = WIDE_PANELS * j->stage_bytes, images = n * 128;
    j->x_stages = (all - MIN_WEIGHTS * weights) / images;
    j->x_stages = j->x_stages > MMA_STAGES ? MMA_STAGES : j->x_stages;
    j->w_stages = (all - j->x_stages * images) / weights;
    j->w_stages = j->w_stages > MMA_STAGES ? MMA_STAGES : j->w_stages;
    const int rings = j->x_stages * images + j->w_stages * weights,
              results = n * RESULT_LINE * (int)sizeof(float);
    if (j->x_stages < MIN_IMAGES || results > all)
        return 0;
    return (size_t)((rings > results ? rings : results) + ALIGN);
}

/* Cycles of a block of n rows: the matrix instruction's, or what converting tiles to halves takes. */
static uint64_t block_cycles(const wide_job *j, unsigned n) {
    enum { BEGIN_AND_END = 8000, ROW = 4 /* of a tile */, TILE = 560, ROW_BESIDE = 2 };
    const unsigned tile = ROW * n > TILE + ROW_BESIDE * n ? ROW * n : TILE + ROW_BESIDE * n;
    return (uint64_t)j->n_tile * tile + BEGIN_AND_END;
}

/* Rows of a block and the number of blocks: fewest cycles in all. They change no bits. A last round of at
 * most half of the multiprocessors is one of blocks of half as many rows; few rows have such blocks alone. */
static int rows_of_block(wide_job *j, unsigned *blocks) {
    static const unsigned sizes[] = {256, 128};
    const unsigned each = j->gated ? WIDE_PANELS / 2 : WIDE_PANELS, sm = (unsigned)device_sm_count();
    uint64_t least = UINT64_MAX;
    int best = 0;
    for (int i = 0; i < 2; i++) {
        const unsigned n = sizes[i], across = ((unsigned)j->n_row + n - 1) / n,
                       units = across * (((unsigned)j->n_panel + each - 1) / each), last = units % sm;
        const bool few = i == 1 && 2 * (unsigned)j->n_row <= n;
        const unsigned whole = few              ? 0
                               : 2 * last <= sm ? units - last
                                                : units,
                       n_half = few ? 1 : 2, halves = n_half * (units - whole);
        const uint64_t cycles =
            (whole + sm - 1) / sm * block_cycles(j, n) + (halves + sm - 1) / sm * block_cycles(j, n / 2);
        if (cycles >= least)
            continue;
        least = cycles;
        best = (int)n;
        j->n_across = (int)across;
        j->n_whole = (int)whole;
        j->n_half = (int)n_half;
        *blocks = whole + halves;
    }
    return best;
}

int wide_mma_launch(wide_job *j, const pack_format *f, cuda_stream s) {
    unsigned blocks = 0;
    const int n = rows_of_block(j, &blocks);
    const wide_kernel kernel = n == 128 ? kernel_of<128>(j, f) : UNLESS_FEW(kernel_of<256>(j, f));
    const size_t room = job_shared_bytes(j, n);
    if (!kernel || !room || (j->scale_kind == SCALE_BYTE && j->asym))
        return CUDA_UNSUPPORTED;
    const int e = prepare(kernel, room);
    return e ? e : launch(kernel, dim3(blocks), dim3(MMA_THREADS), room, s, *j);
}

/* linear.cuh - products of a few rows with G-tile matrices: the parts that the kernels share.
 *
 * A matrix is read once, in the order in which it lies. A block takes whole panels (16 outputs), its two
 * teams in turn; the WARPS warps of a team take a panel's chunks (256 of K) in turn, each through a ring of
 * its own in shared memory that is filled far ahead. Codes are multiplied by m16n8k32 with exact integer
 * sums.
 *
 * Sums of floats have one order: lane t of a row's four owns tile t of every chunk and adds its slices (32 of
 * K, 16 where groups are as short) in the order of K; then come the lanes, then the warps. All kernels keep
 * it, so that a row has the same bits alone and among others. */
#ifndef NIB_KERNELS_CUDA_LINEAR_CUH
#define NIB_KERNELS_CUDA_LINEAR_CUH

#include "kernels/cuda/device.cuh"

enum {
    WARPS = 8 /* of a team */,
    TEAMS = 2,
    ALL_WARPS = TEAMS * WARPS,
    THREADS = 32 * ALL_WARPS,
    MAX_STAGES = 8,
    CHUNK_PIECE = 2 * TILE_K * PACK_PANEL
};

/* How a chunk keeps its groups' scales; none when the whole row has one. */
enum scale_kind {
    SCALE_NONE,
    SCALE_HALF,
    SCALE_HALF_MIN,
    SCALE_SUPER,
    SCALE_SUPER_MIN,
    SCALE_BYTE,
    SCALE_E8M0
};

/* What the launcher works out once. */
struct linear_job {
    const uint8_t *w[3];
    int first[3]; /* panels before this matrix; beyond all of them when it is not there */
    int n[3];     /* its rows */
    const float *bias[3];
    float *y[3];
    int64_t ldy[3];
    int most;   /* panels of the block that has most */
    int n_unit; /* of work: a panel, or one of each matrix when gated; twice that when paired */
    int paired; /* a block takes 2^paired neighbouring panels, since it leaves codes: 1 in groups of 32; else
                   0 */
    bool gated, adds;
    int act;
    int k, k_pad; /* to 256 */
    int n_chunk, last_tiles, chunk_bytes, last_bytes, stage_bytes, depth;
    int64_t panel_bytes, tail_at;
    int scale_kind, asym, zero, group, act_group /* 0: the whole row */, slice, scale_start, scale_step, top;
    bool pieces; /* chunks of 8 bits are asked for in two pieces, of CHUNK_PIECE bytes and of the others */
    bool tail;   /* the row has a factor of its own behind its chunks */
    uint4 table; /* of all rows (tables.cuh) */
    /* one row, quantized by every block */
    const float *x, *norm;
    float eps;
    const uint8_t *coded;   /* or by the launch before */
    codes_row left;         /* or from what that left of wider groups; no floats: nothing */
    codes_row leaves;       /* of the outputs; no codes: none */
    codes_rows leaves_rows; /* the same of several rows */
    /* several columns, quantized before */
    const uint4 *codes;
    const float4 *meta;
    const float *factor; /* [column]: of the norm; lift: [column] */
    const float *lift;
    const float *squares; /* or the sums of squares that the launch before has left, [column][k / 32] */
    int n_col, two;
    int group_shift; /* slices of a group, log 2 */
    /* linear_left.cu */
    int leaves_group;
    int whole;    /* warps of a wider group whose codes are left, 2 or 4; 0: of none */
    bool by_rule; /* no other strategy was asked for */
    bool early;   /* the next launch may start at once though no codes are left */
};

/* ---- weights ---- */

/* What one lane holds of a tile: 2, 4 or 8 dwords for each part. */
template <int BITS> struct tile_lane { uint32_t d[BITS == 8 ? 8 : 4], d2[2], d1[2]; };

template <int BITS>
__device__ __forceinline__ void tile_load(tile_lane<BITS> *v, const uint8_t *tile, int lane) {
    if (BITS & 8) {
        *(uint4 *)v->d = *(const uint4 *)(tile + 16 * lane);
        *(uint4 *)(v->d + (BITS == 8 ? 4 : 0)) = *(const uint4 *)(tile + 512 + 16 * lane);
        return;
    }
    if (BITS & 4) {
        *(uint4 *)v->d = *(const uint4 *)(tile + 16 * lane);
        tile += 512;
    }
    if (BITS & 2) {
        *(uint2 *)v->d2 = *(const uint2 *)(tile + 8 * lane);
        tile += 256;
    }
    if (BITS & 1) {
        const uint2 u = *(const uint2 *)(tile + 8 * (lane / 4 * 2 + lane % 2));
        v->d1[0] = u.x >> (lane % 4 / 2);
        v->d1[1] = u.y >> (lane % 4 / 2);
    }
}

/* The field of `width` bits that begins at bit `at` of each byte, multiplied by 2^up. */
__device__ __forceinline__ uint32_t field(uint32_t u, int at, int width, int up) {
    const uint32_t mask = ((1u << width) - 1) << up;
    return (at >= up ? u >> (at - up) : u << (up - at)) & mask * 0x01010101u;
}

/* What tile_mma's sums of half h are too large by, log 2: fields of up to 4 bits are not shifted down, so
 * both halves share what shifts are left. */
template <int BITS> __device__ __forceinline__ constexpr int tile_excess(int h) {
    return BITS <= 4 ? 4 * h : 0;
}

/* The tile's half h (32 of K) times the columns b. Parts are multiplied one by one. */
template <int BITS>
__device__ __forceinline__ void tile_mma(const tile_lane<BITS> &v, int h, int d[4], uint32_t b0,
                                         uint32_t b1) {
    if (BITS & 8) {
        mma(d, v.d + (BITS == 8 ? 4 * h : 0), b0, b1);
        return;
    }
    if (BITS & 4) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d[i], 4 * h, 4, (BITS & 3) + tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
    if (BITS & 2) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, (BITS & 1) + tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
    if (BITS & 1) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
}

/* ---- scales ---- */

__device__ __forceinline__ float half_at(const uint8_t *p) {
    return __half2float(*(const __half *)p);
}

/* PACK_SCALE_E8M0: 2^(byte - 128). */
__device__ __forceinline__ float power_scale(uint32_t byte) {
    return __uint_as_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
}

/* Scales (x) and minima (y) of N of a chunk's groups for N of its rows. The kind of scale is looked at once,
 * so that all loads are on their way together. */
template <int N>
__device__ __forceinline__ void scales_read(const linear_job &j, const uint8_t *scales, const int group[N],
                                            const int row[N], float2 w[N]) {
    const uint8_t *at[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        at[i] = scales + j.scale_start + group[i] * j.scale_step + row[i];
        w[i] = make_float2(1.0f, 0.0f);
    }
    if (j.scale_kind == SCALE_HALF) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = half_at(at[i] + row[i]);
    } else if (j.scale_kind == SCALE_HALF_MIN) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = make_float2(half_at(at[i] + row[i]), half_at(at[i] + row[i] + 32));
    } else if (j.scale_kind == SCALE_SUPER) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = __fmul_rn(half_at(scales + 2 * row[i]), (float)(int8_t)*at[i]);
    } else if (j.scale_kind == SCALE_SUPER_MIN) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = make_float2(__fmul_rn(half_at(scales + 2 * row[i]), (float)(int8_t)*at[i]),
                               __fmul_rn(half_at(scales + 32 + 2 * row[i]), (float)(int8_t)at[i][16]));
    } else if (j.scale_kind == SCALE_BYTE) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = (float)*at[i];
    } else if (j.scale_kind == SCALE_E8M0) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = power_scale(*at[i]);
    }
}

/* sum += what a slice's dot of codes stands for. The dot is scaled by the weights' scale first: where that is
 * a half, nibbles.cuh does it in the instruction that makes the dot a float. */
__device__ __forceinline__ float slice_add(const linear_job &j, float2 w, int dot, slice_meta a, float sum) {
    sum = __fmaf_rn(__fmul_rn((float)(dot - j.zero * a.sum), w.x), a.scale, sum);
    return j.asym ? __fmaf_rn(w.y, __fmul_rn(a.scale, (float)a.sum), sum) : sum;
}

/* ---- panels ---- */

/* Panel number q of this block: which matrix, and which of its panels. */
__device__ __forceinline__ int panel_find(const linear_job &j, int q, int *matrix) {
    const int p = j.gated ? q / 2 : q;
    const int panel = ((blockIdx.x + (p >> j.paired) * gridDim.x) << j.paired) + (p & ((1 << j.paired) - 1));
    if (j.gated) {
        *matrix = q % 2;
        return panel;
    }
    *matrix = (panel >= j.first[1]) + (panel >= j.first[2]);
    return panel - j.first[*matrix];
}
__device__ __forceinline__ const uint8_t *panel_at(const linear_job &j, int q) {
    int matrix;
    const int panel = panel_find(j, q, &matrix);
    return j.w[matrix] + panel * j.panel_bytes;
}
/* Panels of this block. */
__device__ __forceinline__ int panel_count(const linear_job &j) {
    const int units = (j.n_unit - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    return (j.gated ? 2 * units : units) << j.paired;
}

/* A warp's chunks in the order in which it takes them. */
struct chunk_feed {
    const uint8_t *panel;
    int q, chunk, n_panel, piece; /* what is asked for next */
};
__device__ __forceinline__ chunk_feed feed_begin(const linear_job &j, int n_panel) {
    const int team = threadIdx.x / 32 / WARPS, chunk = threadIdx.x / 32 % WARPS;
    const int q = chunk < j.n_chunk && team < n_panel ? team : n_panel;
    return chunk_feed{q < n_panel ? panel_at(j, q) : nullptr, q, chunk, n_panel, 0};
}
template <bool PIECES = false>
__device__ __forceinline__ void feed_put(const linear_job &j, chunk_feed *f, ring *r) {
    if (f->q >= f->n_panel)
        return;
    const int all = f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    const uint8_t *const chunk = f->panel + f->chunk * j.chunk_bytes;
    if (PIECES) {
        f->piece ^= 1;
        ring_put(r, chunk + (f->piece ? 0 : CHUNK_PIECE), f->piece ? (int)CHUNK_PIECE : all - CHUNK_PIECE);
        if (f->piece)
            return;
    } else
        ring_put(r, chunk, all);
    f->chunk += WARPS;
    if (f->chunk < j.n_chunk)
        return;
    f->chunk = threadIdx.x / 32 % WARPS;
    f->q += TEAMS;
    if (f->q < f->n_panel)
        f->panel = panel_at(j, f->q);
    else
        launch_next();
}

/* ---- results ---- */

/* A finished output of panel q: its warps' sums in order, what belongs to the whole row, the norm, the bias.
 * Of an output in two, both columns. partial: [WARPS][PACK_PANEL][COLUMNS]. */
template <int COLUMNS, class Facts>
__device__ float output_value(const linear_job &j, int q, int row, int m, const float *partial,
                              const Facts &facts) {
    int matrix;
    const int n = panel_find(j, q, &matrix) * PACK_PANEL + row, each = COLUMNS > 1 && j.two ? 2 : 1;
    float v = 0.0f;
    for (int c = 0; c < each; c++) {
        const int column = m * each + c;
        float u = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++)
            u = __fadd_rn(u, partial[(i * PACK_PANEL + row) * COLUMNS + column]);
        if (j.tail) {
            const uint8_t *tail = j.w[matrix] + n / PACK_PANEL * j.panel_bytes + j.tail_at;
            u = __fmul_rn(half_at(tail + 2 * row), u);
            if (j.asym)
                u = __fmaf_rn(half_at(tail + 32 + 2 * row), facts.lift(column), u);
        }
        if (j.norm)
            u = __fmul_rn(u, facts.factor(column));
        v = c ? __fadd_rn(v, u) : u;
    }
    return j.bias[matrix] && n < j.n[matrix] ? __fadd_rn(v, j.bias[matrix][n]) : v;
}

/* Where an output of panel q goes; NULL: beyond the matrix. */
__device__ __forceinline__ float *output_at(const linear_job &j, int q, int row, int m) {
    int matrix;
    const int n = panel_find(j, q, &matrix) * PACK_PANEL + row;
    return n < j.n[matrix] ? j.y[matrix] + m * j.ldy[matrix] + n : nullptr;
}

/* Of an output: what it is added to, and the weight that its codes want. */
struct output_ahead {
    float before, weight;
};
/* Of the outputs of panels [q0, q0 + n) with one column, each for the thread that writes it: on its way while
 * they are multiplied. */
__device__ __forceinline__ void outputs_ahead(const linear_job &j, int q0, int n, output_ahead *ahead) {
    const int o = threadIdx.x, step = j.gated ? 2 : 1;
    if ((j.adds || j.leaves.norm) && o < n / step * PACK_PANEL) {
        const float *y = output_at(j, q0 + o / PACK_PANEL * step, o % PACK_PANEL, 0);
        if (y && j.adds)
            copy_ahead<4>(&ahead[o].before, y);
        if (y && j.leaves.norm)
            copy_ahead<4>(&ahead[o].weight, j.leaves.norm + (y - j.y[0]));
    }
    copies_end_group();
}

/* Outputs of panels [q0, q0 + n), by all threads of a block. With one column each thread has its own ahead.
 */
template <int COLUMNS, class Facts>
__device__ void outputs_write(const linear_job &j, int q0, int n, const float *partial, const Facts &facts,
                              const output_ahead *ahead) {
    enum { SIZE = WARPS * PACK_PANEL * COLUMNS };
    const int n_out = COLUMNS == 1 ? 1 : j.two ? j.n_col / 2 : j.n_col, step = j.gated ? 2 : 1;
    for (int o = threadIdx.x; o < n / step * PACK_PANEL * n_out; o += THREADS) {
        const int row = o % PACK_PANEL, m = o / PACK_PANEL % n_out, p = o / PACK_PANEL / n_out * step;
        float *y = output_at(j, q0 + p, row, m);
        if (!y)
            continue;
        float v = output_value<COLUMNS>(j, q0 + p, row, m, partial + p * SIZE, facts);
        if (j.gated)
            v = __fmul_rn(act_value(j.act, v),
                          output_value<COLUMNS>(j, q0 + p + 1, row, m, partial + (p + 1) * SIZE, facts));
        if (COLUMNS == 1)
            copies_wait<0>();
        v = j.adds ? __fadd_rn(COLUMNS == 1 ? ahead[o].before : *y, v) : v;
        *y = v;
        if (COLUMNS == 1 && j.leaves.codes) /* panels come in pairs: a warp has a group */
            group_leave(j.leaves, (int)(y - j.y[0]), v, ahead[o].weight);
    }
}

/* ---- activations ---- */

/* By value: a reference to the kernel's parameters would be read from memory each time. */
struct row_job {
    const float *x, *norm;
    int k, k_pad, act_group, slice_shift;
    float top, eps;
    int begin, end; /* what this block quantizes: all of it where the row has a norm or is one group */
};
__device__ __forceinline__ row_job row_of(const linear_job &j, const float *x) {
    return row_job{x,     j.norm, j.k,    j.k_pad, j.act_group, j.slice == 16 ? 4 : 5, (float)j.top,
                   j.eps, 0,      j.k_pad};
}

/* Eight floats of which `left` exist; the others are zeros. x is 16-byte aligned. */
__device__ __forceinline__ void eight_load(const float *x, int left, float v[8]) {
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left >= 8 || left <= 0) {
        *(float4 *)v = left > 0 ? __ldcg((const float4 *)x) : none;
        *(float4 *)(v + 4) = left > 0 ? __ldcg((const float4 *)x + 1) : none;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = i < left ? x[i] : 0.0f;
}
__device__ __forceinline__ void eight_weigh(const row_job &j, int at, float v[8]) {
    float w[8];
    if (!j.norm)
        return;
    eight_load(j.norm + at, j.k - at, w);
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = __fmul_rn(v[i], w[i]);
}
/* The bits of the largest of their sizes: they compare as the sizes do, and NaN is the largest. */
__device__ __forceinline__ uint32_t max_eight(const float v[8]) {
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < 8; i++)
        m = max(m, __float_as_uint(v[i]) & 0x7fffffffu);
    return m;
}
/* Over n lanes, at most 16. Always as many steps, so that nothing branches. */
__device__ __forceinline__ uint32_t max_lanes(uint32_t m, int n) {
#pragma unroll
    for (int o = 1; o < 16; o *= 2) {
        const uint32_t other = __shfl_xor_sync(~0u, m, o);
        m = max(m, o < n ? other : 0);
    }
    return m;
}
/* Eight codes by the largest of their group, in the lowest bytes; v becomes what they leave over. */
__device__ __forceinline__ uint2 eight_encode(uint32_t most, float top, float v[8], float *scale) {
    const float2 scales = group_scales(most, top);
    uint32_t u[8];
    *scale = scales.x;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float code = code_float(v[i], scales.y);
        u[i] = __float_as_uint(code);
        v[i] = __fsub_rn(v[i], __fmul_rn(*scale, __fsub_rn(code, CODE_MAGIC)));
    }
    return make_uint2(__byte_perm(__byte_perm(u[0], u[1], 0x0040), __byte_perm(u[2], u[3], 0x0040), 0x5410),
                      __byte_perm(__byte_perm(u[4], u[5], 0x0040), __byte_perm(u[6], u[7], 0x0040), 0x5410));
}

enum { EIGHT_STEP = 8 * THREADS };

/* The largest of a whole row, and of what its codes leave over; by all threads of a block. */
__device__ __noinline__ static void max_row(row_job j, bool two, uint32_t *shared, uint32_t most[2]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    most[0] = most[1] = 0;
    for (int pass = 0; pass < (two ? 2 : 1); pass++) {
        uint32_t m = 0;
        for (int at = 8 * threadIdx.x; at < j.k_pad; at += EIGHT_STEP) {
            float v[8], scale;
            eight_load(j.x + at, j.k - at, v);
            eight_weigh(j, at, v);
            if (pass)
                eight_encode(most[0], j.top, v, &scale);
            m = max(m, max_eight(v));
        }
        m = max_lanes(m, 16);
        m = max(m, __shfl_xor_sync(~0u, m, 16));
        if (lane == 0)
            shared[warp] = m;
        __syncthreads();
        for (int i = 0; i < ALL_WARPS; i++)
            most[pass] = max(most[pass], shared[i]);
        __syncthreads();
    }
}

/* Of a row besides its codes: each warp's sums of squares, and of codes where a row is one group. */
struct row_sums {
    float squares[ALL_WARPS], factor;
    int codes[2][ALL_WARPS];
    uint32_t most[2]; /* of a group as long as the row */
    uint32_t scratch[ALL_WARPS];
};

/* Sums of squares have one order too: an element with its neighbour, those with theirs, up to 32; then every
 * 128th of these in turn; eight such sums with their neighbours; the rest in turn. */
enum { SQUARE_SUMS = EIGHT_STEP / 32 };

/* The sum of squares of eight elements and of those of the lane's three neighbours. */
__device__ __forceinline__ float eight_square(const float v[8]) {
    float square[8];
#pragma unroll
    for (int c = 0; c < 8; c++)
        square[c] = __fmul_rn(v[c], v[c]);
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
#pragma unroll
        for (int c = 0; c < 8; c += 2 * o)
            square[c] = __fadd_rn(square[c], square[c + o]);
    square[0] = __fadd_rn(square[0], __shfl_xor_sync(~0u, square[0], 1));
    return __fadd_rn(square[0], __shfl_xor_sync(~0u, square[0], 2));
}

/* One row of x, by all threads of a block: codes, eight at a time, and what each slice needs.
 * store.codes(row, k, eight), store.slice(row, slice, meta). TWO: what codes leave over is a second row. When
 * it returns all of it is there. */
template <bool TWO, class Store>
__device__ __noinline__ void quantize_row(row_job j, Store store, row_sums *sums) {
    enum { AHEAD = TWO ? 2 : 4 };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int lanes = j.act_group / 8, slice_lanes = 1 << (j.slice_shift - 3);
    float squares = 0.0f;
    uint32_t whole[2] = {0, 0};
    int total[2] = {0, 0};
    if (!j.act_group)
        max_row(j, TWO, sums->scratch, whole);
    for (int first = j.begin + 8 * threadIdx.x; first < j.end; first += EIGHT_STEP * AHEAD) {
        float ahead[AHEAD][8];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            eight_load(j.x + first + EIGHT_STEP * i, min(j.k, j.end) - first - EIGHT_STEP * i, ahead[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            if (at >= j.end)
                break;
            float *v = ahead[i];
            if (j.norm) {
                squares = __fadd_rn(squares, eight_square(v));
                eight_weigh(j, at, v);
            }
#pragma unroll
            for (int row = 0; row < (TWO ? 2 : 1); row++) {
                slice_meta m;
                const uint32_t most = j.act_group ? max_lanes(max_eight(v), lanes) : whole[row];
                const uint2 codes = eight_encode(most, j.top, v, &m.scale);
                m.sum = __dp4a((int)codes.y, 0x01010101, __dp4a((int)codes.x, 0x01010101, 0));
#pragma unroll
                for (int o = 1; o < 4; o *= 2) {
                    const int other = __shfl_xor_sync(~0u, m.sum, o);
                    m.sum += o < slice_lanes ? other : 0;
                }
                store.codes(row, at, codes);
                if (lane % slice_lanes == 0) {
                    store.slice(row, at >> j.slice_shift, m);
                    total[row] += m.sum;
                }
            }
        }
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2)
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
    if (!j.act_group)
        for (int o = 1; o < 32; o *= 2) {
            total[0] += __shfl_xor_sync(~0u, total[0], o);
            total[1] += __shfl_xor_sync(~0u, total[1], o);
        }
    if (lane == 0) {
        sums->squares[warp] = squares;
        sums->codes[0][warp] = total[0];
        sums->codes[1][warp] = total[1];
        sums->most[0] = whole[0];
        sums->most[1] = whole[1];
    }
    __syncthreads();
}

/* The same from a row that the launch before has quantized: codes and slices to `to`, in the background. */
__device__ __forceinline__ void coded_begin(const linear_job &j, uint8_t *to) {
    for (int at = 16 * threadIdx.x; at < j.k_pad + j.k_pad / 4; at += 16 * THREADS)
        copy_ahead<16>(to + at, j.coded + at);
    copies_end_group();
}
/* The sums of squares of each 32, which the launch before left, as those of the warps. */
__device__ __forceinline__ void squares_take(const linear_job &j, const float *squares, row_sums *sums) {
    if (!j.norm || threadIdx.x >= SQUARE_SUMS)
        return;
    float s = 0.0f;
    for (int i = threadIdx.x; i < j.k_pad / 32; i += SQUARE_SUMS)
        s = __fadd_rn(s, __ldcg(squares + i));
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
        s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
    if (threadIdx.x % 8 == 0)
        sums->squares[threadIdx.x / 8] = s;
}
/* When it returns all of it is there; one group of copies may have begun since. */
__device__ __forceinline__ void coded_end(const linear_job &j, row_sums *sums) {
    squares_take(j, (const float *)(j.coded + j.k_pad + j.k_pad / 4), sums);
    copies_wait<1>();
    __syncthreads();
}

/* The same from the floats and the largest sizes that the launch before has left: eight codes a thread at a
 * time. A lane reads the size of its own 32; those of its group are other lanes'. */
__device__ __forceinline__ void quantize_left(const linear_job &j, uint32_t *codes, slice_meta *meta) {
    enum { AHEAD = 4 };
    const float *const x = j.norm ? j.left.floats : j.x;
    for (int first = 8 * threadIdx.x; first < j.k_pad; first += EIGHT_STEP * AHEAD) {
        float v[AHEAD][8];
        uint32_t most[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            const bool there = at < j.k; /* k is a multiple of 32 */
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            most[i] = there ? __ldcg(j.left.most + at / 32) : 0;
            *(float4 *)v[i] = there ? __ldcg((const float4 *)(x + at)) : none;
            *(float4 *)(v[i] + 4) = there ? __ldcg((const float4 *)(x + at) + 1) : none;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int at = first + EIGHT_STEP * i;
            if (at >= j.k_pad)
                break;
            slice_meta m;
            most[i] = max(most[i], __shfl_xor_sync(~0u, most[i], 4));
            const uint32_t other = __shfl_xor_sync(~0u, most[i], 8);
            most[i] = max(most[i], j.act_group > 64 ? other : 0);
            const uint2 u = eight_encode(most[i], 127.0f, v[i], &m.scale);
            m.sum = __dp4a((int)u.y, 0x01010101, __dp4a((int)u.x, 0x01010101, 0));
            m.sum += __shfl_xor_sync(~0u, m.sum, 1);
            m.sum += __shfl_xor_sync(~0u, m.sum, 2);
            codes[code_quad(at / 4)] = u.x;
            codes[code_quad(at / 4 + 1)] = u.y;
            if (threadIdx.x % 4 == 0)
                meta[at / 32] = m;
        }
    }
}

/* The norm's factor, by the row's sum of squares. */
__device__ __forceinline__ float factor_of(const linear_job &j, float sum) {
    return sum < __uint_as_float(0x7f800000u)
               ? __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)j.k), j.eps)))
               : __uint_as_float(0x7fc00000u);
}
__device__ static float row_factor(const linear_job &j, const row_sums *sums) {
    float sum = 0.0f;
    for (int i = 0; i < ALL_WARPS; i++)
        sum = __fadd_rn(sum, sums->squares[i]);
    return factor_of(j, sum);
}
/* The factors of columns whose sums of squares the launch before has left, a column by each warp of a block.
 * The order of sums is that of squares_take and row_factor. */
__device__ __forceinline__ void factors_take(const linear_job &j, float factors[MAX_LEFT_ROWS]) {
    enum { EACH = SQUARE_SUMS / 32 };
    static_assert((int)ALL_WARPS == (int)MAX_LEFT_ROWS, "a warp has a column");
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32, n = j.k / 32;
    if (column >= j.n_col)
        return;
    float part[EACH], sum = 0.0f;
#pragma unroll
    for (int q = 0; q < EACH; q++) {
        part[q] = 0.0f;
        for (int i = lane + 32 * q; i < n; i += SQUARE_SUMS)
            part[q] = __fadd_rn(part[q], __ldcg(j.squares + column * n + i));
    }
#pragma unroll
    for (int q = 0; q < EACH; q++)
        part[q] = pairs_sum(part[q], 8);
#pragma unroll
    for (int q = 0; q < EACH; q++)
#pragma unroll
        for (int from = 0; from < 32; from += 8)
            sum = __fadd_rn(sum, __shfl_sync(~0u, part[q], from));
    if (lane == 0)
        factors[column] = factor_of(j, sum);
}

/* Of a group as long as the row: its scale times the sum of its codes. */
__device__ static float row_lift(const linear_job &j, const row_sums *sums, int row) {
    float none[8] = {}, scale;
    int sum = 0;
    for (int i = 0; i < ALL_WARPS; i++)
        sum += sums->codes[row][i];
    eight_encode(sums->most[row], (float)j.top, none, &scale);
    return __fmul_rn(scale, (float)sum);
}

/* ---- what several rows leave ---- */

/* Of 16 outputs of a panel and one column, what those of the panel beside it want. */
struct half_left {
    float square;
    uint32_t most;
};
/* An output whose code waits for the panel beside its own. n < 0: none does. */
struct half_output {
    int n, m;
    float v;
    half_left of;
};
/* Output n of column m, by threads of which each 16 have a panel's; of: for the panel beside it. there: the
 * output exists. w: the norm's weight. */
__device__ __forceinline__ half_output half_leave(const codes_rows &to, int n, int m, float v, float w,
                                                  bool there, half_left *of) {
    float square = 0.0f;
    if (to.norm) {
        square = pairs_sum(__fmul_rn(v, v), 16);
        v = __fmul_rn(v, w);
    }
    const half_left mine = {square, max_lanes(__float_as_uint(v) & 0x7fffffffu, 16)};
    if (there && n % PACK_PANEL == 0)
        *of = mine;
    return half_output{there ? n : -1, m, v, mine};
}
/* Its code, when the other panel's is there. */
__device__ __forceinline__ void half_finish(const codes_rows &to, const half_output &out,
                                            const half_left *other) {
    if (out.n < 0)
        return;
    code_leave(to, out.m, out.n, out.v, max(out.of.most, other->most));
    if (to.norm && out.n % 32 == 0)
        to.squares[out.m * to.n_32 + out.n / 32] = __fadd_rn(out.of.square, other->square);
}

/* ---- launching (linear.cu) ---- */

/* What every kernel of these files is told. CUDA_UNSUPPORTED: not such products. */
int linear_job_make(const cuda_linear *a, linear_job *j);
/* Shared memory of a block and the rings' depth, which goes into the job; `others` bytes stand behind the
 * rings. */
size_t linear_shared_bytes(linear_job *j, size_t others, int blocks);
/* Launches a kernel with that memory, one block a multiprocessor at most. */
typedef void (*linear_kernel)(const linear_job);
int linear_run(linear_kernel kernel, linear_job *j, size_t others, cuda_stream s);

/* ---- one row (linear_one.cu) ---- */

bool one_has(const pack_format *f);
int one_launch(linear_job *j, const pack_format *f, cuda_stream s);

/* ---- one row that the launch before has left (linear_left.cu) ---- */

/* CUDA_UNSUPPORTED: not such matrices, not this device, or nothing was left. */
int left_launch(linear_job *j, const pack_format *f, cuda_stream s);
/* Whether left_launch leaves codes of groups of 64 or 128. */
bool left_leaves_whole(const linear_job *j, const pack_format *f);

/* ---- rows in shared memory (linear_kept.cu) ---- */

/* Groups of eight columns that one of its launches takes, of n_col in all; 0: not such matrices, not this
 * device, or the rows do not fit. */
int kept_eights(linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, in the order of kept_order. */
int kept_launch(linear_job *j, int eights, cuda_stream s);

/* How quantized columns' scales lie: with sums of codes; alone, of each slice all columns; alone, of each
 * tile and pair of columns those of both slices, so that a lane has its four by one load. FOUR: there are at
 * most four columns, and codes too have no room for more. RECORDS: as pairs, but each chunk's codes and
 * scales lie together. */
enum meta_order { META_SUMS, META_PLAIN, META_PAIRS, META_FOUR, META_RECORDS };
__host__ __device__ __forceinline__ meta_order kept_order(int n_col) {
    return n_col <= 4 ? META_FOUR : n_col <= 16 ? META_PAIRS : META_PLAIN;
}

/* ---- several columns (linear_many.cu) ---- */

size_t many_scratch_bytes(int64_t k_pad, int n_eight);
/* Quantizes the columns into a->scratch for the kernels of several columns, and points the job there. */
int many_quantize(const cuda_linear *a, linear_job *j, int eights, meta_order order, cuda_stream s);
/* Up to 16 columns, quantized, as META_SUMS. */
int many_launch(linear_job *j, const pack_format *f, int eights, cuda_stream s);

/* ---- the same on pairs of blocks that have half of K each (linear_pair.cu), up to 16 columns ---- */

int pair_eights(linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, as META_PAIRS. */
int pair_launch(linear_job *j, int eights, cuda_stream s);

/* ---- on clusters (linear_cluster.cu) ---- */

/* The same. */
int cluster_eights(linear_job *j, const pack_format *f, int n_col);
int cluster_launch(linear_job *j, int eights, cuda_stream s);

/* ---- weights and columns both streamed (linear_stream.cu), 17 to 64 columns ---- */

int stream_eights(const linear_job *j, const pack_format *f, int n_col);
/* Several columns, quantized, as META_RECORDS. */
int stream_launch(linear_job *j, int eights, cuda_stream s);

#endif

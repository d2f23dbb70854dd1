/* linear_many.cu - products of several columns, and the codes of columns for all kernels of few rows.
 *
 * A column is a row of x, or one of the two rows of codes of its 16-bit activations. A separate kernel first
 * quantizes the columns, in the order in which lanes read them: 16 bytes a lane for each tile and each 8
 * columns. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_panels.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/tables.cuh"

struct many_store {
    uint32_t *where;
    void *meta; /* a float2 or a float for each subgroup and column */
    int n_eight, column;
    meta_order order;
    __device__ void codes(int row, int k, uint2 u) {
        const int quad = k / 4 % 8, col = column + row, lanes = order == META_FOUR ? 16 : 32;
        const int apart = order == META_RECORDS ? k / TILE_CHUNK_K * 64 * n_eight : 0;
        uint32_t *to = where + apart + ((k / 64 * n_eight + col / 8) * lanes + col % 8 * 4) * 4 +
                       k / 32 % 2 * 2 + quad / 4;
        to[quad % 4 * 4] = u.x;
        to[quad % 4 * 4 + 4] = u.y;
    }
    __device__ void subgroup(int row, int i, subgroup_meta m) {
        const int col = column + row, at = i * 8 * n_eight + col, pairs = order == META_FOUR ? 2 : 4;
        if (order == META_SUMS)
            ((float2 *)meta)[at] = make_float2(m.scale, __int_as_float(m.sum));
        else {                                                                   /* over 16: nibbles.cuh */
            const int apart = order == META_RECORDS ? i / 8 * 512 * n_eight : 0; /* codes of the chunks */
            ((float *)
                 meta)[order == META_PLAIN ? at
                                           : apart + ((i / 2 * n_eight + col / 8) * pairs + col % 8 / 2) * 4 +
                                                 i % 2 * 2 + col % 2] = __fmul_rn(m.scale, 0.0625f);
        }
    }
};

struct many_facts {
    const float *factors, *lifts;
    __device__ float factor(int column) const {
        return factors[column];
    }
    __device__ float lift(int column) const {
        return lifts[column];
    }
};

/* The part of a row that block y quantizes. */
__device__ __forceinline__ row_job row_piece(const linear_job &j, const float *x) {
    row_job row = row_of(j, x);
    if (gridDim.y > 1) {
        row.begin = blockIdx.y * EIGHT_STEP;
        row.end = min(row.begin + EIGHT_STEP, j.k_pad);
    }
    return row;
}
static int row_pieces(const linear_job &j) {
    return j.norm || !j.act_group ? 1 : (j.k_pad + EIGHT_STEP - 1) / EIGHT_STEP;
}

/* Offsets in the scratch of a product, in bytes. */
struct many_scratch {
    size_t meta, factor, lift, bytes;
};
static __host__ __device__ many_scratch many_layout(int64_t k_pad, int n_eight) {
    many_scratch s;
    s.meta = (size_t)(k_pad * 8 * n_eight);
    s.factor = s.meta + (size_t)(k_pad / 16 * 8 * n_eight) * sizeof(float2);
    s.lift = s.factor + 8 * n_eight * sizeof(float);
    s.bytes = s.lift + 8 * n_eight * sizeof(float);
    return s;
}

template <bool TWO>
__global__ void __launch_bounds__(THREADS) quantize_many(const __grid_constant__ linear_job j, int n_eight,
                                                         meta_order order, int64_t ldx, uint8_t *scratch) {
    __shared__ row_sums sums;
    const many_scratch at = many_layout(j.k_pad, n_eight);
    const int each = TWO ? 2 : 1, column = blockIdx.x * each;
    launch_next();
    launch_wait();
    quantize_row<TWO>(row_piece(j, j.x + blockIdx.x * ldx),
                      many_store{(uint32_t *)scratch,
                                 scratch + (order == META_RECORDS ? TILE_CHUNK_K * 8 * n_eight : at.meta),
                                 n_eight, column, order},
                      &sums);
    if (gridDim.y == 1 && threadIdx.x < each) {
        ((float *)(scratch + at.factor))[column + threadIdx.x] = row_factor(j, &sums);
        ((float *)(scratch + at.lift))[column + threadIdx.x] = row_lift(j, &sums, threadIdx.x);
    }
}

/* Adds a subgroup's dots of 2 rows x 2 columns to their sums. */
__device__ __forceinline__ void four_add(const linear_job &j, float2 w0, float2 w1, const int d[4],
                                         int excess, float4 m, float sum[4]) {
    const subgroup_meta a = {m.x, __float_as_int(m.y)}, b = {m.z, __float_as_int(m.w)};
    sum[0] = subgroup_add(j, w0, d[0] >> excess, a, sum[0]);
    sum[1] = subgroup_add(j, w0, d[1] >> excess, b, sum[1]);
    sum[2] = subgroup_add(j, w1, d[2] >> excess, a, sum[2]);
    sum[3] = subgroup_add(j, w1, d[3] >> excess, b, sum[3]);
}

/* Panels between two barriers of all warps, times groups of eight columns. */
enum { MANY_PANELS = 2 * TEAMS };
/* Bytes after the rings: scale and minimum of each subgroup of every warp's chunk, and the warps' sums. */
static constexpr size_t many_bytes(bool halves) {
    return ALL_WARPS * (halves ? 16 : 8) * PACK_PANEL * sizeof(float2) +
           MANY_PANELS * WARPS * PACK_PANEL * 8 * sizeof(float);
}

template <int BITS, int EIGHTS, bool HALVES, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(THREADS, 1) linear_many(const __grid_constant__ linear_job j) {
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    enum {
        COLUMNS = 8 * EIGHTS,
        SUBGROUPS = HALVES ? 16 : 8 /* subgroups of a chunk */,
        PANELS = MANY_PANELS / EIGHTS
    };
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, team = threadIdx.x / 32 / WARPS;
    const int g = lane / 4, t = lane % 4, ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    auto *const weights =
        (float2(*)[PACK_PANEL])(shared + ALL_WARPS * ring_bytes) + threadIdx.x / 32 * SUBGROUPS;
    auto *const partial = (float(*)[WARPS][PACK_PANEL][COLUMNS])(
        shared + ALL_WARPS * ring_bytes + ALL_WARPS * SUBGROUPS * PACK_PANEL * sizeof(float2));
    ring r;
    chunk_feed feed = feed_begin(j, n_panel);
    ring_init(&r, shared + threadIdx.x / 32 * ring_bytes, bars[threadIdx.x / 32], j.depth, j.stage_bytes);
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        feed_put(j, &feed, &r);
    launch_wait();
    for (int q0 = 0; q0 < n_panel; q0 += PANELS) {
        const int n_here = min((int)PANELS, n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[TILE_CHUNK][EIGHTS][4];
            lane_tables<TABLE> tables;
            tables_load<BITS>(&tables, j.table, book_at<TABLE>(j, q0 + q));
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * EIGHTS * 4; i++)
                ((float *)sum)[i] = 0.0f;
            for (int c = warp; c < j.n_chunk; c += WARPS) {
                if (!ring_ahead())
                    feed_put(j, &feed, &r);
                const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                const uint4 *codes = j.codes + (int64_t)c * TILE_CHUNK * EIGHTS * 32 + lane;
                const float4 *meta = j.meta + (int64_t)c * SUBGROUPS * (COLUMNS / 2) + t;
                uint4 b[TILE_CHUNK][EIGHTS];
#pragma unroll
                for (int i = 0; i < TILE_CHUNK * EIGHTS; i++)
                    ((uint4 *)b)[i] = codes[i * 32];
                const uint8_t *stage = ring_get(&r), *scales = stage + n_tile * BITS * 128;
                int group[SUBGROUPS / 2], row[SUBGROUPS / 2];
                float2 w[SUBGROUPS / 2];
#pragma unroll
                for (int s = 0; s < SUBGROUPS / 2; s++) {
                    group[s] = min(2 * s + lane / 16, n_tile * SUBGROUPS / TILE_CHUNK - 1) >> j.group_shift;
                    row[s] = lane % 16;
                }
                scales_read<SUBGROUPS / 2>(j, scales, group, row, w);
#pragma unroll
                for (int s = 0; s < SUBGROUPS / 2; s++)
                    weights[2 * s + lane / 16][lane % 16] = w[s];
                __syncwarp();
#pragma unroll
                for (int i = 0; i < TILE_CHUNK; i++) {
                    if (!ring_ahead() && i >= n_tile)
                        break;
                    tile_lane<CODE> v;
                    tile_take<BITS, TABLE>(&v, stage + i * BITS * 128, lane, tables);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int half = 0; half < (HALVES ? 2 : 1); half++) {
                            const int s = HALVES ? 4 * i + 2 * h + half : 2 * i + h;
                            const float2 w0 = weights[s][g], w1 = weights[s][g + 8];
#pragma unroll
                            for (int e = 0; e < EIGHTS; e++) {
                                const uint32_t b0 = h ? b[i][e].z : b[i][e].x, b1 = h ? b[i][e].w : b[i][e].y;
                                int d[4] = {0, 0, 0, 0};
                                tile_mma(v, h, d, HALVES && half ? 0 : b0, HALVES && !half ? 0 : b1);
                                four_add(j, w0, w1, d, tile_excess<CODE>(h), meta[s * (COLUMNS / 2) + e * 4],
                                         sum[i][e]);
                            }
                        }
                }
                __syncwarp();
                if (ring_ahead())
                    feed_put(j, &feed, &r);
            }
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    partial[q][warp][g + i / 2 * 8][e * 8 + 2 * t + i % 2] = tiles_sum(sum, e, i);
        }
        __syncthreads();
        outputs_write<COLUMNS>(j, q0, n_here, partial[0][0][0], many_facts{j.factor, j.lift}, nullptr);
        __syncthreads();
    }
}

template <int EIGHTS> static linear_kernel many_kernel(const pack_format *f) {
    const int bits = f->bits;
    const bool halves = f->group == 16;
    static const linear_kernel all[9] = {nullptr,
                                         nullptr,
                                         linear_many<2, EIGHTS, false>,
                                         linear_many<3, EIGHTS, false>,
                                         linear_many<4, EIGHTS, false>,
                                         linear_many<5, EIGHTS, false>,
                                         linear_many<6, EIGHTS, false>,
                                         linear_many<7, EIGHTS, false>,
                                         linear_many<8, EIGHTS, false>};
    if (table_kind_of(f) == TABLE_SHARED)
        return linear_many<4, EIGHTS, false, TABLE_SHARED>;
    if (table_kind_of(f) == TABLE_BOOK)
        return bits == 4 ? linear_many<4, EIGHTS, false, TABLE_BOOK>
                         : linear_many<3, EIGHTS, false, TABLE_BOOK>;
    if (!halves)
        return all[bits];
    return bits == 2   ? linear_many<2, EIGHTS, true>
           : bits == 3 ? linear_many<3, EIGHTS, true>
           : bits == 6 ? linear_many<6, EIGHTS, true>
                       : nullptr;
}

size_t many_scratch_bytes(int64_t k_pad, int n_eight) {
    return many_layout(k_pad, n_eight).bytes;
}

int many_quantize(const cuda_linear *a, linear_job *j, int eights, meta_order order, cuda_stream s) {
    uint8_t *scratch = (uint8_t *)a->scratch;
    const many_scratch at = many_layout(j->k_pad, eights);
    auto *const quantize = a->two ? quantize_many<true> : quantize_many<false>;
    j->codes = (const uint4 *)scratch;
    j->meta = (const float4 *)(scratch + at.meta);
    j->factor = (const float *)(scratch + at.factor);
    j->lift = (const float *)(scratch + at.lift);
    const int e = prepare(quantize, 0);
    return e ? e
             : launch(quantize, dim3((unsigned)a->n_row, (unsigned)row_pieces(*j)), dim3(THREADS), 0, s, *j,
                      eights, order, a->ldx, scratch);
}

int many_launch(linear_job *j, const pack_format *f, int eights, cuda_stream s) {
    return linear_run((eights == 1 ? many_kernel<1> : many_kernel<2>)(f), j, many_bytes(j->subgroup == 16),
                      s);
}

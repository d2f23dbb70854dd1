/* experts_few.cu - products of experts with 8-bit activations.
 *
 * A block has up to eight pairs of one expert, and two panels of its matrices, of both matrices if gated,
 * then the next two. Its eight warps share the panels, and K: the warps of a panel take chunks (256 of K) in
 * turn. Which expert it is is known only after the router, so nothing is read ahead of that; then whole
 * panels are prefetched to the L2 cache, and each warp's chunks are copied to its ring of stages. The codes
 * of several pairs are in shared memory, too.
 *
 * A pair alone uses the columns of the matrix instruction for the eight subgroups of a chunk (as
 * linear_left.cu), so each lane scales four sums for a chunk, otherwise four for each subgroup. The order of
 * sums is that of linear.cuh within a warp, and then that of the warps, so both ways give the same bits. */
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/ring.cuh"

enum { FEW_DEPTH = 2 /* stages of a warp's ring, if they fit; else one */ };
/* A block takes several pairs of panels in turn, up to FEW_TURNS, if FEW_WAVES blocks a multiprocessor are
 * left. */
enum { FEW_TURNS = 8, FEW_WAVES = 6, FEW_BARS = 1 << 10 /* bytes, at most, of barriers */ };

/* ---- the rows' codes ---- */

struct few_store {
    uint8_t *row;
    int64_t residuals;
    int k_pad;
    __device__ void codes(int which, int k, uint2 u) {
        uint32_t *const to = (uint32_t *)(row + which * residuals);
        to[quad_at(k / 4)] = u.x;
        to[quad_at(k / 4 + 1)] = u.y;
    }
    __device__ void subgroup(int which, int i, subgroup_meta m) {
        ((subgroup_meta *)(row + which * residuals + meta_at(k_pad)))[i] = m;
    }
};

template <bool TWO>
__global__ void __launch_bounds__(THREADS) experts_quantize(const __grid_constant__ few_job j) {
    __shared__ row_sums sums;
    const int row = blockIdx.x, n_used = j.x.n_used;
    uint8_t *const to = (uint8_t *)j.codes + row * j.step;
    const float *const x =
        j.x.x + (j.x.each ? row / n_used * j.x.ldx + (int64_t)(row % n_used) * j.x.k : row * j.x.ldx);
    launch_next();
    launch_wait();
    quantize_row<TWO>(row_of(j.of, x), few_store{to, j.residuals, j.of.k_pad}, &sums);
    if (!j.of.act_group && threadIdx.x < (TWO ? 2 : 1))
        *(float *)(to + threadIdx.x * j.residuals + lift_at(j.of.k_pad, j.of.subgroup)) =
            row_lift(j.of, &sums, threadIdx.x);
}

/* ---- products ---- */

/* A warp's panel, the part of K that it has, and the codes: of one pair in memory, or of all columns in
 * shared memory. */
struct few_walk {
    const uint8_t *panel;
    int first, step; /* chunks; PART_CHUNKS is a multiple of step */
    const uint8_t *column;
    const int4 *meta; /* [subgroup][pair of columns] */
    ring chunks;
    const uint8_t *next; /* the panel that is copied to the ring, its next chunk, and the panels left */
    int ahead, left;
};

/* Starts to copy the next chunk, if there is one. All lanes have read the stage that it replaces. */
__device__ __forceinline__ void walk_ask(const few_job &j, few_walk *w) {
    if (w->left <= 0)
        return;
    ring_put(&w->chunks, w->next + (int64_t)w->ahead * j.of.chunk_bytes,
             w->ahead == j.of.n_chunk - 1 ? j.of.last_bytes : j.of.chunk_bytes);
    w->ahead += w->step;
    if (w->ahead < j.of.n_chunk)
        return;
    w->ahead = w->first;
    w->next += 2 * j.of.panel_bytes;
    w->left--;
}
/* Waits for the next chunk; after walk_done its memory may be replaced. */
__device__ __forceinline__ const uint8_t *walk_take(const few_job &j, few_walk *w) {
    if (!ring_ahead())
        walk_ask(j, w);
    return ring_get(&w->chunks);
}
__device__ __forceinline__ void walk_done(const few_job &j, few_walk *w) {
    __syncwarp();
    if (ring_ahead())
        walk_ask(j, w);
}

/* A part of several columns in shared memory: codes [COLUMNS][stride], where stride keeps neighbouring
 * columns in different banks, then subgroups [part / subgroup][COLUMNS]. */
enum { PART_CHUNKS = 16, BANKS_APART = 64 };
static __host__ __device__ __forceinline__ int part_of(const linear_job &j) {
    return j.n_chunk < PART_CHUNKS ? j.k_pad : PART_CHUNKS * TILE_CHUNK_K;
}
static __host__ __device__ __forceinline__ int columns_bytes(const linear_job &j) {
    return COLUMNS * (part_of(j) + BANKS_APART + part_of(j) / j.subgroup * (int)sizeof(subgroup_meta));
}

/* Copies the part of the tile's columns that begins with a chunk. What other columns have is not used. */
__device__ __forceinline__ void columns_copy(const few_job &j, const cuda_expert_tile &tile, int chunk,
                                             uint8_t *to) {
    const int part = part_of(j.of), from = chunk * TILE_CHUNK_K, n = min(part, j.of.k_pad - from),
              columns = tile.n * (j.x.two ? 2 : 1);
    int2 *const metas = (int2 *)(to + COLUMNS * (part + BANKS_APART));
    const int c = threadIdx.x / 32, lane = threadIdx.x % 32;
    static_assert(EXPERT_WARPS == COLUMNS, "a warp copies a column");
    if (c >= columns)
        return;
    const uint8_t *const column = column_codes(j, tile, c);
    const auto *const codes = (const uint4 *)(column + from);
    const auto *const meta = (const int2 *)(column + meta_at(j.of.k_pad)) + from / j.of.subgroup;
#pragma unroll 4
    for (int i = lane; i < n / 16; i += 32)
        *((uint4 *)(to + c * (part + BANKS_APART)) + i) = __ldcg(codes + i);
#pragma unroll 2
    for (int i = lane; i < n / j.of.subgroup; i += 32)
        metas[i * COLUMNS + c] = __ldcg(meta + i);
}

/* The scales of subgroup s of a chunk for rows g and g + 8. */
template <bool HALVES>
__device__ __forceinline__ void two_scales(const few_job &j, const uint8_t *scales, int s, float2 w[2]) {
    const int g = threadIdx.x % 32 / 4, group = s >> j.of.group_shift;
    const int groups[2] = {group, group}, rows[2] = {g, g + 8};
    scales_read<2>(j.of, scales, groups, rows, w);
}

/* Adds a chunk's products to sum [tile][2 rows x 2 columns]; `in`: the chunk's place in the part. */
template <int BITS, bool HALVES, int TABLE>
__device__ __forceinline__ void chunk_many(const few_job &j, const few_walk &w, const uint8_t *codes,
                                           int chunk, int in, const lane_tables<TABLE> &tables,
                                           float (&sum)[TILE_CHUNK][4]) {
    enum { CODE = code_bits<BITS, TABLE>(), PER = HALVES ? 16 : 8 };
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int n_tile = chunk == j.of.n_chunk - 1 ? j.of.last_tiles : TILE_CHUNK;
    const uint8_t *const scales = codes + n_tile * BITS * 128;
    const int4 *const meta = w.meta + in * PER * (COLUMNS / 2) + t;
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        if (i >= n_tile)
            break;
        tile_lane<CODE> v;
        tile_take<BITS, TABLE>(&v, codes + i * BITS * 128, lane, tables);
        const uint4 b = *((const uint4 *)(w.column + (in * TILE_CHUNK + i) * TILE_K) + t);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int half = 0; half < (HALVES ? 2 : 1); half++) {
                const int s = HALVES ? 4 * i + 2 * h + half : 2 * i + h;
                const uint32_t b0 = h ? b.z : b.x, b1 = h ? b.w : b.y;
                const int4 m = meta[s * (COLUMNS / 2)];
                const subgroup_meta a0 = {__int_as_float(m.x), m.y}, a1 = {__int_as_float(m.z), m.w};
                float2 scale[2];
                int d[4] = {0, 0, 0, 0};
                two_scales<HALVES>(j, scales, s, scale);
                tile_mma(v, h, d, HALVES && half ? 0 : b0, HALVES && !half ? 0 : b1);
                sum[i][0] = subgroup_add(j.of, scale[0], d[0] >> tile_excess<CODE>(h), a0, sum[i][0]);
                sum[i][1] = subgroup_add(j.of, scale[0], d[1] >> tile_excess<CODE>(h), a1, sum[i][1]);
                sum[i][2] = subgroup_add(j.of, scale[1], d[2] >> tile_excess<CODE>(h), a0, sum[i][2]);
                sum[i][3] = subgroup_add(j.of, scale[1], d[3] >> tile_excess<CODE>(h), a1, sum[i][3]);
            }
    }
}

/* One pair. Column c has the chunk's subgroup c, so the lane's four sums are those of tile t: of its first
 * and second half, for rows g and g + 8. */
template <int BITS, int TABLE>
__device__ __forceinline__ void chunk_one(const few_job &j, const few_walk &w, const uint8_t *codes,
                                          int chunk, const lane_tables<TABLE> &tables, float sum[2]) {
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int n_tile = chunk == j.of.n_chunk - 1 ? j.of.last_tiles : TILE_CHUNK;
    const uint8_t *const scales = codes + n_tile * BITS * 128;
    const auto *const meta =
        (const subgroup_meta *)(w.column + meta_at(j.of.k_pad)) + chunk * 2 * TILE_CHUNK + 2 * t;
    tile_lane<CODE> v[TILE_CHUNK];
    float2 first[2] = {}, second[2] = {};
    int d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++)
        if (i < n_tile)
            tile_take<BITS, TABLE>(&v[i], codes + i * BITS * 128, lane, tables);
    const uint2 b =
        __ldcg((const uint2 *)(w.column + (chunk * TILE_CHUNK + g / 2) * TILE_K + t * 16) + g % 2);
    const int4 m = __ldcg((const int4 *)meta);
    if (t < n_tile) {
        two_scales<false>(j, scales, 2 * t, first);
        two_scales<false>(j, scales, 2 * t + 1, second);
    }
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++)
        if (i < n_tile)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const bool own = g == 2 * i + h;
                tile_mma(v[i], h, d, own ? b.x : 0, own ? b.y : 0);
            }
    if (t >= n_tile)
        return;
    const subgroup_meta a0 = {__int_as_float(m.x), m.y}, a1 = {__int_as_float(m.z), m.w};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sum[row] = subgroup_add(j.of, first[row], d[2 * row], a0, sum[row]);
        sum[row] = subgroup_add(j.of, second[row], d[2 * row + 1] >> tile_excess<CODE>(1), a1, sum[row]);
    }
}

/* Sums a warp's share of K for its panel. columns: shared memory, not used for one pair alone. again: an
 * earlier panel has copied them, if they fit. */
template <int BITS, bool HALVES, int TABLE>
__device__ __forceinline__ void panel_sum(const few_job &j, few_walk &w, const cuda_expert_tile &tile,
                                          uint8_t *columns, bool again, few_sums *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    auto &to = sums->of[threadIdx.x / 32];
    lane_tables<TABLE> tables;
    tables_load<BITS>(&tables, j.of.table,
                      TABLE == TABLE_BOOK && w.panel ? w.panel + j.of.tail_at + TILE_LINE : nullptr);
    if (!HALVES && tile.n == 1 && !j.x.two) {
        float sum[2] = {0.0f, 0.0f};
        w.column = column_codes(j, tile, 0);
        for (int chunk = w.first; w.panel && chunk < j.of.n_chunk; chunk += w.step) {
            chunk_one<BITS, TABLE>(j, w, walk_take(j, &w), chunk, tables, sum);
            walk_done(j, &w);
        }
        sum[0] = pairs_sum(sum[0], 4), sum[1] = pairs_sum(sum[1], 4);
        if (t == 0)
            to[g][0] = sum[0], to[g + 8][0] = sum[1];
        return;
    }
    const int stride = part_of(j.of) + BANKS_APART;
    float sum[TILE_CHUNK][4] = {};
    w.column = columns + g * stride;
    w.meta = (const int4 *)(columns + COLUMNS * stride);
    for (int from = 0; from < j.of.n_chunk; from += PART_CHUNKS) {
        const int end = w.panel ? min(from + (int)PART_CHUNKS, j.of.n_chunk) : 0;
        if (from)
            __syncthreads();
        if (!again || j.of.n_chunk > PART_CHUNKS) {
            columns_copy(j, tile, from, columns);
            __syncthreads();
        }
        for (int chunk = from + w.first; chunk < end; chunk += w.step) {
            chunk_many<BITS, HALVES, TABLE>(j, w, walk_take(j, &w), chunk, chunk - from, tables, sum);
            walk_done(j, &w);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[g + i / 2 * 8][2 * t + i % 2] =
            __fadd_rn(__fadd_rn(sum[0][i], sum[1][i]), __fadd_rn(sum[2][i], sum[3][i]));
}

/* ---- results ---- */

/* A finished sum of output `in` of two panels of one matrix, for one pair. */
__device__ __forceinline__ float few_value(const few_job &j, const few_sums &sums, const uint8_t *panel,
                                           int slot, int in, int m, const cuda_expert_tile &tile) {
    const int share = parts_of(j.x.gated), each = j.x.two ? 2 : 1;
    float v = 0.0f;
    for (int c = 0; c < each; c++) {
        const int column = m * each + c;
        float u = 0.0f;
        for (int i = 0; i < share; i++)
            u = __fadd_rn(u, sums.of[slot * share + i][in % PACK_PANEL][column]);
        if (j.of.tail) {
            const uint8_t *const tail = panel + j.of.tail_at + 2 * (in % PACK_PANEL);
            u = __fmul_rn(half_at(tail), u);
            if (j.of.asym)
                u = __fmaf_rn(
                    half_at(tail + 32),
                    *(const float *)(column_codes(j, tile, column) + lift_at(j.of.k_pad, j.of.subgroup)), u);
        }
        v = c ? __fadd_rn(v, u) : u;
    }
    return v;
}

/* A warp has 32 outputs, those of two panels, of a pair. */
__device__ __forceinline__ void few_write(const few_job &j, const few_sums &sums,
                                          const cuda_expert_tile &tile, int place, int matrix,
                                          int two_panels) {
    const int in = threadIdx.x % 32, m = threadIdx.x / 32, at = two_panels * EXPERT_OUTPUTS + in;
    const int unit = in / PACK_PANEL;
    const int64_t panel = place * j.expert_bytes + (at / PACK_PANEL) * j.of.panel_bytes;
    if (m >= tile.n)
        return;
    const int pair = j.x.pairs[tile.first + m];
    const bool there = at < j.x.n;
    float v = 0.0f;
    if (there) {
        v = few_value(j, sums, j.of.w[matrix] + panel, unit, in, m, tile);
        const float u = j.x.gated ? few_value(j, sums, j.of.w[1] + panel, 2 + unit, in, m, tile) : 0.0f;
        v = expert_write(j.x, tile.expert, pair, at, matrix, v, u);
    }
    if (j.leaves)
        codes_store(j.leaves + pair * j.leaves_step, j.x.n, at, v);
}

/* Blocks: x has `turns` times two panels of outputs, y a tile, z a matrix if they are not gated. */
template <int BITS, bool HALVES, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(EXPERT_THREADS, 3) experts_few(const __grid_constant__ few_job j) {
    extern __shared__ __align__(128) uint8_t shared[]; /* the warps' rings, then columns */
    __shared__ few_sums sums[2];
    __shared__ uint64_t bars[EXPERT_WARPS][FEW_DEPTH];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, matrix = blockIdx.z;
    few_walk w = {};
    ring_init(&w.chunks, shared + warp * j.depth * j.of.stage_bytes, bars[warp], j.depth, j.of.stage_bytes);
    launch_wait();
    launch_next(); /* after the wait: experts_kept.cu reads the list before its own */
    if ((int)blockIdx.y >= __ldcg(j.x.n_tile))
        return;
    const cuda_expert_tile tile = j.x.tiles[blockIdx.y];
    const int place = expert_place(j.x, tile.expert);
    if (place < 0)
        return;
    const int share = parts_of(j.x.gated), slot = warp / share, first = (int)blockIdx.x * j.turns,
              end = min(first + j.turns, (j.n_panel + 1) / 2);
    const uint8_t *const of = j.of.w[slot < 2 ? matrix : 1] + place * j.expert_bytes;
    w.first = w.ahead = warp % share;
    w.step = share;
    w.next = of + (2 * first + slot % 2) * j.of.panel_bytes;
    w.left = w.first < j.of.n_chunk ? (min(2 * end, j.n_panel) - (2 * first + slot % 2) + 1) / 2 : 0;
    for (int i = 0; ring_ahead() && i < j.depth; i++)
        walk_ask(j, &w);
    for (int two = first; two < end; two++) {
        const int p = 2 * two + slot % 2;
        few_sums *const to = &sums[(two - first) % 2];
        w.panel = p < j.n_panel ? of + p * j.of.panel_bytes : nullptr;
        if (w.first == 0 && lane == 0 && w.panel)
            prefetch_l2(w.panel, (uint32_t)j.of.panel_bytes);
        panel_sum<BITS, HALVES, TABLE>(j, w, tile, shared + EXPERT_WARPS * j.depth * j.of.stage_bytes,
                                       two > first, to);
        __syncthreads();
        few_write(j, *to, tile, place, matrix, two);
    }
}

/* ---- launching ---- */

static few_kernel kernel_of(const pack_format *f) {
    static const few_kernel all[9] = {nullptr,
                                      nullptr,
                                      UNLESS_FEW(experts_few<2, false>),
                                      UNLESS_FEW(experts_few<3, false>),
                                      experts_few<4, false>,
                                      UNLESS_FEW(experts_few<5, false>),
                                      UNLESS_FEW(experts_few<6, false>),
                                      UNLESS_FEW(experts_few<7, false>),
                                      UNLESS_FEW(experts_few<8, false>)};
    if (table_kind_of(f) == TABLE_SHARED)
        return experts_few<4, false, TABLE_SHARED>;
    if (table_kind_of(f) == TABLE_BOOK)
        return f->bits == 4 ? UNLESS_FEW(experts_few<4, false, TABLE_BOOK>)
                            : experts_few<3, false, TABLE_BOOK>;
    if (f->group != 16)
        return f->bits > 8 ? nullptr : all[f->bits];
    return f->bits == 2   ? UNLESS_FEW(experts_few<2, true>)
           : f->bits == 3 ? experts_few<3, true>
           : f->bits == 6 ? UNLESS_FEW(experts_few<6, true>)
                          : nullptr;
}

int experts_quantize_launch(const cuda_experts *a, const few_job &j, cuda_stream s) {
    auto *const kernel = a->two ? experts_quantize<true> : experts_quantize<false>;
    const int64_t rows = a->each ? a->n_row * a->n_used : a->n_row;
    const int e = prepare(kernel, 0);
    return e ? e : launch(kernel, dim3((unsigned)rows), dim3(THREADS), 0, s, j);
}

int experts_few_make(const cuda_experts *a, const expert_job &x, few_job *j) {
    cuda_linear one = {};
    one.n_w = a->n_w;
    one.n_row = 1;
    one.gated = a->gated;
    one.two = a->two;
    for (int i = 0; i < a->n_w; i++)
        one.w[i] = a->w[i];
    const int e = linear_job_make(&one, &j->of);
    const int64_t rows = a->each ? a->n_row * a->n_used : a->n_row;
    j->x = x;
    j->codes = (const uint8_t *)(a->codes ? a->codes : a->scratch);
    j->step = cuda_expert_row(a->w[0].k);
    j->residuals = rows * j->step;
    j->leaves = (uint8_t *)a->leaves;
    j->leaves_step = cuda_expert_row(a->n);
    j->expert_bytes = expert_bytes(&a->w[0], a->n_expert);
    j->n_panel = (int)((a->n + PACK_PANEL - 1) / PACK_PANEL);
    return e;
}

int experts_few_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    const int kept = experts_kept_launch(a, x, s);
    if (kept != CUDA_UNSUPPORTED)
        return kept;
    few_job j = {};
    const few_kernel kernel = kernel_of(&a->w[0].format);
    int e = kernel ? experts_few_make(a, x, &j) : (int)CUDA_UNSUPPORTED;
    const bool alone = a->n_row == 1 && !a->two && a->w[0].format.group != 16;
    j.of.stage_bytes = device_major() >= 8 ? stage_bytes_of(j.of.chunk_bytes) : 0;
    const size_t columns = alone || e ? 0 : (size_t)columns_bytes(j.of),
                 ring = (size_t)(EXPERT_WARPS * j.of.stage_bytes);
    const bool deep =
        FEW_DEPTH * ring + columns + 2 * sizeof(few_sums) + FEW_BARS <= (size_t)device_shared_bytes();
    j.depth = deep ? FEW_DEPTH : 1;
    const size_t shared = (size_t)j.depth * ring + columns;
    e = e || a->codes ? e : experts_quantize_launch(a, j, s);
    e = e ? e : prepare(kernel, shared);
    const int64_t n_pair = a->n_row * a->n_used, n_tile = n_pair < a->n_expert ? n_pair : a->n_expert,
                  twos = (j.n_panel + 1) / 2, turns = twos * n_tile / (FEW_WAVES * device_sm_count());
    j.turns = (int)(turns < 1 ? 1 : turns > FEW_TURNS ? (int64_t)FEW_TURNS : turns);
    const dim3 grid((unsigned)((twos + j.turns - 1) / j.turns),
                    (unsigned)cuda_expert_few_of(n_pair, a->n_expert, a->two).max_tile,
                    a->gated ? 1 : (unsigned)a->n_w);
    return e                ? e
           : grid.y > 65535 ? (int)CUDA_UNSUPPORTED
                            : launch(kernel, grid, dim3(EXPERT_THREADS), shared, s, j);
}

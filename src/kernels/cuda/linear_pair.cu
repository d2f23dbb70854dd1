/* linear_pair.cu - products of 2 to 16 columns with 4-bit matrices (nibbles.cuh), for rows that do not fit
 * one block's shared memory (compute capability 9.0). See linear.cuh.
 *
 * Two blocks are a cluster. Eight warps share a panel's K, four in each block. Block `rank` has the chunks
 * whose bit 2 is `rank`, and keeps the codes of these chunks for all columns. A block has four teams of four
 * warps. A team and the team with the same number in the other block take panels in turn. When they have the
 * sums of a panel, each block gets those of its half of the columns from all eight warps, adds them in the
 * order of the warps and finishes them. All teams of both blocks have one barrier a round. If codes are left
 * for the next launch, two teams of a block have neighbouring panels, which are a group. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/nibbles.cuh"

enum { RANKS = 2, HERE = WARPS / RANKS /* warps of a team in a block */, PAIR_TEAMS = ALL_WARPS / HERE };
/* Byte offsets in a block's shared memory. places: buffers for sums; one if they are needed once. */
struct pair_layout {
    int scales, exchange, rings, bytes, places;
};
static __host__ __device__ __forceinline__ pair_layout layout_of(const linear_job &j, int eights, int rounds,
                                                                 int ring_bytes) {
    const int k = (j.n_chunk + WARPS - 1) / WARPS * HERE * TILE_CHUNK_K;
    pair_layout r;
    r.places = rounds * (j.gated ? 2 : 1) > 1 ? 2 : 1;
    r.scales = k * 8 * eights;
    r.exchange = r.scales + k / 32 * 8 * eights * (int)sizeof(float);
    r.rings = r.exchange + PAIR_TEAMS * r.places * exchange_floats(4 * eights) * (int)sizeof(float);
    r.bytes = r.rings + ALL_WARPS * ring_bytes;
    return r;
}
static __host__ __device__ __forceinline__ int rounds_of(const linear_job &j, int clusters) {
    const int each = clusters * (PAIR_TEAMS >> j.paired);
    return (j.n_unit + each - 1) / each;
}

/* A team's panel of a unit. If codes are left, a unit is two panels of neighbouring teams. */
__device__ __forceinline__ int pair_panel(const linear_job &j, int unit, int team, int part, int *matrix) {
    const int panel = (unit << j.paired) + (team & ((1 << j.paired) - 1));
    if (j.gated) {
        *matrix = part;
        return panel;
    }
    *matrix = matrix_of(j, panel);
    return panel - j.first[*matrix];
}

/* A team's panels. */
struct pair_walk {
    int unit, team, part, step /* units */;
    __device__ __forceinline__ bool there(const linear_job &j) const {
        return unit < j.n_unit;
    }
    __device__ __forceinline__ const uint8_t *weights(const linear_job &j) const {
        int matrix;
        const int panel = pair_panel(j, unit, team, part, &matrix);
        return j.w[matrix] + panel * j.panel_bytes;
    }
    __device__ __forceinline__ void next(const linear_job &j) {
        part = j.gated && !part;
        unit += part ? 0 : step;
    }
};

/* Starts copying the columns that the block keeps. Lane 0 of each warp of the first team copies the part for
 * its warp's number. */
template <int EIGHTS>
__device__ __forceinline__ void pair_rows(const linear_job &j, uint8_t *codes, uint8_t *scales, int first,
                                          uint64_t *bar) {
    enum { CODES = TILE_CHUNK_K * 8 * EIGHTS, SCALES = 8 * 8 * EIGHTS * (int)sizeof(float) };
    if (first >= j.n_chunk)
        return;
    bar_expect(bar, (j.n_chunk - first + WARPS - 1) / WARPS * (CODES + SCALES));
    for (int c = first; c < j.n_chunk; c += WARPS) {
        const int in = c / WARPS * HERE + c % HERE;
        bulk_copy<false>(codes + in * CODES, (const uint8_t *)j.codes + (int64_t)c * CODES, CODES, bar);
        bulk_copy<false>(scales + in * SCALES, (const uint8_t *)j.meta + (int64_t)c * SCALES, SCALES, bar);
    }
}

template <int EIGHTS>
__global__ void __launch_bounds__(THREADS, 1) linear_pair(const __grid_constant__ linear_job j) {
    enum { COLUMNS = 8 * EIGHTS, HALF = COLUMNS / 2, EXCHANGE = exchange_floats(HALF) };
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES], rows_there[HERE];
    __shared__ float factors[MAX_LEFT_ROWS];
    __shared__ half_left halves[PAIR_TEAMS][MAX_LEFT_ROWS / RANKS];
    uint8_t *const shared = block_memory();
    const int of_all = warp_number(), lane = threadIdx.x % 32, warp = of_all % HERE, team = of_all / HERE;
    const int g = lane / 4, t = lane % 4, rank = blockIdx.z, number = rank * HERE + warp;
    const int rounds = rounds_of(j, (int)gridDim.x),
              start = (int)blockIdx.x + (int)gridDim.x * (team >> j.paired);
    const int step = (int)gridDim.x * (PAIR_TEAMS >> j.paired);
    const pair_layout at = layout_of(j, EIGHTS, rounds, j.depth * j.stage_bytes);
    float *const exchange = (float *)(shared + at.exchange) + team * at.places * EXCHANGE;
    warp_ring r = warp_ring_make(shared + at.rings + of_all * j.depth * j.stage_bytes, bars[of_all], j.depth);
    ring_feed<pair_walk> feed =
        ring_feed_begin(j, &r, pair_walk{number < j.n_chunk ? start : j.n_unit, team, 0, step}, number);
    if (team == 0 && lane == 0) {
        bar_init(rows_there + warp, 1);
        async_fence();
    }
    __syncthreads();
    launch_wait();
    if (team == 0 && lane == 0)
        pair_rows<EIGHTS>(j, shared, shared + at.scales, number, rows_there + warp);
    if (j.norm && j.squares)
        factors_take(j, factors);
    cluster_barrier(); /* the other block runs, so it may be written to; the factors are visible */
    if (number < j.n_chunk)
        bar_wait<false>(rows_there + warp, 0);
    /* Each thread of a team has an output: its row, and its number among the block's columns. */
    const int each = j.two ? 2 : 1, in = threadIdx.x % PACK_PANEL,
              place = threadIdx.x / PACK_PANEL % (2 * HERE);
    const int m = rank * HALF / each + place;
    const bool has = place < HALF / each && m < j.n_col / each;
    float factor[2] = {1.0f, 1.0f};
    if (j.norm && has) {
        factor[0] = j.squares ? factors[m] : __ldcg(j.factor + m * each);
        factor[1] = j.squares ? factors[m] : __ldcg(j.factor + m * each + each - 1);
    }
    const nibble_base base = nibble_base_make();
    enum { CHUNK_CODES = TILE_CHUNK_K * COLUMNS, CHUNK_SCALES = 8 * COLUMNS * (int)sizeof(float) };
    const uint32_t first_codes = address_kept(shared) + warp * CHUNK_CODES + lane * 16,
                   first_scales = address_kept(shared + at.scales) + warp * CHUNK_SCALES + t * 16;
    int lane_scale[2], turn = 0;
    chunk_lane_scales(j.group_shift, lane_scale);
    for (int round = 0, unit = start; round < rounds; round++, unit += step) {
        float gate = 0.0f;
        for (int part = 0; part < (j.gated ? 2 : 1); part++) {
            int matrix;
            const int n = pair_panel(j, unit, team, part, &matrix) * PACK_PANEL + in;
            const bool there = has && unit < j.n_unit && n < j.n[matrix], ends = there && (!j.gated || part);
            const float weight = ends && j.leaves_rows.norm ? j.leaves_rows.norm[n] : 1.0f;
            const float before = ends && j.adds ? *output_place(j, matrix, m, n) : 0.0f;
            float sum[TILE_CHUNK][EIGHTS][4];
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * EIGHTS * 4; i++)
                ((float *)sum)[i] = 0.0f;
            uint32_t codes = first_codes, scales = first_scales;
            for (int c = number; unit < j.n_unit && c < j.n_chunk; c += WARPS) {
                warp_ring_wait(r);
                chunk_times<EIGHTS, false>(warp_ring_stage(j, r),
                                           c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK, codes, scales,
                                           lane_scale, base, sum);
                __syncwarp();
                ring_feed_put(j, &feed, r);
                warp_ring_next(j, &r);
                codes += HERE * CHUNK_CODES;
                scales += HERE * CHUNK_SCALES;
            }
            float *const to = exchange + (turn++ % at.places) * EXCHANGE;
#pragma unroll
            for (int e = 0; e < EIGHTS; e++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int column = e * 8 + 2 * t + i % 2;
                    cluster_store(to + (number * HALF + column % HALF) * COLUMN_LINE + g + i / 2 * 8,
                                  column / HALF, tiles_sum(sum, e, i));
                }
            __syncwarp();
            cluster_barrier();
            if (unit >= j.n_unit)
                continue;
            float v = 0.0f;
            if (there)
                v = exchanged_value<HALF>(j, to, place * each, in, factor, matrix, n);
            if (j.gated && part == 0) {
                gate = v;
                continue;
            }
            if (there)
                v = output_put(j, matrix, m, n, gate, v, before);
            if (!j.leaves_rows.codes)
                continue;
            const half_output left =
                half_leave(j.leaves_rows, n, m, v, weight, there, halves[team] + place % HALF);
            warps_barrier(1 + team / 2, 2 * HERE); /* two teams have neighbouring panels */
            half_finish(j.leaves_rows, left, halves[team ^ 1] + place % HALF);
        }
    }
}

/* ---- launching ---- */

static int clusters_of(const linear_job *j) {
    const int max_clusters = device_sm_count() / RANKS;
    return j->n_unit < max_clusters ? j->n_unit : max_clusters;
}

/* Sets the rings beside the rows, for this many clusters; false: they do not fit. */
static bool depth_find(linear_job *j, int eights, int clusters) {
    const int rounds = rounds_of(*j, clusters);
    return ring_depth_find(j, layout_of(*j, eights, rounds, 0).bytes,
                           (int64_t)rounds * (j->gated ? 2 : 1) * ((j->n_chunk + WARPS - 1) / WARPS));
}

int pair_eights(linear_job *j, const pack_format *f, int n_col) {
    const int eights = n_col <= 8 ? 1 : 2;
    /* With fewer clusters there may be one more round, and one more buffer for sums. */
    return n_col <= 16 && device_major() >= 9 && nibbles_are(*j, f) && depth_find(j, eights, 1) ? eights : 0;
}

template <int EIGHTS> static int run_pair(linear_job *j, cuda_stream s) {
    auto *const kernel = linear_pair<EIGHTS>;
    int clusters = clusters_of(j);
    if (!depth_find(j, EIGHTS, clusters))
        return CUDA_UNSUPPORTED;
    size_t shared_bytes =
        (size_t)layout_of(*j, EIGHTS, rounds_of(*j, clusters), j->depth * j->stage_bytes).bytes;
    int e = prepare(kernel, shared_bytes), max_clusters = clusters;
    if (!e)
        e = clusters_max(kernel, THREADS, RANKS, shared_bytes, &max_clusters);
    if (e)
        return e;
    if (max_clusters < clusters) {
        clusters = max_clusters;
        if (!depth_find(j, EIGHTS, clusters))
            return CUDA_UNSUPPORTED;
        shared_bytes =
            (size_t)layout_of(*j, EIGHTS, rounds_of(*j, clusters), j->depth * j->stage_bytes).bytes;
        e = prepare(kernel, shared_bytes);
    }
    return e ? e
             : launch_cluster(kernel, dim3((unsigned)clusters, 1, RANKS), dim3(THREADS), RANKS, shared_bytes,
                              s, *j);
}

int pair_launch(linear_job *j, int eights, cuda_stream s) {
    return eights == 1 ? run_pair<1>(j, s) : run_pair<2>(j, s);
}

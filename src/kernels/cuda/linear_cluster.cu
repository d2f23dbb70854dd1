/* linear_cluster.cu - products of 2 to 64 columns with 4-bit matrices that have one half-precision scale a
 * group, on clusters of eight blocks (compute capability 9.0). See linear.cuh.
 *
 * The eight warps that share K in the other kernels are eight blocks here. Block `rank` has the chunks rank,
 * rank + 8, ... of all panels of its cluster. So it needs an eighth of each row, which stays in its shared
 * memory, and weights are read once. A team of a block is a warp (with 64 columns two warps, each with half
 * of the columns). It multiplies a panel at a time and sends its sums to the blocks that finish them: each
 * block gets the sums of some outputs from all eight, adds them in the order of the ranks and finishes them.
 * A slot for these sums is reused when all senders have been told that it is free, which is long before they
 * have the next sums.
 *
 * Sums have the order of linear.cuh: tile t of all chunks in a lane, then the tiles, then the ranks. So a row
 * has the bits of the kernel of one row. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/nibbles.cuh"

enum { RANKS = WARPS };

template <int EIGHTS> struct teams_of {
    enum {
        WIDTH = EIGHTS == 8 ? 2 : 1,       /* warps of a team */
        MINE = EIGHTS / WIDTH,             /* groups of eight columns of a warp */
        TEAMS_HERE = ALL_WARPS / WIDTH,    /* of a block */
        PER = EIGHTS < 2 ? 1 : EIGHTS / 2, /* sums of a lane that a rank finishes */
        PARTS = 4 * MINE / PER             /* ranks that a warp sends to */
    };
};

/* Byte offsets in a block's shared memory. */
struct cluster_layout {
    int codes, scales, exchange, rings, bars, feeds, bytes;
};
template <int EIGHTS>
static __host__ __device__ cluster_layout layout_of(int n_chunk, int depth, int stage_bytes) {
    typedef teams_of<EIGHTS> is;
    const int max_chunks = (n_chunk + RANKS - 1) / RANKS;
    cluster_layout r;
    r.codes = 0;
    r.scales = max_chunks * TILE_CHUNK_K * 8 * EIGHTS;
    r.exchange = r.scales + max_chunks * 8 * 8 * EIGHTS * (int)sizeof(float);
    r.rings = r.exchange + is::TEAMS_HERE * RANKS * 32 * is::PER * (int)sizeof(float);
    r.bars = r.rings + is::TEAMS_HERE * depth * stage_bytes;
    r.feeds = r.bars + (is::TEAMS_HERE * (MAX_STAGES + 1) + ALL_WARPS + 2) * 8;
    r.bytes = r.feeds + is::TEAMS_HERE * 32; /* of a team_feed */
    return r;
}

__device__ __forceinline__ int team_panel(const linear_job &j, int unit, int part, int *matrix) {
    if (j.gated) {
        *matrix = part;
        return unit;
    }
    *matrix = matrix_of(j, unit);
    return unit - j.first[*matrix];
}
__device__ __forceinline__ const uint8_t *team_weights(const linear_job &j, int unit, int part) {
    int matrix;
    const int panel = team_panel(j, unit, part, &matrix);
    return j.w[matrix] + panel * j.panel_bytes;
}
/* The next copy of a team, in shared memory; only its first thread uses it. */
struct team_feed {
    const uint8_t *chunk_at;
    int unit, part, chunk; /* part: of a gated unit */
};
__device__ __forceinline__ void team_begin(const linear_job &j, team_feed *f, int unit, int rank) {
    *f = team_feed{nullptr, rank < j.n_chunk ? unit : j.n_unit, 0, rank};
    if (f->unit < j.n_unit)
        f->chunk_at = team_weights(j, unit, 0) + (int64_t)rank * j.chunk_bytes;
}
__device__ __forceinline__ void team_put(const linear_job &j, team_feed *f, uint8_t *stage, uint64_t *bar,
                                         int rank, int step) {
    if (f->unit >= j.n_unit)
        return;
    const int bytes = f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    bar_expect(bar, bytes);
    bulk_copy<true>(stage, f->chunk_at, bytes, bar);
    f->chunk += RANKS;
    f->chunk_at += (int64_t)RANKS * j.chunk_bytes;
    if (f->chunk < j.n_chunk)
        return;
    f->chunk = rank;
    f->part = j.gated && !f->part;
    f->unit += f->part ? 0 : step;
    if (f->unit < j.n_unit)
        f->chunk_at = team_weights(j, f->unit, f->part) + (int64_t)rank * j.chunk_bytes;
    else
        launch_next();
}

template <int EIGHTS>
__global__ void __launch_bounds__(THREADS, EIGHTS > 2 ? 1 : 2)
    linear_cluster(const __grid_constant__ linear_job j) {
    typedef teams_of<EIGHTS> is;
    enum { MINE = is::MINE, PER = is::PER, WIDTH = is::WIDTH, PARTS = is::PARTS };
    uint8_t *const shared = block_memory();
    const cluster_layout at = layout_of<EIGHTS>(j.n_chunk, j.depth, j.stage_bytes);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, team = warp / WIDTH, half = warp % WIDTH;
    const int g = lane / 4, t = lane % 4, rank = blockIdx.z, step = gridDim.x * is::TEAMS_HERE;
    const int n_mine = (j.n_chunk + RANKS - 1 - rank) / RANKS, first = blockIdx.x + gridDim.x * team;
    uint64_t *const bars = (uint64_t *)(shared + at.bars), *const full = bars + is::TEAMS_HERE * MAX_STAGES;
    uint64_t *const empty = full + is::TEAMS_HERE, *const rows_there = empty + ALL_WARPS;
    float *const exchange = (float *)(shared + at.exchange) + team * RANKS * 32 * PER;
    const bool finishes = rank / PARTS == half;
    uint8_t *const ring = shared + at.rings + team * j.depth * j.stage_bytes;
    team_feed *const feed = (team_feed *)(shared + at.feeds) + team;
    if (lane == 0) {
        bar_init(empty + warp, PARTS);
        if (half == 0) {
            bar_init(full + team, 1);
            for (int i = 0; i < j.depth; i++)
                bar_init(bars + team * MAX_STAGES + i, 1);
        }
        if (warp == 0)
            bar_init(rows_there, 1);
        async_fence();
        if (half == 0) {
            team_begin(j, feed, first, rank);
            for (int i = 0; i < j.depth; i++)
                team_put(j, feed, ring + i * j.stage_bytes, bars + team * MAX_STAGES + i, rank, step);
        }
    }
    cluster_barrier();
    launch_wait();
    if (threadIdx.x == 0 && n_mine > 0) {
        const int codes = TILE_CHUNK_K * 8 * EIGHTS, scales = 8 * 8 * EIGHTS * (int)sizeof(float);
        bar_expect(rows_there, n_mine * (codes + scales));
        for (int c = 0; c < n_mine; c++) {
            const int64_t chunk = rank + RANKS * c;
            bulk_copy<false>(shared + at.codes + c * codes, (const uint8_t *)j.codes + chunk * codes, codes,
                             rows_there);
            bulk_copy<false>(shared + at.scales + c * scales, (const uint8_t *)j.meta + chunk * scales,
                             scales, rows_there);
        }
    }
    if (n_mine > 0)
        bar_wait<false>(rows_there, 0);
    const nibble_base base = nibble_base_make();
    int slot = 0;
    uint32_t phase = 0; /* of the ring */
    uint32_t turn = 0;  /* exchanges so far */
    for (int unit = first; unit < j.n_unit; unit += step) {
        float gate[PER];
        for (int part = 0; part < (j.gated ? 2 : 1); part++, turn++) {
            float sum[TILE_CHUNK][MINE][4];
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * MINE * 4; i++)
                ((float *)sum)[i] = 0.0f;
            for (int c = 0; c < n_mine; c++) {
                const int n_tile = rank + RANKS * c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                const uint4 *codes =
                    (const uint4 *)(shared + at.codes) + (c * TILE_CHUNK * EIGHTS + half * MINE) * 32 + lane;
                const float2 *scales =
                    (const float2 *)(shared + at.scales) + (c * 8 * EIGHTS + half * MINE) * 4 + t;
                uint8_t *const stage = ring + slot * j.stage_bytes;
                uint64_t *const bar = bars + team * MAX_STAGES + slot;
                const uint8_t *of = stage + n_tile * CODE_TILE + 2 * g;
                bar_wait<false>(bar, phase);
#pragma unroll
                for (int i = 0; i < TILE_CHUNK; i++) {
                    if (i >= n_tile)
                        break;
                    float scale[2][2];
                    tile_scales(of, i, j.group_shift, scale);
                    tile_times<EIGHTS, MINE>(*(const uint4 *)(stage + i * CODE_TILE + 16 * lane), scale,
                                             codes + i * EIGHTS * 32, scales + i * 8 * EIGHTS, base, sum[i]);
                    asm volatile("" ::
                                     : "memory"); /* keeps the loads of the next tile after this one, to save
                                                     registers */
                }
                if (WIDTH > 1)
                    warps_barrier(1 + team, WIDTH);
                else
                    __syncwarp();
                if (half == 0 && lane == 0)
                    team_put(j, feed, stage, bar, rank, step);
                slot = slot + 1 == j.depth ? 0 : slot + 1;
                phase ^= slot == 0;
            }
            float mine[MINE * 4];
#pragma unroll
            for (int i = 0; i < MINE * 4; i++)
                mine[i] = tiles_sum(sum, i / 4, i % 4);
            if (turn > 0)
                bar_wait<true>(empty + warp, (turn - 1) & 1);
#pragma unroll
            for (int p = 0; p < PARTS; p++)
                cluster_send<PER>(exchange + (rank * 32 + lane) * PER, full + team, half * PARTS + p,
                                  mine + p * PER);
            if (!finishes)
                continue;
            if (lane == 0)
                bar_expect(full + team, RANKS * 32 * PER * (int)sizeof(float));
            bar_wait<true>(full + team, turn & 1);
            float v[PER];
#pragma unroll
            for (int i = 0; i < PER; i++)
                v[i] = 0.0f;
#pragma unroll
            for (int s = 0; s < RANKS; s++)
#pragma unroll
                for (int i = 0; i < PER; i++)
                    v[i] = __fadd_rn(v[i], exchange[(s * 32 + lane) * PER + i]);
            __syncwarp();
            if (lane < RANKS)
                cluster_arrive(empty + warp, lane);
            int matrix;
            const int panel = team_panel(j, unit, part, &matrix);
#pragma unroll
            for (int i = 0; i < PER; i++) {
                const int of_warp = rank % PARTS * PER + i, in = of_warp % 4;
                const int column = 8 * (half * MINE + of_warp / 4) + 2 * t + in % 2;
                const int n = panel * PACK_PANEL + g + in / 2 * 8, m = j.two ? column / 2 : column;
                if (column >= j.n_col || n >= j.n[matrix] || (j.two && i % 2))
                    continue;
                float u = j.norm ? __fmul_rn(v[i], j.factor[column]) : v[i];
                if (PER > 1 && j.two) {
                    const float second = v[i + 1 < PER ? i + 1 : i];
                    u = __fadd_rn(u, j.norm ? __fmul_rn(second, j.factor[column + 1]) : second);
                }
                u = j.bias[matrix] ? __fadd_rn(u, j.bias[matrix][n]) : u;
                if (j.gated && part == 0) {
                    gate[i] = u;
                    continue;
                }
                u = j.gated ? __fmul_rn(act_value(j.act, gate[i]), u) : u;
                float *y = j.y[j.gated ? 0 : matrix] + m * j.ldy[j.gated ? 0 : matrix] + n;
                *y = j.adds ? __fadd_rn(*y, u) : u;
            }
            __syncwarp();
        }
    }
    cluster_barrier(); /* no block ends while others write to it */
}

/* ---- launching ---- */

/* Sets the depth of the rings and returns it; 0: this many columns do not fit shared memory. */
template <int EIGHTS> static int depth_find(linear_job *j) {
    enum { OWN = 1024, RESERVED = 1024 };
    const int stages = teams_of<EIGHTS>::TEAMS_HERE;
    const int64_t all = device_shared_bytes(), rounds = j->n_unit / (device_sm_count() / RANKS * stages);
    const int64_t share = EIGHTS > 2 ? all : (all + RESERVED) * (rounds > 1 ? 11 : 9) / 20 - OWN;
    const int64_t max_stages =
        (int64_t)(rounds + 1) * (j->gated ? 2 : 1) * ((j->n_chunk + RANKS - 1) / RANKS);
    j->stage_bytes = stage_bytes_of(j->chunk_bytes);
    int64_t depth = (share - layout_of<EIGHTS>(j->n_chunk, 0, 0).bytes) / (stages * j->stage_bytes);
    if (depth < 1) /* it does not fit beside a block of another launch */
        depth = (all - layout_of<EIGHTS>(j->n_chunk, 0, 0).bytes) / (stages * j->stage_bytes) > 0;
    depth = depth > MAX_STAGES ? MAX_STAGES : depth;
    j->depth = (int)(depth < max_stages ? depth : max_stages);
    return j->depth;
}

template <int EIGHTS> static int run_cluster(linear_job *j, cuda_stream s) {
    auto *const kernel = linear_cluster<EIGHTS>;
    const size_t shared_bytes = (size_t)layout_of<EIGHTS>(j->n_chunk, j->depth, j->stage_bytes).bytes;
    int e = prepare(kernel, shared_bytes), max_clusters = device_sm_count() / RANKS;
    if (!e)
        e = clusters_max(kernel, THREADS, RANKS, shared_bytes, &max_clusters);
    const int n = j->n_unit < max_clusters ? j->n_unit : max_clusters;
    return e ? e
             : launch_cluster(kernel, dim3((unsigned)n, 1, RANKS), dim3(THREADS), RANKS, shared_bytes, s, *j);
}

int cluster_eights(linear_job *j, const pack_format *f, int n_col) {
    if (device_major() < 9 || !nibbles_are(*j, f))
        return 0;
    if (n_col > 32 && depth_find<8>(j))
        return 8;
    return n_col > 16 && depth_find<4>(j) ? 4 : 0; /* with fewer columns, the other kernels are faster */
}

int cluster_launch(linear_job *j, int eights, cuda_stream s) {
    if (eights == 8 ? !depth_find<8>(j) : !depth_find<4>(j))
        return CUDA_UNSUPPORTED;
    return eights == 8 ? run_cluster<8>(j, s) : run_cluster<4>(j, s);
}

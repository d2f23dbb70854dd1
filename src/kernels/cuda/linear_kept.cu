/* linear_kept.cu - products of 2 to 32 columns with 4-bit matrices (nibbles.cuh), for rows that fit a block's
 * shared memory (compute capability 9.0). See linear.cuh.
 *
 * A block copies the codes and scales of all columns once and keeps them. It goes through its panels like the
 * kernel of one row: two teams of 8 warps take panels (in gated products, gate and up) in turn, and the warps
 * of a team take chunks. When a team has the sums of a panel, each thread adds the warps' sums of one output
 * for 16 columns at a time, in the order of the warps, and finishes the output. With up to 16 columns this is
 * done while the next panel is multiplied, so that no warp waits for a slower one. Two buffers for these sums
 * alternate; the teams do not wait for each other. A warp writes the sums of turn n only after all warps of
 * its team have arrived in turn n - 1. A warp arrives in turn n - 1 after its reads of turn n - 2, which used
 * the same buffer. So writes come after reads. Every lane arrives: one arrival for a warp would also be
 * correct, but racecheck of compute-sanitizer reports it, and it is not faster.
 *
 * If codes are left for the next launch (linear_job.leaves_rows), the teams have neighbouring panels, which
 * are a group. They exchange their largest magnitudes and sums of squares, and make the codes one panel
 * later. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/nibbles.cuh"

/* The number of columns whose sums are exchanged together. */
static __host__ __device__ __forceinline__ constexpr int step_columns(int eights) {
    return eights < 2 ? 8 : 16;
}

/* Where things are in a block's shared memory, in bytes. */
struct kept_layout {
    int scales, exchange, rings, bytes;
};
/* columns: number of columns in the arrays of codes, 4 or a multiple of 8. */
static __host__ __device__ __forceinline__ kept_layout layout_of(int k_pad, int columns, int ring_bytes) {
    kept_layout r;
    r.scales = k_pad * columns;
    r.exchange = r.scales + k_pad / 32 * columns * (int)sizeof(float);
    r.rings = r.exchange + TEAMS * 2 * exchange_floats(step_columns(columns / 8)) * (int)sizeof(float);
    r.bytes = r.rings + ALL_WARPS * ring_bytes;
    return r;
}

/* A team's panels of the block. unit: the block's unit, a panel or a gate panel and its up panel. */
__device__ __forceinline__ int kept_panel(const linear_job &j, int unit, int part) {
    return j.gated ? 2 * unit + part : unit;
}
struct kept_walk {
    int unit, part, n_unit;
    __device__ __forceinline__ bool there(const linear_job &) const {
        return unit < n_unit;
    }
    __device__ __forceinline__ const uint8_t *weights(const linear_job &j) const {
        return panel_at(j, kept_panel(j, unit, part));
    }
    __device__ __forceinline__ void next(const linear_job &j) {
        part = j.gated && !part;
        unit += part ? 0 : TEAMS;
    }
};

/* FOUR: at most four columns; lanes of the other columns multiply the same ones, and the result is not
 * used. */
template <int EIGHTS, bool FOUR>
__global__ void __launch_bounds__(THREADS, 1) linear_kept(const __grid_constant__ linear_job j) {
    enum { STEPS = EIGHTS > 2 ? EIGHTS / 2 : 1, EACH = EIGHTS < 2 ? EIGHTS : 2 /* eights of a step */ };
    enum { COLUMNS = FOUR ? 4 : 8 * EIGHTS, STEP = step_columns(EIGHTS), EXCHANGE = exchange_floats(STEP) };
    enum { LATER = EIGHTS <= 2 /* registers */ };
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES], rows_there[WARPS][2], team_bars[TEAMS], half_bar;
    __shared__ float factors[MAX_LEFT_ROWS];
    __shared__ half_left halves[2][TEAMS][MAX_LEFT_ROWS];
    uint8_t *const shared = block_memory();
    const kept_layout at = layout_of(j.k_pad, COLUMNS, j.depth * j.stage_bytes);
    const int of_all = warp_number(), lane = threadIdx.x % 32, warp = of_all % WARPS, team = of_all / WARPS;
    const int g = lane / 4, t = lane % 4, n_unit = panel_count(j) >> (j.gated ? 1 : 0);
    float *const exchange = (float *)(shared + at.exchange) + team * 2 * EXCHANGE;
    warp_ring r = warp_ring_make(shared + at.rings + of_all * j.depth * j.stage_bytes, bars[of_all], j.depth);
    ring_feed<kept_walk> feed =
        ring_feed_begin(j, &r, kept_walk{warp < j.n_chunk ? team : n_unit, 0, n_unit}, warp);
    if (team == 0 && lane == 0) {
        bar_init(rows_there[warp], 1);
        bar_init(rows_there[warp] + 1, 1);
        if (warp < TEAMS)
            bar_init(team_bars + warp, 32 * WARPS);
        if (warp == TEAMS)
            bar_init(&half_bar, THREADS);
        async_fence();
    }
    __syncthreads();
    launch_wait();
    if (team == 0 && lane == 0 && warp < j.n_chunk) { /* the chunks that the warps of this number read */
        const int codes = TILE_CHUNK_K * COLUMNS, scales = 8 * COLUMNS * (int)sizeof(float);
        const int more = (j.n_chunk - warp - 1) / WARPS; /* chunks after the first */
        bar_expect(rows_there[warp], codes + scales);
        if (more)
            bar_expect(rows_there[warp] + 1, more * (codes + scales));
        for (int c = warp; c < j.n_chunk; c += WARPS) {
            uint64_t *const bar = rows_there[warp] + (c > warp);
            bulk_copy<false>(shared + c * codes, (const uint8_t *)j.codes + (int64_t)c * codes, codes, bar);
            bulk_copy<false>(shared + at.scales + c * scales, (const uint8_t *)j.meta + (int64_t)c * scales,
                             scales, bar);
        }
    }
    if (j.norm && j.squares) {
        factors_take(j, factors);
        __syncthreads();
    }
    if (warp < j.n_chunk)
        bar_wait<false>(rows_there[warp], 0);
    /* Each thread has one output of a step: its row, and its number in the step. */
    const int each = j.two ? 2 : 1, in = threadIdx.x % PACK_PANEL, place = threadIdx.x / PACK_PANEL % 16;
    const int outs = EACH * 8 / each /* of a step */, n_out = j.n_col / each;
    float factor[STEPS][2]; /* the norm's factors of the thread's columns */
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int column = (s * outs + place) * each + (i < each ? i : 0);
            factor[s][i] = !j.norm || column >= j.n_col ? 1.0f
                           : j.squares                  ? factors[column % MAX_LEFT_ROWS]
                                                        : __ldcg(j.factor + column);
        }
    const nibble_base base = nibble_base_make();
    enum { CHUNK_CODES = TILE_CHUNK_K * COLUMNS, CHUNK_SCALES = 8 * COLUMNS * (int)sizeof(float) };
    uint32_t first_codes = address_kept(shared) + warp * CHUNK_CODES + lane % (4 * COLUMNS) * 16,
             first_scales = address_kept(shared + at.scales) + warp * CHUNK_SCALES + t % (COLUMNS / 2) * 16;
    int lane_scale[2];
    chunk_lane_scales(j.group_shift, lane_scale);
    float gate[STEPS];
    half_output left = {-1, 0, 0.0f, {0.0f, 0}}; /* its code needs the sums of the other team */
    int n_left = 0;
    auto finish_left = [&]() {
        if (n_left == 0)
            return;
        bar_wait<false>(&half_bar, (n_left - 1) & 1);
        half_finish(j.leaves_rows, left, halves[(n_left - 1) % 2][!team] + place);
    };
    /* Finishes an output of step s of a panel, when all warps' sums have arrived. */
    auto finish = [&](int unit, int part, int s, const float *from, float before, float weight) {
        int matrix;
        const int n = panel_find(j, kept_panel(j, unit, part), &matrix) * PACK_PANEL + in;
        const int m = s * outs + place;
        const bool there = place < outs && n < j.n[matrix] && m < n_out;
        float v = 0.0f;
        if (there)
            v = exchanged_value<STEP>(j, from, place * each, in, factor[s], matrix, n);
        if (j.gated && !part) {
            gate[s] = v;
            return;
        }
        if (there)
            v = output_put(j, matrix, m, n, gate[s], v, before);
        if (LATER && j.leaves_rows.codes) { /* the teams have neighbouring panels */
            finish_left();
            left = half_leave(j.leaves_rows, n, m, v, weight, there, halves[n_left % 2][team] + place);
            bar_arrive(&half_bar);
            n_left++;
        }
    };
    int turn = 0; /* barriers so far */
    struct {
        int unit, part;
        float before, weight;
    } last = {0, 0, 0.0f, 1.0f}; /* the output to finish */
    for (int unit = team; unit < n_unit; unit += TEAMS)
        for (int part = 0; part < (j.gated ? 2 : 1); part++) {
            float before[STEPS], weight = 1.0f;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                int matrix;
                const int n = panel_find(j, kept_panel(j, unit, part), &matrix) * PACK_PANEL + in;
                const int m = s * outs + place;
                const bool mine = place < outs && m < n_out && n < j.n[matrix] && (!j.gated || part);
                before[s] = j.adds && mine ? *output_place(j, matrix, m, n) : 0.0f;
                if (LATER && j.leaves_rows.norm && mine)
                    weight = j.leaves_rows.norm[n];
            }
            float sum[TILE_CHUNK][EIGHTS][4];
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * EIGHTS * 4; i++)
                ((float *)sum)[i] = 0.0f;
            uint32_t codes = first_codes, scales = first_scales;
            for (int c = warp; c < j.n_chunk; c += WARPS) {
                const int n_tile = c == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
                warp_ring_wait(r);
                if (turn == 0 && c == warp + WARPS) { /* the rest of the rows */
                    bar_wait<false>(rows_there[warp] + 1, 0);
                    asm volatile("" : "+r"(codes), "+r"(scales) : : "memory"); /* no load before the wait */
                }
                if constexpr (EIGHTS > 2)
                    chunk_times_plain<EIGHTS>(
                        shared + at.rings + (of_all * j.depth + r.slot) * j.stage_bytes, n_tile,
                        j.group_shift, (const uint4 *)shared + c * TILE_CHUNK * COLUMNS * 4,
                        (const float *)(shared + at.scales) + c * 8 * COLUMNS, base, sum);
                else
                    chunk_times<EIGHTS, FOUR>(warp_ring_stage(j, r), n_tile, codes, scales, lane_scale, base,
                                              sum);
                __syncwarp();
                ring_feed_put(j, &feed, r);
                warp_ring_next(j, &r);
                codes += WARPS * CHUNK_CODES;
                scales += WARPS * CHUNK_SCALES;
            }
            asm volatile("" : "+r"(first_codes), "+r"(first_scales) : : "memory"); /* as above */
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                if (LATER && turn > 0) {
                    bar_wait<false>(team_bars + team, (turn - 1) & 1);
                    finish(last.unit, last.part, 0, exchange + (turn - 1) % 2 * EXCHANGE, last.before,
                           last.weight);
                }
                float *const to = exchange + turn % 2 * EXCHANGE;
#pragma unroll
                for (int e = 0; e < EACH; e++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int of = s * EACH + e;
                        to[(warp * STEP + e * 8 + 2 * t + i % 2) * COLUMN_LINE + g + i / 2 * 8] =
                            tiles_sum(sum, of, i);
                    }
                bar_arrive(team_bars + team);
                turn++;
                last = {unit, part, before[0], weight};
                if (LATER)
                    continue;
                bar_wait<false>(team_bars + team, (turn - 1) & 1);
                finish(unit, part, s, to, before[s], weight);
            }
        }
    if (LATER && turn > 0) {
        bar_wait<false>(team_bars + team, (turn - 1) & 1);
        finish(last.unit, last.part, 0, exchange + (turn - 1) % 2 * EXCHANGE, last.before, last.weight);
        finish_left();
    }
}

/* ---- launching ---- */

static int columns_of(const linear_job *j, int eights) {
    return kept_order(j->n_col) == META_FOUR ? 4 : 8 * eights;
}
/* Sets the rings beside the rows; false: they do not fit. */
static bool depth_find(linear_job *j, int eights) {
    return ring_depth_find(j, layout_of(j->k_pad, columns_of(j, eights), 0).bytes,
                           warp_chunks(*j, job_panels(*j, job_blocks(*j))));
}

int kept_eights(linear_job *j, const pack_format *f, int n_col) {
    const int eights = n_col <= 8 ? 1 : n_col <= 16 ? 2 : 4;
    return device_major() >= 9 && nibbles_are(*j, f) && depth_find(j, eights) ? eights : 0;
}

template <int EIGHTS, bool FOUR> static int run_kept(linear_job *j, cuda_stream s) {
    auto *const kernel = linear_kept<EIGHTS, FOUR>;
    const size_t shared_bytes =
        (size_t)layout_of(j->k_pad, columns_of(j, EIGHTS), j->depth * j->stage_bytes).bytes;
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3((unsigned)job_blocks(*j)), dim3(THREADS), shared_bytes, s, *j);
}

int kept_launch(linear_job *j, int eights, cuda_stream s) {
    if (!depth_find(j, eights))
        return CUDA_UNSUPPORTED;
    if (kept_order(j->n_col) == META_FOUR)
        return run_kept<1, true>(j, s);
    return eights == 1   ? run_kept<1, false>(j, s)
           : eights == 2 ? run_kept<2, false>(j, s)
                         : run_kept<4, false>(j, s);
}

/* experts_kept.cu - products of experts with 4-bit matrices (nibbles.cuh), for tiles whose rows fit a block's
 * shared memory (compute capability 9.0). The bits are those of experts_few.cu.
 *
 * Blocks stay: each has an equal share of all units of work, in the order of the tiles. A unit is two panels
 * of gate and up, or a panel for each warp. So a warp's ring of weights stays filled from one panel to the
 * next, and from one expert to the next. A block keeps the codes of a tile's rows, with the scales in the
 * order in which lanes read them, until its units are those of the next tile.
 *
 * Gate and up have a warp for each part of K (parts_of); the warps add their sums in shared memory, in two
 * buffers that take turns. In other products a warp has all parts of its panel, one after the other. The
 * weights of these are requested before the launch before has ended, because it used the same list of
 * tiles. */
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/nibbles.cuh"

enum { KEPT_BLOCKS = 2 /* of a multiprocessor, if they fit */ };
template <bool GATED> struct kept_rule {
    enum { PARTS = parts_of(GATED), PANELS = GATED ? 2 : (int)EXPERT_WARPS /* of a unit */ };
};
enum {
    CHUNK_CODES = TILE_CHUNK_K * COLUMNS,
    CHUNK_SCALES = TILE_CHUNK_K / 32 * COLUMNS * (int)sizeof(float)
};

/* The chunk that a warp multiplies after this one; n_chunk or more: it was the panel's last. */
template <bool GATED> __device__ __forceinline__ int chunk_after(const few_job &j, int chunk) {
    enum { PARTS = kept_rule<GATED>::PARTS };
    if (GATED || chunk + PARTS < j.of.n_chunk)
        return chunk + PARTS;
    return chunk % PARTS + 1 < PARTS ? chunk % PARTS + 1 : j.of.n_chunk;
}

/* What a warp requests next: a chunk of its panel of a unit. */
struct kept_feed {
    const uint8_t *panel;
    int chunk, first, unit, end, tile, expert;
};
/* Goes on to the next unit, from this one on, in which the warp has a panel. own: the panel's number in its
 * unit. */
template <bool GATED>
__device__ __forceinline__ void feed_find(const few_job &j, kept_feed *f, const uint8_t *of, int own,
                                          int each) {
    for (; f->unit < f->end; f->unit++) {
        const int tile = f->unit / each, p = (f->unit - tile * each) * kept_rule<GATED>::PANELS + own;
        if (p >= j.n_panel)
            continue;
        if (tile != f->tile) {
            f->tile = tile;
            f->expert = __ldcg(&j.x.tiles[tile].expert);
        }
        f->panel = of + f->expert * j.expert_bytes + p * j.of.panel_bytes;
        f->chunk = f->first;
        return;
    }
}
/* Starts to copy the next chunk to the ring's stage. All lanes call it, after all reads of the stage. */
template <bool GATED>
__device__ __forceinline__ void feed_put(const few_job &j, kept_feed *f, const warp_ring &r,
                                         const uint8_t *of, int own, int each) {
    if (f->unit >= f->end)
        return;
    warp_ring_ask(j.of, r, f->panel + (int64_t)f->chunk * j.of.chunk_bytes,
                  f->chunk == j.of.n_chunk - 1 ? j.of.last_bytes : j.of.chunk_bytes);
    f->chunk = chunk_after<GATED>(j, f->chunk);
    if (f->chunk < j.of.n_chunk)
        return;
    f->unit++;
    feed_find<GATED>(j, f, of, own, each);
}

/* Copies the codes of a tile's columns, in the order of lanes, and their scales over 16, in the order of
 * META_PAIRS. A warp has a column. Columns without a pair keep what is there: nothing reads their sums. */
__device__ __forceinline__ void columns_keep(const few_job &j, const cuda_expert_tile &tile, uint8_t *codes,
                                             float *scales) {
    const int c = threadIdx.x / 32, lane = threadIdx.x % 32,
              n_32 = 2 * ((j.of.n_chunk - 1) * TILE_CHUNK + j.of.last_tiles);
    if (c >= tile.n)
        return;
    const uint8_t *const column = column_codes(j, tile, c);
    const auto *const meta = (const subgroup_meta *)(column + meta_at(j.of.k_pad));
#pragma unroll 2
    for (int i = lane; i < j.of.k_pad / 32; i += 32)
        scales[scale_place(COLUMNS, c, i)] = i < n_32 ? __fmul_rn(__ldcg(&meta[i].scale), 0.0625f) : 0.0f;
#pragma unroll 4
    for (int i = lane; i < j.of.k_pad / 16; i += 32)
        ((uint4 *)codes)[i / 4 * 32 + 4 * c + i % 4] = __ldcg((const uint4 *)column + i);
}

/* A warp finishes 32 outputs, those of two panels, of a pair, from the sums of gate and up. */
__device__ __forceinline__ void gates_write(const few_job &j, const few_sums &sums, int expert, int pair,
                                            int two_panels) {
    enum { PARTS = parts_of(true) };
    const int m = threadIdx.x / 32, in = threadIdx.x % 32, at = two_panels * EXPERT_OUTPUTS + in;
    float v[2] = {0.0f, 0.0f};
#pragma unroll
    for (int matrix = 0; matrix < 2; matrix++)
#pragma unroll
        for (int i = 0; i < PARTS; i++)
            v[matrix] =
                __fadd_rn(v[matrix], sums.of[(2 * matrix + in / PACK_PANEL) * PARTS + i][in % PACK_PANEL][m]);
    v[0] = at < j.x.n ? expert_write(j.x, expert, pair, at, 0, v[0], v[1]) : 0.0f;
    if (j.leaves)
        codes_store(j.leaves + pair * j.leaves_step, j.x.n, at, v[0]);
}

/* Writes a lane's sums of a panel: outputs g and g + 8 of columns 2t and 2t + 1, which have these pairs. */
__device__ __forceinline__ void panel_write(const few_job &j, const cuda_expert_tile &tile, const int pair[2],
                                            int panel, const float sum[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int output = panel * PACK_PANEL + lane / 4 + i / 2 * 8;
        if (output < j.x.n && 2 * (lane % 4) + i % 2 < tile.n)
            expert_write(j.x, tile.expert, pair[i % 2], output, 0, sum[i], 0.0f);
    }
}

/* Adds the sums of a part of K to a lane's total, and begins the next part. */
__device__ __forceinline__ void part_add(float (&sum)[TILE_CHUNK][1][4], float (&total)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        total[i] = __fadd_rn(total[i], tiles_sum(sum, 0, i));
#pragma unroll
        for (int tile = 0; tile < TILE_CHUNK; tile++)
            sum[tile][0][i] = 0.0f;
    }
}

template <bool GATED>
__global__ void __launch_bounds__(EXPERT_THREADS, KEPT_BLOCKS)
    experts_kept(const __grid_constant__ few_job j) {
    enum { PARTS = kept_rule<GATED>::PARTS, PANELS = kept_rule<GATED>::PANELS };
    extern __shared__ __align__(128) uint8_t shared[]; /* the warps' rings, codes, scales */
    __shared__ few_sums sums[GATED ? 2 : 1];
    __shared__ uint64_t bars[EXPERT_WARPS][MAX_STAGES];
    const int warp = warp_number(), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int own = GATED ? warp / PARTS % PANELS : warp, first = GATED ? warp % PARTS : 0;
    const uint8_t *const of = j.of.w[GATED && warp >= EXPERT_WARPS / 2 ? 1 : 0];
    uint8_t *const columns = shared + EXPERT_WARPS * j.of.depth * j.of.stage_bytes;
    float *const column_scales = (float *)(columns + j.of.n_chunk * CHUNK_CODES);
    warp_ring r = warp_ring_make(shared + warp * j.of.depth * j.of.stage_bytes, bars[warp], j.of.depth);
    if (!j.listed)
        launch_wait();
    const int each = (j.n_panel + PANELS - 1) / PANELS;
    const uint64_t all = (uint64_t)__ldcg(j.x.n_tile) * each;
    const int begin = (int)(all * blockIdx.x / gridDim.x), end = (int)(all * (blockIdx.x + 1) / gridDim.x);
    kept_feed feed = {nullptr, 0, first, begin, first < j.of.n_chunk ? end : begin, -1, 0};
    feed_find<GATED>(j, &feed, of, own, each);
    for (int i = 0; i < j.of.depth; i++) {
        feed_put<GATED>(j, &feed, r, of, own, each);
        warp_ring_next(j.of, &r);
    }
    r.phase = 0;
    if (j.listed)
        launch_wait();
    launch_next();
    const nibble_base base = nibble_base_make();
    int lane_scale[2], now = -1, pair[2] = {0, 0};
    uint32_t codes = 0, scales = 0;
    cuda_expert_tile tile = {};
    chunk_lane_scales(j.of.group_shift, lane_scale);
    for (int unit = begin; unit < end; unit++) {
        const int at = unit / each;
        if (at != now) {
            if (!GATED && now >= 0)
                __syncthreads(); /* all have read the codes before */
            now = at;
            tile = j.x.tiles[at];
            columns_keep(j, tile, columns, column_scales);
#pragma unroll
            for (int i = 0; i < 2; i++)
                pair[i] = j.x.pairs[tile.first + min(GATED ? warp : 2 * t + i, tile.n - 1)];
            __syncthreads();
            codes = address_kept(columns) + 16 * lane;
            scales = address_kept(column_scales) + 16 * t;
        }
        const int p = (unit - at * each) * PANELS + own;
        float sum[TILE_CHUNK][1][4] = {}, total[4] = {};
        for (int chunk = p < j.n_panel ? first : j.of.n_chunk; chunk < j.of.n_chunk;) {
            warp_ring_wait(r);
            chunk_times<1, false>(
                warp_ring_stage(j.of, r), chunk == j.of.n_chunk - 1 ? j.of.last_tiles : TILE_CHUNK,
                codes + chunk * CHUNK_CODES, scales + chunk * CHUNK_SCALES, lane_scale, base, sum);
            __syncwarp();
            feed_put<GATED>(j, &feed, r, of, own, each);
            warp_ring_next(j.of, &r);
            const int last = chunk;
            chunk = chunk_after<GATED>(j, chunk);
            if (!GATED && (chunk != last + PARTS || chunk >= j.of.n_chunk))
                part_add(sum, total);
        }
        if constexpr (GATED) {
            few_sums *const to = &sums[unit % 2];
#pragma unroll
            for (int i = 0; i < 4; i++)
                to->of[warp][g + i / 2 * 8][2 * t + i % 2] = tiles_sum(sum, 0, i);
            __syncthreads();
            if (warp < tile.n)
                gates_write(j, *to, tile.expert, pair[0], unit - at * each);
        } else
            panel_write(j, tile, pair, p, total);
    }
}

/* ---- launching ---- */

template <bool GATED> static int run_kept(const cuda_experts *a, few_job *j, cuda_stream s) {
    enum { RESERVED = 1024 /* of a block, for the driver */, PANELS = kept_rule<GATED>::PANELS };
    auto *const kernel = experts_kept<GATED>;
    cudaFuncAttributes is;
    int e = (int)cudaFuncGetAttributes(&is, kernel);
    if (e)
        return e;
    const int columns = j->of.n_chunk * (CHUNK_CODES + CHUNK_SCALES),
              others = (int)is.sharedSizeBytes + columns;
    int together = KEPT_BLOCKS + 1;
    for (j->of.depth = 0; j->of.depth < 2 && together > 1;)
        j->of.depth = ((device_shared_bytes() + RESERVED) / --together - RESERVED - others) /
                      (EXPERT_WARPS * j->of.stage_bytes);
    if (j->of.depth < 2)
        return CUDA_UNSUPPORTED;
    j->of.depth = j->of.depth > MAX_STAGES ? (int)MAX_STAGES : j->of.depth;
    j->listed = a->each && a->n_row > 1;
    const size_t shared = (size_t)(EXPERT_WARPS * j->of.depth * j->of.stage_bytes + columns);
    const int64_t n_pair = a->n_row * a->n_used, blocks = together * device_sm_count(),
                  units = cuda_expert_few_of(n_pair, a->n_expert, false).max_tile *
                          ((j->n_panel + PANELS - 1) / PANELS);
    const unsigned grid = (unsigned)(units < blocks ? units : blocks);
    e = a->codes ? 0 : experts_quantize_launch(a, *j, s);
    e = e ? e : prepare(kernel, shared);
    return e ? e : launch(kernel, dim3(grid), dim3(EXPERT_THREADS), shared, s, *j);
}

int experts_kept_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    few_job j = {};
    if (device_major() < 9 || a->here || a->apart || a->two || a->n_w != (a->gated ? 2 : 1) ||
        (a->leaves && !a->gated) || experts_few_make(a, x, &j) || !nibbles_are(j.of, &a->w[0].format))
        return CUDA_UNSUPPORTED;
    j.of.stage_bytes = stage_bytes_of(j.of.chunk_bytes);
    return a->gated ? run_kept<true>(a, &j, s) : run_kept<false>(a, &j, s);
}

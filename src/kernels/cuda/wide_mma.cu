/* wide_mma.cu - products of many rows with packed weights on sm_90a. Weights are converted in registers,
 * which are an operand of the matrix instruction.
 *
 * A block has 8 panels (128 outputs) and N rows of x. One of its warps, the feeder, copies chunks of panels
 * and images of x (wide.cuh) for all others, each through a ring of stages in shared memory. It is in a group
 * of its own, which gives its registers to the others. Two groups of 4 warps have 4 panels each, one panel a
 * warp. A warp converts a tile (64 of K) of its panel to halves, w = scale * (code - zero) + min, rounded
 * once or twice. The group multiplies the tile with the image asynchronously while it converts the next tile.
 * In gated products one group has gate and the other has up.
 *
 * A result is summed in the order of K, so it depends neither on the other rows nor on N. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wide_nibbles.cuh"
#include "kernels/cuda/wide_outputs.cuh"
#include "kernels/cuda/wide_rounds.cuh"

enum { MMA_GROUPS = 2, MMA_WARPS = 4 * MMA_GROUPS, MMA_THREADS = 32 * MMA_WARPS + 128, MMA_STAGES = 8 };
enum { TILES_ROWS = 128 /* of a block of wide_tiles */, TILES_THREADS = 32 * (MMA_WARPS + 1) };

#ifdef NIB_SM90A
bool wide_mma_is_built(void) {
    return device_major() == 9;
}
#else
bool wide_mma_is_built(void) {
    return false;
}
#endif

/* Blocks [0, n_whole) have N rows; the others have half as many, so that the last round is short. Blocks with
 * the same panels are neighbours. */
template <int N> __device__ __forceinline__ place place_of(const wide_job &j) {
    const int b = blockIdx.x, behind = b - j.n_whole, panels = j.gated ? WIDE_PANELS / 2 : WIDE_PANELS;
    const int unit = behind < 0 ? b : j.n_whole + behind / j.n_half,
              half = behind < 0 ? 0 : behind % j.n_half;
    return {(behind < 0 ? unit % j.n_across : unit % j.n_across * 2 + half) * N, unit / j.n_across * panels,
            j.n_row, 0};
}
/* A block with rows of an expert: all rows of a tile, or with PARTS 2 up to half of the most that a tile has.
 * Blocks with the same rows are neighbours. The list says how many tiles there are; of the others `end` is 0.
 */
template <int PARTS> __device__ __forceinline__ place tile_of(const wide_job &j) {
    const int panels = j.gated ? WIDE_PANELS / 2 : WIDE_PANELS, i = (int)blockIdx.x / j.n_across;
    if (i / PARTS >= __ldcg(j.of.n))
        return {0, 0, 0, 0};
    const cuda_expert_tile tile = j.of.tiles[i / PARTS];
    return {tile.first + i % PARTS * (CUDA_EXPERT_WIDE / PARTS), (int)blockIdx.x % j.n_across * panels,
            tile.first + tile.n, tile.expert};
}
/* The block's rings, and their barriers. x: [stages] of images [N][128 bytes]; w: [stages] of chunks of
 * WIDE_PANELS panels. */
struct rings {
    uint8_t *x, *w;
    int x_stages;
    uint64_t *x_full, *x_empty, *w_full, *w_empty;
    float *factors; /* [N], of the block's rows */
};

/* The copies of the block's feeder. Lane i < WIDE_PANELS copies panel i's chunks; the lanes after those copy
 * rows of images. */
struct feed {
    const uint8_t *from;  /* the lane's next address */
    int w_bytes, x_bytes; /* bytes of a stage */
    int own;              /* the lane's bytes of an image, which has the rows that exist */
    turn x, w;
};
template <int N> __device__ __forceinline__ feed feed_of(const wide_job &j, const place &at) {
    const int lane = threadIdx.x % 32, image0 = at.row / WIDE_ROWS, i = lane - WIDE_PANELS;
    const int n_row = min(N, at.end - at.row);
    feed f = {nullptr, 0, n_row * 128, min(WIDE_ROWS, n_row - i * WIDE_ROWS) * 128, {0, 1}, {0, 1}};
    for (int p = 0; p < WIDE_PANELS; p++)
        f.w_bytes += wide_is_there<WIDE_PANELS>(j, at, p);
    if (lane < WIDE_PANELS && wide_is_there<WIDE_PANELS>(j, at, lane)) {
        int matrix;
        const int p = wide_panel<WIDE_PANELS>(j, at, lane, &matrix);
        f.from = wide_panel_at(j, at, matrix, p);
    } else if (i >= 0 && f.own > 0)
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
        bulk_copy<false>(r.x + f->x.slot * (N * 128) + (lane - WIDE_PANELS) * WIDE_IMAGE, f->from, f->own,
                         r.x_full + f->x.slot);
        f->from += WIDE_IMAGE;
    }
    f->x.next(r.x_stages);
}
/* The factor of a row's sums. */
__device__ __forceinline__ float row_factor(const wide_job &j, int row) {
    const float factor = j.factor[row];
    if (!j.of.chosen)
        return factor;
    const int pair = j.of.pairs[row];
    return __fmul_rn(factor, j.of.chosen[pair / j.of.n_used * j.of.ldc + j.of.n_used + pair % j.of.n_used]);
}
/* Copies all of K: weights one chunk ahead of images, the rows' factors last. */
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
        r.factors[i] = at.row + i < at.end ? row_factor(j, at.row + i) : 0.0f;
    warps_barrier(1, MMA_WARPS + 1);
}

/* Results in shared memory: [N rows][RESULT_LINE]. RESULT_LINE places the elements that a warp writes in
 * different banks. */
enum { WIDE_OUTPUTS = WIDE_PANELS * PACK_PANEL, RESULT_LINE = WIDE_OUTPUTS + 4 };
__device__ __forceinline__ const float4 *result_at(const rings &r, int row, int output) {
    return (const float4 *)((const float *)r.x + row * RESULT_LINE + output);
}
template <int N> __device__ __forceinline__ void results_leave(const float (&d)[N / 2], float *results) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *const to = results + 2 * t * RESULT_LINE + threadIdx.x / 32 * PACK_PANEL + g;
#pragma unroll
    for (int e = 0; e < N / 8; e++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(8 * e + i % 2) * RESULT_LINE + i / 2 * 8] = d[4 * e + i];
}

/* Writes the block's results to memory. A thread has four outputs of a row. The loads for several rows are in
 * flight together. */
template <int N>
__device__ __forceinline__ void results_write(const wide_job &j, const place &in, const rings &r) {
    enum { BATCH = N / 16, ACROSS = WIDE_OUTPUTS / 4, STEP = 32 * MMA_WARPS / ACROSS };
    const int o = threadIdx.x % ACROSS * 4, n = min(N, in.end - in.row);
    const four_outputs f = outputs_of<WIDE_PANELS>(j, in, o);
    for (int first = threadIdx.x / ACROSS; first < n; first += BATCH * STEP) {
        float4 before[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            before[i] = outputs_before(j, f, in.row + first + i * STEP, j.adds && first + i * STEP < n);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int row = first + i * STEP;
            if (row < n)
                outputs_write(j, f, in.row + row, outputs_value(*result_at(r, row, o), r.factors[row], f),
                              j.adds, before[i]);
        }
    }
}

/* Writes the results of gated products, which have half as many outputs. */
template <int N, bool SILU>
__device__ __forceinline__ void results_gate(const wide_job &j, const place &in, const rings &r) {
    enum { BATCH = !SILU ? 1 : N / 32, ACROSS = WIDE_OUTPUTS / 8, STEP = 32 * MMA_WARPS / ACROSS };
    const int o = threadIdx.x % ACROSS * 4, n = min(N, in.end - in.row);
    const four_outputs f = outputs_of<WIDE_PANELS>(j, in, o),
                       up = outputs_of<WIDE_PANELS>(j, in, WIDE_OUTPUTS / 2 + o);
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
                outputs_write(j, f, in.row + row, v[i], j.adds, outputs_before(j, f, in.row + row, j.adds));
        }
    }
}

/* Writes the activations of the results. */
template <int N>
__device__ __forceinline__ void results_act(const wide_job &j, const place &in, const rings &r) {
    enum { ACROSS = WIDE_OUTPUTS / 4, STEP = 32 * MMA_WARPS / ACROSS };
    const int o = threadIdx.x % ACROSS * 4, n = min(N, in.end - in.row);
    const four_outputs f = outputs_of<WIDE_PANELS>(j, in, o);
    for (int row = threadIdx.x / ACROSS; row < n; row += STEP) {
        const float4 v = outputs_value(*result_at(r, row, o), r.factors[row], f);
        outputs_write(j, f, in.row + row, four_act(j.act, v), false, v);
    }
}

/* Converts tiles of a warp's panel. */
template <int BITS, bool HALVES, int KIND, int TABLE> struct panel_tiles {
    const wide_job &j;
    const uint8_t *stages; /* the warp's part of the first stage */
    code_zero zero;
    scale_two whole[2];
    lane_tables<TABLE> tables;

    __device__ __forceinline__ panel_tiles(const wide_job &job, const place &at, const rings &r)
        : j(job), stages(r.w + (int)threadIdx.x / 32 * job.stage_bytes) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        zero = {__float2half2_rn((float)(1024 + j.zero)), __float2half2_rn(-(float)(64 + j.zero))};
        tables_load<BITS>(&tables, j.table, nullptr);
        if (KIND != ANY_SCALE || j.scale_kind != SCALE_NONE || !wide_is_there<WIDE_PANELS>(j, at, warp))
            return;
        int matrix;
        const int panel = wide_panel<WIDE_PANELS>(j, at, warp, &matrix);
        const uint8_t *tail = wide_panel_at(j, at, matrix, panel) + j.tail_at;
        tables_load<BITS>(&tables, j.table, tail + TILE_LINE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            whole[i].scale = __half2half2(*(const __half *)(tail + 2 * g + 16 * i));
            if (j.asym)
                whole[i].min = __half2half2(*(const __half *)(tail + 2 * g + 16 * i + 32));
        }
    }
    /* Tile i of the chunk in stage `slot`; tiles come in order. */
    __device__ __forceinline__ void tile(int slot, int i, int n_tile, uint32_t (&a)[4][4]) {
        tile_halves<BITS, HALVES, KIND, TABLE>(j, stages + slot * WIDE_PANELS * j.stage_bytes, i, n_tile,
                                               zero, whole, tables, a);
    }
};
/* For 4-bit codes with half-precision scales: the same weights with fewer instructions. */
template <> struct panel_tiles<4, false, SCALE_HALF, TABLE_NONE> {
    uint32_t stages, each;
    nibble_halves halves;

    __device__ __forceinline__ panel_tiles(const wide_job &j, const place &, const rings &r) : halves(j) {
        stages = opaque(shared_address(r.w) + threadIdx.x / 32 * j.stage_bytes + threadIdx.x % 32 * 16);
        each = (uint32_t)(WIDE_PANELS * j.stage_bytes);
    }
    __device__ __forceinline__ void tile(int slot, int i, int n_tile, uint32_t (&a)[4][4]) {
        const uint32_t codes = stages + slot * each;
        if (i % 2 == 0)
            halves.scales_take(codes, i, n_tile);
        halves.tile(codes, i, a);
    }
};

/* Multiplies a tile of weights with an image at this shared address asynchronously. */
template <int N>
__device__ __forceinline__ void tile_multiply(float (&d)[N / 2], const uint32_t (&a)[4][4], uint32_t image) {
    const uint64_t b = wgmma_operand(image);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma<N>::add(d, a[s], b + 2 * s);
    wgmma_end_group();
}

/* Sums all of K in d. A tile is converted while the one before is multiplied. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE>
__device__ __forceinline__ void multiply_all(const wide_job &j, const place &at, const rings &r,
                                             float (&d)[N / 2]) {
    enum { RING = 8 * MMA_STAGES /* bytes of the barriers of a kind */ };
    const uint32_t x_full = opaque(shared_address(r.x_full)), x_empty = x_full + RING,
                   w_full = x_empty + RING, w_empty = w_full + RING, images = opaque(shared_address(r.x)),
                   first_lane = opaque(threadIdx.x % 32 == 0);
    panel_tiles<BITS, HALVES, KIND, TABLE> panel(j, at, r);
    const int n_whole = j.n_tile / TILE_CHUNK;
    uint32_t a[2][4][4], before = 0;
    turn w = {0, 0}, x = {0, 0};
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    for (int chunk = 0; chunk < n_whole; chunk++) {
        bar_wait_at(w_full + 8 * w.slot, w.phase);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++) {
            panel.tile(w.slot, i, TILE_CHUNK, a[i % 2]);
            if (i == TILE_CHUNK - 1)
                bar_arrive_at(w_empty + 8 * w.slot);
            bar_wait_at(x_full + 8 * x.slot, x.phase);
            tile_multiply<N>(d, a[i % 2], images + x.slot * (N * 128));
            wgmma_wait<1>(); /* the operands of the product before have been read */
            if ((i > 0 || chunk > 0) && first_lane)
                bar_arrive_at(before);
            before = x_empty + 8 * x.slot;
            x.next(r.x_stages);
        }
        w.next(j.w_stages);
    }
    wgmma_wait<0>();
    if (n_whole < j.n_chunk) { /* K ends within a chunk */
        if (n_whole > 0 && first_lane)
            bar_arrive_at(before);
        bar_wait_at(w_full + 8 * w.slot, w.phase);
#pragma unroll 1
        for (int i = 0; i < j.last_tiles; i++) {
            bar_wait_at(x_full + 8 * x.slot, x.phase);
            panel.tile(w.slot, i, j.last_tiles, a[0]);
            tile_multiply<N>(d, a[0], images + x.slot * (N * 128));
            wgmma_wait<0>();
            if (first_lane)
                bar_arrive_at(x_empty + 8 * x.slot);
            x.next(r.x_stages);
        }
    }
    wgmma_read(d);
}

/* The same for blocks that share a multiprocessor, with fewer registers: a warp converts half a tile. While
 * it waits for the product, warps of other groups multiply. A ring of images has one or two chunks, and one
 * of weights has two, so places in them are known from the number of the chunk. */
template <int N>
__device__ __forceinline__ void multiply_halves(const wide_job &j, const rings &r, float (&d)[N / 2]) {
    enum { RING = 8 * MMA_STAGES, CHUNKS = N == TILES_ROWS ? 1 : 2 };
    const uint32_t bars = opaque(shared_address(r.x_full)), images = opaque(shared_address(r.x)),
                   stages =
                       opaque(shared_address(r.w) + threadIdx.x / 32 * j.stage_bytes + threadIdx.x % 32 * 16);
    const bool first_lane = threadIdx.x % 32 == 0;
    nibble_halves halves(j);
    uint32_t a[2][4];
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
#pragma unroll 1
    for (int chunk = 0; chunk < j.n_chunk; chunk++) {
        const int n = chunk == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
        const uint32_t in = chunk % CHUNKS * TILE_CHUNK, of = chunk % 2,
                       codes = stages + of * WIDE_PANELS * j.stage_bytes;
        bar_wait_at(bars + 2 * RING + 8 * of, chunk / 2 % 2);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++) {
            if (i >= n)
                break;
            uint32_t v[4];
            if (i % 2 == 0)
                halves.scales_take(codes, i, n);
            halves.codes_take(codes, i, v);
            if (i == n - 1)
                bar_arrive_at(bars + 3 * RING + 8 * of);
            bar_wait_at(bars + 8 * (in + i), chunk / CHUNKS % 2);
            const uint64_t b = wgmma_operand(images + (in + i) * (N * 128));
#pragma unroll
            for (int half = 0; half < 2; half++) {
                halves.half(v, i, half, a);
                wgmma_fence();
                wgmma<N>::add(d, a[0], b + 4 * half);
                wgmma<N>::add(d, a[1], b + 4 * half + 2);
                wgmma_end_group();
                wgmma_wait<0>();
            }
            if (first_lane)
                bar_arrive_at(bars + RING + 8 * (in + i));
        }
    }
    wgmma_read(d);
}

/* The work of a block. SHARES: another block runs on its multiprocessor. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE, bool SHARES>
__device__ __forceinline__ void block_run(const wide_job &j, const rings &r, const place &at) {
    if (at.row >= at.end)
        return;
    if (threadIdx.x / 32 >= MMA_WARPS) {
        if (!SHARES)
            registers_keep<24>();
        if (threadIdx.x / 32 == MMA_WARPS)
            feed_all<N>(j, at, r);
    } else {
        if (!SHARES)
            registers_take<240>();
        float d[N / 2];
        if constexpr (SHARES)
            multiply_halves<N>(j, r, d);
        else
            multiply_all<BITS, HALVES, N, KIND, TABLE>(j, at, r, d);
        warps_barrier(1, MMA_WARPS + 1); /* all warps have read the rings, and the factors have arrived */
        results_leave<N>(d, (float *)r.x);
        launch_wait();
        warps_barrier(2, MMA_WARPS);
        if (j.gated && j.act == ACT_SILU)
            results_gate<N, true>(j, at, r);
        else if (j.gated)
            results_gate<N, false>(j, at, r);
        else if (j.acts)
            results_act<N>(j, at, r);
        else
            results_write<N>(j, at, r);
    }
}

/* The block's rings in shared memory, with their barriers at `bars`. */
template <int N>
__device__ __forceinline__ rings rings_make(const wide_job &j, uint8_t *raw, uint64_t *bars, float *factors) {
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const rings r = {x,
                     x + j.x_stages * (N * 128),
                     j.x_stages,
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
    return r;
}

template <int BITS, bool HALVES, int N, int KIND, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(MMA_THREADS, 1) wide_mma(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { QUARTER = N < 256 ? N / 2 : N / 4 };
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t bars[4 * MMA_STAGES];
    __shared__ float factors[N];
    rings r = rings_make<N>(j, raw, bars, factors);
    launch_next();
    int rows = (int)blockIdx.x < j.n_whole ? N : N / 2;
    place at = rows == N ? place_of<N>(j) : place_of<N / 2>(j);
    if (j.of.tiles) {
        launch_wait();
        at = tile_of<1>(j);
        rows = at.end - at.row;
    }
    if (rows > N / 2) {
        block_run<BITS, HALVES, N, KIND, TABLE, false>(j, r, at);
        return;
    }
    r.x_stages = min((int)MMA_STAGES, 2 * j.x_stages); /* of half the size */
    if (N < 256 || rows > N / 4)
        block_run<BITS, HALVES, N / 2, KIND, TABLE, false>(j, r, at);
    else
        block_run<BITS, HALVES, QUARTER, KIND, TABLE, false>(j, r, at);
#endif
}

/* Rows of experts. Two blocks share a multiprocessor, so one of them multiplies while the other converts
 * weights, begins or ends: a block of few rows or a small K does little else. Its registers hold one tile. */
__global__ void __launch_bounds__(TILES_THREADS, 2) wide_tiles(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { N = TILES_ROWS };
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t bars[4 * MMA_STAGES];
    __shared__ float factors[N];
    __shared__ rings r; /* here, because the loops of block_run need all registers */
    __shared__ place at;
    const rings all = rings_make<N>(j, raw, bars, factors);
    launch_next();
    launch_wait();
    if (threadIdx.x == 0) {
        at = tile_of<CUDA_EXPERT_WIDE / N>(j);
        r = all;
        if (at.end - at.row <= N / 2)
            r.x_stages *= 2; /* of half the size */
    }
    __syncthreads();
    const int rows = at.end - at.row;
    if (rows > N / 2)
        block_run<4, false, N, SCALE_HALF, TABLE_NONE, true>(j, r, at);
    else if (rows > N / 4)
        block_run<4, false, N / 2, SCALE_HALF, TABLE_NONE, true>(j, r, at);
    else
        block_run<4, false, N / 4, SCALE_HALF, TABLE_NONE, true>(j, r, at);
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

/* Bytes of shared memory of a block of n rows, of which a multiprocessor has so many; the part that images
 * leave is for weights. 0: the device has less. */
static size_t job_shared_bytes(wide_job *j, int n, int blocks) {
    enum {
        STATIC = 1536,
        ALIGN = 1024,
        OWN = 1024 /* of each block, for the system */,
        MIN_WEIGHTS = 2,
        MIN_IMAGES = 4
    };
    const int all = (device_shared_bytes() + OWN) / blocks - OWN - STATIC - ALIGN;
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

/* Cycles of a block of n rows: the larger of those of the matrix instruction and those of converting tiles to
 * halves. */
static uint64_t block_cycles(const wide_job *j, unsigned n) {
    enum { BEGIN_AND_END = 8000, ROW = 4 /* cycles of a row's tile */, TILE = 560, ROW_BESIDE = 2 };
    const unsigned tile = ROW * n > TILE + ROW_BESIDE * n ? ROW * n : TILE + ROW_BESIDE * n;
    return (uint64_t)j->n_tile * tile + BEGIN_AND_END;
}

/* How rows and outputs are divided among blocks. */
static wide_rounds rounds_of(const wide_job *j) {
    const unsigned each = j->gated ? WIDE_PANELS / 2 : WIDE_PANELS,
                   across = ((unsigned)j->n_panel + each - 1) / each;
    if (j->of.tiles)
        return {CUDA_EXPERT_WIDE, (int)across, (int)across * j->of.max_tile, 0, 1};
    return wide_rounds_of((unsigned)j->n_row, across, (unsigned)device_sm_count(),
                          [&](unsigned n) { return block_cycles(j, n); });
}

/* Rows of experts, two blocks to a multiprocessor. CUDA_UNSUPPORTED: not for this format. */
static int tiles_launch(wide_job *j, const pack_format *f, cuda_stream s) {
    const unsigned each = j->gated ? WIDE_PANELS / 2 : WIDE_PANELS,
                   across = ((unsigned)j->n_panel + each - 1) / each;
    const size_t shared_bytes = job_shared_bytes(j, TILES_ROWS, 2);
    if (!shared_bytes || j->x_stages != TILE_CHUNK || f->bits != 4 || j->scale_kind != SCALE_HALF ||
        table_kind_of(f) != TABLE_NONE)
        return CUDA_UNSUPPORTED;
    j->w_stages = 2;
    j->n_across = (int)across;
    const int e = prepare(wide_tiles, shared_bytes);
    return e ? e
             : launch(wide_tiles, dim3(across * (unsigned)(CUDA_EXPERT_WIDE / TILES_ROWS * j->of.max_tile)),
                      dim3(TILES_THREADS), shared_bytes, s, *j);
}

int wide_mma_launch(wide_job *j, const pack_format *f, cuda_stream s) {
    const int tiles = j->of.tiles ? tiles_launch(j, f, s) : (int)CUDA_UNSUPPORTED;
    if (tiles != CUDA_UNSUPPORTED)
        return tiles;
    const wide_rounds by = rounds_of(j);
    const int n = by.rows;
    j->n_across = by.n_across;
    j->n_whole = by.n_whole;
    j->n_half = by.n_half;
    const wide_kernel kernel = n == 128 ? kernel_of<128>(j, f) : UNLESS_FEW(kernel_of<256>(j, f));
    const size_t shared_bytes = job_shared_bytes(j, n, 1);
    if (!kernel || !shared_bytes || (j->scale_kind == SCALE_BYTE && j->asym))
        return CUDA_UNSUPPORTED;
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3((unsigned)by.n_unit), dim3(MMA_THREADS), shared_bytes, s, *j);
}

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
#include "kernels/cuda/wide_outputs.cuh"
#include "kernels/cuda/wide_rounds.cuh"
#include "kernels/cuda/wide_weights.cuh"

enum { MMA_GROUPS = 2, MMA_WARPS = 4 * MMA_GROUPS, MMA_THREADS = 32 * MMA_WARPS + 128, MMA_STAGES = 8 };

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
/* A block with rows of an expert. Blocks with the same tile are neighbours. The list says how many tiles
 * there are; of the others `end` is 0. */
__device__ __forceinline__ place tile_of(const wide_job &j) {
    const int panels = j.gated ? WIDE_PANELS / 2 : WIDE_PANELS, i = (int)blockIdx.x / j.n_across;
    if (i >= __ldcg(j.of.n))
        return {0, 0, 0, 0};
    const cuda_expert_tile tile = j.of.tiles[i];
    return {tile.first, (int)blockIdx.x % j.n_across * panels, tile.first + tile.n, tile.expert};
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
    turn x, w;
};
template <int N> __device__ __forceinline__ feed feed_of(const wide_job &j, const place &at) {
    const int lane = threadIdx.x % 32, image0 = at.row / WIDE_ROWS, i = lane - WIDE_PANELS;
    const int n_image = min(N / WIDE_ROWS, (at.end + WIDE_ROWS - 1) / WIDE_ROWS - image0);
    feed f = {nullptr, 0, max(n_image, 0) * WIDE_IMAGE, {0, 1}, {0, 1}};
    for (int p = 0; p < WIDE_PANELS; p++)
        f.w_bytes += wide_is_there<WIDE_PANELS>(j, at, p);
    if (lane < WIDE_PANELS && wide_is_there<WIDE_PANELS>(j, at, lane)) {
        int matrix;
        const int p = wide_panel<WIDE_PANELS>(j, at, lane, &matrix);
        f.from = wide_panel_at(j, at, matrix, p);
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

/* A warp's position in the block's rings. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE> struct walk {
    const wide_job &j;
    rings r;
    int warp, lane;
    code_zero zero;
    scale_two whole[2];
    lane_tables<TABLE> tables;
    turn wt, xt;
    int tile, n_tile, chunk; /* the next tile in its chunk, the chunk's tiles, the chunk's number */

    /* Converts the next tile of weights. */
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
    /* Multiplies a tile of weights with the next tile of x asynchronously. */
    __device__ __forceinline__ void multiply(float (&d)[N / 2], const uint32_t (&a)[4][4]) {
        bar_wait<false>(r.x_full + xt.slot, xt.phase);
        const uint64_t b = wgmma_operand(shared_address(r.x + xt.slot * (N * 128)));
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < 4; s++)
            wgmma<N>::add(d, a[s], b + 2 * s);
        wgmma_end_group();
        xt.next(r.x_stages);
    }
};

/* Sums all of K in d. */
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
    if (KIND == ANY_SCALE && j.scale_kind == SCALE_NONE && wide_is_there<WIDE_PANELS>(j, at, warp)) {
        int matrix;
        const int panel = wide_panel<WIDE_PANELS>(j, at, warp, &matrix);
        const uint8_t *tail = wide_panel_at(j, at, matrix, panel) + j.tail_at + 2 * g;
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
                /* The operands of the previous product have been read, so their slot and registers are
                 * free. */
                wgmma_wait<1>();
                if (lane == 0)
                    bar_arrive(r.x_empty + (slot ? slot : r.x_stages) - 1);
            }
            if (i + odd + 1 < j.n_tile)
                on.take(a[1 - odd]);
        }
    }
    wgmma_wait<0>();
    wgmma_read(d);
}

/* The work of a block. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE>
__device__ __forceinline__ void block_run(const wide_job &j, const rings &r, const place &at) {
    if (at.row >= at.end)
        return;
    if (threadIdx.x / 32 >= MMA_WARPS) {
        registers_keep<24>();
        if (threadIdx.x / 32 == MMA_WARPS)
            feed_all<N>(j, at, r);
    } else {
        registers_take<240>();
        float d[N / 2];
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

template <int BITS, bool HALVES, int N, int KIND, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(MMA_THREADS, 1) wide_mma(const __grid_constant__ wide_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    enum { QUARTER = N < 256 ? N / 2 : N / 4 };
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t bars[4 * MMA_STAGES];
    __shared__ float factors[N];
    uint8_t *const x = raw + (1024 - shared_address(raw) % 1024) % 1024;
    rings r = {x,
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
    launch_next();
    int rows = (int)blockIdx.x < j.n_whole ? N : N / 2;
    place at = rows == N ? place_of<N>(j) : place_of<N / 2>(j);
    if (j.of.tiles) {
        launch_wait();
        at = tile_of(j);
        rows = at.end - at.row;
    }
    if (rows > N / 2) {
        block_run<BITS, HALVES, N, KIND, TABLE>(j, r, at);
        return;
    }
    r.x_stages = min((int)MMA_STAGES, 2 * j.x_stages); /* of half the size */
    if (N < 256 || rows > N / 4)
        block_run<BITS, HALVES, N / 2, KIND, TABLE>(j, r, at);
    else
        block_run<BITS, HALVES, QUARTER, KIND, TABLE>(j, r, at);
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

/* Bytes of shared memory of a block of n rows; the part that images leave is for weights. 0: the device has
 * less. */
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

int wide_mma_launch(wide_job *j, const pack_format *f, cuda_stream s) {
    const wide_rounds by = rounds_of(j);
    const int n = by.rows;
    j->n_across = by.n_across;
    j->n_whole = by.n_whole;
    j->n_half = by.n_half;
    const wide_kernel kernel = n == 128 ? kernel_of<128>(j, f) : UNLESS_FEW(kernel_of<256>(j, f));
    const size_t shared_bytes = job_shared_bytes(j, n);
    if (!kernel || !shared_bytes || (j->scale_kind == SCALE_BYTE && j->asym))
        return CUDA_UNSUPPORTED;
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3((unsigned)by.n_unit), dim3(MMA_THREADS), shared_bytes, s, *j);
}

/* batch_mma.cu - products of the rows of many sequences that decode together, on sm_90a. The multiplication
 * is that of wide_mma.cu, for up to 64 rows, where reading the weights is most of the work.
 *
 * A block has 16 panels (256 outputs) and all rows. Its feeder warps fill stages: a stage is a chunk (256 of
 * K) of each panel and the rows' images (wide.cuh) for this chunk. There are four feeders (one for images),
 * because a warp issues its copies one after the other. The weights of the first stages are copied before the
 * previous launch has finished. Four groups of 4 warps have 4 panels each, one for each warp. A warp converts
 * a tile of its panel to halves in registers, and the group multiplies it with the image asynchronously.
 *
 * The blocks of a cluster have the same outputs; each has a part of K. Blocks write their sums to shared
 * memory. Then each block adds the sums of a part of the rows, in the order of the blocks, and finishes them.
 * How K is divided depends on the matrices and the device alone, and columns of the matrix instruction are
 * independent. So a row's bits depend on neither the other rows nor their number. */
#include "kernels/cuda/batch_feed.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/wide_nibbles.cuh"
#include "kernels/cuda/wide_outputs.cuh"

/* Converts a warp's panel to halves. This is the general version: a tile at a time, as in wide_mma.cu. */
template <int BITS, bool HALVES, int KIND, int TABLE> struct panel_halves {
    const batch_job &j;
    const uint8_t *stages; /* the warp's part of the first stage */
    const uint8_t *stage;
    code_zero zero;
    scale_two whole[2];
    lane_tables<TABLE> tables;

    __device__ __forceinline__ panel_halves(const batch_job &job, const place &at, const batch_ring &r)
        : j(job), stages(r.data + job.x_bytes + (int)threadIdx.x / 32 * job.of.stage_bytes) {
        const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        zero = {__float2half2_rn((float)(1024 + j.of.zero)), __float2half2_rn(-(float)(64 + j.of.zero))};
        tables_load<BITS>(&tables, j.of.table, nullptr);
        if (j.of.scale_kind != SCALE_NONE || !wide_is_there<BATCH_PANELS>(j.of, at, warp))
            return;
        int matrix;
        const int panel = wide_panel<BATCH_PANELS>(j.of, at, warp, &matrix);
        const uint8_t *tail = j.of.w[matrix] + panel * j.of.panel_bytes + j.of.tail_at;
        tables_load<BITS>(&tables, j.of.table, tail + TILE_LINE);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            whole[i].scale = __half2half2(*(const __half *)(tail + 2 * g + 16 * i));
            if (j.of.asym)
                whole[i].min = __half2half2(*(const __half *)(tail + 2 * g + 16 * i + 32));
        }
    }
    __device__ __forceinline__ void chunk(int slot) {
        stage = stages + slot * j.each_bytes;
    }
    __device__ __forceinline__ void tile(int i, int n_tile, uint32_t (&a)[4][4]) {
        tile_halves<BITS, HALVES, KIND, TABLE>(j.of, stage, i, n_tile, zero, whole, tables, a);
    }
};

/* For 4-bit codes with half-precision scales: the same weights with fewer instructions. */
template <> struct panel_halves<4, false, SCALE_HALF, TABLE_NONE> {
    uint32_t stages, each, codes;
    nibble_halves halves;

    __device__ __forceinline__ panel_halves(const batch_job &j, const place &, const batch_ring &r)
        : halves(j.of) {
        stages = opaque(shared_address(r.data) + j.x_bytes + threadIdx.x / 32 * j.of.stage_bytes +
                        threadIdx.x % 32 * 16);
        each = (uint32_t)j.each_bytes;
    }
    __device__ __forceinline__ void chunk(int slot) {
        codes = stages + slot * each;
    }
    /* Converts tile i of the chunk; tiles come in order. */
    __device__ __forceinline__ void tile(int i, int n_tile, uint32_t (&a)[4][4]) {
        if (i % 2 == 0)
            halves.scales_take(codes, i, n_tile);
        halves.tile(codes, i, a);
    }
};

/* Multiplies a tile with its image asynchronously. */
template <int N>
__device__ __forceinline__ void tile_multiply(float (&d)[N / 2], const uint32_t (&a)[4][4], uint32_t image) {
    const uint64_t operand = wgmma_operand(0);
    const uint32_t low = (uint32_t)operand | image >> 4;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma<N>::add(d, a[s], (operand >> 32 << 32) | (low + 2 * s));
    wgmma_end_group();
}

/* Sums the warp's part of K in d. A tile is converted while the previous one is multiplied. A stage is free
 * when the first tile of the next stage is multiplied. */
template <int BITS, bool HALVES, int N, int KIND, int TABLE>
__device__ __forceinline__ void multiply_all(const batch_job &j, const batch_place &in, const batch_ring &r,
                                             float (&d)[N / 2]) {
    const int n_whole = min(in.end, j.of.n_tile / TILE_CHUNK);
    const uint32_t full = opaque(shared_address(r.full)), empty = opaque(shared_address(r.empty)),
                   data = opaque(shared_address(r.data)), first_lane = opaque(threadIdx.x % 32 == 0);
    panel_halves<BITS, HALVES, KIND, TABLE> panel(j, in.at, r);
    uint32_t a[2][4][4], before = 0;
    turn t = {0, 0};
#pragma unroll
    for (int i = 0; i < N / 2; i++)
        d[i] = 0.0f;
    for (int chunk = in.first; chunk < n_whole; chunk++) {
        const uint32_t image = data + t.slot * j.each_bytes;
        bar_wait_at(full + 8 * t.slot, t.phase);
        panel.chunk(t.slot);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++) {
            panel.tile(i, TILE_CHUNK, a[i % 2]);
            tile_multiply<N>(d, a[i % 2], image + i * (N * 128));
            wgmma_wait<1>();
            if (i == 0 && chunk > in.first && first_lane)
                bar_arrive_at(before);
        }
        before = empty + 8 * t.slot;
        t.next(j.n_stage);
    }
    wgmma_wait<0>();
    if (n_whole < in.end) { /* K ends within a chunk */
        bar_wait_at(full + 8 * t.slot, t.phase);
        panel.chunk(t.slot);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK - 1; i++)
            if (i < j.of.last_tiles) {
                panel.tile(i, j.of.last_tiles, a[0]);
                tile_multiply<N>(d, a[0], data + t.slot * j.each_bytes + i * (N * 128));
                wgmma_wait<0>();
            }
    }
    wgmma_read(d);
}

/* Writes the sums of the block to shared memory: [N rows][BATCH_LINE]. */
template <int N> __device__ __forceinline__ void sums_leave(const float (&d)[N / 2], float *sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float *const to = sums + 2 * t * BATCH_LINE + threadIdx.x / 32 * PACK_PANEL + g;
#pragma unroll
    for (int e = 0; e < N / 8; e++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(8 * e + i % 2) * BATCH_LINE + i / 2 * 8] = d[4 * e + i];
}

__device__ __forceinline__ float4 cluster_four(const float *at, int rank) {
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(cluster_address(at, rank)));
#endif
    return v;
}
/* Adds four sums of all blocks, in the order of the blocks. */
__device__ __forceinline__ float4 sums_add(const float *at, int split) {
    float4 part[MAX_SPLIT], v;
    if (split == 1)
        return *(const float4 *)at;
#pragma unroll
    for (int i = 0; i < MAX_SPLIT; i++)
        if (i < split)
            part[i] = cluster_four(at, i);
    v = part[0];
#pragma unroll
    for (int i = 1; i < MAX_SPLIT; i++)
        if (i < split)
            v = four_add(v, part[i]);
    return v;
}

/* A block's share of the results: all outputs of some rows. A thread has the same four outputs of each of its
 * rows. */
struct batch_share {
    four_outputs f, up;
    int o, row, end;
};
enum { SHARE_ROWS = 2 /* rows in flight together */ };
__device__ __forceinline__ batch_share share_of(const batch_job &j, const batch_place &in) {
    const int across = BATCH_OUTPUTS / 4 / (j.of.gated ? 2 : 1), n = j.of.n_row;
    batch_share s;
    s.o = (int)threadIdx.x % across * 4;
    s.row = n * in.rank / j.split + (int)threadIdx.x / across;
    s.end = n * (in.rank + 1) / j.split;
    s.f = outputs_of<BATCH_PANELS>(j.of, in.at, s.o);
    if (j.of.gated)
        s.up = outputs_of<BATCH_PANELS>(j.of, in.at, BATCH_OUTPUTS / 2 + s.o);
    return s;
}
__device__ __forceinline__ void share_before(const batch_job &j, const batch_share &s, int row,
                                             float4 (&before)[SHARE_ROWS]) {
    const int step = 32 * BATCH_WARPS / (BATCH_OUTPUTS / 4) * (j.of.gated ? 2 : 1);
#pragma unroll
    for (int i = 0; i < SHARE_ROWS; i++)
        before[i] = outputs_before(j.of, s.f, row + i * step, j.of.adds && row + i * step < s.end);
}
/* Writes a row to memory. before: the values that it is added to. */
__device__ __forceinline__ void row_write(const batch_job &j, const batch_ring &r, const batch_share &s,
                                          int row, float4 before) {
    const float *const at = (const float *)r.data + row * BATCH_LINE + s.o;
    float4 v = outputs_value(sums_add(at, j.split), r.factors[row], s.f);
    if (j.of.gated) {
        const float4 u = outputs_value(sums_add(at + BATCH_OUTPUTS / 2, j.split), r.factors[row], s.up);
        v = j.of.act == ACT_SILU ? four_gate<true>(j.of.act, v, u) : four_gate<false>(j.of.act, v, u);
    } else if (j.of.acts)
        v = four_act(j.of.act, v);
    outputs_write(j.of, s.f, row, v, j.of.adds, before);
}
/* Writes the block's share to memory. before: the values that the first rows are added to, loaded before the
 * cluster's barrier. The code is short, because fetching instructions takes most of its time. */
__device__ __forceinline__ void share_write(const batch_job &j, const batch_ring &r, const batch_share &s,
                                            float4 (&before)[SHARE_ROWS]) {
    const int step = 32 * BATCH_WARPS / (BATCH_OUTPUTS / 4) * (j.of.gated ? 2 : 1);
#pragma unroll 1
    for (int row = s.row; row < s.end; row += step) {
        row_write(j, r, s, row, before[0]);
#pragma unroll
        for (int i = 1; i < SHARE_ROWS; i++)
            before[i - 1] = before[i];
        before[SHARE_ROWS - 1] =
            outputs_before(j.of, s.f, row + SHARE_ROWS * step, j.of.adds && row + SHARE_ROWS * step < s.end);
    }
}

/* A barrier of all blocks of the cluster, or of the block if it is alone. */
__device__ __forceinline__ void together(const batch_job &j) {
    if (j.split > 1)
        cluster_barrier();
    else
        __syncthreads();
}

template <int BITS, bool HALVES, int N, int KIND, int TABLE = TABLE_NONE>
__global__ void __launch_bounds__(BATCH_THREADS, 1) batch_mma(const __grid_constant__ batch_job j) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ uint64_t bars[2 * BATCH_STAGES];
    __shared__ float factors[CUDA_MAX_ROWS];
    uint8_t *const raw = block_memory();
    const batch_ring r = {raw + (1024 - shared_address(raw) % 1024) % 1024, bars, bars + BATCH_STAGES,
                          factors};
    const batch_place in = batch_place_of(j);
    const bool feeds = threadIdx.x / 32 >= BATCH_WARPS;
    float d[N / 2];
    if (threadIdx.x == 0) {
        for (int i = 0; i < j.n_stage; i++)
            bar_init(r.full + i, BATCH_FEEDERS), bar_init(r.empty + i, BATCH_WARPS);
        async_fence();
    }
    __syncthreads();
    launch_next();
    if (feeds)
        feed_all<N>(j, in, r);
    else
        multiply_all<BITS, HALVES, N, KIND, TABLE>(j, in, r, d);
    __syncthreads(); /* all threads have read the ring */
    batch_share share;
    float4 before[SHARE_ROWS];
    if (!feeds) {
        sums_leave<N>(d, (float *)r.data);
        launch_wait();
        share = share_of(j, in);
        share_before(j, share, share.row, before);
    }
    together(j);
    if (!feeds)
        share_write(j, r, share, before);
    if (j.split > 1)
        cluster_barrier(); /* other blocks read this block's memory until here */
#endif
}

/* ---- launching ---- */

typedef void (*batch_kernel)(const batch_job);

/* The kernel and the number of columns (n) that it multiplies. 16 and 32 columns save time of the matrix
 * instruction in the common format. In others, reading takes longer than that. */
static batch_kernel kernel_of(const wide_job *j, const pack_format *f, int *n) {
    enum { N = CUDA_MAX_ROWS };
    static const batch_kernel all[9] = {nullptr,
                                        nullptr,
                                        batch_mma<2, false, N, ANY_SCALE>,
                                        UNLESS_FEW(batch_mma<3, false, N, ANY_SCALE>),
                                        batch_mma<4, false, N, ANY_SCALE>,
                                        UNLESS_FEW(batch_mma<5, false, N, ANY_SCALE>),
                                        UNLESS_FEW(batch_mma<6, false, N, ANY_SCALE>),
                                        UNLESS_FEW(batch_mma<7, false, N, ANY_SCALE>),
                                        UNLESS_FEW(batch_mma<8, false, N, ANY_SCALE>)};
    const int bits = f->bits, rows = j->n_row;
    *n = N;
    if (table_kind_of(f) == TABLE_SHARED)
        return batch_mma<4, false, N, ANY_SCALE, TABLE_SHARED>;
    if (table_kind_of(f) == TABLE_BOOK)
        return bits == 4 ? batch_mma<4, false, N, ANY_SCALE, TABLE_BOOK>
                         : UNLESS_FEW(batch_mma<3, false, N, ANY_SCALE, TABLE_BOOK>);
    if (bits == 4 && j->scale_kind == SCALE_HALF) {
        *n = rows <= 16 ? 16 : rows <= 32 ? 32 : N;
        return rows <= 16   ? UNLESS_FEW(batch_mma<4, false, 16, SCALE_HALF>)
               : rows <= 32 ? UNLESS_FEW(batch_mma<4, false, 32, SCALE_HALF>)
                            : batch_mma<4, false, N, SCALE_HALF>;
    }
    if (f->group != 16)
        return all[bits];
    return bits == 2   ? UNLESS_FEW(batch_mma<2, true, N, ANY_SCALE>)
           : bits == 3 ? batch_mma<3, true, N, ANY_SCALE>
           : bits == 6 ? UNLESS_FEW(batch_mma<6, true, N, ANY_SCALE>)
                       : nullptr;
}

/* How many clusters of this many blocks run on the device at once: fewer than its number of multiprocessors
 * suggests, because a cluster stays within a group of them. */
static int clusters_of(int blocks) {
    static int known[MAX_SPLIT + 1];
    if (blocks == 1)
        return device_sm_count();
    if (!known[blocks]) {
        auto *const kernel = batch_mma<4, false, CUDA_MAX_ROWS, SCALE_HALF>;
        const size_t shared_bytes = (size_t)device_shared_bytes() - BATCH_OWN;
        int max_clusters = device_sm_count() / blocks;
        if (prepare(kernel, shared_bytes) ||
            clusters_max(kernel, BATCH_THREADS, (unsigned)blocks, shared_bytes, &max_clusters))
            max_clusters = 1;
        known[blocks] = max_clusters;
    }
    return known[blocks];
}

/* The number of blocks that share K: the one with the fewest rounds of chunks. It depends on the matrices and
 * the device alone. */
static int split_of(const wide_job *j, int blocks) {
    enum { END = 1, END_TOGETHER = 2 /* the time of a block's end, in chunks */ };
    int best = 1;
    int64_t min_cost = INT64_MAX;
    for (int s = 1; s <= MAX_SPLIT && s <= j->n_chunk; s++) {
        const int at_once = clusters_of(s), rounds = (blocks + at_once - 1) / at_once;
        const int64_t cost = (int64_t)rounds * ((j->n_chunk + s - 1) / s + (s > 1 ? END_TOGETHER : END));
        if (cost < min_cost) {
            min_cost = cost;
            best = s;
        }
    }
    return best;
}

/* Bytes of shared memory of a block for n rows. 0: the device has less. */
static size_t batch_shared_bytes(batch_job *j, int n) {
    enum { ALIGN = 1024 };
    const int all = device_shared_bytes() - BATCH_OWN - ALIGN;
    const int sums = n * BATCH_LINE * (int)sizeof(float);
    j->x_bytes = TILE_CHUNK * n * 128;
    j->each_bytes = (j->x_bytes + BATCH_PANELS * j->of.stage_bytes + 1023) / 1024 * 1024;
    j->image_bytes = (j->of.n_row + 7) / 8 * 8 * 128;
    j->n_stage = all / j->each_bytes;
    j->n_stage = j->n_stage > BATCH_STAGES ? BATCH_STAGES : j->n_stage;
    if (j->n_stage < 2 || sums > all)
        return 0;
    const int ring = j->n_stage * j->each_bytes;
    return (size_t)((ring > sums ? ring : sums) + ALIGN);
}

#ifdef NIB_SM90A
bool has_batch(void) {
    return device_major() == 9;
}
#else
bool has_batch(void) {
    return false;
}
#endif

int batch_launch(const cuda_linear *a, cuda_stream s) {
    batch_job j = {};
    if (!has_batch() || a->n_row > CUDA_MAX_ROWS)
        return CUDA_UNSUPPORTED;
    if (a->w[0].format.layout == PACK_ROWS)
        return float_launch(a, s);
    int n = 0, e = wide_job_make(a, &j.of);
    if (e)
        return e;
    const batch_kernel kernel = kernel_of(&j.of, &a->w[0].format, &n);
    const int each = j.of.gated ? BATCH_PANELS / 2 : BATCH_PANELS, blocks = (j.of.n_panel + each - 1) / each;
    const size_t shared_bytes = kernel ? batch_shared_bytes(&j, n) : 0;
    if (!shared_bytes || (j.of.scale_kind == SCALE_BYTE && j.of.asym))
        return CUDA_UNSUPPORTED;
    j.split = split_of(&j.of, blocks);
    e = images_launch(a, false, true, (unsigned)j.of.n_row, s);
    e = e ? e : prepare(kernel, shared_bytes);
    return e ? e
             : launch_cluster(kernel, dim3((unsigned)blocks, 1, (unsigned)j.split), dim3(BATCH_THREADS),
                              (unsigned)j.split, shared_bytes, s, j);
}

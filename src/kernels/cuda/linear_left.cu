/* linear_left.cu - products of one row whose codes the previous launch has left (cuda_codes), with matrices
 * of up to 7 bits that have one half-precision scale a group, as most do (compute capability 9.0). See
 * linear.cuh. The bits are those of linear_one.cu, which computes all other products of one row.
 *
 * Between two launches of a token the memory is nearly idle, so the time from the end of the previous launch
 * to the end of this one matters. Work that does not depend on the row is done before the wait. Nothing is in
 * local memory, because the first-level cache has no space for it. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/left_chunk.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/ranks.cuh"

/* Panels whose sums are in shared memory until all threads finish them. If there are more than LEFT_PANELS,
 * LEFT_STEP at a time, so that rings keep their depth. */
enum { LEFT_PANELS = 16, LEFT_STEP = 12 };

/* An output that a thread finishes: its matrix and row there (-1: none), the value that it is added to, and
 * the norm's weight for its codes. */
struct left_output {
    int at;
    float before, weight;
};
enum { MATRIX_BITS = 2 };
__device__ __forceinline__ float *place_of(const linear_job &j, int at) {
    return j.y[at & 3] + (at >> MATRIX_BITS);
}

/* Shared memory after the rings. partial: [panel][row][warp], so that a thread reads its eight sums by two
 * loads. */
struct left_memory {
    uint32_t *codes;
    subgroup_meta *meta;
    float *partial;
    left_output *outputs;
};
static __host__ __device__ __forceinline__ int left_panels(const linear_job &j) {
    return j.max_panels <= LEFT_PANELS ? j.max_panels : LEFT_STEP;
}
__device__ __forceinline__ left_memory memory_of(const linear_job &j, uint8_t *at) {
    left_memory r;
    r.codes = (uint32_t *)at;
    r.meta = (subgroup_meta *)(at + j.k_pad);
    r.partial = (float *)(at + j.k_pad + j.k_pad / 4);
    r.outputs = (left_output *)(r.partial + left_panels(j) * PACK_PANEL * WARPS);
    return r;
}
static size_t left_memory_bytes(const linear_job &j) {
    const size_t panels = (size_t)left_panels(j);
    return (size_t)(j.k_pad + j.k_pad / 4) + panels * PACK_PANEL * WARPS * sizeof(float) +
           panels / (j.gated ? 2 : 1) * PACK_PANEL * sizeof(left_output);
}

/* A team's panels of the block, one after the other. */
struct left_walk {
    int q, n_panel;
    __device__ __forceinline__ bool there(const linear_job &) const {
        return q < n_panel;
    }
    __device__ __forceinline__ const uint8_t *weights(const linear_job &j) const {
        return panel_at(j, q);
    }
    __device__ __forceinline__ void next(const linear_job &) {
        q += TEAMS;
    }
};
typedef ring_feed<left_walk> left_feed;

/* Multiplies a warp's chunks of a panel. codes, meta: this lane's ones of the warp's first chunk. */
template <int BITS>
__device__ __forceinline__ void left_panel(const linear_job &j, left_feed *f, warp_ring *r, uint32_t codes,
                                           uint32_t meta, int lane_scale, float sum[2]) {
    const int lane = threadIdx.x % 32;
    for (int n = f->first; n < j.n_chunk; n += WARPS, codes += 256 * WARPS, meta += 64 * WARPS) {
        const int n_tile = n == j.n_chunk - 1 ? j.last_tiles : TILE_CHUNK;
        left_chunk<BITS> c;
        c.mine = shared_two(codes);
        c.m = shared_four(meta);
        warp_ring_wait(*r);
        const uint32_t stage = warp_ring_stage(j, *r);
        matrices_load(c.w, stage + n_tile * BITS * 128 + lane_scale);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++)
            left_tile(&c.v[i], stage + i * BITS * 128, lane);
        __syncwarp();
        ring_feed_put(j, f, *r);
        warp_ring_next(j, r);
        chunk_multiply(c, n_tile, sum);
    }
}

/* ---- outputs ---- */

/* Finds the addresses of the outputs of panels [q0, q0 + n) and the norm's weights for them, which do not
 * depend on the row. Each thread does this for the output that it finishes. */
__device__ __forceinline__ void outputs_find(const linear_job &j, int q0, int n, left_output *outputs) {
    const int o = threadIdx.x;
    if (o >= (n >> j.gated) * PACK_PANEL) /* a division would take as long as all sums */
        return;
    int matrix;
    const int row = panel_find(j, q0 + (o / PACK_PANEL << j.gated), &matrix) * PACK_PANEL + o % PACK_PANEL;
    const bool there = row < j.n[matrix];
    outputs[o].at = there ? row << MATRIX_BITS | matrix : -1;
    if (there && j.leaves.norm)
        copy_ahead<4>(&outputs[o].weight, j.leaves.norm + row);
}
/* Loads the values that outputs are added to. */
__device__ __forceinline__ void outputs_before(const linear_job &j, int n, left_output *outputs) {
    const int o = threadIdx.x;
    if (!j.adds || o >= (n >> j.gated) * PACK_PANEL)
        return;
    if (outputs[o].at >= 0)
        copy_ahead<4>(&outputs[o].before, place_of(j, outputs[o].at));
}

/* The value of a row of a panel, with its bias. partial: the sums of the panel. */
__device__ __forceinline__ float left_value(const linear_job &j, int q, int row, const float *partial,
                                            float factor) {
    const float4 a = *(const float4 *)(partial + row * WARPS),
                 b = *(const float4 *)(partial + row * WARPS + 4);
    float u = __fadd_rn(0.0f, a.x);
    u = __fadd_rn(u, a.y);
    u = __fadd_rn(u, a.z);
    u = __fadd_rn(u, a.w);
    u = __fadd_rn(u, b.x);
    u = __fadd_rn(u, b.y);
    u = __fadd_rn(u, b.z);
    u = __fadd_rn(u, b.w);
    if (j.norm)
        u = __fmul_rn(u, factor);
    if (j.bias[0] || j.bias[1] || j.bias[2]) {
        int matrix;
        const int n = panel_find(j, q, &matrix) * PACK_PANEL + row;
        if (j.bias[matrix] && n < j.n[matrix])
            u = __fadd_rn(u, j.bias[matrix][n]);
    }
    return u;
}

/* Leaves an output's code if the block has whole groups. j.whole warps have 32 outputs of a group each; the
 * block's first n_warp warps call it. */
__device__ __forceinline__ void whole_leave(const linear_job &j, int i, float v, int n_warp,
                                            uint32_t *max_of) {
    const int warp = threadIdx.x / 32, first = warp / j.whole * j.whole;
    max_of[warp] = max_warp(__float_as_uint(v) & 0x7fffffffu);
    warps_barrier(1, n_warp);
    uint32_t max_bits = max_of[first];
    for (int n = 1; n < j.whole; n++)
        max_bits = max(max_bits, max_of[first + n]);
    codes_leave(j.leaves, i, v, max_bits);
}

/* Adds an output over ranks. Threads of neighbouring outputs have a pair; those of the first n_out outputs
 * call it, a multiple of 16. */
__device__ __forceinline__ float left_sum(const linear_job &j, int i, float v, int n_out, int64_t pass) {
    const float other = __shfl_xor_sync(n_out - (int)threadIdx.x / 32 * 32 >= 32 ? ~0u : 0xffffu, v, 1);
    const float2 own = i % 2 ? make_float2(other, v) : make_float2(v, other);
    const uint64_t number = number_of(j.sum, pass);
    if (i < 0)
        return v;
    if (i % 2 == 0)
        pair_send(j.sum, number, i / 2, own);
    const float2 sum = pair_add(j.sum, pass, number, i / 2, own);
    return i % 2 ? sum.y : sum.x;
}

/* pass: SUMS: its number. */
template <bool SUMS>
__device__ __forceinline__ void outputs_finish(const linear_job &j, int q0, int n, const left_memory &memory,
                                               const row_sums &sums, uint32_t *max_of, int64_t pass) {
    static_assert(LEFT_PANELS * PACK_PANEL <= THREADS, "a thread has one output at max_bits");
    const int o = threadIdx.x, p = o / PACK_PANEL << j.gated, row = o % PACK_PANEL;
    const int n_out = (n >> j.gated) * PACK_PANEL;
    if (o >= n_out)
        return;
    const left_output out = memory.outputs[o];
    const float *partial = memory.partial + p * PACK_PANEL * WARPS;
    float v = left_value(j, q0 + p, row, partial, sums.factor);
    if (j.gated)
        v = __fmul_rn(act_value(j.act, v),
                      left_value(j, q0 + p + 1, row, partial + PACK_PANEL * WARPS, sums.factor));
    if (SUMS) /* the only matrix is number 0 */
        v = left_sum(j, out.at >> MATRIX_BITS, v, n_out, pass);
    if (out.at < 0)
        return;
    v = j.adds ? __fadd_rn(out.before, v) : v;
    *place_of(j, out.at) = v;
    if (j.whole)
        whole_leave(j, out.at >> MATRIX_BITS, v, n_out / 32, max_of);
    else if (j.leaves.codes) /* panels are in pairs, so a warp has 32 successive outputs */
        group_leave(j.leaves, out.at >> MATRIX_BITS, v, out.weight);
}

/* ---- the row ---- */

/* Starts copying codes into shared memory. Each thread sums its part of the squares. */
__device__ __forceinline__ void row_take(const linear_job &j, const left_memory &memory, int n_here,
                                         row_sums *sums) {
    const float *squares = j.coded ? (const float *)(j.coded + j.k_pad + j.k_pad / 4) : j.left.squares;
    const bool sums_squares = j.norm && threadIdx.x < SQUARE_SUMS;
    float square = 0.0f;
    if (j.coded)
#pragma unroll 1
        for (int at = 16 * threadIdx.x; at < j.k_pad + j.k_pad / 4; at += 16 * THREADS)
            copy_ahead<16>((uint8_t *)memory.codes + at, j.coded + at);
    copies_end_group();
    if (sums_squares)
#pragma unroll 1
        for (int i = threadIdx.x; i < j.k_pad / 32; i += SQUARE_SUMS)
            square = __fadd_rn(square, __ldcg(squares + i));
    outputs_before(j, n_here, memory.outputs);
    copies_end_group();
    if (!j.coded)
        quantize_left(j, memory.codes, memory.meta);
    if (sums_squares) {
        square = pairs_sum(square, 8);
        if (threadIdx.x % 8 == 0)
            sums->squares[threadIdx.x / 8] = square;
    }
    copies_wait<1>();
    __syncthreads();
}

/* A block without outputs keeps its multiprocessor's memory for a while, so that the blocks of the next
 * launch are placed one on each multiprocessor, and not two here. */
__device__ __forceinline__ void place_keep() {
    enum { CYCLES = 4000 /* 2,000 to 20,000 give the same times on an H200, none 50 us a token more */ };
    launch_next();
    launch_wait();
    for (const long long begin = clock64(); clock64() - begin < CYCLES;)
        __nanosleep(200);
}

/* SUMS: outputs are added over ranks. All blocks run at the same time and have one round of outputs, so a
 * block has sent all of its own before it waits for those of another rank. */
template <int BITS, bool SUMS>
__global__ void __launch_bounds__(THREADS, 2) linear_left(const __grid_constant__ linear_job j) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ row_sums sums;
    const int of_all = warp_number(), lane = threadIdx.x % 32, warp = of_all % WARPS, team = of_all / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    const int lane_scale = (lane % 8 >> j.group_shift) * 32 + lane / 8 % 2 * 16; /* matrices_load */
    const left_memory memory = memory_of(j, shared + ALL_WARPS * ring_bytes);
    if (n_panel == 0) {
        place_keep();
        return;
    }
    /* Bulk copies are faster if source and destination have the same offset in 128 bytes. */
    const int shift = warp * j.chunk_bytes % 128;
    uint8_t *const stages =
        shared + of_all * ring_bytes + (shift <= j.stage_bytes - j.chunk_bytes ? shift : 0);
    warp_ring r = warp_ring_make(stages, bars[of_all], j.depth);
    left_feed feed =
        ring_feed_begin(j, &r, left_walk{warp < j.n_chunk && team < n_panel ? team : n_panel, n_panel}, warp);
    /* If a product is next, it may start copying its weights now. Attention may start if a multiprocessor is
     * free. */
    if (j.leaves.codes || j.early)
        launch_next();
    outputs_find(j, 0, min(left_panels(j), n_panel), memory.outputs);
    copies_end_group();
    launch_wait();
    const int64_t pass = SUMS ? __ldcg(j.sum.pass) : 0;
    const uint32_t codes = address_kept(memory.codes) + (warp * 32 + lane) * 8,
                   meta = address_kept(memory.meta) + warp * 64 + lane % 4 * 16;
    row_take(j, memory, min(left_panels(j), n_panel), &sums);
    if (j.norm && threadIdx.x == THREADS - 1) /* a thread of a warp that often has fewer panels than others */
        sums.factor = row_factor(j, &sums);
    for (int q0 = 0;;) {
        const int n_here = min(left_panels(j), n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[2] = {0.0f, 0.0f};
            left_panel<BITS>(j, &feed, &r, codes, meta, lane_scale, sum);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum[i] = pairs_sum(sum[i], 4);
                if (lane % 4 == 0)
                    memory.partial[(q * PACK_PANEL + lane / 4 + 8 * i) * WARPS + warp] = sum[i];
            }
        }
        copies_wait<0>();
        __syncthreads();
        outputs_finish<SUMS>(j, q0, n_here, memory, sums, sums.scratch, pass);
        q0 += left_panels(j);
        if (q0 >= n_panel)
            return;
        __syncthreads();
        outputs_find(j, q0, min(left_panels(j), n_panel - q0), memory.outputs);
        outputs_before(j, min(left_panels(j), n_panel - q0), memory.outputs);
    }
#endif
}

/* ---- launching ---- */

typedef void (*left_kernel)(const linear_job);

/* Sets the depth of the rings like linear_shared_bytes. */
static size_t left_shared_bytes(linear_job *j) {
    enum { RESERVED = 1024, OWN = 1408 + RESERVED /* bytes of static arrays and of the driver */ };
    const int64_t others = (int64_t)left_memory_bytes(*j);
    const int64_t share = (device_shared_bytes() + RESERVED) * (int64_t)(j->max_panels > 2 ? 11 : 9) / 20;
    j->stage_bytes = stage_bytes_of(j->chunk_bytes);
    j->depth = stages_of(*j, share - OWN - others, 1, warp_chunks(*j, j->max_panels));
    const int64_t bytes = ALL_WARPS * j->depth * j->stage_bytes + others;
    return (size_t)(j->max_panels > 2 && bytes < share - OWN ? share - OWN
                                                             : bytes); /* never two of one launch */
}

static bool left_can(const linear_job &j, const pack_format *f) {
    return device_major() >= 9 && (j.coded || j.left.floats) && j.scale_kind == SCALE_HALF && !j.tail &&
           f->bits <= 7 && !f->table;
}

/* Blocks get whole groups if no block then has more panels than otherwise, and all fit one round. */
bool left_leaves_whole(const linear_job *j, const pack_format *f) {
    const int group = (int)j->leaves_group, outputs = j->n[0];
    if (!left_can(*j, f) || !j->by_rule || !j->gated || !j->leaves.wide || j->leaves.norm || outputs % group)
        return false;
    const int sm = device_sm_count(), panels = (outputs / group + sm - 1) / sm * 2 * group / PACK_PANEL;
    return panels <= j->max_panels && panels <= LEFT_PANELS;
}

/* The number of blocks. A team takes every second panel, so an odd number of panels takes a block as long as
 * the next even number. If no codes are left for a product, attention is next, whose blocks need a
 * multiprocessor each. Fewer blocks leave some free, so attention starts before this launch has ended. */
static int left_blocks(linear_job *j, const pack_format *f) {
    enum { FEW = 8 /* panels */ };
    const int sm = device_sm_count(), blocks = job_blocks(*j);
    if (left_leaves_whole(j, f)) {
        const int panels = (int)j->leaves_group / PACK_PANEL;
        j->whole = (int)j->leaves_group / 32;
        j->n_unit = j->n[0] / (int)j->leaves_group;
        j->paired = panels == 8 ? 3 : 2;
        j->max_panels = (j->n_unit + sm - 1) / sm * 2 * panels;
        return sm;
    }
    if (j->leaves.codes || j->gated || j->max_panels < 2 || j->max_panels > FEW)
        return blocks;
    j->max_panels += j->max_panels % 2;
    const int fewer = (j->n_unit + j->max_panels - 1) / j->max_panels;
    j->early = fewer <= sm * 7 / 8;
    return fewer;
}

bool left_sums(const linear_job &j, const pack_format *f) {
    return left_can(j, f) && !j.gated && j.max_panels <= LEFT_PANELS && j.n[0] % 2 == 0 &&
           j.n[0] / 2 <= j.sum.max_pair && j.sum.n_rank > 1 && j.sum.n_rank <= CUDA_MAX_RANK;
}

template <bool SUMS> static left_kernel left_kernel_of(const pack_format *f) {
    static const left_kernel all[8] = {nullptr,
                                       nullptr,
                                       linear_left<2, SUMS>,
                                       linear_left<3, SUMS>,
                                       linear_left<4, SUMS>,
                                       linear_left<5, SUMS>,
                                       linear_left<6, SUMS>,
                                       linear_left<7, SUMS>};
    return all[f->bits];
}

int left_launch(linear_job *j, const pack_format *f, cuda_stream s) {
    if (!left_can(*j, f))
        return CUDA_UNSUPPORTED;
    const left_kernel kernel = j->sum.n_rank ? left_kernel_of<true>(f) : left_kernel_of<false>(f);
    const int blocks = left_blocks(j, f);
    const size_t shared_bytes = left_shared_bytes(j);
    const int e = prepare(kernel, shared_bytes);
    return e ? e : launch(kernel, dim3((unsigned)blocks), dim3(THREADS), shared_bytes, s, *j);
}

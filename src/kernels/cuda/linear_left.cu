/* linear_left.cu - products of one row that the launch before has left, with matrices of up to 7 bits whose
 * groups have a half each, as most are (compute capability 9.0); see linear.cuh. The same bits as
 * linear_one.cu's, which does all others.
 *
 * Between two launches of a token memory has little to do, so what counts here is how long a launch takes
 * from the end of the one before to its own: what does not depend on the row is done before, and nothing is
 * in local memory, which the first-level cache has no room for. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_ring.cuh"
#include "kernels/cuda/linear_rows.cuh"

/* Panels whose sums wait in shared memory until all threads finish them; of more than LEFT_PANELS fewer at a
 * time, so that rings keep their depth. */
enum { LEFT_PANELS = 16, LEFT_STEP = 12 };

/* An output that a thread finishes: its matrix and row there (-1: none), what it is added to, and the weight
 * that its codes want. */
struct left_output {
    int at;
    float before, weight;
};
enum { MATRIX_BITS = 2 };
__device__ __forceinline__ float *place_of(const linear_job &j, int at) {
    return j.y[at & 3] + (at >> MATRIX_BITS);
}

/* Behind the rings. partial: [panel][row][warp], so that a thread reads its eight by two loads. */
struct left_room {
    uint32_t *codes;
    slice_meta *meta;
    float *partial;
    left_output *outputs;
};
static __host__ __device__ __forceinline__ int left_panels(const linear_job &j) {
    return j.most <= LEFT_PANELS ? j.most : LEFT_STEP;
}
__device__ __forceinline__ left_room room_of(const linear_job &j, uint8_t *at) {
    left_room r;
    r.codes = (uint32_t *)at;
    r.meta = (slice_meta *)(at + j.k_pad);
    r.partial = (float *)(at + j.k_pad + j.k_pad / 4);
    r.outputs = (left_output *)(r.partial + left_panels(j) * PACK_PANEL * WARPS);
    return r;
}
static size_t room_bytes(const linear_job &j) {
    const size_t panels = (size_t)left_panels(j);
    return (size_t)(j.k_pad + j.k_pad / 4) + panels * PACK_PANEL * WARPS * sizeof(float) +
           panels / (j.gated ? 2 : 1) * PACK_PANEL * sizeof(left_output);
}

/* ---- what fills the ring ---- */

/* A warp's chunks in the order in which it takes them. */
struct left_feed {
    const uint8_t *at; /* the chunk that is asked for next */
    int q, chunk;      /* its panel among the block's, and its number */
    int warp, n_panel;
};

/* Asks for the next chunk. All lanes call it; the stage's readers are done. */
__device__ __forceinline__ void left_put(const linear_job &j, left_feed *f, const warp_ring &r) {
    if (f->q >= f->n_panel)
        return;
    warp_ring_ask(j, r, f->at, f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes);
    f->at += WARPS * j.chunk_bytes;
    f->chunk += WARPS;
    if (f->chunk < j.n_chunk)
        return;
    f->chunk = f->warp;
    f->q += TEAMS;
    if (f->q < f->n_panel)
        f->at = panel_at(j, f->q) + f->chunk * j.chunk_bytes;
    else
        launch_next();
}

/* Asks for the first chunks of the block's warp `of_all`. */
__device__ __forceinline__ left_feed left_begin(const linear_job &j, warp_ring *r, int n_panel, int of_all) {
    const int warp = of_all % WARPS, team = of_all / WARPS;
    left_feed f = {nullptr, warp < j.n_chunk && team < n_panel ? team : n_panel, warp, warp, n_panel};
    if (f.q < n_panel)
        f.at = panel_at(j, f.q) + warp * j.chunk_bytes;
    for (int i = 0; i < j.depth; i++) {
        left_put(j, &f, *r);
        warp_ring_next(j, r);
    }
    r->phase = 0;
    return f;
}

/* ---- a chunk ---- */

/* tile_load from an address. */
template <int BITS> __device__ __forceinline__ void left_tile(tile_lane<BITS> *v, uint32_t tile, int lane) {
    if (BITS & 4) {
        *(uint4 *)v->d = shared_four(tile + 16 * lane);
        tile += 512;
    }
    if (BITS & 2) {
        *(uint2 *)v->d2 = shared_two(tile + 8 * lane);
        tile += 256;
    }
    if (BITS & 1) {
        const uint2 u = shared_two(tile + 8 * (lane / 4 * 2 + lane % 2));
        v->d1[0] = u.x >> (lane % 4 / 2);
        v->d1[1] = u.y >> (lane % 4 / 2);
    }
}

/* d = c + a . b, 16 rows x 32 of K x 8 columns, unsigned times signed bytes. */
__device__ __forceinline__ void mma_from(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1,
                                         const int c[4]) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
#endif
}

/* What left_mma's sums of half h are too large by, log 2: fields are shifted as little as possible. */
template <int BITS> __device__ __forceinline__ constexpr int left_excess(int h) {
    return BITS == 3 ? 1 + 4 * h : BITS <= 4 ? 4 * h : 0;
}

/* The two upper bits of each four of a, the two lower ones of b; the compiler would make two instructions. */
__device__ __forceinline__ uint32_t upper_of(uint32_t a, uint32_t b) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, 0xcccccccc, 0xe4;" : "=r"(v) : "r"(a), "r"(b));
    return v;
}
/* A tile's codes of 3 bits, from bits 1 (half 0) and 5 (half 1) of each byte on: both parts together, so that
 * they are multiplied once. What else a byte has is masked later. */
__device__ __forceinline__ void three_join(const tile_lane<3> &v, uint32_t joined[4]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        joined[i] = upper_of(v.d2[i] << 2, v.d1[i] << 1);
        joined[2 + i] = upper_of(v.d2[i], v.d1[i] >> 1);
    }
}

/* d = c + the tile's half h times b; the parts of a code one by one. joined: three_join's. */
template <int BITS>
__device__ __forceinline__ void left_mma(const tile_lane<BITS> &v, const uint32_t joined[4], int h, int d[4],
                                         uint32_t b0, uint32_t b1, const int *c) {
    uint32_t a[4];
    if (BITS == 3) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = joined[i] & (h ? 0xe0e0e0e0u : 0x0e0e0e0eu);
        mma_from(d, a, b0, b1, c);
        return;
    }
    if (BITS & 4) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d[i], 4 * h, 4, (BITS & 3) + left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
        c = d;
    }
    if (BITS & 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, (BITS & 1) + left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
        c = d;
    }
    if (BITS & 1) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, left_excess<BITS>(h));
        mma_from(d, a, b0, b1, c);
    }
}

/* The whole number that a sum stands for: CODE_MAGIC + 2^excess times it, in the bits of a float. Exact. */
template <int EXCESS> __device__ __forceinline__ float left_whole(int bits) {
    const float up = (float)(1 << EXCESS);
    return EXCESS ? __fmaf_rn(__int_as_float(bits), 1.0f / up, -CODE_MAGIC / up)
                  : __fsub_rn(__int_as_float(bits), CODE_MAGIC);
}

/* What a lane has of a chunk. */
template <int BITS> struct left_chunk {
    tile_lane<BITS> v[TILE_CHUNK];
    uint32_t w[2]; /* of rows g and g + 8: slices 2t and 2t + 1 */
    uint4 m;       /* their slice_meta */
    uint2 mine;    /* codes of slice g, column g of the instruction */
};
template <int BITS>
__device__ __forceinline__ void chunk_multiply(const left_chunk<BITS> &c, int n_tile, float sum[2]) {
    enum { ZERO = 1 << BITS >> 1, MAGIC = 0x4b400000 /* CODE_MAGIC */ };
    enum { EXCESS0 = left_excess<BITS>(0), EXCESS1 = left_excess<BITS>(1) };
    const int lane = threadIdx.x % 32, t = lane % 4;
    const int off0 = MAGIC - (ZERO << EXCESS0) * (int)c.m.y, off1 = MAGIC - (ZERO << EXCESS1) * (int)c.m.w;
    const int off[4] = {off0, off1, off0, off1};
    /* A tile meets the codes of its own two columns, zeros in the others, so all tiles share two sums. Of
     * that of half h column 2t + h is a slice. */
    int d[2][4];
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        const bool here = lane / 8 == i;
        const uint32_t b0 = here ? c.mine.x : 0, b1 = here ? c.mine.y : 0;
        uint32_t joined[4];
        if constexpr (BITS == 3)
            three_join(c.v[i], joined);
#pragma unroll
        for (int h = 0; h < 2; h++)
            left_mma(c.v[i], joined, h, d[h], b0, b1, i ? d[h] : off);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float2 s = floats_of(c.w[r]);
        const float x0 = left_whole<EXCESS0>(d[0][2 * r]), x1 = left_whole<EXCESS1>(d[1][2 * r + 1]);
        const float one = __fmaf_rn(__fmul_rn(x0, s.x), __uint_as_float(c.m.x), sum[r]);
        const float more = __fmaf_rn(__fmul_rn(x1, s.y), __uint_as_float(c.m.z), one);
        sum[r] = t < n_tile ? more : sum[r];
    }
}

/* A warp's chunks of a panel. codes, meta: this lane's of the warp's first chunk. */
template <int BITS>
__device__ __forceinline__ void left_panel(const linear_job &j, left_feed *f, warp_ring *r, uint32_t codes,
                                           uint32_t meta, int lane_scale, float sum[2]) {
    const int lane = threadIdx.x % 32;
    for (int n = f->warp; n < j.n_chunk; n += WARPS, codes += 256 * WARPS, meta += 64 * WARPS) {
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
        left_put(j, f, *r);
        warp_ring_next(j, r);
        chunk_multiply(c, n_tile, sum);
    }
}

/* ---- outputs ---- */

/* Where the outputs of panels [q0, q0 + n) go, and of their weights what does not depend on the row; each for
 * the thread that finishes it. */
__device__ __forceinline__ void outputs_find(const linear_job &j, int q0, int n, left_output *outputs) {
    const int o = threadIdx.x;
    if (o >= (n >> j.gated) * PACK_PANEL) /* a shift: a division takes as long as all sums of an output */
        return;
    int matrix;
    const int row = panel_find(j, q0 + (o / PACK_PANEL << j.gated), &matrix) * PACK_PANEL + o % PACK_PANEL;
    const bool there = row < j.n[matrix];
    outputs[o].at = there ? row << MATRIX_BITS | matrix : -1;
    if (there && j.leaves.norm)
        copy_ahead<4>(&outputs[o].weight, j.leaves.norm + row);
}
/* What they are added to. */
__device__ __forceinline__ void outputs_before(const linear_job &j, int n, left_output *outputs) {
    const int o = threadIdx.x;
    if (!j.adds || o >= (n >> j.gated) * PACK_PANEL)
        return;
    if (outputs[o].at >= 0)
        copy_ahead<4>(&outputs[o].before, place_of(j, outputs[o].at));
}

/* A panel's row, and its bias. partial: of the panel. */
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

/* Leaves an output's code where the block has whole groups, of which j.whole warps have 32 each; by the
 * block's first n_warp warps. */
__device__ __forceinline__ void whole_leave(const linear_job &j, int i, float v, int n_warp,
                                            uint32_t *most_of) {
    const int warp = threadIdx.x / 32, first = warp / j.whole * j.whole;
    most_of[warp] = max_warp(__float_as_uint(v) & 0x7fffffffu);
    warps_barrier(1, n_warp);
    uint32_t most = most_of[first];
    for (int n = 1; n < j.whole; n++)
        most = max(most, most_of[first + n]);
    codes_leave(j.leaves, i, v, most);
}

__device__ __forceinline__ void outputs_finish(const linear_job &j, int q0, int n, const left_room &room,
                                               const row_sums &sums, uint32_t *most_of) {
    static_assert(LEFT_PANELS * PACK_PANEL <= THREADS, "a thread has one output at most");
    const int o = threadIdx.x, p = o / PACK_PANEL << j.gated, row = o % PACK_PANEL;
    const int n_out = (n >> j.gated) * PACK_PANEL;
    if (o >= n_out)
        return;
    const left_output out = room.outputs[o];
    const float *partial = room.partial + p * PACK_PANEL * WARPS;
    float v = left_value(j, q0 + p, row, partial, sums.factor);
    if (j.gated)
        v = __fmul_rn(act_value(j.act, v),
                      left_value(j, q0 + p + 1, row, partial + PACK_PANEL * WARPS, sums.factor));
    if (out.at < 0)
        return;
    v = j.adds ? __fadd_rn(out.before, v) : v;
    *place_of(j, out.at) = v;
    if (j.whole)
        whole_leave(j, out.at >> MATRIX_BITS, v, n_out / 32, most_of);
    else if (j.leaves.codes) /* panels come in pairs: a warp has 32 in a row */
        group_leave(j.leaves, out.at >> MATRIX_BITS, v, out.weight);
}

/* ---- the row ---- */

/* Codes into shared memory, in the background; each thread has its part of the sums of squares. */
__device__ __forceinline__ void row_take(const linear_job &j, const left_room &room, int n_here,
                                         row_sums *sums) {
    const float *squares = j.coded ? (const float *)(j.coded + j.k_pad + j.k_pad / 4) : j.left.squares;
    const bool sums_squares = j.norm && threadIdx.x < SQUARE_SUMS;
    float square = 0.0f;
    if (j.coded)
#pragma unroll 1
        for (int at = 16 * threadIdx.x; at < j.k_pad + j.k_pad / 4; at += 16 * THREADS)
            copy_ahead<16>((uint8_t *)room.codes + at, j.coded + at);
    copies_end_group();
    if (sums_squares)
#pragma unroll 1
        for (int i = threadIdx.x; i < j.k_pad / 32; i += SQUARE_SUMS)
            square = __fadd_rn(square, __ldcg(squares + i));
    outputs_before(j, n_here, room.outputs);
    copies_end_group();
    if (!j.coded)
        quantize_left(j, room.codes, room.meta);
    if (sums_squares) {
#pragma unroll
        for (int o = 1; o < 8; o *= 2)
            square = __fadd_rn(square, __shfl_xor_sync(~0u, square, o));
        if (threadIdx.x % 8 == 0)
            sums->squares[threadIdx.x / 8] = square;
    }
    copies_wait<1>();
    __syncthreads();
}

/* A block without outputs. It keeps its multiprocessor's memory for a while, so that blocks of the next
 * launch come one to each multiprocessor, and no two of them here. */
__device__ __forceinline__ void place_keep() {
    enum { CYCLES = 4000 /* 2,000 to 20,000 give the same times on an H200, none 50 us a token more */ };
    launch_next();
    launch_wait();
    for (const long long begin = clock64(); clock64() - begin < CYCLES;)
        __nanosleep(200);
}

template <int BITS>
__global__ void __launch_bounds__(THREADS, 2) linear_left(const __grid_constant__ linear_job j) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint64_t bars[ALL_WARPS][MAX_STAGES];
    __shared__ row_sums sums;
    const int of_all = warp_number(), lane = threadIdx.x % 32, warp = of_all % WARPS, team = of_all / WARPS;
    const int ring_bytes = j.depth * j.stage_bytes, n_panel = panel_count(j);
    const int lane_scale = (lane % 8 >> j.group_shift) * 32 + lane / 8 % 2 * 16; /* matrices_load */
    const left_room room = room_of(j, shared + ALL_WARPS * ring_bytes);
    if (n_panel == 0) {
        place_keep();
        return;
    }
    /* Bulk copies are faster to where they have the same place among 128 bytes. */
    const int shift = warp * j.chunk_bytes % 128;
    uint8_t *const stages =
        shared + of_all * ring_bytes + (shift <= j.stage_bytes - j.chunk_bytes ? shift : 0);
    warp_ring r = warp_ring_make(stages, bars[of_all], j.depth);
    left_feed feed = left_begin(j, &r, n_panel, of_all);
    /* A product comes next: it may ask for its weights at once; attention, if it finds a place. */
    if (j.leaves.codes || j.early)
        launch_next();
    outputs_find(j, 0, min(left_panels(j), n_panel), room.outputs);
    copies_end_group();
    launch_wait();
    const uint32_t codes = address_kept(room.codes) + (warp * 32 + lane) * 8,
                   meta = address_kept(room.meta) + warp * 64 + lane % 4 * 16;
    row_take(j, room, min(left_panels(j), n_panel), &sums);
    if (j.norm && threadIdx.x == THREADS - 1) /* of a warp that often has fewer panels than others */
        sums.factor = row_factor(j, &sums);
    for (int q0 = 0;;) {
        const int n_here = min(left_panels(j), n_panel - q0);
        for (int q = team; q < n_here; q += TEAMS) {
            float sum[2] = {0.0f, 0.0f};
            left_panel<BITS>(j, &feed, &r, codes, meta, lane_scale, sum);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 1));
                sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2));
                if (lane % 4 == 0)
                    room.partial[(q * PACK_PANEL + lane / 4 + 8 * i) * WARPS + warp] = sum[i];
            }
        }
        copies_wait<0>();
        __syncthreads();
        outputs_finish(j, q0, n_here, room, sums, sums.scratch);
        q0 += left_panels(j);
        if (q0 >= n_panel)
            return;
        __syncthreads();
        outputs_find(j, q0, min(left_panels(j), n_panel - q0), room.outputs);
        outputs_before(j, min(left_panels(j), n_panel - q0), room.outputs);
    }
#endif
}

/* ---- launching ---- */

typedef void (*left_kernel)(const linear_job);

/* The rings' depth; see linear_shared_bytes. */
static size_t left_shared_bytes(linear_job *j) {
    enum { RESERVED = 1024, OWN = 1408 + RESERVED /* static arrays, and what the driver takes */ };
    const int64_t others = (int64_t)room_bytes(*j);
    const int64_t most = (j->most + TEAMS - 1) / TEAMS * ((j->n_chunk + WARPS - 1) / WARPS);
    const int64_t share = (device_shared_bytes() + RESERVED) * (int64_t)(j->most > 2 ? 11 : 9) / 20;
    j->stage_bytes = (j->chunk_bytes + 127) / 128 * 128;
    int64_t depth = (share - OWN - others) / (ALL_WARPS * j->stage_bytes);
    depth = depth > MAX_STAGES ? MAX_STAGES : depth < 1 ? 1 : depth;
    j->depth = (int)(depth < most ? depth : most);
    const int64_t bytes = ALL_WARPS * j->depth * j->stage_bytes + others;
    return (size_t)(j->most > 2 && bytes < share - OWN ? share - OWN : bytes); /* never two of one launch */
}

static bool left_can(const linear_job &j, const pack_format *f) {
    return device_major() >= 9 && (j.coded || j.left.floats) && j.scale_kind == SCALE_HALF && !j.tail &&
           f->bits <= 7 && !f->table;
}

/* Whole groups are given to blocks where none then has more panels than without, and all fit one round. */
bool left_leaves_whole(const linear_job *j, const pack_format *f) {
    const int group = (int)j->leaves_group, outputs = j->n[0];
    if (!left_can(*j, f) || !j->by_rule || !j->gated || !j->leaves.wide || j->leaves.norm || outputs % group)
        return false;
    const int sm = device_sm_count(), panels = (outputs / group + sm - 1) / sm * 2 * group / PACK_PANEL;
    return panels <= j->most && panels <= LEFT_PANELS;
}

/* Blocks for the job. A team takes every second panel, so an odd number of panels takes a block as long as
 * the next even one. Where codes are left for no product, attention comes next, whose blocks need a
 * multiprocessor each: fewer blocks leave some free, and it starts before this launch has ended. */
static int left_blocks(linear_job *j, const pack_format *f) {
    enum { FEW = 8 /* panels */ };
    const int sm = device_sm_count(), blocks = j->n_unit < sm ? j->n_unit : sm;
    if (left_leaves_whole(j, f)) {
        const int panels = (int)j->leaves_group / PACK_PANEL;
        j->whole = (int)j->leaves_group / 32;
        j->n_unit = j->n[0] / (int)j->leaves_group;
        j->paired = panels == 8 ? 3 : 2;
        j->most = (j->n_unit + sm - 1) / sm * 2 * panels;
        return sm;
    }
    if (j->leaves.codes || j->gated || j->most < 2 || j->most > FEW)
        return blocks;
    j->most += j->most % 2;
    const int fewer = (j->n_unit + j->most - 1) / j->most;
    j->early = fewer <= sm * 7 / 8;
    return fewer;
}

int left_launch(linear_job *j, const pack_format *f, cuda_stream s) {
    static const left_kernel all[8] = {nullptr,        nullptr,        linear_left<2>, linear_left<3>,
                                       linear_left<4>, linear_left<5>, linear_left<6>, linear_left<7>};
    if (!left_can(*j, f))
        return CUDA_UNSUPPORTED;
    const int blocks = left_blocks(j, f);
    const size_t room = left_shared_bytes(j);
    const int e = prepare(all[f->bits], room);
    return e ? e : launch(all[f->bits], dim3((unsigned)blocks), dim3(THREADS), room, s, *j);
}

/* linear_stream.cu - products of 17 to 64 columns with 4-bit matrices (nibbles.cuh). Weights and columns are
 * both streamed through shared memory (compute capability 9.0). See linear.cuh.
 *
 * A warp multiplies two panels with 32 columns. So it reads columns once for two panels, and unpacks weights
 * once for four groups of eight columns. Class c is the chunks c, c + 8, c + 16, ..., which one warp has in
 * the kernel of one row. When a class ends, its sums are added to those of the earlier classes in shared
 * memory, in the order of the classes. The last class finishes the outputs. So a row has the bits of the
 * kernel of one row, and no warp waits for the sums of seven others.
 *
 * A block goes through pairs of panels, some of them at once. Its warps are divided among these pairs, halves
 * of the columns, and groups that take classes in turn: fewer pairs have more groups. A step is one chunk of
 * each group. A ninth warp copies weights and columns of the next steps. Two blocks are a cluster and go
 * through the same steps: each copies half of the columns, which arrive in both. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_stream.cuh"
#include "kernels/cuda/nibbles.cuh"

/* ---- products ---- */

/* matrices_load_four, but other loads may be moved across it. */
__device__ __forceinline__ void scales_load_four(uint32_t d[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at));
}

/* The operands of a tile for two panels: codes of both halves of K, and scales of rows g and g + 8. */
struct stream_tile {
    uint32_t a[2][2][4];
    float2 w[2][2];
};
__device__ __forceinline__ void tile_unpack(stream_tile *tile, const uint4 codes[2],
                                            const uint32_t scales[2][4], int odd, const nibble_base &base) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
        nibbles_unpack(codes[p], base, tile->a[p]);
        tile->w[p][0] = floats_of(scales[p][2 * odd]);
        tile->w[p][1] = floats_of(scales[p][2 * odd + 1]);
    }
}
/* Multiplies the tile with eight columns and adds to their sums. */
__device__ __forceinline__ void eight_multiply(const stream_tile &tile, const uint4 &b,
                                               const nibble_base &base, int d[2][2][4]) {
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            mma_signed_bits(d[p][h], tile.a[p][h], h ? b.z : b.x, h ? b.w : b.y, base);
}
__device__ __forceinline__ void eight_add(const float2 w[2][2], const float4 &s, const int d[2][2][4],
                                          float sum[2][4][4], int e) {
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float of_row = h ? w[p][i / 2].y : w[p][i / 2].x;
                const float of_column = i % 2 ? (h ? s.w : s.y) : (h ? s.z : s.x);
                sum[p][e][i] = scaled_add(d[p][h][i], of_row, scale_magic(of_row), of_column, sum[p][e][i]);
            }
}

/* Multiplies a chunk of two panels with a warp's 32 columns. codes, scales: the lane's first ones. Products
 * of eight columns are computed while those of the previous eight are scaled. */
template <int EIGHTS, bool WHOLE>
__device__ __forceinline__ void
stream_times(const uint8_t *const panel[2], int n_tile, const int lane_scale[2], const uint4 *codes,
             const float4 *scales, const nibble_base &base, float sum[TILE_CHUNK][2][4][4]) {
    const int lane = threadIdx.x % 32;
    uint32_t weight[2][4];
    uint4 next[2] = {*(const uint4 *)(panel[0] + 16 * lane), *(const uint4 *)(panel[1] + 16 * lane)};
    int d[2][2][2][4];
    float2 w[2][2];
    float4 s[2];
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        if (!WHOLE && i >= n_tile)
            break;
        stream_tile tile;
        if (i % 2 == 0)
#pragma unroll
            for (int p = 0; p < 2; p++)
                scales_load_four(weight[p],
                                 shared_address(panel[p]) + n_tile * CODE_TILE + lane_scale[i / 2]);
        tile_unpack(&tile, next, weight, i % 2, base);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = e % 2;
            const uint4 b = codes[(i * EIGHTS + e) * 32];
            s[at] = scales[(i * EIGHTS + e) * 4];
            eight_multiply(tile, b, base, d[at]);
            if (e == 0 && i + 1 < TILE_CHUNK)
#pragma unroll
                for (int p = 0; p < 2; p++)
                    next[p] = *(const uint4 *)(panel[p] + (i + 1) * CODE_TILE + 16 * lane);
            if (e > 0)
                eight_add(tile.w, s[1 - at], d[1 - at], sum[i], e - 1);
            else if (WHOLE && i > 0)
                eight_add(w, s[1 - at], d[1 - at], sum[i - 1], 3);
        }
        if (!WHOLE || i + 1 == TILE_CHUNK)
            eight_add(tile.w, s[1], d[1], sum[i], 3);
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                w[p][r] = tile.w[p][r];
    }
}

/* Finishes the outputs of a pair from its sums of all classes in shared memory (in the order of class_end). A
 * lane has a row of the panels and goes through the warp's columns; the two halves of a warp have different
 * columns. */
__device__ __forceinline__ void stream_finish(const linear_job &j, int pair, int column, const float *sums) {
    enum { STEP = 8 /* columns whose loads are in flight together */ };
    const int lane = threadIdx.x % 32, row = lane % PACK_PANEL, odd = lane / PACK_PANEL;
    const float *const of_row = sums + row % 8 * 16 + row / 8 * 2;
    const int n_col = min(j.n_col - column, 32);
    const float factors = j.norm && lane < n_col ? __ldcg(j.factor + column + lane) : 1.0f;
    auto sum_of = [&](int p, int c) {
        const float v = of_row[(4 * p + c / 8) * 128 + c % 8 / 2 * 4 + c % 2];
        return j.norm ? __fmul_rn(v, __shfl_sync(~0u, factors, c)) : v;
    };
    auto value_of = [&](int p, int c, float bias) {
        float v = sum_of(p, c); /* all lanes */
        const float second = sum_of(p, c | 1);
        v = j.two ? __fadd_rn(v, second) : v;
        return __fadd_rn(v, bias);
    };
    float bias[2];
    int matrix[2], n[2];
    bool there[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const int panel = stream_panel(j, pair, p, &matrix[p]);
        n[p] = panel * PACK_PANEL + row;
        there[p] = panel >= 0 && n[p] < j.n[matrix[p]];
        const float *const from = j.bias[matrix[p]];
        bias[p] = from && there[p] ? from[n[p]] : -0.0f; /* adding it changes nothing */
    }
    const int each = j.two ? 2 : 1;
#pragma unroll 1
    for (int p = j.gated ? 1 : 0; p < 2; p++) {
        const int to = j.gated ? 0 : matrix[p];
        float *const y = j.y[to] + column / each * j.ldy[to] + n[p];
#pragma unroll 1
        for (int first = 0; first < n_col; first += 2 * STEP) {
            float before[STEP];
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                const int c = first + 2 * i + odd;
                const bool mine = there[p] && c < n_col && !(j.two && c % 2);
                before[i] = j.adds && mine ? y[c / each * j.ldy[to]] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < STEP; i++) {
                const int c = first + 2 * i + odd;
                float v = value_of(p, c, bias[p]);
                if (j.gated)
                    v = __fmul_rn(act_value(j.act, value_of(0, c, bias[0])), v);
                v = j.adds ? __fadd_rn(before[i], v) : v;
                if (there[p] && c < n_col && !(j.two && c % 2))
                    y[c / each * j.ldy[to]] = v;
            }
        }
    }
}

/* The order of a class: whether another warp has the previous class, and which warp has the next one (-1:
 * this one, or there is none). Each warp waits on its own barrier, on which the other warp's lanes arrive. */
struct class_order {
    bool told, begins, ends;
    int behind;
};

/* Adds a warp's class to the earlier classes. The last class finishes the outputs. */
__device__ __forceinline__ void class_end(const linear_job &j, float4 *pass, uint64_t *told, uint32_t *times,
                                          class_order order, int pair, int column,
                                          float sum[TILE_CHUNK][2][4][4]) {
    const int lane = threadIdx.x % 32;
    if (order.told)
        bar_wait<false>(told + threadIdx.x / 32, (*times)++ & 1);
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float4 *const at = pass + (4 * p + e) * 32 + lane;
            const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            const float4 before = order.begins ? none : *at;
            float v[4];
            const float was[4] = {before.x, before.y, before.z, before.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = __fadd_rn(was[i], __fadd_rn(__fadd_rn(sum[0][p][e][i], sum[1][p][e][i]),
                                                   __fadd_rn(sum[2][p][e][i], sum[3][p][e][i])));
            *at = make_float4(v[0], v[1], v[2], v[3]);
        }
    if (order.ends) {
        __syncwarp();
        stream_finish(j, pair, column, (const float *)pass);
        __syncwarp();
    }
    if (order.behind >= 0)
        bar_arrive(told + order.behind);
#pragma unroll
    for (int i = 0; i < TILE_CHUNK * 2 * 4 * 4; i++)
        ((float *)sum)[i] = 0.0f;
}

template <int EIGHTS>
__device__ __forceinline__ void stream_products(const linear_job &j, const uint8_t *ring, float4 *pass,
                                                uint64_t *full, uint64_t *empty, uint64_t *told, int base,
                                                int per) {
    typedef stream_of<EIGHTS> is;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = warp % is::HALVES;
    const int share = warp / is::HALVES, n_class = min(j.n_chunk, (int)WARPS);
    const nibble_base magic = nibble_base_make();
    int lane_scale[2], last = 0; /* the group that has the last class */
    uint32_t times = 0;          /* number of times that the warp was told */
    chunk_lane_scales(j.group_shift, lane_scale);
    float sum[TILE_CHUNK][2][4][4];
#pragma unroll
    for (int i = 0; i < TILE_CHUNK * 2 * 4 * 4; i++)
        ((float *)sum)[i] = 0.0f;
    stream_at at = {};
    for (at_begin<EIGHTS>(j, &at, 0, per); at.first < per;) {
        const int group = share / at.pairs, which = share % at.pairs, slot = which * is::HALVES + half;
        const int pair = base + at.first + which, place = 2 * share;
        const int first = at.first, groups_here = at.groups;
        stream_chunk c = {group, group};
        for (bool over = false; !over;) {
            const int unit_of_weights = (at.unit + place / 4) % is::UNITS;
            const int unit_of_columns = (at.unit + is::WEIGHT_UNITS + group * is::RECORD_UNITS) % is::UNITS;
            const uint8_t *const panel0 = ring + unit_of_weights * UNIT_BYTES + place % 4 * CHUNK_BYTES;
            const uint8_t *const panels[2] = {panel0, panel0 + CHUNK_BYTES};
            const uint8_t *const columns = ring + unit_of_columns * UNIT_BYTES;
            const bool has = c.klass < n_class;
            const int slot_of_step = at.step % STEPS;
            bar_wait<false>(full + slot_of_step, at.step / STEPS & 1);
            const uint4 *const codes = (const uint4 *)columns + half * 4 * 32 + lane;
            const float4 *const scales =
                (const float4 *)(columns + TILE_CHUNK_K * 8 * EIGHTS) + half * 4 * 4 + lane % 4;
            if (has && (c.chunk < j.n_chunk - 1 || j.last_tiles == TILE_CHUNK))
                stream_times<EIGHTS, true>(panels, TILE_CHUNK, lane_scale, codes, scales, magic, sum);
            else if (has)
                stream_times<EIGHTS, false>(panels, j.last_tiles, lane_scale, codes, scales, magic, sum);
            __syncwarp();
            if (lane < TOGETHER)
                read_arrive(empty + slot_of_step, lane);
            class_order order = {false, c.klass == 0, c.klass == n_class - 1, -1};
            const int pairs = at.pairs, groups = at.groups;
            const bool ended = has && chunk_next(j, &c, groups);
            over = at_next<EIGHTS>(j, &at, per);
            if (!ended)
                continue;
            order.told = order.begins ? last > 0 : groups > 1;
            if (!order.ends && groups > 1)
                order.behind = ((group + 1) % groups * pairs + which) * is::HALVES + half;
            else if (order.ends && group > 0) { /* the next first class; slots have warps' numbers */
                const int left = per - first - pairs;
                order.behind = left > 0 && which < pairs_of<EIGHTS>(left) ? slot : -1;
            }
            class_end(j, pass + slot * (PASS_BYTES / 16), told, &times, order, pair, half * 32, sum);
        }
        last = (n_class - 1) % groups_here;
    }
}

template <int EIGHTS>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    linear_stream(const __grid_constant__ linear_job j, int per) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef stream_of<EIGHTS> is;
    uint8_t *const shared = block_memory();
    uint64_t *const full = (uint64_t *)(shared + is::BARS_AT), *const empty = full + STEPS;
    const int base = (blockIdx.x * TOGETHER + blockIdx.z) * per;
    if (threadIdx.x == 32 * STREAM_WARPS) {
        for (int i = 0; i < STEPS; i++) {
            bar_init(full + i, 1);
            bar_init(empty + i, STREAM_WARPS * TOGETHER);
        }
        for (int i = 0; i < STREAM_WARPS; i++)
            bar_init(empty + STEPS + i, 32);
        async_fence();
    }
    __syncwarp();
    if (threadIdx.x / 32 >= STREAM_WARPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x / 32 == STREAM_WARPS)
            stream_requests<EIGHTS>(j, shared, full, empty, base, per);
        else
            cluster_barrier();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        cluster_barrier();
        launch_wait();
        stream_products<EIGHTS>(j, shared, (float4 *)(shared + is::PASS_AT), full, empty, empty + STEPS, base,
                                per);
    }
    __syncwarp();
    cluster_barrier(); /* no block ends while others write to it */
#endif
}

/* ---- launching ---- */

int stream_eights(const linear_job *j, const pack_format *f, int n_col) {
    return has_wide() && nibbles_are(*j, f) && n_col > 16 ? n_col > 32 ? 8 : 4 : 0;
}

template <int EIGHTS> static int run_stream(linear_job *j, cuda_stream s) {
    auto *const kernel = linear_stream<EIGHTS>;
    const size_t shared_bytes = stream_of<EIGHTS>::BYTES;
    int e = prepare(kernel, shared_bytes), clusters = device_sm_count() / TOGETHER;
    if (!e)
        e = clusters_max(kernel, STREAM_THREADS, TOGETHER, shared_bytes, &clusters);
    if (e)
        return e;
    const int pairs = j->gated ? j->n_unit : (j->n_unit + 1) / 2, max_blocks = clusters * TOGETHER;
    const int per = (pairs + max_blocks - 1) / max_blocks, blocks = (pairs + per - 1) / per;
    return launch_cluster(kernel, dim3((unsigned)((blocks + TOGETHER - 1) / TOGETHER), 1, TOGETHER),
                          dim3(STREAM_THREADS), TOGETHER, shared_bytes, s, *j, per);
}

int stream_launch(linear_job *j, int eights, cuda_stream s) {
    return eights == 8 ? run_stream<8>(j, s) : run_stream<4>(j, s);
}

/* experts_one.cu - products of one row with the matrices of its experts: a gate, and the sum over all
 * experts.
 *
 * Their time is that of a chain: which experts, their weights, their sums. So there are as many warps as the
 * matrices have parts of K, few chunks for each, and a warp requests all of them before it multiplies the
 * first. The tiles of one row are in the order of its experts, a pair each.
 *
 * A gate has a block for each panel of each expert, with a warp for each part of K of both matrices. A sum
 * has a block for each panel and a warp for each part of each expert; it quantizes its input in registers, if
 * that has groups of 32: each warp the chunks that it multiplies. Sums have the order of experts_few.cu, so a
 * row has the same bits alone and among others. */
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/experts_few.cuh"
#include "kernels/cuda/few.cuh"
#include "kernels/cuda/launch.cuh"

enum {
    GATE_PARTS = parts_of(true),
    GATE_WARPS = 2 * GATE_PARTS,
    GATE_BLOCKS = 3 /* of a multiprocessor */,
    SUM_PARTS = parts_of(false),
    SUM_WARPS = 16,
    MAX_USED = CUDA_EXPERTS_ONE
};

/* ---- a warp's chunks ---- */

/* How a lane keeps the scales of its subgroups (2t and 2t + 1 of rows g and g + 8) until it multiplies:
 * halves and powers of two as they stand, others as floats, which takes time before the next loads. */
enum scales_way { SCALES_HALF, SCALES_POWER, SCALES_OTHER };
template <int WAY> struct lane_scales { uint32_t raw[4]; };
template <> struct lane_scales<SCALES_OTHER> { float2 of[4]; };

template <int WAY>
__device__ __forceinline__ void scales_load(const linear_job &j, const uint8_t *scales,
                                            lane_scales<WAY> *to) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int one = 2 * t >> j.group_shift, two = 2 * t + 1 >> j.group_shift;
    const int group[4] = {one, one, two, two}, row[4] = {g, g + 8, g, g + 8};
    if constexpr (WAY == SCALES_OTHER)
        scales_read<4>(j, scales, group, row, to->of);
    else
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint8_t *const at = scales + j.scale_start + group[i] * j.scale_step;
            to->raw[i] = WAY == SCALES_HALF ? ((const uint16_t *)at)[row[i]] : at[row[i]];
        }
}
template <int WAY> __device__ __forceinline__ float2 scale_of(const lane_scales<WAY> &s, int i) {
    if constexpr (WAY == SCALES_OTHER)
        return s.of[i];
    else
        return make_float2(WAY == SCALES_HALF ? __half2float(__ushort_as_half((uint16_t)s.raw[i]))
                                              : power_scale(s.raw[i]),
                           0.0f);
}

/* A warp's input: a row of codes, or of floats. */
struct one_input {
    const uint8_t *codes;
    const float *x; /* NULL: codes */
};
/* A lane's part of a chunk of it: elements 4t.. and 16 + 4t.. of subgroup g; or their codes, and the scales
 * and sums of subgroups 2t and 2t + 1. */
union lane_input {
    float4 x[2];
    struct {
        int4 meta;
        uint2 codes;
    } of;
};
__device__ __forceinline__ void input_load(const linear_job &j, const one_input &from, int chunk,
                                           lane_input *to) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (from.x) {
        const int k = chunk * TILE_CHUNK_K + 32 * g + 4 * t;
        to->x[0] = four_inputs(from.x, k, j.k);
        to->x[1] = four_inputs(from.x, k + 16, j.k);
        return;
    }
    const auto *const meta = (const subgroup_meta *)(from.codes + meta_at(j.k_pad)) + chunk * 2 * TILE_CHUNK;
    to->of.codes =
        __ldcg((const uint2 *)(from.codes + (chunk * TILE_CHUNK + g / 2) * TILE_K + t * 16) + g % 2);
    to->of.meta = __ldcg((const int4 *)(meta + 2 * t));
}
/* Makes codes of floats. All lanes of a warp call it. */
__device__ __forceinline__ void input_encode(lane_input *v) {
    const int t = threadIdx.x % 4;
    const uint32_t largest = max_lanes(max(four_max(v->x[0]), four_max(v->x[1])), 4);
    const float2 scales = group_scales(largest, 127.0f);
    int one, two;
    const uint2 codes = {four_codes(v->x[0], scales.y, &one), four_codes(v->x[1], scales.y, &two)};
    int sum = one + two;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    int4 meta; /* of the lanes that have subgroups 2t and 2t + 1 */
    meta.x = __float_as_int(__shfl_sync(~0u, scales.x, 8 * t));
    meta.y = __shfl_sync(~0u, sum, 8 * t);
    meta.z = __float_as_int(__shfl_sync(~0u, scales.x, 8 * t + 4));
    meta.w = __shfl_sync(~0u, sum, 8 * t + 4);
    v->of.codes = codes;
    v->of.meta = meta;
}

/* A lane's part of a chunk of weights. */
template <int BITS, int WAY> struct one_chunk {
    tile_lane<BITS> v[TILE_CHUNK];
    lane_scales<WAY> scales;
};
__device__ __forceinline__ int chunk_tiles(const linear_job &j, int chunk) {
    return chunk == j.n_chunk - 1 ? j.last_tiles : (int)TILE_CHUNK;
}
template <int BITS, int WAY>
__device__ __forceinline__ void chunk_load(const linear_job &j, const uint8_t *panel, int chunk,
                                           one_chunk<BITS, WAY> *to) {
    const int lane = threadIdx.x % 32, n_tile = chunk_tiles(j, chunk);
    const uint8_t *const codes = panel + (int64_t)chunk * j.chunk_bytes;
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++)
        if (i < n_tile)
            tile_load(&to->v[i], codes + i * BITS * 128, lane);
    if (lane % 4 < n_tile)
        scales_load(j, codes + n_tile * BITS * 128, &to->scales);
}

/* Adds a chunk's products to the sums of rows g and g + 8. Column c of the instruction has subgroup c, so the
 * lane's sums are those of tile t. */
template <int BITS, int TABLE, int WAY>
__device__ __forceinline__ void chunk_add(const linear_job &j, const one_chunk<BITS, WAY> &c, int n_tile,
                                          const lane_input &in, const lane_tables<TABLE> &tables,
                                          float sum[2]) {
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int d[4] = {0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++)
        if (i < n_tile) {
            tile_lane<CODE> v;
            tile_look_up<BITS, TABLE>(&v, c.v[i], tables);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const bool own = g == 2 * i + h;
                tile_mma(v, h, d, own ? in.of.codes.x : 0, own ? in.of.codes.y : 0);
            }
        }
    if (t >= n_tile)
        return;
    const subgroup_meta a0 = {__int_as_float(in.of.meta.x), in.of.meta.y},
                        a1 = {__int_as_float(in.of.meta.z), in.of.meta.w};
#pragma unroll
    for (int row = 0; row < 2; row++) {
        sum[row] = subgroup_add(j, scale_of(c.scales, row), d[2 * row], a0, sum[row]);
        sum[row] = subgroup_add(j, scale_of(c.scales, 2 + row), d[2 * row + 1] >> tile_excess<CODE>(1), a1,
                                sum[row]);
    }
}

/* Writes a part's sums of a panel's 16 outputs to shared memory. AHEAD chunks are loaded together;
 * `meanwhile` is called while the first ones arrive, before the input is read. */
template <int BITS, int TABLE, int WAY, int AHEAD, class Meanwhile>
__device__ __forceinline__ void part_sum(const few_job &j, const uint8_t *panel, const one_input &from,
                                         int part, int parts, float *to, Meanwhile meanwhile) {
    const int lane = threadIdx.x % 32;
    lane_tables<TABLE> tables;
    float sum[2] = {0.0f, 0.0f};
    tables_load<BITS>(&tables, j.of.table, nullptr);
    for (int first = part; first < j.of.n_chunk; first += AHEAD * parts) {
        one_chunk<BITS, WAY> chunks[AHEAD];
        lane_input in[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * parts < j.of.n_chunk)
                chunk_load(j.of, panel, first + i * parts, &chunks[i]);
        if (first == part)
            meanwhile();
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * parts < j.of.n_chunk)
                input_load(j.of, from, first + i * parts, &in[i]);
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (first + i * parts < j.of.n_chunk) {
                if (from.x)
                    input_encode(&in[i]);
                chunk_add<BITS, TABLE, WAY>(j.of, chunks[i], chunk_tiles(j.of, first + i * parts), in[i],
                                            tables, sum);
            }
    }
    sum[0] = pairs_sum(sum[0], 4), sum[1] = pairs_sum(sum[1], 4);
    if (lane % 4 == 0)
        to[lane / 4] = sum[0], to[lane / 4 + 8] = sum[1];
}

/* ---- gates ---- */

/* Brings this block's share of the next matrix of an expert to the L2 cache. */
__device__ __forceinline__ void next_bring(const few_job &j, int expert) {
    const int64_t each = (j.next_bytes / gridDim.x + 128) / 128 * 128, at = blockIdx.x * each;
    if (j.next && at < j.next_bytes)
        prefetch_l2(j.next + expert * j.next_bytes + at, (uint32_t)min(each, j.next_bytes - at));
}

/* Blocks: x has a panel of both matrices, y an expert. */
template <int BITS, int TABLE, int WAY>
__global__ void __launch_bounds__(32 * GATE_WARPS, GATE_BLOCKS)
    experts_gate(const __grid_constant__ few_job j) {
    enum { AHEAD = BITS > 4 ? 2 : 4 };
    __shared__ float sums[GATE_WARPS][PACK_PANEL];
    const int warp = threadIdx.x / 32, u = blockIdx.y, in = threadIdx.x, matrix = warp / GATE_PARTS;
    launch_wait();
    launch_next(); /* after the wait: a sum reads the list before its own */
    const int expert = __ldcg(&j.x.tiles[u].expert), place = expert_place(j.x, expert);
    if (place < 0)
        return;
    const int64_t at = place * j.expert_bytes + blockIdx.x * j.of.panel_bytes;
    const one_input from = {j.codes + expert_input(j.x, u) * j.step, nullptr};
    part_sum<BITS, TABLE, WAY, AHEAD>(j, j.of.w[matrix] + at, from, warp % GATE_PARTS, GATE_PARTS, sums[warp],
                                      [&] {
                                          if (threadIdx.x == 0)
                                              next_bring(j, place);
                                      });
    __syncthreads();
    if (in >= PACK_PANEL || (int)blockIdx.x * PACK_PANEL + in >= j.x.n)
        return;
    float v[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < GATE_WARPS; i++)
        v[i / GATE_PARTS] = __fadd_rn(v[i / GATE_PARTS], sums[i][in]);
    expert_write(j.x, expert, u, (int)blockIdx.x * PACK_PANEL + in, 0, v[0], v[1]);
}

/* ---- sums ---- */

/* The warps' sums of each expert's parts; and the outputs of the cluster's other block. */
struct one_sums {
    float of[MAX_USED][SUM_PARTS][PACK_PANEL], other[PACK_PANEL];
};

/* The sum over all experts of output `in` of a panel, by a warp whose lane u has expert u and its weight. */
__device__ __forceinline__ float experts_add(const few_job &j, const one_sums &sums, int panel, int expert,
                                             float weight) {
    const int in = threadIdx.x % PACK_PANEL, at = panel * PACK_PANEL + in;
    float v = 0.0f;
    for (int u = 0; u < j.x.n_used; u++) {
        const int e = __shfl_sync(~0u, expert, u);
        const float w = __shfl_sync(~0u, weight, u);
        float x = 0.0f;
#pragma unroll
        for (int p = 0; p < SUM_PARTS; p++)
            x = p < j.of.n_chunk ? __fadd_rn(x, sums.of[u][p][in]) : x;
        if (j.of.tail) {
            const uint8_t *const tail =
                j.of.w[0] + e * j.expert_bytes + panel * j.of.panel_bytes + j.of.tail_at + 2 * in;
            x = __fmul_rn(half_at(tail), x);
            if (j.of.asym)
                x = __fmaf_rn(half_at(tail + 32),
                              *(const float *)(j.codes + u * j.step + lift_at(j.of.k_pad, j.of.subgroup)), x);
        }
        x = j.x.bias[0] && at < j.x.n ? __fadd_rn(x, j.x.bias[0][(int64_t)e * j.x.n + at]) : x;
        v = __fadd_rn(v, j.x.weighted ? __fmul_rn(x, w) : x);
    }
    return v;
}

/* The launch before has used the list of experts too, so only the input is read after it has ended. Blocks
 * have a panel, which their first warp finishes. If codes are left, the blocks of two neighbouring
 * panels are a cluster, and the first one leaves the codes of both. */
template <int BITS, int TABLE, int WAY>
__global__ void __launch_bounds__(32 * SUM_WARPS, 2) experts_one(const __grid_constant__ few_job j) {
    __shared__ one_sums sums;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_used = j.x.n_used, rank = blockIdx.z,
              panel_at = blockIdx.x * gridDim.z + rank, share = (int)blockDim.x / 32 / n_used,
              u = warp / share;
    const int at = panel_at * PACK_PANEL + lane;
    const bool finishes = warp == 0 && lane < PACK_PANEL && at < j.x.n, leaves = j.row_leaves.codes;
    launch_next();
    if (leaves)
        cluster_arrive_all();
    const float norm =
        leaves && warp == 0 && j.row_leaves.norm ? j.row_leaves.norm[32 * blockIdx.x + lane] : 1.0f;
    const int expert = __ldcg(&j.x.tiles[u].expert);
    const int id = warp == 0 && lane < n_used ? __ldcg(&j.x.tiles[lane].expert) : 0;
    const float weight =
        warp == 0 && lane < n_used && j.x.weighted ? __ldcg(j.x.chosen + n_used + lane) : 1.0f;
    const float before = finishes && j.x.adds ? __ldcg(j.x.y[0] + at) : 0.0f;
    const uint8_t *const panel = j.of.w[0] + expert * j.expert_bytes + panel_at * j.of.panel_bytes;
    const one_input from = {j.codes + u * j.step, j.codes ? nullptr : j.x.x + (int64_t)u * j.x.k};
    if (share < j.of.n_chunk && warp % share == 0 && lane == 0) /* a warp has several */
        prefetch_l2(panel, (uint32_t)j.of.panel_bytes);
    for (int part = warp % share; part < min((int)SUM_PARTS, j.of.n_chunk); part += share)
        part_sum<BITS, TABLE, WAY, 1>(j, panel, from, part, SUM_PARTS, sums.of[u][part],
                                      [] { launch_wait(); });
    launch_wait(); /* warps without a part */
    __syncthreads();
    if (leaves)
        cluster_wait_all(); /* the other block has begun */
    float v = 0.0f;
    if (warp == 0) {
        v = experts_add(j, sums, panel_at, id, weight);
        v = j.x.adds ? __fadd_rn(before, v) : v;
        if (finishes)
            j.x.y[0][at] = v;
        if (leaves && rank > 0 && lane < PACK_PANEL)
            cluster_store(&sums.other[lane], 0, v);
    }
    if (!leaves)
        return;
    cluster_arrive_all();
    cluster_wait_all();
    if (rank == 0 && warp == 0)
        group_leave(j.row_leaves, 32 * (int)blockIdx.x + lane,
                    lane < PACK_PANEL ? v : sums.other[lane - PACK_PANEL], norm);
}

/* ---- launching ---- */

/* The kernels of one kind: those for halves and powers of two as scales, and for any scales. */
struct one_kernels {
    few_kernel half[9], any[9], table_power, table_any;
};
#define ONE_KERNELS(k)                                                                                       \
    {                                                                                                        \
        {nullptr,                                                                                            \
         nullptr,                                                                                            \
         nullptr,                                                                                            \
         nullptr,                                                                                            \
         k<4, TABLE_NONE, SCALES_HALF>,                                                                      \
         UNLESS_FEW(k<5, TABLE_NONE, SCALES_HALF>),                                                          \
         nullptr,                                                                                            \
         nullptr,                                                                                            \
         UNLESS_FEW(k<8, TABLE_NONE, SCALES_HALF>)},                                                         \
            {nullptr,                                                                                        \
             nullptr,                                                                                        \
             UNLESS_FEW(k<2, TABLE_NONE, SCALES_OTHER>),                                                     \
             UNLESS_FEW(k<3, TABLE_NONE, SCALES_OTHER>),                                                     \
             k<4, TABLE_NONE, SCALES_OTHER>,                                                                 \
             UNLESS_FEW(k<5, TABLE_NONE, SCALES_OTHER>),                                                     \
             UNLESS_FEW(k<6, TABLE_NONE, SCALES_OTHER>),                                                     \
             UNLESS_FEW(k<7, TABLE_NONE, SCALES_OTHER>),                                                     \
             UNLESS_FEW(k<8, TABLE_NONE, SCALES_OTHER>)},                                                    \
            k<4, TABLE_SHARED, SCALES_POWER>, UNLESS_FEW(k<4, TABLE_SHARED, SCALES_OTHER>)                   \
    }

static few_kernel one_of(const one_kernels &all, const pack_format *f) {
    const scale_kind kind = scale_kind_of(f);
    if (table_kind_of(f) == TABLE_BOOK || f->group == 16 || f->bits > 8)
        return nullptr;
    if (table_kind_of(f) == TABLE_SHARED)
        return f->bits != 4 ? nullptr : kind == SCALE_E8M0 ? all.table_power : all.table_any;
    return kind == SCALE_HALF && all.half[f->bits] ? all.half[f->bits] : all.any[f->bits];
}

static int gate_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    static const one_kernels all = ONE_KERNELS(experts_gate);
    const few_kernel kernel = one_of(all, &a->w[0].format);
    few_job j = {};
    if (!kernel || a->leaves)
        return CUDA_UNSUPPORTED;
    int e = experts_few_make(a, x, &j);
    if (e || j.of.tail)
        return CUDA_UNSUPPORTED;
    if (a->next.data && a->next.format.layout == PACK_TILE && device_major() >= 9) {
        j.next = (const uint8_t *)a->next.data;
        j.next_bytes = expert_bytes(&a->next, a->n_expert);
    }
    e = a->codes ? 0 : experts_quantize_launch(a, j, s);
    e = e ? e : prepare(kernel, 0);
    return e ? e
             : launch(kernel, dim3((unsigned)j.n_panel, (unsigned)a->n_used), dim3(32 * GATE_WARPS), 0, s, j);
}

static int sum_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    static const one_kernels all = ONE_KERNELS(experts_one);
    const few_kernel kernel = one_of(all, &a->w[0].format);
    few_job j = {};
    if (!kernel || a->n_w > 1 || !a->each || a->n_used > MAX_USED || a->here)
        return CUDA_UNSUPPORTED;
    int e = experts_few_make(a, x, &j);
    if (e)
        return e;
    j.x.y[0] = a->y[0];
    if (j.of.act_group == 32 && a->w[0].k % 4 == 0)
        j.codes = nullptr;
    else
        e = a->codes ? 0 : experts_quantize_launch(a, j, s);
    int share = SUM_WARPS / (int)a->n_used;
    share = share > SUM_PARTS ? (int)SUM_PARTS : share;
    share = share > j.of.n_chunk ? j.of.n_chunk : share;
    const unsigned together = a->row_leaves.data && device_major() >= 9 ? 2 : 1;
    if (together > 1)
        j.row_leaves = codes_of(a->row_leaves, a->n);
    e = e ? e : prepare(kernel, 0);
    return e ? e
             : launch_cluster(kernel, dim3((unsigned)j.n_panel / together, 1, together),
                              dim3(32 * (unsigned)(a->n_used * share)), together, 0, s, j);
}

int experts_one_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    if (a->two || a->n_row != 1)
        return CUDA_UNSUPPORTED;
    return a->sum ? sum_launch(a, x, s) : a->gated ? gate_launch(a, x, s) : (int)CUDA_UNSUPPORTED;
}

/* linear_stream.cu - products of 17 to 64 columns with 4-bit matrices (nibbles.cuh): weights and columns are
 * both streamed through shared memory (compute capability 9.0); see linear.cuh.
 *
 * A warp multiplies two panels with 32 columns, so what it reads of the columns serves two panels, and what
 * it unpacks of the weights serves four groups of eight columns. A class is the chunks c, c + 8, c + 16, ...:
 * those of one warp in the kernel of one row. When a class ends, its sums are added to those of the classes
 * before, which lie in shared memory, in the order of the classes. The last class finishes the outputs. So a
 * row has the bits that the kernel of one row gives it, and no warp waits for the sums of seven others.
 *
 * A block goes through pairs of panels, some of them at once. Its warps are divided among these pairs, halves
 * of the columns, and groups that take classes in turn: fewer pairs have more groups. A step is one chunk of
 * each group. A ninth warp requests weights and columns of coming steps. Two blocks are a cluster and go
 * through the same steps: each requests half of the columns, which arrive in both. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/nibbles.cuh"

enum {
    STREAM_WARPS = 8,                         /* that multiply */
    STREAM_THREADS = 32 * STREAM_WARPS + 128, /* one of the other four requests */
    TOGETHER = 2,
    UNIT_BYTES = 9216, /* of the ring: four panels' chunks, or 32 columns of a chunk */
    CHUNK_ROOM = UNIT_BYTES / 4,
    STEPS = 8,         /* barriers: more than steps that are under way */
    PASS_BYTES = 4096, /* a warp's sums */
    WEIGHT_LANES = 16  /* of the requesting warp; the others request columns */
};

template <int EIGHTS> struct stream_of {
    enum {
        HALVES = EIGHTS / 4,
        SHARES = STREAM_WARPS / HALVES,     /* pairs at once times groups */
        MOST_PAIRS = EIGHTS == 8 ? 4 : 2,   /* at once */
        WEIGHT_UNITS = 2 * SHARES / 4,      /* of a step */
        RECORD_UNITS = HALVES,              /* of a group's columns */
        RECORD = RECORD_UNITS * UNIT_BYTES, /* codes and scales of a chunk of all columns */
        UNITS = EIGHTS == 8 ? 20 : 24,      /* of the ring */
        PASSES = MOST_PAIRS * HALVES,
        PASS_AT = UNITS * UNIT_BYTES,
        BARS_AT = PASS_AT + PASSES * PASS_BYTES,
        BYTES = BARS_AT + (2 * STEPS + STREAM_WARPS) * 8
    };
};

/* Where a warp or the requests are: pairs of the block, steps, units of the ring. */
struct stream_at {
    int first, pairs, groups; /* of what is done at once */
    int step, unit, units;    /* in all; of the ring */
    int left;                 /* steps of these pairs */
};
struct stream_chunk {
    int klass, chunk;
};
/* Done at once when so many are left. */
template <int EIGHTS> __device__ __forceinline__ int pairs_of(int left) {
    int n = stream_of<EIGHTS>::MOST_PAIRS;
    while (n > left && n > 1)
        n /= 2;
    return n;
}
template <int EIGHTS>
__device__ __forceinline__ void at_begin(const linear_job &j, stream_at *at, int first, int per) {
    typedef stream_of<EIGHTS> is;
    const int n_class = min(j.n_chunk, (int)WARPS), more = j.n_chunk % WARPS, each = j.n_chunk / WARPS;
    at->first = first;
    at->pairs = pairs_of<EIGHTS>(per - first);
    at->groups = is::SHARES / at->pairs;
    at->units = is::WEIGHT_UNITS + at->groups * is::RECORD_UNITS;
    at->left = 0; /* of the first group, which has most */
    for (int c = 0; c < n_class; c += at->groups)
        at->left += each + (c < more);
}
template <int EIGHTS> __device__ __forceinline__ bool at_next(const linear_job &j, stream_at *at, int per) {
    at->step++;
    at->unit += at->units;
    at->unit -= at->unit >= stream_of<EIGHTS>::UNITS ? (int)stream_of<EIGHTS>::UNITS : 0;
    if (--at->left > 0)
        return false;
    at_begin<EIGHTS>(j, at, at->first + at->pairs, per);
    return true;
}
/* Whether a class ends with it. */
__device__ __forceinline__ bool chunk_next(const linear_job &j, stream_chunk *c, int groups) {
    c->chunk += WARPS;
    if (c->chunk < j.n_chunk)
        return false;
    c->klass += groups;
    c->chunk = c->klass;
    return true;
}

/* A pair's panel: its matrix, and which of its panels; -1: none. */
__device__ __forceinline__ int stream_panel(const linear_job &j, int pair, int which, int *matrix) {
    *matrix = 0;
    if (j.gated) {
        *matrix = which;
        return pair < j.n_unit ? pair : -1;
    }
    const int panel = 2 * pair + which;
    *matrix = (panel >= j.first[1]) + (panel >= j.first[2]);
    return panel < j.n_unit ? panel - j.first[*matrix] : -1;
}

/* Bulk copy whose bytes arrive in both blocks of the cluster. */
__device__ __forceinline__ void bulk_copy_both(void *to, const void *from, int bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1], %2, "
                 "[%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"((uint16_t)3)
                 : "memory");
#endif
}

/* An arrival in block `rank`, behind reads: nothing that was written need be seen there. */
__device__ __forceinline__ void read_arrive(uint64_t *bar, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank)) : "memory");
#endif
}

/* ---- requests ---- */

template <int EIGHTS> struct stream_feed {
    stream_at at;
    stream_chunk c;
    const uint8_t *panel; /* the lane's */
    int group, place;     /* of its chunk; its weights' number of the step */
};
template <int EIGHTS>
__device__ __forceinline__ void feed_pairs(const linear_job &j, stream_feed<EIGHTS> *f, int base) {
    const int lane = threadIdx.x % 32;
    f->place = lane;
    f->group = lane < WEIGHT_LANES ? lane / 2 / f->at.pairs : lane - WEIGHT_LANES;
    f->c.klass = f->c.chunk = f->group < f->at.groups ? f->group : (int)WARPS;
    f->panel = nullptr;
    if (lane >= WEIGHT_LANES || f->group >= f->at.groups)
        return;
    int matrix;
    const int pair = base + f->at.first + lane / 2 % f->at.pairs;
    int panel = stream_panel(j, pair, lane % 2, &matrix);
    if (panel < 0) { /* for nobody */
        matrix = 0;
        panel = 0;
    }
    f->panel = j.w[matrix] + panel * j.panel_bytes;
}
template <int EIGHTS>
__device__ __forceinline__ void feed_next(const linear_job &j, stream_feed<EIGHTS> *f, int base, int per) {
    chunk_next(j, &f->c, f->at.groups);
    if (at_next<EIGHTS>(j, &f->at, per))
        feed_pairs<EIGHTS>(j, f, base);
}
/* A step's weights and how many bytes it has; its columns. */
template <int EIGHTS>
__device__ __forceinline__ void put_weights(const linear_job &j, const stream_feed<EIGHTS> &f, uint8_t *ring,
                                            uint64_t *full) {
    typedef stream_of<EIGHTS> is;
    const bool there = f.c.klass < WARPS && f.c.chunk < j.n_chunk, mine = f.panel && there;
    const int weights = f.c.chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes;
    const int bytes = mine ? weights : threadIdx.x % 32 >= WEIGHT_LANES && there ? (int)is::RECORD : 0;
    const int all = warp_sum(bytes);
    if (threadIdx.x % 32 == 0)
        bar_expect(full + f.at.step % STEPS, all);
    __syncwarp();
    const int unit = (f.at.unit + f.place / 4) % is::UNITS;
    if (mine)
        bulk_copy<true>(ring + unit * UNIT_BYTES + f.place % 4 * CHUNK_ROOM,
                        f.panel + (int64_t)f.c.chunk * j.chunk_bytes, weights, full + f.at.step % STEPS);
}
template <int EIGHTS>
__device__ __forceinline__ void put_columns(const linear_job &j, const stream_feed<EIGHTS> &f, uint8_t *ring,
                                            uint64_t *full) {
    typedef stream_of<EIGHTS> is;
    if (threadIdx.x % 32 < WEIGHT_LANES || f.c.klass >= WARPS || f.c.chunk >= j.n_chunk)
        return;
    const int unit = (f.at.unit + is::WEIGHT_UNITS + f.group * is::RECORD_UNITS) % is::UNITS;
    const int half = blockIdx.z * (is::RECORD / TOGETHER);
    bulk_copy_both(ring + unit * UNIT_BYTES + half,
                   (const uint8_t *)j.codes + (int64_t)f.c.chunk * is::RECORD + half, is::RECORD / TOGETHER,
                   full + f.at.step % STEPS);
}

/* What the ninth warp does. The first weights are requested before the launch waits for its columns. */
template <int EIGHTS>
__device__ __forceinline__ void stream_requests(const linear_job &j, uint8_t *ring, uint64_t *full,
                                                uint64_t *empty, int base, int per) {
    typedef stream_of<EIGHTS> is;
    stream_feed<EIGHTS> f = {}, columns;
    int room = is::UNITS, tail = 0, ahead = 0;
    uint64_t sizes = 0; /* of the steps under way, in units, a byte each */
    at_begin<EIGHTS>(j, &f.at, 0, per);
    feed_pairs<EIGHTS>(j, &f, base);
    columns = f;
    for (; f.at.first < per && room >= f.at.units; ahead++) {
        put_weights<EIGHTS>(j, f, ring, full);
        room -= f.at.units;
        sizes |= (uint64_t)f.at.units << (8 * (f.at.step % STEPS));
        feed_next<EIGHTS>(j, &f, base, per);
    }
    __syncwarp();
    cluster_barrier();
    launch_wait();
    for (; ahead > 0; ahead--) {
        put_columns<EIGHTS>(j, columns, ring, full);
        feed_next<EIGHTS>(j, &columns, base, per);
    }
    while (f.at.first < per) {
        while (room < f.at.units) {
            bar_wait<false>(empty + tail % STEPS, tail / STEPS & 1);
            room += (int)(sizes >> (8 * (tail % STEPS)) & 255);
            tail++;
        }
        room -= f.at.units;
        sizes &= ~((uint64_t)255 << (8 * (f.at.step % STEPS)));
        sizes |= (uint64_t)f.at.units << (8 * (f.at.step % STEPS));
        put_weights<EIGHTS>(j, f, ring, full);
        put_columns<EIGHTS>(j, f, ring, full);
        feed_next<EIGHTS>(j, &f, base, per);
    }
    launch_next();
}

/* ---- products ---- */

/* As matrices_load_four, but loads of others may pass it. */
__device__ __forceinline__ void scales_load_four(uint32_t d[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at));
}

/* A tile's operands of two panels: codes of both halves of K, and scales of rows g and g + 8, of both. */
struct stream_tile {
    uint32_t a[2][2][4];
    float2 w[2][2];
};
__device__ __forceinline__ void tile_unpack(stream_tile *tile, const uint4 codes[2],
                                            const uint32_t scales[2][4], int odd, const nibble_base &base) {
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const uint32_t u[4] = {codes[p].x, codes[p].y, codes[p].z, codes[p].w};
#pragma unroll
        for (int c = 0; c < 4; c++) {
            tile->a[p][0][c] = nibbles_signed(u[c] << 4, base);
            tile->a[p][1][c] = nibbles_signed(u[c], base);
        }
        tile->w[p][0] = floats_of(scales[p][2 * odd]);
        tile->w[p][1] = floats_of(scales[p][2 * odd + 1]);
    }
}
/* Its products with eight columns, and what these add to their sums. */
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

/* A chunk of two panels times a warp's 32 columns. codes, scales: the lane's first ones. Products of eight
 * columns are on their way while those of the eight before are scaled. */
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

/* The outputs of a pair from its sums of all classes in shared memory (class_end's order): a lane has a row
 * of the panels and goes through the warp's columns, two lanes of 16 at once. */
__device__ __forceinline__ void stream_finish(const linear_job &j, int pair, int column, const float *sums) {
    enum { STEP = 8 /* columns whose loads are on their way together */ };
    const int lane = threadIdx.x % 32, row = lane % PACK_PANEL, odd = lane / PACK_PANEL;
    const float *const of_row = sums + row % 8 * 16 + row / 8 * 2;
    const int n_col = min(j.n_col - column, 32);
    const float factors = j.norm && lane < n_col ? __ldcg(j.factor + column + lane) : 1.0f;
    auto sum_of = [&](int p, int c) {
        const float v = of_row[(4 * p + c / 8) * 128 + c % 8 / 2 * 4 + c % 2];
        return j.norm ? __fmul_rn(v, __shfl_sync(~0u, factors, c)) : v;
    };
    auto value_of = [&](int p, int c, float bias) { /* all lanes */
                                                    float v = sum_of(p, c);
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
        bias[p] = from && there[p] ? from[n[p]] : -0.0f; /* which changes nothing */
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

/* Of a class: whether another warp has the one before, and which has the one behind (-1: this one, or there
 * is none). Each warp is told by a barrier of its own, on which the other's lanes arrive. */
struct class_order {
    bool told, begins, ends;
    int behind;
};

/* What a warp's class adds to the classes before it; when it is the last one, the outputs. */
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
    int lane_scale[2], last = 0; /* the group that had the last class */
    uint32_t times = 0;          /* that the warp was told */
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
            const uint8_t *const panel0 = ring + unit_of_weights * UNIT_BYTES + place % 4 * CHUNK_ROOM;
            const uint8_t *const panels[2] = {panel0, panel0 + CHUNK_ROOM};
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
            else if (order.ends && group > 0) { /* the next first class: the place's number is the warp's */
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
    cluster_barrier(); /* nobody leaves while others send to it */
#endif
}

/* ---- launching ---- */

int stream_eights(const linear_job *j, const pack_format *f, int n_col) {
    return has_wide() && nibbles_are(*j, f) && n_col > 16 ? n_col > 32 ? 8 : 4 : 0;
}

template <int EIGHTS> static int run_stream(linear_job *j, cuda_stream s) {
    auto *const kernel = linear_stream<EIGHTS>;
    const size_t room = stream_of<EIGHTS>::BYTES;
    int e = prepare(kernel, room), clusters = device_sm_count() / TOGETHER;
    if (!e)
        e = clusters_max(kernel, STREAM_THREADS, TOGETHER, room, &clusters);
    if (e)
        return e;
    const int pairs = j->gated ? j->n_unit : (j->n_unit + 1) / 2, most = clusters * TOGETHER;
    const int per = (pairs + most - 1) / most, blocks = (pairs + per - 1) / per;
    return launch_cluster(kernel, dim3((unsigned)((blocks + TOGETHER - 1) / TOGETHER), 1, TOGETHER),
                          dim3(STREAM_THREADS), TOGETHER, room, s, *j, per);
}

int stream_launch(linear_job *j, int eights, cuda_stream s) {
    return eights == 8 ? run_stream<8>(j, s) : run_stream<4>(j, s);
}

/* mixed.cu - products with activations of 4 and 8 bits by block of 128 channels (W4Ax; COMET, section 4): the
 * first n8 blocks have 8 bits, the others 4. Weights have 4 bits and one half-precision scale for each 32, 64
 * or 128.
 *
 * - The codes of rows are made first (mixed_codes.cu).
 * - A tile is 128 outputs and up to 128 rows. A block of threads gets an equal share of the cost
 *   (mixed_units.h). A lane's dword of a G-tile has 8 codes; with one exclusive or they are operands of the
 *   instruction for 4 bits. For 8 bits, codes become bytes 16 (code - 8) by two instructions for four codes
 *   at most, and their scale is divided by 16 (nibbles.cuh).
 * - The pipeline has two levels. Copies of a block of 128 channels to shared memory are two blocks ahead, and
 *   a warp loads its weights of a block to registers while it multiplies the block before.
 *
 * A sum over the groups of a chunk (MIXED_CHUNK blocks) begins at zero, and the sums of a tile's chunks are
 * added in order. So a row's bits depend neither on the other rows nor on the device. If several blocks of
 * threads have chunks of a tile, each leaves its sums in the scratch, and the last one of them adds all.
 *
 * Compute capabilities 7.5 to 8.9 have an instruction for 4 bits. Later ones emulate it, slowly. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/mixed.cuh"
#include "kernels/cuda/nibbles.cuh"

/* ---- tiles ---- */

/* Place of the work: a tile, and the next block of 128 channels of one of its chunks. */
struct mixed_place {
    int64_t unit, end;
    int row, panel;  /* first row of the tile; first panel among those of all matrices */
    int block, last; /* blocks of the chunk: this one; the one behind */
    __device__ __forceinline__ void enter(const mixed_shape &s) {
        const int64_t chunks = mixed_chunks(&s), tile = unit / chunks, rows = mixed_up(s.n_row, s.tile_row);
        row = (int)(tile % rows * s.tile_row);
        panel = (int)(tile / rows) * MIXED_PANELS;
        block = (int)(unit % chunks) * MIXED_CHUNK;
        last = min(block + (int)MIXED_CHUNK, (int)mixed_blocks(&s));
    }
    __device__ __forceinline__ void next(const mixed_shape &s) {
        if (++block == last && ++unit < end)
            enter(s);
    }
};

/* Panel i of the tile that begins at panel `first`: its matrix and its number there. Panels of gate and up
 * take turns. Behind the last panel it is the last one. */
__device__ __forceinline__ int mixed_panel(const mixed_job &j, int first, int i, int *matrix) {
    const int p = min(first + i, (int)(j.shape.n / PACK_PANEL) - 1);
    if (j.gated) {
        *matrix = p % 2;
        return p / 2;
    }
    *matrix = matrix_of(j, p);
    return p - j.first[*matrix];
}
__device__ __forceinline__ const uint8_t *mixed_panel_at(const mixed_job &j, int first, int i) {
    int matrix;
    const int panel = mixed_panel(j, first, i, &matrix);
    return j.w[matrix] + panel * j.panel_bytes;
}

/* The parts of a stage, a block of 128 channels in shared memory. */
template <int GROUP, int ROWS> struct mixed_stage {
    enum {
        GROUPS = MIXED_BLOCK / GROUP,
        EACH = GROUPS > 2 ? 2 : 1,                               /* groups of a tile */
        SCALES = MIXED_PANELS * 2 * CODE_TILE,                   /* weights before */
        CODES = SCALES + MIXED_PANELS * GROUPS * 2 * PACK_PANEL, /* halves before */
        FACTORS = CODES + ROWS / 8 * EIGHT_BYTES,
        BYTES = FACTORS + ROWS * GROUPS * 4,
        THREADS = ROWS > 16 ? 256 : 128
    };
    /* Starts copying the block to the stage at `to`. */
    __device__ static void fill(const mixed_job &j, const mixed_place &at, uint8_t *to) {
        const int chunk = at.block / 2, tile = at.block % 2 * 2,
                  n_tile = chunk == j.n_chunk - 1 ? j.last_tiles : (int)TILE_CHUNK;
        const int64_t n_block = mixed_blocks(&j.shape), first = at.row / 8;
        const int shift = at.block < j.n8 ? 6 : 5; /* log2 of the pieces of eight rows */
        const int64_t before = at.block < j.n8 ? (int64_t)at.block * EIGHT_BYTES
                                               : (int64_t)(at.block + j.n8) * (EIGHT_BYTES / 2);
#pragma unroll
        for (int i = threadIdx.x; i < MIXED_PANELS * 64; i += THREADS) {
            const uint8_t *from = mixed_panel_at(j, at.panel, i / 64) + (int64_t)chunk * j.chunk_bytes;
            copy_ahead<16>(to + 16 * i, from + min(tile + i / 32 % 2, n_tile - 1) * CODE_TILE + i % 32 * 16);
        }
        for (int i = threadIdx.x; i < MIXED_PANELS * GROUPS * 2; i += THREADS) {
            const uint8_t *from =
                mixed_panel_at(j, at.panel, i / (GROUPS * 2)) + (int64_t)chunk * j.chunk_bytes;
            const int in = i / 2 % GROUPS; /* a group of the block; of a tile that does not exist, another */
            const int group = GROUPS == 1 ? tile / 2 : min(tile + in / EACH, n_tile - 1) * EACH + in % EACH;
            copy_ahead<16>(to + SCALES + 16 * i, from + n_tile * CODE_TILE + group * 32 + i % 2 * 16);
        }
        for (int i = threadIdx.x; i < ROWS / 8 << shift; i += THREADS) {
            const uint8_t *from = j.codes + (first + (i >> shift)) * eight_bytes(n_block, j.n8) + before;
            copy_ahead<16>(to + CODES + 16 * i, from + i % (1 << shift) * 16);
        }
        for (int i = threadIdx.x; i < ROWS / 8 * GROUPS * 2; i += THREADS) {
            const int eight = i / (GROUPS * 2), in = i % (GROUPS * 2);
            copy_ahead<16>(to + FACTORS + 16 * i,
                           (const uint8_t *)(j.scales + ((first + eight) * n_block + at.block) * GROUPS * 8) +
                               in * 16);
        }
    }
};

/* d += a . b: 16 outputs x 64 of K x 8 rows of codes of 4 bits; 32 of K; of 8 bits 32 of K. */
__device__ __forceinline__ void mma_four(int d[4], const uint32_t a[4], uint2 b) {
    MMA("mma.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32", "mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32",
        d, a, b.x, b.y);
}
__device__ __forceinline__ void mma_four_half(int d[4], const uint32_t a[2], uint32_t b) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s4.s4.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    MMA_SMALL("mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32", d[0], d[1], a[0], b);
    MMA_SMALL("mma.sync.aligned.m8n8k32.row.col.s32.s4.s4.s32", d[2], d[3], a[1], b);
#endif
}
__device__ __forceinline__ void mma_eight(int d[4], const uint32_t a[4], uint2 b) {
    MMA("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32", "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32",
        d, a, b.x, b.y);
}

/* A tile of weights (16 outputs x 64 of K) as operands for rows of 8 or 4 bits, codes of eight rows, and the
 * products of both: of the tile, and of a half of its K. SHORT: in groups of 32. */
template <bool EIGHT, bool SHORT> struct mixed_operand;
template <bool SHORT> struct mixed_operand<true, SHORT> {
    typedef uint4 rows;
    uint32_t a[2][4];
    __device__ __forceinline__ void take(const uint4 &w, const nibble_base &base) {
        nibbles_unpack(w, base, a);
    }
    __device__ __forceinline__ void dot(int d[4], rows b) const {
        half(d, b, 0);
        half(d, b, 1);
    }
    __device__ __forceinline__ void half(int d[4], rows b, int h) const {
        mma_eight(d, a[h], h ? make_uint2(b.z, b.w) : make_uint2(b.x, b.y));
    }
};
template <bool SHORT> struct mixed_operand<false, SHORT> {
    typedef uint2 rows;
    uint32_t a[4]; /* SHORT: those of half 0, then of half 1 */
    __device__ __forceinline__ void take(const uint4 &w, const nibble_base &) {
        const uint32_t u[4] = {w.x ^ 0x88888888u, w.y ^ 0x88888888u, w.z ^ 0x88888888u, w.w ^ 0x88888888u};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t first = u[i % 2], second = u[i % 2 + 2]; /* quads t and t + 4 */
            a[i] = !SHORT  ? u[i]
                   : i < 2 ? (first & 0x0f0f0f0fu) | (second << 4 & 0xf0f0f0f0u)
                           : (first >> 4 & 0x0f0f0f0fu) | (second & 0xf0f0f0f0u);
        }
    }
    __device__ __forceinline__ void dot(int d[4], rows b) const {
        mma_four(d, a, b);
    }
    __device__ __forceinline__ void half(int d[4], rows b, int h) const {
        mma_four_half(d, a + 2 * h, h ? b.y : b.x);
    }
};

/* A warp's weights of a block of channels: two panels, two tiles of each. */
struct mixed_weights {
    uint4 w[2][2];
    __device__ __forceinline__ void load(const uint8_t *stage, int panel) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i / 2][i % 2] =
                *(const uint4 *)(stage + ((panel + i / 2) * 2 + i % 2) * CODE_TILE + threadIdx.x % 32 * 16);
    }
};

/* Adds the products of a block of channels: a warp's two panels times EIGHTS groups of eight rows. */
template <int GROUP, int ROWS, int EIGHTS, bool EIGHT>
__device__ __forceinline__ void block_times(const mixed_weights &from, const uint8_t *stage, int panel,
                                            int first, const nibble_base &base, float sum[2][EIGHTS][4]) {
    typedef mixed_stage<GROUP, ROWS> parts;
    typedef mixed_operand<EIGHT, GROUP == 32> operand;
    enum { GROUPS = parts::GROUPS };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    operand w[2][2];
    float scale[2][GROUPS][2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            w[p][i].take(from.w[p][i], base);
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const uint8_t *of = stage + parts::SCALES + ((panel + p) * GROUPS + i) * 32 + 2 * g;
            scale[p][i][0] = __fmul_rn(half_at(of), EIGHT ? 0.0625f : 1.0f);
            scale[p][i][1] = __fmul_rn(half_at(of + 16), EIGHT ? 0.0625f : 1.0f);
        }
    }
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const auto *codes = (const typename operand::rows *)(stage + parts::CODES) + (first + e) * 64 + lane;
        const float2 *factors = (const float2 *)(stage + parts::FACTORS) + (first + e) * GROUPS * 4 + t;
        const typename operand::rows b[2] = {codes[0], codes[32]};
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            const float2 s = factors[i * 4];
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const float w0 = scale[p][i][0], w1 = scale[p][i][1];
                int d[4] = {base.magic[0], base.magic[1], base.magic[2], base.magic[3]};
                if (GROUPS == 4)
                    w[p][i / 2].half(d, b[i / 2], i % 2);
                else
                    w[p][i].dot(d, b[i]);
                if (GROUPS == 1)
                    w[p][1].dot(d, b[1]);
                sum[p][e][0] = scaled_add(d[0], w0, scale_magic(w0), s.x, sum[p][e][0]);
                sum[p][e][1] = scaled_add(d[1], w0, scale_magic(w0), s.y, sum[p][e][1]);
                sum[p][e][2] = scaled_add(d[2], w1, scale_magic(w1), s.x, sum[p][e][2]);
                sum[p][e][3] = scaled_add(d[3], w1, scale_magic(w1), s.y, sum[p][e][3]);
            }
        }
    }
}

/* ---- outputs ---- */

/* The weights of channel `at` in rows g and g + 8 of a panel. */
__device__ __forceinline__ float2 two_weights(const mixed_job &j, const uint8_t *panel, int at, int g) {
    const int chunk = at / TILE_CHUNK_K, in = at % TILE_K, quad = in / 4 % 8,
              n_tile = chunk == j.n_chunk - 1 ? j.last_tiles : (int)TILE_CHUNK;
    const uint8_t *const codes = panel + (int64_t)chunk * j.chunk_bytes;
    const uint2 both = __ldg((const uint2 *)(codes + at / TILE_K % TILE_CHUNK * CODE_TILE) +
                             (g * 4 + quad % 4) * 2 + quad / 4);
    const uint8_t *const scales = codes + n_tile * CODE_TILE + at % TILE_CHUNK_K / j.group * 32 + 2 * g;
    const int shift = in % 4 * 8 + in / 32 * 4;
    return make_float2(__fmul_rn((float)((int)(both.x >> shift & 15) - 8), half_at(scales)),
                       __fmul_rn((float)((int)(both.y >> shift & 15) - 8), half_at(scales + 16)));
}

__device__ __forceinline__ void output_put(const mixed_job &j, int matrix, int o, int row, float v) {
    float *const to = j.y[matrix] + row * j.ldy[matrix] + o;
    if (o < j.n[matrix])
        *to = j.adds ? __fadd_rn(*to, v) : v;
}

/* Finishes a thread's outputs of a tile: the products of the floats, biases, gate or activation. */
template <int EIGHTS>
__device__ __noinline__ static void outputs_finish(const mixed_job &j, const mixed_place &at, int panel,
                                                   int first, const float *sums) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, end = (int)(j.shape.n / PACK_PANEL);
    const auto *const sum = (const float(*)[EIGHTS][4])sums;
    int matrix[2], o[2];
    const uint8_t *w[2];
    float bias[2][2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const int number = mixed_panel(j, at.panel, panel + p, &matrix[p]);
        w[p] = j.w[matrix[p]] + number * j.panel_bytes;
        o[p] = number * PACK_PANEL + g;
        const float *b = j.bias[matrix[p]];
        bias[p][0] = b && o[p] < j.n[matrix[p]] ? b[o[p]] : 0.0f;
        bias[p][1] = b && o[p] + 8 < j.n[matrix[p]] ? b[o[p] + 8] : 0.0f;
    }
#pragma unroll 1
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll 1
        for (int c = 0; c < 2; c++) {
            const int row = at.row + (first + e) * 8 + 2 * t + c;
            float v[2][2];
            if (row >= j.n_row)
                continue;
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i / 2][i % 2] = __fadd_rn(sum[i / 2][e][i % 2 * 2 + c], bias[i / 2][i % 2]);
            const mixed_floats *f = &j.floats[row];
            for (int i = 0; i < __ldcg(&f->n); i++) {
                const int channel = __ldcg(&f->at[i]);
                const float x = __ldcg(&f->value[i]);
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    const float2 two = two_weights(j, w[p], channel, g);
                    v[p][0] = __fmaf_rn(two.x, x, v[p][0]);
                    v[p][1] = __fmaf_rn(two.y, x, v[p][1]);
                }
            }
#pragma unroll 1
            for (int i = 0; i < 4; i++) {
                const int p = i / 2, r = i % 2;
                if (at.panel + panel + p >= end || (j.gated && p))
                    continue;
                output_put(j, matrix[p], o[p] + 8 * r, row,
                           j.gated  ? gate_value(j.act, v[0][r], v[1][r])
                           : j.acts ? act_value(j.act, v[p][r])
                                    : v[p][r]);
            }
        }
}

/* ---- the launch ---- */

/* A thread's sums in place `slot` of the parts of block b of threads. */
template <int ROWS> __device__ __forceinline__ float *part_at(const mixed_job &j, int64_t b, int64_t slot) {
    return j.parts + (b * mixed_chunks(&j.shape) + slot) * (MIXED_PANELS * PACK_PANEL * ROWS) + threadIdx.x;
}
template <int THREADS, int N> __device__ __forceinline__ void part_put(float *to, const float *sum) {
#pragma unroll
    for (int i = 0; i < N; i++)
        __stcg(to + i * THREADS, sum[i]);
}

/* Counts chunks of a tile that are in the parts. True: all are there now. begin: the block of threads that
 * has the tile's first chunk. */
__device__ static bool chunks_arrive(const mixed_job &j, int64_t begin, int n) {
    __shared__ bool all;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        all = atomicAdd(&j.arrived[begin], (unsigned)n) + n == (unsigned)mixed_chunks(&j.shape);
    __syncthreads();
    __threadfence();
    return all;
}

/* The first unit of a block of threads. */
__device__ __forceinline__ int64_t first_of(const mixed_job &j, int64_t b) {
    return mixed_first(&j.shape, b, j.n_part);
}
/* The block of threads with a unit, not after block b. */
__device__ __forceinline__ int64_t owner_of(const mixed_job &j, int64_t unit, int64_t b) {
    while (first_of(j, b) > unit)
        b--;
    return b;
}

/* Adds the sums of a tile's chunks, which several blocks of threads have left from block `begin` on. */
template <int ROWS, int THREADS, int N>
__device__ __noinline__ static void parts_add(const mixed_job &j, int64_t begin, int64_t tile, float *sum) {
    const int64_t end = (tile + 1) * mixed_chunks(&j.shape);
    const float *from = part_at<ROWS>(j, begin, 0);
    for (int i = 0; i < N; i++)
        sum[i] = __ldcg(from + i * THREADS);
    for (int64_t b = begin + 1, unit = first_of(j, b); unit < end; b++) {
        const int64_t own = first_of(j, b + 1), last = own < end ? own : end;
        for (int64_t slot = 1; unit < last; unit++, slot++) {
            from = part_at<ROWS>(j, b, slot);
            for (int i = 0; i < N; i++)
                sum[i] = __fadd_rn(sum[i], __ldcg(from + i * THREADS));
        }
    }
}

template <int GROUP, int ROWS>
__global__ void __launch_bounds__(mixed_stage<GROUP, ROWS>::THREADS, 1)
    mixed_multiply(const __grid_constant__ mixed_job j) {
    typedef mixed_stage<GROUP, ROWS> parts;
    enum { THREADS = parts::THREADS, EIGHTS = ROWS / 8 / (THREADS / 128), N = 2 * EIGHTS * 4 };
    extern __shared__ __align__(128) uint8_t shared[];
    const mixed_shape &s = j.shape;
    const int warp = threadIdx.x / 32, panel = warp % 4 * 2, first = warp / 4 * EIGHTS;
    const int64_t chunks = mixed_chunks(&s), begin = first_of(j, blockIdx.x);
    const nibble_base base = nibble_base_make();
    mixed_place at = {begin, first_of(j, blockIdx.x + 1)}, ahead;
    float sum[2][EIGHTS][4] = {}, total[N];
    float *const flat = sum[0][0];
    mixed_weights now, next;
    launch_next();
    launch_wait();
    if (at.unit >= at.end)
        return;
    at.enter(s);
    ahead = at;
    for (int i = 0; i < MIXED_STAGES - 1; i++) {
        if (ahead.unit < ahead.end) {
            parts::fill(j, ahead, shared + i * parts::BYTES);
            ahead.next(s);
        }
        copies_end_group();
    }
    copies_wait<MIXED_STAGES - 2>();
    __syncthreads();
    now.load(shared, panel);
    for (int step = 0; at.unit < at.end; step++) {
        const uint8_t *const stage = shared + step % MIXED_STAGES * parts::BYTES;
        copies_wait<MIXED_STAGES - 3>();
        __syncthreads(); /* the next block has arrived, and nobody reads the one before */
        if (ahead.unit < ahead.end) {
            parts::fill(j, ahead, shared + (step + MIXED_STAGES - 1) % MIXED_STAGES * parts::BYTES);
            ahead.next(s);
        }
        copies_end_group();
        next.load(shared + (step + 1) % MIXED_STAGES * parts::BYTES, panel);
        if (at.block < j.n8)
            block_times<GROUP, ROWS, EIGHTS, true>(now, stage, panel, first, base, sum);
        else
            block_times<GROUP, ROWS, EIGHTS, false>(now, stage, panel, first, base, sum);
        now = next;
        const mixed_place was = at;
        at.next(s);
        if (at.unit == was.unit)
            continue;
        /* the chunk ends */
        const int64_t tile = was.unit / chunks, chunk = was.unit % chunks, of_tile = was.unit - chunk;
        const bool own = of_tile >= begin, last = chunk == chunks - 1, leaves = last || at.unit == at.end;
        bool finishes = own && last;
        if (own) {
#pragma unroll
            for (int i = 0; i < N; i++)
                total[i] = chunk ? __fadd_rn(total[i], flat[i]) : flat[i];
            if (leaves && !last)
                part_put<THREADS, N>(part_at<ROWS>(j, blockIdx.x, 0), total);
        } else
            part_put<THREADS, N>(part_at<ROWS>(j, blockIdx.x, 1 + was.unit - begin), flat);
        if (leaves && !finishes) {
            const int64_t by = owner_of(j, of_tile, blockIdx.x);
            finishes = chunks_arrive(j, by, (int)(was.unit - (own ? of_tile : begin) + 1));
            if (finishes)
                parts_add<ROWS, THREADS, N>(j, by, tile, total);
        }
        if (finishes)
            outputs_finish<EIGHTS>(j, was, panel, first, total);
#pragma unroll
        for (int i = 0; i < N; i++)
            flat[i] = 0.0f;
    }
}

/* ---- launches ---- */

/* Blocks of threads for a tile of `rows` rows: a multiprocessor has several small ones. */
static int part_count(int rows) {
    return device_sm_count() * (rows > 16 ? 1 : 4);
}
/* Sets the scratch of a product, in which tiles have `rows` rows, and returns its bytes. */
static size_t mixed_set(mixed_job *j, uint8_t *scratch, int64_t n_row, int64_t k, int rows) {
    const int64_t n_block = mixed_up(k, MIXED_BLOCK),
                  eights = mixed_up(n_row, MIXED_MAX_ROWS) * (MIXED_MAX_ROWS / 8);
    const int64_t parts = part_count(rows) * mixed_up(n_block, MIXED_CHUNK);
    const int64_t sizes[] = {eights * n_block * EIGHT_BYTES, eights * n_block * 4 * 8 * 4,
                             eights * 8 * (int64_t)sizeof(mixed_floats), part_count(rows) * 4,
                             parts * MIXED_PANELS * PACK_PANEL * rows * 4};
    void **const to[] = {(void **)&j->codes, (void **)&j->scales, (void **)&j->floats, (void **)&j->arrived,
                         (void **)&j->parts};
    size_t at = 0;
    for (int i = 0; i < 5; i++) {
        *to[i] = scratch + at;
        at += (size_t)(sizes[i] + 255) / 256 * 256;
    }
    j->n_part = part_count(rows);
    return at;
}

size_t mixed_scratch(int64_t n_row, int64_t k) {
    mixed_job j;
    size_t most = 0;
    for (int rows : {16, 64, (int)MIXED_MAX_ROWS})
        most = max(most, mixed_set(&j, nullptr, n_row, k, rows));
    return most;
}

template <int GROUP, int ROWS> static int multiply_by(const mixed_job &j, cuda_stream s) {
    typedef mixed_stage<GROUP, ROWS> parts;
    const size_t shared = MIXED_STAGES * parts::BYTES;
    const int e = prepare(mixed_multiply<GROUP, ROWS>, shared);
    return e ? e
             : launch(mixed_multiply<GROUP, ROWS>, dim3((unsigned)j.n_part), dim3(parts::THREADS), shared, s,
                      j);
}
template <int GROUP> static int multiply_rows(const mixed_job &j, cuda_stream s) {
    return j.shape.tile_row == 16   ? multiply_by<GROUP, 16>(j, s)
           : j.shape.tile_row == 64 ? multiply_by<GROUP, 64>(j, s)
                                    : multiply_by<GROUP, MIXED_MAX_ROWS>(j, s);
}

int mixed_launch(const cuda_linear *a, cuda_stream s) {
    const view *w = &a->w[0];
    mixed_job j = {};
    if (!matrices_are(a) || !cuda_mixes(&w->format) || w->k < 1 || w->k > MAX_PACK_ROW || a->n_row < 1 ||
        a->n_row > CUDA_MAX_WIDE)
        return CUDA_UNSUPPORTED;
    const int64_t n_panel = matrices_set(a, PACK_PANEL, &j) * (a->gated ? 2 : 1), tiles = tile_count(w->k);
    const bool most = device_shared_bytes() >= MIXED_STAGES * (int)mixed_stage<32, MIXED_MAX_ROWS>::BYTES;
    const int rows = a->n_row <= 16 ? 16 : a->n_row <= 64 || !most ? 64 : MIXED_MAX_ROWS;
    j.shape = {a->n_row, n_panel * PACK_PANEL, w->k, rows, MIXED_PANELS * PACK_PANEL, a->n8};
    mixed_set(&j, (uint8_t *)a->scratch, a->n_row, w->k, rows);
    j.n_row = (int)a->n_row;
    j.k = (int)w->k;
    j.n8 = (int)min((int64_t)a->n8, mixed_blocks(&j.shape));
    j.n_chunk = (int)mixed_up(tiles, TILE_CHUNK);
    j.last_tiles = (int)(tiles - (int64_t)(j.n_chunk - 1) * TILE_CHUNK);
    j.chunk_bytes = (int)tile_chunk_bytes(&w->format, TILE_CHUNK);
    j.group = w->format.group;
    j.panel_bytes = tile_panel_bytes(&w->format, w->k);
    j.gated = a->gated;
    j.acts = a->acts;
    j.adds = a->adds;
    j.act = a->act;
    j.x = a->x;
    j.norm = a->norm;
    j.shift = a->centred ? a->shift : nullptr;
    j.ldx = a->ldx;
    j.eps = a->eps;
    j.centred = a->centred;
    const int e = mixed_codes_launch(j, s);
    return e               ? e
           : j.group == 32 ? multiply_rows<32>(j, s)
           : j.group == 64 ? multiply_rows<64>(j, s)
                           : multiply_rows<128>(j, s);
}

/* split.cu - the Split strategy: 4-bit matrix instructions multiply 8-bit activations as two halves of 4
 * bits, and weights of more than 4 bits as two parts. sliced.cuh has what it shares with Bitwise. Compute
 * capabilities 7.5 to 8.9 have these instructions. 9.0 emulates each in about 190 others, so a measured map
 * does not choose Split there.
 *
 * A lane's dword of a 4-bit part is an operand: 4 codes of each half of the tile. A column multiplies one
 * half; its nibbles of the other half are zeros. */
#include "kernels/cuda/sliced/launches.h"
#include "kernels/cuda/sliced/sliced.cuh"

/* d += a . b, unsigned times signed or unsigned nibbles: 16 rows x 64 of K x 8 columns. */
template <bool SIGNED>
__device__ __forceinline__ void mma_nibbles(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if (SIGNED)
        MMA("mma.sync.aligned.m16n8k64.row.col.s32.u4.s4.s32",
            "mma.sync.aligned.m8n8k32.row.col.s32.u4.s4.s32", d, a, b0, b1);
    else
        MMA("mma.sync.aligned.m16n8k64.row.col.s32.u4.u4.s32",
            "mma.sync.aligned.m8n8k32.row.col.s32.u4.u4.s32", d, a, b0, b1);
}

/* A lane's codes of its column: nibbles of quads t and t + 4, of the half h that the column multiplies. */
struct split_column {
    uint32_t low[2], high[2];
    __device__ __forceinline__ split_column(uint2 codes, int h) {
        low[0] = quad_nibbles(codes.x, h, false);
        low[1] = quad_nibbles(codes.y, h, false);
        high[0] = quad_nibbles(codes.x, h, true);
        high[1] = quad_nibbles(codes.y, h, true);
    }
};

__device__ __forceinline__ void shifted(int d[4], int by) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] <<= by;
}

/* d = (nibbles of N tiles) . columns; columns are zeros where `here` is false. four: 4-bit codes, which have
 * no upper half. */
template <int N>
__device__ __forceinline__ void nibbles_dot(const uint32_t a[N][4], const split_column &b, const bool here[N],
                                            bool four, int d[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] = 0;
    if (four) {
#pragma unroll
        for (int i = 0; i < N; i++)
            mma_nibbles<true>(d, a[i], here[i] ? b.low[0] : 0, here[i] ? b.low[1] : 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_nibbles<true>(d, a[i], here[i] ? b.high[0] : 0, here[i] ? b.high[1] : 0);
    shifted(d, 4);
#pragma unroll
    for (int i = 0; i < N; i++)
        mma_nibbles<false>(d, a[i], here[i] ? b.low[0] : 0, here[i] ? b.low[1] : 0);
}

/* The weights of N tiles: the bits below the upper 4, and the upper 4. */
template <int BITS, int N> struct split_tiles {
    uint32_t low[N][4], high[N][4];
    __device__ __forceinline__ void take(int i, const tile_lane<BITS> &v) {
        tile_nibbles<BITS, false>(v, low[i]);
        if (BITS > 4)
            tile_nibbles<BITS, true>(v, high[i]);
    }
    __device__ __forceinline__ void dots(const split_column &b, const bool here[N], bool four,
                                         int d[4]) const {
        nibbles_dot<N>(low, b, here, four, d);
        if (BITS > 4) {
            int more[4];
            nibbles_dot<N>(high, b, here, four, more);
#pragma unroll
            for (int i = 0; i < 4; i++)
                d[i] += more[i] << low_bits<BITS>();
        }
    }
};

template <int BITS> struct split_way {
    enum { BITWISE = false };
    split_tiles<BITS, TILE_CHUNK> tiles;

    __device__ void prepare(const uint8_t *stage, int n_tile) {
        tile_lane<BITS> v[TILE_CHUNK];
        chunk_load<BITS>(stage, n_tile, v);
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++)
            tiles.take(i, v[i]);
    }
    __device__ void dots(const uint8_t *column, const subgroup_meta *, bool four, int d[4]) const {
        const int lane = threadIdx.x % 32, g = lane / 4;
        const split_column b(((const uint2 *)column)[lane], g % 2);
        bool here[TILE_CHUNK];
#pragma unroll
        for (int i = 0; i < TILE_CHUNK; i++)
            here[i] = g / 2 == i;
        tiles.dots(b, here, four, d);
    }

    /* With several columns, an instruction multiplies both halves of four columns, so lane t has the dots of
     * column t. */
    struct many_sums {
        enum { EACH = 4, GROUPS = SLICED_COLUMNS / EACH };
        float sum[TILE_CHUNK][GROUPS][2];
        __device__ void place(uint8_t *) {}
        __device__ void clear(const linear_job &) {
#pragma unroll
            for (int i = 0; i < TILE_CHUNK * GROUPS * 2; i++)
                ((float *)sum)[i] = 0.0f;
        }
        __device__ void chunk(const linear_job &j, const uint8_t *stage, int n_tile, const uint8_t *columns,
                              int c) {
            const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, step = column_bytes(j.k_pad);
            const bool here[1] = {true};
#pragma unroll
            for (int i = 0; i < TILE_CHUNK; i++) {
                if (i >= n_tile)
                    break;
                tile_lane<BITS> v;
                split_tiles<BITS, 1> tile;
                float2 w[4];
                const int group[4] = {2 * i >> j.group_shift, (2 * i + 1) >> j.group_shift,
                                      2 * i >> j.group_shift, (2 * i + 1) >> j.group_shift};
                const int row[4] = {g, g, g + 8, g + 8};
                tile_load(&v, stage + i * BITS * 128, lane);
                tile.take(0, v);
                scales_read<4>(j, stage + n_tile * BITS * 128, group, row, w);
#pragma unroll
                for (int e = 0; e < GROUPS; e++) {
                    if (e * EACH >= j.n_col)
                        break;
                    /* missing columns read the codes of others; the result is not used */
                    const uint8_t *const from = columns + min(e * EACH + g / 2, j.n_col - 1) * step;
                    const uint8_t *const own = columns + min(e * EACH + t, j.n_col - 1) * step;
                    const uint2 codes = ((const uint2 *)from)[c * 32 + (2 * i + g % 2) * 4 + t];
                    subgroup_meta m[2];
                    int d[4];
                    *(uint4 *)m = *(const uint4 *)(own + j.k_pad + (c * 8 + 2 * i) * sizeof(subgroup_meta));
                    tile.dots(split_column(codes, g % 2), here, j.top < 127, d);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int r = 0; r < 2; r++)
                            sum[i][e][r] = subgroup_add(j, w[r * 2 + h], d[2 * r + h], m[h], sum[i][e][r]);
                }
            }
        }
        __device__ void give(const linear_job &, float (*to)[SLICED_COLUMNS]) {
            const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
            for (int e = 0; e < GROUPS; e++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    to[g + 8 * r][e * EACH + t] = __fadd_rn(__fadd_rn(sum[0][e][r], sum[1][e][r]),
                                                            __fadd_rn(sum[2][e][r], sum[3][e][r]));
        }
    };
};

static const sliced_kernels by_halves = {
    {nullptr, nullptr, sliced_one<split_way, 2>, sliced_one<split_way, 3>, sliced_one<split_way, 4>,
     sliced_one<split_way, 5>, sliced_one<split_way, 6>, sliced_one<split_way, 7>, sliced_one<split_way, 8>},
    {nullptr, nullptr, sliced_many<split_way, 2>, sliced_many<split_way, 3>, sliced_many<split_way, 4>,
     sliced_many<split_way, 5>, sliced_many<split_way, 6>, sliced_many<split_way, 7>,
     sliced_many<split_way, 8>},
    false,
    false};

int split_launch(const cuda_linear *a, cuda_stream s) {
    return sliced_launch(by_halves, a, s);
}

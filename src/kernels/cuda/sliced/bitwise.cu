/* bitwise.cu - the Bitwise strategy: multiplies every bit of the weights with every bit of the activations,
 * by AND and counting (b1 matrix instructions). sliced.cuh has what it shares with Split.
 *
 * The product of planes i and j has the weight 2^(i + j), which is negative if j is the sign. Pairs of the
 * same power share an accumulator, which is doubled from power to power, so the pairs of a chunk need few
 * shifts. Activations have two halves of four planes. Codes of 4 bits have the upper half alone.
 *
 * Compute capability 7.5 has XOR instead of AND: popc(a & b) = (popc(a) + popc(b) - popc(a ^ b)) / 2. Over
 * all pairs the counts of b add up to the subgroup's sum of codes, which is known. Those of a add up to the
 * row's sum of codes, which one more product with zeros gives. The signed powers of j add up to -1. */
#include "kernels/cuda/sliced/launches.h"
#include "kernels/cuda/sliced/sliced.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
enum { XOR = true };
#else
enum { XOR = false };
#endif

/* d += the counts of a & b (or a ^ b), 16 rows x 256 of K x 8 columns. */
__device__ __forceinline__ void mma_bits(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if constexpr (XOR)
        MMA("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.xor.popc",
            "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc", d, a, b0, b1);
    else
        MMA("mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc",
            "mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.and.popc", d, a, b0, b1);
}

__device__ __forceinline__ void doubled(int d[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        d[i] *= 2;
}

/* The counts of all planes of weights with four planes of activations: the product of the top ones in `top`,
 * the others in `low`. */
template <int BITS>
__device__ __forceinline__ void mma_planes(const uint32_t planes[BITS][4], const uint32_t b[4][2], int low[4],
                                           int top[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++)
        low[i] = top[i] = 0;
#pragma unroll
    for (int power = BITS - 1 + 2; power >= 0; power--) {
        if (power < BITS - 1 + 2)
            doubled(low);
#pragma unroll
        for (int i = 0; i < BITS; i++)
            if (power - i >= 0 && power - i < 3)
                mma_bits(low, planes[i], b[power - i][0], b[power - i][1]);
    }
#pragma unroll
    for (int i = BITS - 1; i >= 0; i--) {
        if (i < BITS - 1)
            doubled(top);
        mma_bits(top, planes[i], b[3][0], b[3][1]);
    }
}

template <int BITS> struct bits_way {
    enum { BITWISE = true };
    uint32_t planes[BITS][4];
    int rows[2]; /* with XOR: the sums of the chunk's codes in rows g and g + 8 */

    __device__ void prepare(const uint8_t *stage, int n_tile) {
        tile_lane<BITS> v[TILE_CHUNK];
        chunk_load<BITS>(stage, n_tile, v);
        chunk_planes<BITS>(v, planes);
        rows[0] = rows[1] = 0;
        if (XOR) {
            int d[4] = {0, 0, 0, 0};
#pragma unroll
            for (int i = BITS - 1; i >= 0; i--) {
                if (i < BITS - 1)
                    doubled(d);
                mma_bits(d, planes[i], 0, 0);
            }
            rows[0] = d[0];
            rows[1] = d[2];
        }
    }
    /* The counts of half HALF of a column's planes, 256 bytes at `column`. */
    template <int HALF> __device__ __forceinline__ void half_dots(const uint8_t *column, int d[4]) const {
        const int lane = threadIdx.x % 32;
        const uint32_t mine = bits_of_subgroup(lane / 4);
        const uint4 *from = (const uint4 *)(column + HALF * 128 + lane % 4 * 32);
        const uint4 u = from[0], v = from[1];
        const uint32_t b[4][2] = {{u.x & mine, u.y & mine},
                                  {u.z & mine, u.w & mine},
                                  {v.x & mine, v.y & mine},
                                  {v.z & mine, v.w & mine}};
        int low[4], top[4];
        mma_planes<BITS>(planes, b, low, top);
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[i] = HALF ? low[i] - 8 * top[i] : low[i] + 8 * top[i];
    }
    /* column: the planes of a chunk. */
    __device__ void dots(const uint8_t *column, const subgroup_meta m[2], bool four, int d[4]) const {
        if (four)
            half_dots<1>(column, d);
        else { /* both at a time, because an instruction waits for the one before it in its chain */
            int low[4];
            half_dots<1>(column, d);
            half_dots<0>(column, low);
#pragma unroll
            for (int i = 0; i < 4; i++)
                d[i] = 16 * d[i] + low[i];
        }
        if (XOR)
#pragma unroll
            for (int i = 0; i < 4; i++)
                d[i] = (((1 << BITS) - 1) * m[i % 2].sum - rows[i / 2] - d[i]) / 2;
    }

    /* Computes columns one after the other, with sums in shared memory. */
    struct many_sums {
        sliced_sums *all;
        __device__ void place(uint8_t *at) {
            all = (sliced_sums *)at + threadIdx.x / 32;
        }
        __device__ void clear(const linear_job &j) {
            for (int n = 0; n < j.n_col; n++)
                (*all)[n][threadIdx.x % 32] = make_float2(0.0f, 0.0f);
        }
        __device__ void chunk(const linear_job &j, const uint8_t *stage, int n_tile, const uint8_t *columns,
                              int c) {
            bits_way way;
            float2 w[4];
            const int step = column_bytes(j.k_pad);
            chunk_scales(j, stage + n_tile * BITS * 128, n_tile, w);
            way.prepare(stage, n_tile);
            for (int n = 0; n < j.n_col; n++) {
                const uint8_t *const column = columns + n * step;
                subgroup_meta m[2];
                int d[4];
                chunk_metas((const subgroup_meta *)(column + j.k_pad) + c * 8, m);
                way.dots(column + c * TILE_CHUNK_K, m, j.top < 127, d);
                float2 *const at = &(*all)[n][threadIdx.x % 32];
                float sum[2] = {at->x, at->y};
                chunk_add(j, w, d, m, n_tile, sum);
                *at = make_float2(sum[0], sum[1]);
            }
        }
        __device__ void give(const linear_job &j, float (*to)[SLICED_COLUMNS]) {
            const int lane = threadIdx.x % 32;
            for (int n = 0; n < SLICED_COLUMNS; n++) {
                const float2 own = n < j.n_col ? (*all)[n][lane] : make_float2(0.0f, 0.0f);
                float sum[2] = {own.x, own.y};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 1));
                    sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2));
                    if (lane % 4 == 0)
                        to[lane / 4 + 8 * i][n] = sum[i];
                }
            }
        }
    };
};

/* ---- launching ---- */

static const sliced_kernels by_planes = {
    {nullptr, nullptr, sliced_one<bits_way, 2>, sliced_one<bits_way, 3>, sliced_one<bits_way, 4>,
     sliced_one<bits_way, 5>, sliced_one<bits_way, 6>, sliced_one<bits_way, 7>, sliced_one<bits_way, 8>},
    {nullptr, nullptr, sliced_many<bits_way, 2>, sliced_many<bits_way, 3>, sliced_many<bits_way, 4>,
     sliced_many<bits_way, 5>, sliced_many<bits_way, 6>, sliced_many<bits_way, 7>, sliced_many<bits_way, 8>},
    true,
    true};

int bitwise_launch(const cuda_linear *a, cuda_stream s) {
    return sliced_launch(by_planes, a, s);
}

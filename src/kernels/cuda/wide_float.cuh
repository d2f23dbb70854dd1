/* wide_float.cuh - products of many rows with matrices of halves and bf16 (wide_float.cu): units of work, and
 * the copies of their operands. */
#ifndef NIB_KERNELS_CUDA_WIDE_FLOAT_CUH
#define NIB_KERNELS_CUDA_WIDE_FLOAT_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/wide.cuh"

#include <cuda.h>

enum {
    UNIT_WARPS = 8 /* warps that multiply */,
    UNIT_THREADS = 32 * UNIT_WARPS + 128,
    TOGETHER = 2,
    UNIT_OUTPUTS = 128 /* rows of weights of a block's unit, of both matrices if gated */,
    BOX_ROWS = 64 /* rows of weights of a tensor copy */,
    BOX = BOX_ROWS * TILE_K * 2 /* bytes */,
    W_STAGE = UNIT_OUTPUTS * TILE_K * 2,
    UNIT_STAGES = 8 /* at most */,
    BF16_SHIFT = 8
};

struct unit_job {
    CUtensorMap map[3];
    int first[3]; /* as in job_matrices, in blocks of outputs */
    int n[3];
    const float *bias[3];
    float *y[3];
    int64_t ldy[3];
    int n_row, n_tile;    /* rows of x; tiles of K */
    int n_unit, n_whole;  /* units of all clusters; the first n_whole have N rows, the others half as many */
    int n_across, n_half; /* units with the same outputs; units that replace a whole one */
    const uint8_t *x;     /* images */
    const float *factor;  /* [n_row], factors of the results */
    int act;
    bool gated, acts, adds;
};

/* Copies a box of a matrix, from element k of row `row` on; zeros beyond the matrix. `bar` counts the
 * bytes. */
__device__ __forceinline__ void box_copy(void *to, const CUtensorMap *map, int k, int row, uint64_t *bar) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(bar)), "r"(k), "r"(row)
        : "memory");
#endif
}
/* Results of a warp in shared memory before they are written: [RESULT_ROWS of x][16 outputs]. RESULT_LINE
 * places the lanes' elements in different banks. */
enum { RESULT_ROWS = 32, RESULT_LINE = 20, RESULT_WARP = RESULT_ROWS * RESULT_LINE };

/* The block's rings of images of N rows and of weights, and their barriers. Memory for results follows
 * them. */
template <int N> struct unit_rings {
    enum { X_STAGES = N == 256 ? 4 : 6, W_STAGES = N == 256 ? 4 : 6, X_STAGE = N * 128 };
    enum { BYTES = X_STAGES * X_STAGE + W_STAGES * W_STAGE + UNIT_WARPS * RESULT_WARP * 4 };
    uint8_t *x, *w;
    uint64_t *x_full, *x_empty, *w_full, *w_empty;
};

/* A block's part of a unit: block `tile` of outputs for the rows from `row` on. */
struct unit_place {
    int row, tile;
};
template <int N> __device__ __forceinline__ unit_place place_of(const unit_job &j, int unit) {
    const int behind = unit - j.n_whole, rank = blockIdx.z;
    const int u = behind < 0 ? unit : j.n_whole + behind / j.n_half,
              half = behind < 0 ? 0 : behind % j.n_half;
    return {behind < 0 ? u % j.n_across * N : (u % j.n_across * 2 + half) * (N / 2),
            u / j.n_across * TOGETHER + rank};
}

/* ---- feeders: one thread each ---- */

template <int N> __device__ __forceinline__ void weights_feed(const unit_job &j, const unit_rings<N> &r) {
    turn put = {0, 1};
    for (int unit = blockIdx.x; unit < j.n_unit; unit += gridDim.x) {
        const unit_place at = place_of<N>(j, unit);
        const int tile = at.tile;
        if (at.row >= j.n_row)
            continue;
        const int m = j.gated ? 0 : matrix_of(j, tile);
        const int row = j.gated ? tile * BOX_ROWS : (tile - j.first[m]) * UNIT_OUTPUTS;
        for (int i = 0; i < j.n_tile; i++) {
            uint8_t *const to = r.w + put.slot * W_STAGE;
            uint64_t *const bar = r.w_full + put.slot;
            bar_wait<false>(r.w_empty + put.slot, put.phase);
            bar_expect(bar, W_STAGE);
            box_copy(to, j.map + m, i * TILE_K, row, bar);
            box_copy(to + BOX, j.map + (j.gated ? 1 : m), i * TILE_K, j.gated ? row : row + BOX_ROWS, bar);
            put.next(unit_rings<N>::W_STAGES);
        }
    }
}

template <int N> __device__ __forceinline__ void images_feed(const unit_job &j, const unit_rings<N> &r) {
    turn put = {0, 1};
    const int all = (j.n_row + WIDE_ROWS - 1) / WIDE_ROWS, rank = blockIdx.z;
    for (int unit = blockIdx.x; unit < j.n_unit; unit += gridDim.x) {
        const int first = place_of<N>(j, unit).row / WIDE_ROWS,
                  n = min((unit < j.n_whole ? N : N / 2) / WIDE_ROWS, all - first);
        if (n <= 0)
            continue;
        const uint8_t *from = j.x + (int64_t)first * j.n_tile * WIDE_IMAGE;
        for (int i = 0; i < j.n_tile; i++, from += WIDE_IMAGE) {
            uint64_t *const bar = r.x_full + put.slot;
            bar_wait<false>(r.x_empty + put.slot, put.phase);
            bar_expect(bar, n * WIDE_IMAGE);
            for (int c = rank; c < n; c += TOGETHER)
                bulk_copy_both(r.x + put.slot * unit_rings<N>::X_STAGE + c * WIDE_IMAGE,
                               from + (int64_t)c * j.n_tile * WIDE_IMAGE, WIDE_IMAGE, bar);
            put.next(unit_rings<N>::X_STAGES);
        }
    }
}

#endif

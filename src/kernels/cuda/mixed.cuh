/* mixed.cuh - products with activations of 4 and 8 bits by block of channels: what the kernel of the rows
 * (mixed_codes.cu) and that of the products (mixed.cu) share. */
#ifndef NIB_KERNELS_CUDA_MIXED_CUH
#define NIB_KERNELS_CUDA_MIXED_CUH

#include "kernels/act8.h"
#include "kernels/cuda/matrices.cuh"
#include "kernels/cuda/mixed_units.h"

enum {
    MIXED_PANELS = 8 /* of a tile */,
    MIXED_STAGES = 3,
    MIXED_MAX_ROWS = 128 /* of a tile */,
    EIGHT_BYTES = 8 * MIXED_BLOCK /* codes of eight rows and a block, in 8 bits */
};

/* Values of a row that stay floats, in ascending order. */
struct mixed_floats {
    int n, at[ACT_OUTLIERS];
    float value[ACT_OUTLIERS];
};

struct mixed_job : job_matrices {
    mixed_shape shape; /* outputs: panels of all matrices */
    int n_part;        /* blocks of threads that share the work */
    int n_row, k, n8, n_chunk, last_tiles, chunk_bytes, group;
    int64_t panel_bytes;
    bool gated, acts, adds;
    int act;
    /* rows */
    const float *x, *norm, *shift;
    int64_t ldx;
    float eps;
    bool centred;
    /* scratch */
    uint8_t *codes; /* [eights] of n8 * EIGHT_BYTES, then half of that for each other block */
    float *scales;  /* [eights][groups][8] */
    mixed_floats *floats;
    unsigned *arrived; /* [blocks of threads]: chunks of the tile that it begins and does not end */
    float *parts;      /* [blocks of threads][chunks of a tile][tile] */
};

__host__ __device__ __forceinline__ int64_t eight_bytes(int64_t n_block, int64_t n8) {
    return (n_block + n8) * (EIGHT_BYTES / 2);
}

/* Makes the codes of a job's rows, and counts no chunks as arrived. */
int mixed_codes_launch(const mixed_job &j, cuda_stream s);

#endif

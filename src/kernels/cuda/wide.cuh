/* wide.cuh - products of many rows: what the kernels and their launcher share.
 *
 * Rows are multiplied in halves (f16) with sums in floats. Each row is scaled by a power of two to where
 * halves are exact to 11 bits; results are multiplied by its inverse. A kernel before writes rows as images:
 * 64 rows x 64 of K, 8 KiB each, as the matrix instruction reads them from shared memory, one after the other
 * along K.
 * Row r of an image is 128 bytes, whose 16-byte pieces stand at their number xor r % 8. Within 16 of K the
 * elements 4t..4t+3 stand at 2t, 2t + 8, 2t + 1, 2t + 9: so a lane's four weights of a G-tile dword are what
 * it holds of the other operand, and weights go from their packed codes to the instruction in registers.
 * For matrices of floats (wide_float.cu) K has its plain order. */
#ifndef NIB_KERNELS_CUDA_WIDE_CUH
#define NIB_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/tables.cuh"

enum {
    WIDE_ROWS = 64 /* of an image */,
    WIDE_IMAGE = WIDE_ROWS * TILE_K * 2 /* bytes */,
    WIDE_PANELS = 8 /* of a block: 4 of each of its two groups of 4 warps */
};

struct wide_job : job_matrices {
    int n_panel;           /* in all; of one matrix when gated */
    int n_row;             /* of x */
    int n_tile;            /* of K: images of a row of images */
    int n_across, n_whole; /* blocks with the same panels; blocks that are whole */
    int n_half;            /* blocks instead of one that is not: 1 where the rows end before the second */
    int n_chunk, last_tiles, chunk_bytes, last_bytes, stage_bytes, x_stages, w_stages;
    int64_t panel_bytes, tail_at;
    int scale_kind, scale_start, scale_step, group_shift, zero, act;
    bool asym, tail, gated, adds;
    uint4 table;         /* of all rows (tables.cuh) */
    const uint8_t *x;    /* images */
    const float *factor; /* [n_row], of results */
};

/* Fills what follows from the arguments. CUDA_UNSUPPORTED: not these. */
int wide_job_make(const cuda_linear *a, wide_job *j);
/* Writes the rows as images to the scratch, K in its plain order or as above, and their factors behind. */
int wide_images_launch(const cuda_linear *a, bool plain, cuda_stream s);
/* The same for the first `rows` rows: as many as there are, or zeros behind them. Other rows of the images
 * stay as they were. FEW: by a few large blocks, which leave most multiprocessors to the product behind. */
int images_launch(const cuda_linear *a, bool plain, bool few, unsigned rows, cuda_stream s);
/* Where these are: [n_row], what sums of a row are multiplied with. */
const float *wide_factors(const cuda_linear *a);
/* Defined by wide_float.cu: F16 and BF16. CUDA_UNSUPPORTED: not these, or not on this device; nothing was
 * launched then. */
int wide_float_launch(const cuda_linear *a, cuda_stream s);
/* Defined by wide_mma.cu. */
bool wide_mma_is_built(void);
int wide_mma_launch(wide_job *j, const pack_format *f, cuda_stream s);

#endif

/* wide.cuh - products of many rows: shared by the kernels and their launcher.
 *
 * Rows are multiplied as halves (f16) with sums in floats. Each row is scaled by a power of two to a range
 * where halves have 11 bits, and results are multiplied by its inverse. A separate kernel first writes the
 * rows as images: 64 rows x 64 of K, 8 KiB each, in the order in which the matrix instruction reads them from
 * shared memory, one after the other along K. Row r of an image is 128 bytes; its 16-byte piece i is at i xor
 * r % 8. Within 16 of K, elements 4t..4t+3 are at 2t, 2t + 8, 2t + 1, 2t + 9. So the four weights of a lane's
 * G-tile dword are those that the lane must hold of the other operand, and weights go from packed codes to
 * the instruction in registers. For matrices of floats (wide_float.cu) K keeps its order. */
#ifndef NIB_KERNELS_CUDA_WIDE_CUH
#define NIB_KERNELS_CUDA_WIDE_CUH

#include "kernels/cuda/tables.cuh"

enum {
    WIDE_ROWS = 64 /* rows of an image */,
    WIDE_IMAGE = WIDE_ROWS * TILE_K * 2 /* bytes */,
    WIDE_PANELS = 8 /* panels of a block: 4 for each of its two groups of 4 warps */
};

/* The rows of experts (cuda_experts): row i of the images is that of pair i of the list. */
struct wide_pairs {
    const cuda_expert_tile *tiles; /* NULL: all rows multiply the same matrices */
    const int *n, *pairs;          /* numbers of tiles, of pairs with padding; the pairs, -1: padding */
    int max_tile, max_pair, n_used;
    int64_t expert_bytes; /* from an expert's matrix to the next one's */
    int64_t part;         /* outputs of a pair, which follow each other; 0: pairs of a row do within a row */
    const float *chosen;  /* [row, ldc]: weights that results are multiplied by; NULL: none */
    int64_t ldc;
};

struct wide_job : job_matrices {
    int n_panel;           /* panels of all matrices; of one matrix if gated */
    int n_row;             /* rows of x */
    int n_tile;            /* tiles of K, which is the number of images of 64 rows */
    int n_across, n_whole; /* blocks with the same panels; blocks with all their rows */
    int n_half;            /* blocks that replace a whole one; 1 if the rows end before the second */
    int n_chunk, last_tiles, chunk_bytes, last_bytes, stage_bytes, x_stages, w_stages;
    int64_t panel_bytes, tail_at;
    int scale_kind, scale_start, scale_step, group_shift, zero, act;
    bool asym, tail, gated, acts, adds;
    uint4 table;         /* the shared table (tables.cuh) */
    const uint8_t *x;    /* images */
    const float *factor; /* [n_row], factors of the results */
    wide_pairs of;
};

/* Fills a job from the arguments. CUDA_UNSUPPORTED: the matrices are not supported. */
int wide_job_make(const cuda_linear *a, wide_job *j);
/* Writes the rows as images to the scratch, and their factors after them. plain: K keeps its order. */
int wide_images_launch(const cuda_linear *a, bool plain, cuda_stream s);
/* Writes the first `rows` rows of the images; those after the last row of x become zeros. Other rows of the
 * images are not written. few: uses a few large blocks, which leave most multiprocessors to the next
 * product. */
int images_launch(const cuda_linear *a, bool plain, bool few, unsigned rows, cuda_stream s);
/* The factors in the scratch: [n_row], the factor of each row's sums. */
const float *wide_factors(const cuda_linear *a);
/* Writes the rows of the job's pairs as images to the scratch, and their factors to j.factor. x: parts of
 * rows, if `each` pair has its own. */
int images_pairs_launch(const cuda_experts *a, const wide_job &j, cuda_stream s);
/* Defined by wide_float.cu, for F16 and BF16. CUDA_UNSUPPORTED: not for these matrices or this device;
 * nothing was launched. */
int wide_float_launch(const cuda_linear *a, cuda_stream s);
/* Defined by wide_mma.cu. */
bool wide_mma_is_built(void);
int wide_mma_launch(wide_job *j, const pack_format *f, cuda_stream s);

#endif

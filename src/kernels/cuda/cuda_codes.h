/* cuda_codes.h - what a launch leaves for the next one beside floats (cuda_kernels.h). */
#ifndef NIB_KERNELS_CUDA_CUDA_CODES_H
#define NIB_KERNELS_CUDA_CUDA_CODES_H

#include <stdint.h>

/* Quantized activations that a launch leaves, beside its floats, for the product that reads its output. A
 * launch leaves them for one row, and for as many rows as `left_rows` gives for the matrices of both
 * products. In groups of 32 it leaves the codes. A wider group mostly has outputs of several blocks, so the
 * launch leaves what the codes are computed from: the floats times the norm's weights, and the largest
 * magnitude of each 32. If each block has whole groups (`leaves_whole`), it leaves codes of wider groups
 * too. */
typedef struct cuda_codes {
    void *data; /* codes_bytes(length of a row) bytes, 256-byte aligned, zeroed once; NULL: nothing is left */
    const float *norm; /* the norm of the product that reads the codes; not written while the graph runs */
    int64_t group;     /* group of that product's activations: 32, 64 or 128 */
} cuda_codes;

#endif

/* choices.h - the kernel map's choices for the products of generated rows. */
#ifndef NIB_EXEC_CUDA_CHOICES_H
#define NIB_EXEC_CUDA_CHOICES_H

#include "exec/backend.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct cuda cuda;

/* Applies the kernel map, which is not needed afterwards. */
nib_status choices_make(cuda *c, nib_error *err);
void choices_drop(cuda *c);
/* The strategy for weight w of block b and n_col columns of activations (rows, or twice as many with 16 bits)
 * in a product of few rows; NULL: the rule decides. For several products together the first one decides. */
const cuda_strategy *choices_by(const cuda *c, int b, int w, int64_t n_col);

#endif

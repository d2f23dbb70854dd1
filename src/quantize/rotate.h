/* rotate.h - rotations that are folded into the weights (QuaRot, arXiv 2404.00456, section 4): the channels
 * of the residual stream are multiplied by an orthogonal matrix (numbers/rotation.h), and so are those of
 * each head of values. The tensors that write these channels have their rows multiplied, those that read them
 * their columns, so that the model computes the same and any program reads the file.
 *
 * A norm by the root mean square gives the same values before and after a rotation, but its weights do not:
 * they move into the columns of the products that read the norm (model/axes.h), and become 1. Where embedding
 * and output head are one tensor, the head needs a tensor of its own.
 *
 * One thread calls. */
#ifndef NIB_QUANTIZE_ROTATE_H
#define NIB_QUANTIZE_ROTATE_H

#include "model/as_gguf.h"
#include "model/axes.h"
#include "numbers/rotation.h"
#include "quantize/rows.h"

typedef struct rotated {
    const model *m; /* borrowed; NULL: nothing is rotated */
    model_axes axes;
    rotation *of; /* [axes.n]; n 0: not rotated */
    float **norm; /* [weights, as axes.of]: the values of a norm whose weights move; NULL: others */
    int n_axis;   /* axes that are rotated */
} rotated;

/* Finds what can be rotated, reads the norms, and changes the list of tensors: norms that have moved become
 * ones, and a tied head becomes a tensor. NIB_E_USAGE names what the residual stream cannot be rotated for;
 * NIB_E_IO; NIB_E_NOMEM. Call rotate_close after an error too. */
nib_status rotate_open(rotated *r, const model *m, gguf_tensors *tensors, nib_error *err);
void rotate_close(rotated *r); /* zeroed is fine */

/* Rows [first, first + n) of a tensor, which are multiplied by a rotation, in groups of as many rows as it
 * has; NULL: they stay. */
typedef struct rotated_rows {
    int64_t first, n;
    const rotation *by;
} rotated_rows;

/* What becomes of a tensor. Of a vector, the elements are columns. */
typedef struct rotated_tensor {
    const rotation *cols; /* each group of so many columns is multiplied; NULL: none. Borrowed */
    const float *times;   /* [k]: factors of the columns before that; NULL: none. Borrowed */
    rotated_rows *rows;   /* [n_rows]: all rows, in order; owned */
    int n_rows;
} rotated_tensor;
/* NIB_E_USAGE: the tensor's rows belong to weights that differ in their columns; NIB_E_NOMEM. The caller
 * frees out->rows, also after an error. */
nib_status rotate_tensor(const rotated *r, const gguf_tensor *t, rotated_tensor *out, nib_error *err);
/* Whether a tensor's values change. */
bool rotate_changes(const rotated *r, const gguf_tensor *t);
/* The largest number of values that must be converted together. */
int64_t rotate_together(const rotated *r, const gguf_tensors *tensors);

#endif

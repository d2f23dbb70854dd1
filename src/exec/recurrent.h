/* recurrent.h - an op with a recurrent state, as its kernel reads it; for back ends in host memory. */
#ifndef NIB_EXEC_RECURRENT_H
#define NIB_EXEC_RECURRENT_H

#include "kernels/kernels.h"
#include "model/program.h"

/* Rows of one sequence in the order of their positions. */
typedef struct recurrent_rows {
    const float *x, *x2, *x3; /* the op's inputs, row after row; NULL where it has none */
    float *out;               /* [n_row, o->n] */
    int64_t n_row;
    int64_t position; /* of the first row */
    bool begins;      /* it is 0 */
    float *state;     /* the sequence's */
    const float *w, *b, *skip;
} recurrent_rows;

/* The number of parts that threads may compute apart: channels, or heads. */
int64_t recurrent_n_part(const op *o);
/* Copies parts [p0, p1) of the op's state to another sequence's state. */
void recurrent_copy(const op *o, const float *from, float *to, int64_t p0, int64_t p1);
/* Computes parts [p0, p1) of all rows, and their state. */
void recurrent_run(const kernel_table *k, const op *o, const recurrent_rows *r, int64_t p0, int64_t p1);

#endif

/* row_op.h - ops on one whole row of a register. They are plain C for all back ends in host memory, because
 * they are a small part of a layer's work. A row has the same bits on every instruction set. */
#ifndef NIB_KERNELS_ROW_OP_H
#define NIB_KERNELS_ROW_OP_H

#include "kernels/kernels.h"

/* One row of each operand; NULL where the op has none. Registers have the widths that program.h says. */
typedef struct row_args {
    const float *in, *in2;
    float *out;              /* may be `in` */
    const float *w, *b, *w2; /* the op's vectors */
    int64_t position;        /* of the row in its sequence */
    int32_t token;           /* of the row, below the number of rows that a table of tokens has */
} row_args;

/* Whether row_op computes the op. */
bool row_op_is(op_kind kind);
/* Computes one row:
 *   OP_COPY, OP_SCALE_POS  as model/program.h says
 *   OP_ROUTE     kernels/route.h
 *   OP_MIX       op.u.mix says; all parts of `in` are read before one of `out` is written, column by column
 *   OP_LIKE      each of the `every` groups g of in: g * rms(in2) / sqrt(max(mean(g^2), value))
 *   OP_TIMES     in * w
 *   OP_SHARE     part i of in2, of n / k columns, times in[i]
 *   OP_SOFTPLUS  log(1 + e^in)
 *   OP_CONNECT   manifold-constrained hyper-connections (mHC; DeepSeek V4): in and out are n factors by which
 *                streams are read, n by which they are written, and [n, n] between them, or the first n only;
 *                of in * w + b (w: one number for each of the three): sigmoid + value; 2 * sigmoid; softmax
 * of each row + value, then columns and rows divided by their sums, `every` times (Sinkhorn) OP_SPARSIFY
 * max(0, in - (m + value * s)), m and s the mean and the standard deviation of the row */
void row_op(const kernel_table *t, const op *o, const row_args *a);

/* OP_ROPE of one row in place. cos_sin: of the row, as kernel_table.rope. */
void rope_row(const kernel_table *t, const op *o, const float *cos_sin, float *x);

#endif

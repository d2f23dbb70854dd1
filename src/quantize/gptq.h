/* gptq.h - GPTQ (Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after the other, and later
 * columns compensate the error of earlier ones, by X^T X of the inputs.
 *
 * Columns are in the order of falling importance (act-order), while every block of a row keeps the scales of
 * the original row, so blocks have the file format's layout. The factor is the Cholesky factor of the inverse
 * of X^T X (the paper's section 4, step 3), whose diagonal is raised by 1 % of its mean, or by more where
 * that is not enough.
 *
 * A gptq is for one matrix at a time, or for several with the same input and format. */
#ifndef NIB_QUANTIZE_GPTQ_H
#define NIB_QUANTIZE_GPTQ_H

#include "quant/encode.h"
#include "quantize/gram.h"

typedef struct gptq {
    const encode_shape *shape;
    int64_t k;
    int32_t *order; /* [k]: columns in the order of rounding */
    float *factor;  /* [k, k], row-major: factor[j, l], l > j, is how much of column order[j]'s error is taken
                       from column order[l] */
    float *columns; /* [k]: mean squares of the inputs */
    float *row;     /* [n_thread, k]: scratch */
    encode_block *blocks; /* [n_thread, k / elems]: scratch */
    uint64_t n_byte;      /* gptq_bytes */
} gptq;

/* Bytes that a gptq for rows of k takes, scratch of gptq_open included. */
uint64_t gptq_bytes(const encode_shape *s, int64_t k, int n_thread);
/* Takes X^T X from `inputs` (not diagonal), which is not needed afterwards. k is a multiple of s->elems.
 * n_thread: threads that call gptq_round. NIB_E_USAGE: no OpenBLAS or LAPACK; NIB_E_MODEL: X^T X stays
 * singular whatever is added to its diagonal; NIB_E_NOMEM. Call gptq_close after an error too. */
nib_status gptq_open(gptq *g, const encode_shape *s, const gram_site *inputs, int n_thread, nib_error *err);
void gptq_close(gptq *g); /* zeroed is fine */
/* Rounds a row x [k] to blocks in `out` (row_task.round; `by` is the gptq). x stays. Threads may call it at
 * the same time with different numbers, 0...n_thread - 1. */
void gptq_round(const void *by, int thread, float *x, void *out);

#endif

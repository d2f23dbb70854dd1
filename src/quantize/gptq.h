/* gptq.h - GPTQ (Frantar et al. 2022, arXiv 2210.17323): columns are rounded one after the other, and later
 * columns compensate the error of earlier ones, by X^T X of the inputs.
 * Columns are rounded in the order of falling importance (act-order), while every block of a row keeps the
 * scales of the original row, so blocks have the file format's layout. The diagonal of X^T X is raised by 1 %
 * of its mean, or by more if that is not enough.
 *
 * The paper takes from each later column a part of the error at once, by the Cholesky factor of the inverse
 * of X^T X. Here a column is corrected when its turn comes, by all earlier differences between weights and
 * their rounded values, which needs the Cholesky factor of X^T X itself (Chee et al. 2023, arXiv 2307.13304,
 * prove that both round alike). So nothing is inverted, and the corrections of a block of columns are one
 * matrix product.
 *
 * A gptq serves all matrices with the same input, one after the other. */
#ifndef NIB_QUANTIZE_GPTQ_H
#define NIB_QUANTIZE_GPTQ_H

#include "numbers/encode.h"
#include "quantize/gram.h"

enum { GPTQ_ROWS = 64 /* rows that are rounded together; products read the factor once for all of them */ };

typedef struct gptq {
    const gram_site *inputs; /* borrowed; NULL: closed */
    const encode_shape *shape;
    int64_t k;
    int32_t *order; /* [k]: columns in the order of rising importance; the last one is rounded first */
    float *factor;  /* [k, k], row-major, in the columns' order: factor[i, j], j > i, is the part of column
                       j's difference that column i gets. Its memory begins as [k, k] doubles */
    float *imatrix; /* [k]: mean squares of the inputs */
    float *rows;    /* [n_thread, GPTQ_ROWS, k]: scratch */
    float *sums;    /* scratch of all threads for a block of columns */
    encode_block *blocks; /* [n_thread, GPTQ_ROWS, k / 32]: scratch */
    ledger *ledger;       /* borrowed; NULL: nothing is charged */
    uint64_t charged;     /* gptq_bytes */
} gptq;

/* Bytes that a gptq for rows of k takes, those of gptq_open included. */
uint64_t gptq_bytes(int64_t k, int n_thread);
/* The factor of `inputs`, a whole X^T X (gram_complete), which stays valid until gptq_close. Charges the
 * ledger for RAM. n_thread of `threads` may then call gptq_round. NIB_E_USAGE: no OpenBLAS or LAPACK;
 * NIB_E_MODEL: X^T X stays singular whatever is added to its diagonal; NIB_E_NOFIT; NIB_E_NOMEM. Call
 * gptq_close after an error too. */
nib_status gptq_open(gptq *g, const gram_site *inputs, pool *threads, ledger *l, nib_error *err);
void gptq_close(gptq *g); /* zeroed is fine */
/* Sets the format of the next matrix, whose blocks must divide k. To be called before gptq_round. */
void gptq_set_shape(gptq *g, const encode_shape *s);
/* Rounds rows x [n, k], n <= GPTQ_ROWS, to blocks in `out` (row_task.round; `by` is the gptq). Threads may
 * call it at the same time with different numbers, 0...n_thread - 1. */
void gptq_round(const void *by, int thread, const float *x, int64_t n, void *out);

#endif

/* fit.h - finds the factors that a quantized matrix (the base) was multiplied with before it was
 * rounded. AWQ (docs/quantize.md) multiplies input channels by factors and divides the tensor that produces
 * them, a norm or the rows of another matrix: its bases are Q(row[i] * W[i, c] * column[c]). A residual is of
 * that product, so the factors must be known.
 *
 * They follow from the base and its original alone, so bases need not store them, and bases of other programs
 * have them too. A base whose norms are the original's has no factors. If a norm produces the channels, the
 * factors are the original's norm over the base's. Otherwise they are fitted: the scales of a base are those
 * that fit its codes best, so the rounding residual is, summed over many values, orthogonal to the base,
 * sum(Q * (row * W * column - Q)) = 0 for every row and every column. Rounding leaves some thousandths of
 * noise; if the factors of rows differ by no more than noise, there are none. */
#ifndef NIB_ENGINE_RESIDUAL_FIT_H
#define NIB_ENGINE_RESIDUAL_FIT_H

#include "base/thread.h"
#include "model/model.h"

/* A matrix of the original, and the quantized one. */
typedef struct residual_pair {
    const container *fine_files, *coarse_files;
    const weight *fine, *coarse; /* of one shape */
} residual_pair;

/* Reads row i of both matrices as floats [k]. raw: scratch of 8 k bytes. */
nib_status residual_read_rows(const residual_pair *p, int64_t i, uint8_t *raw, float *fine, float *coarse,
                              nib_error *err);

/* Memory for fitting matrices of up to k columns, and the result of the last fit. */
typedef struct residual_fit {
    pool *threads;
    int64_t max_k;
    bool scaled;    /* there are factors */
    bool by_row;    /* rows have factors too */
    double *column; /* [k] */
    double *sums;   /* [PARTS, 2, k] */
    float *rows;    /* [n_thread, 2, k] */
    uint8_t *raw;   /* [n_thread, 8 k] */
    nib_status *status;
    nib_error *errors; /* [n_thread] both */
} residual_fit;

uint64_t residual_fit_bytes(int n_thread, int64_t max_k); /* memory that open allocates */
nib_status residual_fit_open(residual_fit *f, pool *threads, int64_t max_k, nib_error *err);
void residual_fit_close(residual_fit *f); /* zeroed is fine */
/* Index of the norm vector that makes the input of op `linear` of a block; -1: no norm makes it. */
int residual_norm_of(const block *b, int linear);
/* Reads a vector's values to out [k]. raw: scratch of 8 k bytes. */
nib_status residual_read_vector(const container *c, const weight *w, uint8_t *raw, float *out,
                                nib_error *err);
/* Sets "no factors" for residual_fit_row. */
void residual_fit_none(residual_fit *f);
/* Finds the factors of one matrix; the result does not depend on the number of threads. norms: [2, k], the
 * weights of the norm that produces its input, in the original and in the base; NULL: no norm produces it. */
nib_status residual_fit_find(residual_fit *f, const residual_pair *p, const float *norms, nib_error *err);
/* Multiplies row `fine` of the original with the factors, so that it becomes the row that `coarse` was
 * rounded from. */
void residual_fit_row(const residual_fit *f, float *fine, const float *coarse, int64_t k);

#endif

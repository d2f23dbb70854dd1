/* lapack.h - the matrix products and factorisation that GPTQ needs, by OpenBLAS or LAPACK, loaded on first
 * use. Call lapack_check first; the others need it.
 *
 * A matrix is cut into tiles of fixed sizes, and the threads of a pool compute each tile by one call of the
 * library, which itself has one thread. So bits depend on the library and the processor, not on the number of
 * threads, and the reference LAPACK uses all threads too. */
#ifndef NIB_QUANTIZE_LAPACK_H
#define NIB_QUANTIZE_LAPACK_H

#include "base/status.h"
#include "base/thread.h"

/* Loads the library, once for the process. NIB_E_USAGE: neither is installed; the message names a package.
 * If OpenBLAS does not know the processor's model, it is loaded with other kernels than it would choose; the
 * environment has OPENBLAS_CORETYPE meanwhile. */
nib_status lapack_check(nib_error *err);
const char *lapack_note(void); /* a line for the log if other kernels were chosen; otherwise "" */
bool lapack_is_slow(void);     /* the library is the reference LAPACK, whose kernels are plain loops */

/* Cholesky in double. a [n, n]: in, a symmetric positive definite matrix, of which the lower triangle in
 * column-major order is read; out, in its place, L with a = L L^T. The other triangle is overwritten. False:
 * a is not positive definite, and its content is lost. */
bool lapack_cholesky(double *a, int64_t n, pool *threads);
/* c [n, n] += x^T x of x [n_row, n] row-major; lower triangle of c in column-major order. The other triangle
 * is overwritten near the diagonal. */
void lapack_add_squares(float *c, const float *x, int64_t n, int64_t n_row, pool *threads);
/* out[j, i] = dot(x[i], y[j]) for i < n_x, j < n_y, over k values. Rows of x and y are `stride` values apart,
 * those of `out` n_out >= n_x. Uses the calling thread only. */
void lapack_dots(float *out, int64_t n_out, const float *x, int64_t n_x, const float *y, int64_t n_y,
                 int64_t k, int64_t stride);

#endif

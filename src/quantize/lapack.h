/* lapack.h - the two factorisations that GPTQ needs, by OpenBLAS or LAPACK, loaded on first use.
 * Column-major, lower triangles, in double. Call lapack_check first; the others need it. */
#ifndef NIB_QUANTIZE_LAPACK_H
#define NIB_QUANTIZE_LAPACK_H

#include "base/status.h"

/* Loads the library, once for the process. NIB_E_USAGE: neither is installed; the message names a package. */
nib_status lapack_check(nib_error *err);
bool lapack_is_slow(void);      /* the library is the reference LAPACK, which has one thread */
void lapack_use_threads(int n); /* threads of the library's own; without effect where it has none */
/* a [n, n]: in, a symmetric positive definite matrix, of which the lower triangle is read; out, in the lower
 * triangle, L with inverse(a) = L L^T. False: a is not positive definite, and its content is lost. */
bool lapack_inverse_factor(double *a, int n);
/* c [n, n] += x^T x of x [rows, n] row-major, lower triangle of c in column-major order. False: the library
 * has no such product, and c is unchanged. */
bool lapack_add_squares(float *c, const float *x, int n, int rows);

#endif

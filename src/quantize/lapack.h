/* lapack.h - the two factorisations that GPTQ needs, by OpenBLAS or LAPACK, loaded on first use.
 * Column-major, lower triangles, in double. */
#ifndef NIB_QUANTIZE_LAPACK_H
#define NIB_QUANTIZE_LAPACK_H

#include "base/status.h"

/* NIB_E_USAGE: neither library is there; the message says which package has it. */
nib_status lapack_check(nib_error *err);
bool lapack_is_slow(void);      /* after lapack_check: it is the reference library, on one thread */
void lapack_use_threads(int n); /* of the library's own, where it has them */
/* a [n, n], symmetric and positive definite, whose lower triangle counts: becomes L with
 * inverse(a) = L L^T in its lower triangle. False: it is not positive definite. */
bool lapack_inverse_factor(double *a, int n);
/* c [n, n] += x^T x of x [rows, n] row-major, lower triangle of c in column-major order. False: the library
 * has no such product, and nothing is done. */
bool lapack_add_squares(float *c, const float *x, int n, int rows);

#endif

/* rotation.h - an orthogonal matrix for any number of channels, for rotations that are folded into weights.
 *
 * The matrix is H D / sqrt(n): D has a random sign for each channel, always the same for one n, and H is a
 * Hadamard matrix, so that each new channel is a sum of all old ones with the same magnitude (QuaRot, arXiv
 * 2404.00456, section 4). H is the Kronecker product of a matrix of order m and the Walsh-Hadamard matrix of
 * a power of two. m is the smallest order for which Paley's constructions by a prime give a matrix (Paley
 * 1933): 36 for 576 = 36 * 16, 20 for 640, 12 for 1,536. If there is none, H has blocks of the largest power
 * of two that divides n.
 *
 * Pure after rotation_open: threads may apply one at the same time. */
#ifndef NIB_NUMBERS_ROTATION_H
#define NIB_NUMBERS_ROTATION_H

#include "base/status.h"

#include <stdint.h>

typedef struct rotation {
    int64_t n;     /* channels; 0: none */
    int64_t m;     /* order of the first factor; 1: none */
    int64_t step;  /* order of the second, a power of two; m * step divides n */
    int8_t *first; /* [m, m]: 1 and -1; NULL if m is 1 */
    float *sign;   /* [n]: 1 and -1, divided by the square root of m * step */
} rotation;

/* n > 0. NIB_E_NOMEM. */
nib_status rotation_open(rotation *r, int64_t n, nib_error *err);
void rotation_close(rotation *r); /* zeroed is fine */
/* Multiplies the matrix by x [n, width], in place. scratch: [n, width]. */
void rotation_apply(const rotation *r, float *x, int64_t width, float *scratch);

#endif

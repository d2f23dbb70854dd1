/* encode_kernels.h - the inner loops of the searches of encode_search.c, by instruction set (pack_isa.h).
 *
 * All sums are kept by 8 lanes, value i in lane i % 8, and the lanes are added in one order: pairs, pairs of
 * pairs, halves. So every machine gives the same bits. encode_kernels_plain is the reference. Pure: threads
 * may call at the same time. */
#ifndef NIB_NUMBERS_ENCODE_KERNELS_H
#define NIB_NUMBERS_ENCODE_KERNELS_H

#include <stdint.h>

/* A group of n finite values and the weights of their squared errors. */
typedef struct encode_group {
    const float *x, *weight; /* [n], aligned to 32 bytes */
    int n;                   /* a multiple of 8; 32 with a table */
    float low, high;         /* the smallest and the largest level; with a table -128 and 127 */
    const int8_t *table;     /* [16] ascending values of the levels, iq4_values; NULL: levels are values */
} encode_group;

/* Sums over a group, where q is the value that is nearest to (x - min) * inverse: of weight * q, weight * q^2
 * and weight * q * (x - min). */
typedef struct encode_sums {
    float wq, wqq, wqx;
} encode_sums;

/* With a table, sums and errors round to integers before they look for the nearest entry: where two entries
 * are about as near, they may take the other one. */
typedef struct encode_kernels {
    /* The sums of each of n_try values of `inverse`. */
    void (*sums)(const encode_group *g, const float *inverse, float min, int n_try, encode_sums *out);
    /* The weighted squared error of each of n_try pairs of scale and minimum; scale 0: of the minimum alone.
     */
    void (*errors)(const encode_group *g, const float *scale, const float *min, int n_try, float *out);
    /* The level whose entry of the table is nearest to x / scale, for each value; scale is not 0. Values half
     * way between two entries get the lower one. */
    void (*entries)(const encode_group *g, float scale, int8_t *level);
} encode_kernels;

extern const encode_kernels encode_kernels_plain;

#endif

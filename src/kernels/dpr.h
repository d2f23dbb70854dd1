/* dpr.h - decomposition, partial products, reconstruction (DPR; ADAngel, section 4.2), as data.
 *
 * A code of b bits is partitioned into slices, the lowest first: code = sum of slice(i) * 2^shift(i), where
 * shift(i) is the sum of the widths below it. Slices are unsigned, except that the top slice of a signed code
 * (two's complement) is signed. So signs are exact, and weights stay unsigned: their zero point is subtracted
 * with the sum of the activations. A product of codes is the sum over pairs of slices of their product *
 * 2^(shift + shift). A scheme names the partition of both operands and the hardware unit that multiplies the
 * slices; each slice is promoted to the unit's width. Padding, Split and Bitwise are schemes. A strategy
 * (strategy.h) is a scheme with the kernel that computes it. */
#ifndef NIB_KERNELS_DPR_H
#define NIB_KERNELS_DPR_H

#include "kernels/strategy.h"

enum { DPR_MAX_BITS = 16, DPR_MAX_UNIT = 16 };

typedef struct dpr_partition {
    uint8_t n;
    uint8_t width[DPR_MAX_BITS]; /* the lowest slice first */
} dpr_partition;

/* A hardware unit. It multiplies unsigned weights of up to w_bits with signed activations of up to a_bits and
 * sums the products exactly. */
typedef struct dpr_unit {
    uint8_t w_bits, a_bits;
    const char *isa, *name;
    double rate; /* products of slices a second and core; 0: not measured */
} dpr_unit;

typedef struct dpr_scheme {
    dpr_partition w, a;
    const dpr_unit *unit;
} dpr_scheme;

/* Finds the schemes for weights of w bits and activations of a bits on these units. Every partition of both
 * is promoted to the narrowest unit that holds its slices. A partition is dropped if fewer slices would do on
 * that unit, or if a more even partition has as many slices. So each unit that any partition is promoted to
 * has one scheme. Returns the number of schemes; at most `max` are written to out. */
int dpr_schemes(int w, int a, const dpr_unit *units, int n_unit, dpr_scheme *out, int max);
/* "padding", "split" or "bitwise". */
const char *dpr_family(const dpr_scheme *s);

/* A unit that a folder of kernels offers for measurement. `run` executes `rounds` rounds of one instruction
 * sequence on registers and returns the number of products of slices. A list ends with a row without
 * `run`. */
typedef struct dpr_probe {
    const char *name;
    uint8_t w_bits, a_bits;
    int64_t (*run)(int64_t rounds, int32_t *sink);
} dpr_probe;
/* Measures the units of this machine, a few ms of processor time each on the calling thread. Writes at most
 * `max` units with their rates and returns how many. Units of folders that cannot run here are left out. */
int dpr_measure(dpr_unit *out, int max);

/* A lower bound of the seconds that one multiply-add of w x a bits takes on one core: the smallest ratio of
 * products of slices to the unit's rate, among the schemes of a family ("padding", "split", "bitwise") on the
 * units of one folder. 0: no measured unit of the folder has a scheme of that family, so nothing is known. */
double dpr_floor(const dpr_unit *units, int n_unit, const char *isa, const char *family, int w, int a);

#endif

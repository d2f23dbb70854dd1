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

/* Something that multiplies: unsigned weights of up to w_bits with signed activations of up to a_bits, summed
 * exactly. */
typedef struct dpr_unit {
    uint8_t w_bits, a_bits;
    const char *isa, *name;
    double rate; /* products of slices a second and core; 0: not measured */
} dpr_unit;

typedef struct dpr_scheme {
    dpr_partition w, a;
    const dpr_unit *unit;
} dpr_scheme;

int dpr_bits(const dpr_partition *p); /* of the whole code */
/* Slice i of a code. is_signed: the code is two's complement. */
int32_t dpr_slice(const dpr_partition *p, bool is_signed, int32_t code, int i);
/* partial[s * a.n + t]: (slice s of w) . (slice t of a), summed over K. Exact while the result fits. */
int64_t dpr_reconstruct(const dpr_scheme *s, const int64_t *partial);

/* Schemes for weights of w bits and activations of a bits on these units: every partition of both is promoted
 * to the unit with the narrowest slices that holds them, and dropped when fewer slices would do on that unit
 * (some slice is promoted beyond its width without need) or when an evener partition has as many. So one is
 * left for each unit that any partition leads to. Returns how many; at most `max` are written to out. */
int dpr_schemes(int w, int a, const dpr_unit *units, int n_unit, dpr_scheme *out, int max);
/* "padding", "split" or "bitwise". */
const char *dpr_family(const dpr_scheme *s);

/* What the folders of kernels offer to be measured: each runs `rounds` rounds of one instruction sequence on
 * registers and returns how many products of slices that were. A list ends with a row without run. */
typedef struct dpr_probe {
    const char *name;
    uint8_t w_bits, a_bits;
    int64_t (*run)(int64_t rounds, int32_t *sink);
} dpr_probe;
/* The units of this machine and their rates, measured (a few ms each, processor time of the calling thread).
 * Returns how many; at most `max`. Units of folders that cannot run here are left out. */
int dpr_measure(dpr_unit *out, int max);

/* Seconds of one multiply-add with w x a bits on one core, at the least: of the schemes of that family
 * ("padding", "split", "bitwise") on the units of one folder, the one with the fewest products of slices for
 * its unit's rate. 0: none of the folder's measured units leads to the family, so nothing is known. */
double dpr_floor(const dpr_unit *units, int n_unit, const char *isa, const char *family, int w, int a);

#endif

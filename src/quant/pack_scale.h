/* pack_scale.h - the scale of a symmetric group of a uniform format. */
#ifndef NIB_QUANT_PACK_SCALE_H
#define NIB_QUANT_PACK_SCALE_H

#include <stdint.h>

enum { PACK_SCALE_MOST = 128 }; /* values of a group, at most */

/* A half that gives the n finite values of a group a small squared error when they are rounded to codes
 * -zero...zero - 1 times it, each weighted by the group's root mean square plus its own magnitude: the best
 * of a few, `plain` among them, so never worse than that. peak: the value of the largest magnitude. The same
 * on every machine. */
uint16_t pack_scale_search(const float *x, int n, int zero, float peak, uint16_t plain);

#endif

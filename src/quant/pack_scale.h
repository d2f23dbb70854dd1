/* pack_scale.h - the scale, and the minimum, of a group of a uniform format. The same on every machine. */
#ifndef NIB_QUANT_PACK_SCALE_H
#define NIB_QUANT_PACK_SCALE_H

#include <stdint.h>

enum { MAX_PACK_SCALE = 128 }; /* values of a group, at most */

/* n finite values of a group. An error in one counts by the group's root mean square plus its own magnitude,
 * times how much its column matters. */
typedef struct pack_values {
    const float *x, *column; /* [n]; column NULL: all matter the same */
    int n;
} pack_values;

/* A half that gives the values a small error when they are rounded to codes -zero...zero - 1 times it: the
 * best of a few, `plain` among them, so never worse than that. peak: the value of the largest magnitude. */
uint16_t pack_scale_search(const pack_values *v, int zero, float peak, uint16_t plain);

/* The same for codes 0...max times a scale, plus a minimum: *scale and *min, halves which reach from the
 * smallest value (low) to the largest, become what errs less, if that is found. */
void pack_scale_search_line(const pack_values *v, int max, float low, float high, uint16_t *scale,
                            uint16_t *min);

#endif

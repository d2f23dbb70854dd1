/* pack_scale.h - searches the scale, and the minimum, of a group of a uniform format. All functions are pure
 * and give the same result on every machine. */
#ifndef NIB_NUMBERS_PACK_SCALE_H
#define NIB_NUMBERS_PACK_SCALE_H

#include <stdint.h>

enum { MAX_PACK_SCALE = 128 }; /* maximum number of values in a group */

/* n finite values of a group. The squared error of a value is weighted by the group's root mean square plus
 * the value's own magnitude, times the importance of its column. */
typedef struct pack_values {
    const float *x, *column; /* [n]; column: importance, 0 or more; NULL: all the same */
    int n;
} pack_values;

/* The scale, a half, with the smallest error of a few candidates, when values are rounded to -zero...zero - 1
 * times it. `plain` (a half) is one of the candidates, so the result is never worse. peak: the value of the
 * largest magnitude. */
uint16_t pack_scale_search(const pack_values *v, int zero, float peak, uint16_t plain);

/* The same for codes 0...max times a scale, plus a minimum. In: *scale and *min, halves that cover the values
 * from low to high. Out: the pair with the smallest error of those tried, the given one included. */
void pack_scale_search_line(const pack_values *v, int max, float low, float high, uint16_t *scale,
                            uint16_t *min);

#endif

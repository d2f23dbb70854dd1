/* grids.h - the grids of the IQ types, which are constants of the GGUF format. An entry has the magnitudes of
 * 8 weights in 2 bits each (IQ1: their values plus one), or those of 4 weights in 4 bits each (IQ3); the
 * first weight's in the lowest bits. A magnitude is its index among the values of numbers/types/iq.c in
 * ascending order. */
#ifndef NIB_NUMBERS_GRIDS_H
#define NIB_NUMBERS_GRIDS_H

#include <stdint.h>

extern const uint16_t grid_iq2_xxs[256], grid_iq2_xs[512], grid_iq2_s[1024], grid_iq1[2048];
extern const uint16_t grid_iq3_xxs[256], grid_iq3_s[512];

#endif

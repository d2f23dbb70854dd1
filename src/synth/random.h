/* random.h - the random numbers of synthetic weights: the same on every machine. */
#ifndef NIB_SYNTH_RANDOM_H
#define NIB_SYNTH_RANDOM_H

#include <stdint.h>

typedef struct synth_random {
    uint64_t s[4]; /* xoshiro256+ */
} synth_random;

void synth_random_seed(synth_random *r, uint64_t seed);
uint64_t synth_random_next(synth_random *r);
uint64_t synth_random_mix(uint64_t x);       /* a hash of x */
double synth_random_normal(synth_random *r); /* about normal, with mean 0 and variance 1 */

#endif

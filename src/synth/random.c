/* random.c - see random.h. */
#include "synth/random.h"

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

uint64_t synth_random_mix(uint64_t x) { /* splitmix64 */
    uint64_t z = x + GOLDEN;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void synth_random_seed(synth_random *r, uint64_t seed) {
    for (int i = 0; i < 4; i++, seed += GOLDEN)
        r->s[i] = synth_random_mix(seed);
}

uint64_t synth_random_next(synth_random *r) {
    uint64_t *s = r->s;
    const uint64_t result = s[0] + s[3], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

double synth_random_normal(synth_random *r) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(synth_random_next(r) >> 11) / (double)(UINT64_C(1) << 53);
    return sum;
}

/* half.c - a float as an IEEE half, exact for every bit pattern. */
#include "numbers/types.h"

#include <string.h>

static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

uint16_t half_from_float(float f) {
    const uint32_t u = bits_of(f);
    const uint16_t sign = (uint16_t)(u >> 16 & 0x8000u);
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude >=
        0x38800000u) { /* normal: add half a unit, and less by one bit if the kept part is even */
        const uint32_t rounded = magnitude + 0x0fffu + (magnitude >> 13 & 1u);
        return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
    }
    /* Subnormal: adding 0.5 makes the float unit round to a multiple of 2^-24 (ties to even), which is then
     * in the lowest bits. */
    return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
}

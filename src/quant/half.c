/* half.c - IEEE half, one value at a time, exact for every bit pattern. */
#include "quant/types.h"

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

float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) /* infinity, or a NaN, which becomes quiet and keeps its payload */
        return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 |
                        (magnitude > 0x7c00u ? 0x400000u : 0));
    if (magnitude >= 0x0400u) /* normal: the exponent's bias goes from 15 to 127 */
        return float_of(sign | ((magnitude << 13) + (112u << 23)));
    /* subnormal or zero: a multiple of 2^-24, which a float holds exactly */
    return float_of(sign | bits_of((float)magnitude * 0x1p-24f));
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

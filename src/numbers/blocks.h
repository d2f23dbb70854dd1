/* blocks.h - blocks in a file, byte by byte, that more than one source reads: the file of the format, packers
 * with instruction sets, encoders. The others are in the files of their formats (numbers/types/).
 *
 * All members are bytes, so a block may start anywhere in memory and the structs have no padding. f16 members
 * are little-endian; read them with block_half(). The layouts are those of the GGUF format. */
#ifndef NIB_NUMBERS_BLOCKS_H
#define NIB_NUMBERS_BLOCKS_H

#include "numbers/types.h"

/* A little-endian u16 at any address, and an f16 as a float. */
static inline uint16_t block_u16(const uint8_t *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline float block_half(const uint8_t *p) {
    return half_to_float(block_u16(p));
}

/* 32 elements; element i is the low nibble of qs[i], element 16 + i the high one; qh has the fifth bits. */
typedef struct block_q4_0 {
    uint8_t d[2], qs[16];
} block_q4_0;
typedef struct block_q4_1 {
    uint8_t d[2], m[2], qs[16];
} block_q4_1;
typedef struct block_q5_0 {
    uint8_t d[2], qh[4], qs[16];
} block_q5_0;
typedef struct block_q5_1 {
    uint8_t d[2], m[2], qh[4], qs[16];
} block_q5_1;
typedef struct block_q8_0 {
    uint8_t d[2];
    int8_t qs[32];
} block_q8_0;
typedef struct block_mxfp4 {
    uint8_t e, qs[16]; /* e: the exponent of the scale, biased by 127 */
} block_mxfp4;

/* 64 elements in groups of 16, codes of e2m1 in the order of block_q4_0 in each group. A group's scale is an
 * f8_e4m3 without sign (e: 4 bits, m: 3). */
typedef struct block_nvfp4 {
    uint8_t scale[4], qs[4][8];
} block_nvfp4;

/* 64 elements of f8_e4m3, times one float. Not NaN: the code 0x7f counts as 480. */
typedef struct block_f8g64 {
    uint8_t scale[4], codes[64];
} block_f8g64;
/* 64 elements of e2m1: those of the first 32 in qs[0], element i with element i + 16 in a byte. A group of 16
 * is multiplied by its scale, an f8_e4m3 without sign and NaN, times half a float: w = whole * scale *
 * doubled e2m1. */
typedef struct block_f4g64 {
    uint8_t whole[4], scale[4], qs[2][16];
} block_f4g64;

/* 32, 64 or 128 elements, d * (code - zero); zero is at most 16, and the codes of each 32 are as in
 * block_q4_0. */
typedef struct block_n4 {
    uint8_t d[2], zero, qs[];
} block_n4;
enum { N4_ZERO_MAX = 16 };
/* The block's zero point; a larger one, in a damaged file, counts as N4_ZERO_MAX. */
static inline uint8_t block_n4_zero(const block_n4 *b) {
    return b->zero < N4_ZERO_MAX ? b->zero : N4_ZERO_MAX;
}

/* 64 or 128 elements, d * (code - 8), the codes of each 32 as in block_q4_0. */
typedef struct block_s4 {
    uint8_t d[2], qs[];
} block_s4;

/* Rows with a codebook: an f16 scale and 8 or 16 signed bytes, then blocks of codes in the order of
 * block_n3g64 and block_q4_0. An element is the scale times the byte that its code selects. */
typedef struct block_c3 {
    uint8_t qs[16], qh[8];
} block_c3;
typedef struct block_c4 {
    uint8_t qs[16];
} block_c4;
/* Follows the blocks of a row with outliers: a bf16 that is added to the value of a column. An outlier whose
 * column is beyond the row is ignored. */
typedef struct block_outlier {
    uint8_t column[2], value[2];
} block_outlier;

/* 256 elements in groups of 16 (q2, q3, q6) or 32 (q4, q5, iq4), the groups' scales quantized as well. */
typedef struct block_q2_k {
    uint8_t scales[16], qs[64], d[2], dmin[2]; /* scales: 4 bits scale, 4 bits minimum */
} block_q2_k;
typedef struct block_q3_k {
    uint8_t hmask[32], qs[64], scales[12], d[2]; /* scales: 16 of 6 bits */
} block_q3_k;
typedef struct block_q4_k {
    uint8_t d[2], dmin[2], scales[12], qs[128]; /* scales: 8 scales and 8 minima of 6 bits */
} block_q4_k;
typedef struct block_q5_k {
    uint8_t d[2], dmin[2], scales[12], qh[32], qs[128];
} block_q5_k;
typedef struct block_q6_k {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint8_t d[2];
} block_q6_k;
typedef struct block_iq4_xs {
    uint8_t d[2], scales_h[2], scales_l[4], qs[128]; /* 8 scales of 6 bits, 32 is zero */
} block_iq4_xs;

extern const int8_t iq4_values[16];  /* IQ4_NL, IQ4_XS */
extern const int8_t e2m1_values[16]; /* doubled */

/* Unpacks the sixteen 6-bit scales of Q3_K, -32...31. */
void block_q3_k_scales(const uint8_t packed[12], int8_t scale[16]);
/* Unpacks the eight 6-bit scales of IQ4_XS, -32...31. */
void block_iq4_xs_scales(const block_iq4_xs *b, int8_t scale[8]);
static inline float block_float(const uint8_t p[4]) {
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}
/* f8_e4m3 without sign: the exponent's bias goes from 7 to 127 by a product, exact for subnormal values too.
 */
static inline float block_e4m3(uint8_t magnitude) {
    const uint32_t bits = (uint32_t)magnitude << 20;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f * 0x1p120f;
}
/* MXFP4's scale for doubled values: 2^(e - 128), exact down to the subnormal ones. */
float block_mxfp4_scale(uint8_t e);

#endif

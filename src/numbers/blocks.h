/* blocks.h - the layout of the quantized types in a file, byte by byte, and the two 16-entry tables.
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
typedef block_q4_0 block_iq4_nl;
typedef struct block_mxfp4 {
    uint8_t e, qs[16]; /* e: the exponent of the scale, biased by 127 */
} block_mxfp4;

/* 64 elements in groups of 16, codes of e2m1 in the order of block_q4_0 in each group. A group's scale is an
 * f8_e4m3 without sign (e: 4 bits, m: 3). */
typedef struct block_nvfp4 {
    uint8_t scale[4], qs[4][8];
} block_nvfp4;

/* 64 elements, scale and minimum; qs: two bits of element i + 16 j at bits 2 j of qs[i]; qh: third bits. */
typedef struct block_n2g64 {
    uint8_t d[2], m[2], qs[16];
} block_n2g64;
typedef struct block_n3g64 {
    uint8_t d[2], m[2], qs[16], qh[8];
} block_n3g64;

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

/* 256 values -1, 0 or 1 and one scale. tq1: five of them are the digits of a byte in base 3, the last 16 four
 * to a byte; tq2: two bits of element 128 c + 32 s + l at bits 2 s of qs[32 c + l]. */
typedef struct block_tq1_0 {
    uint8_t qs[48], qh[4], d[2];
} block_tq1_0;
typedef struct block_tq2_0 {
    uint8_t qs[64], d[2];
} block_tq2_0;

extern const int8_t iq4_values[16];   /* IQ4_NL, IQ4_XS */
extern const int8_t mxfp4_values[16]; /* e2m1, doubled */

/* The 256 values of a block of TQ1_0 plus one: 0...2. */
void block_tq1_0_codes(const block_tq1_0 *b, uint8_t *codes);
/* Unpacks the eight 6-bit scales and minima of Q4_K and Q5_K, each 0...63. */
void block_k_scales(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8]);
/* Unpacks the sixteen 6-bit scales of Q3_K, -32...31. */
void block_q3_k_scales(const uint8_t packed[12], int8_t scale[16]);
/* Unpacks the eight 6-bit scales of IQ4_XS, -32...31. */
void block_iq4_xs_scales(const block_iq4_xs *b, int8_t scale[8]);
/* NVFP4's scale for the doubled code book, a half: m * 2^-10 or (8 + m) * 2^(e - 11); NaN counts as 0. */
uint16_t block_nvfp4_scale(uint8_t scale);
/* MXFP4's scale for the doubled code book: 2^(e - 128), exact down to the subnormal ones. */
float block_mxfp4_scale(uint8_t e);

#endif

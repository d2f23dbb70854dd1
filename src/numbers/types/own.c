/* own.c - N2G64, N3G64 and N4G32 to N4G128, nibble's own, with numbers in GGUF that no other program uses:
 * fewer than 4 bits for rows that are no multiple of 256, and 4 bits with an integer zero point as in AWQ and
 * GPTQ checkpoints. S4G64 and S4G128 hold matrices of folders without zero points; no file has them. */
#include "numbers/types/type.h"

#include <stddef.h>

/* 64 elements, scale and minimum; qs: two bits of element i + 16 j at bits 2 j of qs[i]; qh: third bits. */
typedef struct block_n2g64 {
    uint8_t d[2], m[2], qs[16];
} block_n2g64;
typedef struct block_n3g64 {
    uint8_t d[2], m[2], qs[16], qh[8];
} block_n3g64;

static void dequantize_n2g64(const void *blocks, float *out, int64_t n) {
    const block_n2g64 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 64; j++)
            out[j] = d * (float)(b->qs[j % 16] >> j / 16 * 2 & 3) + m;
    }
}

static void dequantize_n3g64(const void *blocks, float *out, int64_t n) {
    const block_n3g64 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 64; j++)
            out[j] = d * (float)((b->qs[j % 16] >> j / 16 * 2 & 3) | (b->qh[j / 8] >> j % 8 & 1) << 2) + m;
    }
}

/* A group's scale times a code, and times its zero, are exact, and their sum is exact too. */
static void dequantize_n4(const void *blocks, float *out, int64_t n, int group) {
    const uint8_t *at = blocks;
    for (int64_t i = 0; i < n; i += group, at += offsetof(block_n4, qs) + (size_t)group / 2) {
        const block_n4 *b = (const void *)at;
        const float d = block_half(b->d), m = 0 - d * (float)block_n4_zero(b);
        for (int j = 0; j < group; j++, out++)
            *out = d * (float)(b->qs[j / 32 * 16 + j % 16] >> j % 32 / 16 * 4 & 15) + m;
    }
}

static void dequantize_s4(const void *blocks, float *out, int64_t n, int group) {
    const uint8_t *at = blocks;
    for (int64_t i = 0; i < n; i += group, at += offsetof(block_s4, qs) + (size_t)group / 2) {
        const block_s4 *b = (const void *)at;
        const float d = block_half(b->d);
        for (int j = 0; j < group; j++, out++)
            *out = d * (float)((b->qs[j / 32 * 16 + j % 16] >> j % 32 / 16 * 4 & 15) - 8);
    }
}

static void read_n2g64(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_n2g64 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        two_bits_64(b[i].qs, codes + 64 * i);
    }
}

static void read_n3g64(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_n3g64 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        two_bits_64(b[i].qs, codes + 64 * i);
        for (int j = 0; j < 64; j++)
            codes[64 * i + j] |= (uint8_t)((b[i].qh[j / 8] >> j % 8 & 1) << 2);
    }
}

/* Writes the scales in the form of PACK_SCALE_ZERO. */
static void read_n4(const void *blocks, int n, uint8_t *codes, const pack_sink *s, int group) {
    const uint8_t *at = blocks;
    for (int i = 0; i < n; i++, at += offsetof(block_n4, qs) + (size_t)group / 2) {
        const block_n4 *b = (const void *)at;
        s->wide[i * 3 * PACK_PANEL / 2] = block_u16(b->d);
        s->narrow[i * 3 * PACK_PANEL + 2 * PACK_PANEL] = block_n4_zero(b);
        for (int j = 0; j < group; j += 32)
            nibbles_32(b->qs + j / 2, codes + i * group + j);
    }
}

/* qs: where the codes of a block begin, behind its scale. */
static inline void read_wide(const uint8_t *at, int n, uint8_t *codes, const pack_sink *s, int group,
                             int qs) {
    for (int i = 0; i < n; i++, at += qs + group / 2) {
        s->wide[i * s->step] = block_u16(at);
        for (int j = 0; j < group; j += 32)
            nibbles_32(at + qs + j / 2, codes + i * group + j);
    }
}

/* Codes minus their zero points, plus 16. */
static void read_n4_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s, int group) {
    const uint8_t *at = blocks;
    read_wide(at, n, codes, s, group, offsetof(block_n4, qs));
    for (int i = 0; i < n; i++, at += offsetof(block_n4, qs) + (size_t)group / 2)
        for (int j = 0; j < group; j++)
            codes[i * group + j] = (uint8_t)(codes[i * group + j] + 16 - block_n4_zero((const void *)at));
}

static void put_n2g64(const encode_block *b, const uint8_t *q, void *block) {
    block_n2g64 *to = block;
    put_u16(to->d, b->d);
    put_u16(to->m, b->dmin);
    for (int l = 0; l < 16; l++)
        to->qs[l] =
            (uint8_t)((q[l] & 3) | (q[l + 16] & 3) << 2 | (q[l + 32] & 3) << 4 | (q[l + 48] & 3) << 6);
}

/* Two bits as in N2G64, then the third ones. */
static void put_n3g64(const encode_block *b, const uint8_t *q, void *block) {
    block_n3g64 *to = block;
    put_n2g64(b, q, block);
    memset(to->qh, 0, sizeof to->qh);
    for (int i = 0; i < 64; i++)
        to->qh[i / 8] |= (uint8_t)(q[i] >> 2 << i % 8);
}

static void put_n4(const encode_block *b, const uint8_t *q, block_n4 *to, int group) {
    put_u16(to->d, b->d);
    to->zero = (uint8_t)b->dmin;
    for (int i = 0; i < group; i += 32)
        put_nibbles(to->qs + i / 2, q + i, 16);
}

const type_info type_N2G64 = {BLOCKS("n2g64", 64, sizeof(block_n2g64), 1002), .dequantize = dequantize_n2g64,
                              .pack = READER(read_n2g64, .bits = 2, .group = 64, .asym = true),
                              .shape = SHAPE(N2G64, put_n2g64, 64, 64, 0, 3, .asym = true)};
const type_info type_N3G64 = {BLOCKS("n3g64", 64, sizeof(block_n3g64), 1003), .dequantize = dequantize_n3g64,
                              .pack = READER(read_n3g64, .bits = 3, .group = 64, .asym = true),
                              .shape = SHAPE(N3G64, put_n3g64, 64, 64, 0, 7, .asym = true)};

#define N4(id, name, group_, number)                                                                         \
    static void dequantize_##name(const void *blocks, float *out, int64_t n) {                               \
        dequantize_n4(blocks, out, n, group_);                                                               \
    }                                                                                                        \
    static void read_##name(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {                 \
        read_n4(blocks, n, codes, s, group_);                                                                \
    }                                                                                                        \
    static void read_##name##_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {          \
        read_n4_wide(blocks, n, codes, s, group_);                                                           \
    }                                                                                                        \
    static void put_##name(const encode_block *b, const uint8_t *q, void *block) {                           \
        put_n4(b, q, block, group_);                                                                         \
    }                                                                                                        \
    const type_info type_##id = {                                                                            \
        BLOCKS(#name, group_, offsetof(block_n4, qs) + (group_) / 2, number),                                \
        .dequantize = dequantize_##name,                                                                     \
        .pack = READER(read_##name, .bits = 4, .group = group_, .asym = true, .scale = PACK_SCALE_ZERO),     \
        .wide = READER(read_##name##_wide, .bits = 5, .group = group_),                                      \
        .shape = SHAPE(id, put_##name, group_, group_, 0, 15, .asym = true, .zero = true)}
N4(N4G32, n4g32, 32, 1004);
N4(N4G64, n4g64, 64, 1005);
N4(N4G128, n4g128, 128, 1006);

#define S4(id, name, group_)                                                                                 \
    static void dequantize_##name(const void *blocks, float *out, int64_t n) {                               \
        dequantize_s4(blocks, out, n, group_);                                                               \
    }                                                                                                        \
    static void read_##name(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {                 \
        read_wide(blocks, n, codes, s, group_, offsetof(block_s4, qs));                                      \
    }                                                                                                        \
    const type_info type_##id = {BLOCKS(#name, group_, offsetof(block_s4, qs) + (group_) / 2, -1),           \
                                 .dequantize = dequantize_##name,                                            \
                                 .pack = READER(read_##name, .bits = 4, .group = group_)}
S4(S4G64, s4g64, 64);
S4(S4G128, s4g128, 128);

/* block_32.c - Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 with a half for the scale, and one for the
 * minimum. */
#include "numbers/types/type.h"

#include <stddef.h>

static uint32_t block_u32(const uint8_t p[4]) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Where the parts of a block of 4 or 5 bits are, behind the scale at 0; 0: it has none. */
typedef struct parts {
    size_t bytes, min, high, low;
} parts;
#define PARTS_Q4_0 ((parts){sizeof(block_q4_0), 0, 0, offsetof(block_q4_0, qs)})
#define PARTS_Q4_1 ((parts){sizeof(block_q4_1), offsetof(block_q4_1, m), 0, offsetof(block_q4_1, qs)})
#define PARTS_Q5_0 ((parts){sizeof(block_q5_0), 0, offsetof(block_q5_0, qh), offsetof(block_q5_0, qs)})
#define PARTS_Q5_1                                                                                           \
    ((parts){sizeof(block_q5_1), offsetof(block_q5_1, m), offsetof(block_q5_1, qh), offsetof(block_q5_1, qs)})

static inline void dequantize(const uint8_t *at, parts p, float *out, int64_t n) {
    for (int64_t i = 0; i < n / 32; i++, at += p.bytes, out += 32) {
        const float d = block_half(at), m = p.min ? block_half(at + p.min) : 0;
        const uint32_t high = p.high ? block_u32(at + p.high) : 0;
        const int zero = p.min ? 0 : p.high ? 16 : 8;
        for (int j = 0; j < 16; j++) {
            const uint32_t q = at[p.low + (size_t)j];
            const float low = d * (float)((int)((q & 15) | (high >> j & 1) << 4) - zero),
                        next = d * (float)((int)(q >> 4 | (high >> (j + 16) & 1) << 4) - zero);
            out[j] = p.min ? low + m : low;
            out[j + 16] = p.min ? next + m : next;
        }
    }
}

static void dequantize_q8_0(const void *blocks, float *out, int64_t n) {
    const block_q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 32; j++)
            out[j] = (float)b->qs[j] * d;
    }
}

static inline void read_parts(const uint8_t *at, parts p, int n, uint8_t *codes, const pack_sink *s) {
    for (int i = 0; i < n; i++, at += p.bytes, codes += 32) {
        s->wide[i * s->step] = block_u16(at);
        if (p.min)
            s->wide[i * s->step + PACK_PANEL] = block_u16(at + p.min);
        nibbles_32(at + p.low, codes);
        if (p.high)
            fifth_bits(at + p.high, codes, 4);
    }
}

static void read_q8_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q8_0 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        for (int j = 0; j < 32; j++)
            codes[32 * i + j] = (uint8_t)b[i].qs[j] ^ 0x80;
    }
}

static inline void put_parts(const encode_block *b, parts p, const uint8_t *q, uint8_t *to) {
    put_u16(to, b->d);
    if (p.min)
        put_u16(to + p.min, b->dmin);
    if (p.high)
        memset(to + p.high, 0, 4);
    for (size_t i = 0; p.high && i < 32; i++)
        to[p.high + i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
    put_nibbles(to + p.low, q, 16);
}

#define PARTS(id, name)                                                                                      \
    static void dequantize_##name(const void *blocks, float *out, int64_t n) {                               \
        dequantize(blocks, PARTS_##id, out, n);                                                              \
    }                                                                                                        \
    static void read_##name(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {                 \
        read_parts(blocks, PARTS_##id, n, codes, s);                                                         \
    }                                                                                                        \
    static void put_##name(const encode_block *b, const uint8_t *q, void *block) {                           \
        put_parts(b, PARTS_##id, q, block);                                                                  \
    }
PARTS(Q4_0, q4_0)
PARTS(Q4_1, q4_1)
PARTS(Q5_0, q5_0)
PARTS(Q5_1, q5_1)

static void put_q8_0(const encode_block *b, const uint8_t *q, void *block) {
    block_q8_0 *to = block;
    (void)q;
    put_u16(to->d, b->d);
    memcpy(to->qs, b->level, sizeof to->qs);
}

const type_info type_Q4_0 = {BLOCKS("q4_0", 32, sizeof(block_q4_0), 2), .dequantize = dequantize_q4_0,
                             .pack = READER(read_q4_0, .bits = 4, .group = 32),
                             .shape = SHAPE(Q4_0, put_q4_0, 32, 32, -8, 7)};
const type_info type_Q4_1 = {BLOCKS("q4_1", 32, sizeof(block_q4_1), 3), .dequantize = dequantize_q4_1,
                             .pack = READER(read_q4_1, .bits = 4, .group = 32, .asym = true),
                             .shape = SHAPE(Q4_1, put_q4_1, 32, 32, 0, 15, .asym = true)};
const type_info type_Q5_0 = {BLOCKS("q5_0", 32, sizeof(block_q5_0), 6), .dequantize = dequantize_q5_0,
                             .pack = READER(read_q5_0, .bits = 5, .group = 32),
                             .shape = SHAPE(Q5_0, put_q5_0, 32, 32, -16, 15)};
const type_info type_Q5_1 = {BLOCKS("q5_1", 32, sizeof(block_q5_1), 7), .dequantize = dequantize_q5_1,
                             .pack = READER(read_q5_1, .bits = 5, .group = 32, .asym = true),
                             .shape = SHAPE(Q5_1, put_q5_1, 32, 32, 0, 31, .asym = true)};
const type_info type_Q8_0 = {BLOCKS("q8_0", 32, sizeof(block_q8_0), 8), .dequantize = dequantize_q8_0,
                             .pack = READER(read_q8_0, .bits = 8, .group = 32),
                             .shape = SHAPE(Q8_0, put_q8_0, 32, 32, -127, 127)};

/* type.h - what the files of this folder share. A number format is one of them (a family of formats may share
 * one) and a row of types.def. The file defines `const type_info type_ID`: the shape of a block, the
 * reference dequantizer and, if the format is computed with, how a packer reads the codes and scales of
 * blocks; if it is written, how an encoder puts them there.
 *
 * Every product and sum of a dequantizer has the order of the PyPI package gguf, so that results are equal
 * bit by bit; the build's -ffp-contract=off keeps compilers from fusing them. The loops of readers have fixed
 * lengths and no branches, so that compilers vectorize them. */
#ifndef NIB_NUMBERS_TYPES_TYPE_H
#define NIB_NUMBERS_TYPES_TYPE_H

#include "numbers/blocks.h"
#include "numbers/encode.h"
#include "numbers/pack_codes.h"

#include <string.h>

/* The members of type_info that every type with blocks has: a name, values and bytes of a block, the number
 * in GGUF. */
#define BLOCKS(name_, elems, bytes, gguf_)                                                                   \
    .name = name_, .block_elems = elems, .block_bytes = bytes, .gguf = gguf_
/* A reader, and the members of the packed format that are not 0. */
#define READER(fn, ...)                                                                                      \
    &(const pack_reader) {                                                                                   \
        {.layout = PACK_TILE, __VA_ARGS__}, fn                                                               \
    }

/* The shape that encoders need: also values of a block and of a group, the lowest and the highest level. */
#define SHAPE(id, put_, elems_, group_, low_, high_, ...)                                                    \
    &(const encode_shape) {                                                                                  \
        .type = TYPE_##id, .put = put_, .elems = elems_, .group = group_, .low = low_, .high = high_,        \
        __VA_ARGS__                                                                                          \
    }

static inline void nibbles_32(const uint8_t *restrict qs, uint8_t *restrict codes) {
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

/* Adds bit i of `bits` to code i as its fifth bit. Eight codes at once: the byte is copied to eight lanes,
 * lane i keeps bit i, and adding 0x7f carries a set bit into the lane's top bit. */
static inline void fifth_bits(const uint8_t *bits, uint8_t *codes, int n_byte) {
    for (int i = 0; i < n_byte; i++) {
        uint64_t lanes = bits[i] * 0x0101010101010101u & 0x8040201008040201u, eight;
        lanes = ((lanes + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
        memcpy(&eight, codes + 8 * i, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        lanes = __builtin_bswap64(lanes);
#endif
        eight |= lanes;
        memcpy(codes + 8 * i, &eight, 8);
    }
}

static inline void two_bits_64(const uint8_t *restrict qs, uint8_t *restrict codes) {
    for (int f = 0; f < 4; f++)
        for (int l = 0; l < 16; l++)
            codes[16 * f + l] = qs[l] >> 2 * f & 3;
}

/* The file's minimum is subtracted, the packed one is added, so its factor changes sign. */
static inline void super_scales(const pack_sink *s, const uint8_t d[2], const uint8_t dmin[2]) {
    s->wide[0] = block_u16(d);
    if (dmin)
        s->wide[PACK_PANEL] = block_u16(dmin) ^ 0x8000;
}

static inline void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void put_nibbles(uint8_t *qs, const uint8_t *q, int half) {
    for (int i = 0; i < half; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + half] & 15) << 4);
}

#endif

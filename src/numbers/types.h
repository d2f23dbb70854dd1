/* types.h - the number formats found in files. Each is a row of types.def and a file of numbers/types/;
 * nothing outside numbers/ and kernels/ switches on a type. */
#ifndef NIB_NUMBERS_TYPES_H
#define NIB_NUMBERS_TYPES_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef enum type_id {
#define NIB_TYPE(id) TYPE_##id,
#include "numbers/types.def"
#undef NIB_TYPE
    TYPE_COUNT
} type_id;

/* A type without a dequantizer can be listed and inspected; one with blocks and no reader can be converted to
 * floats, but not be computed with, except for F8G64 and F4G64, which stay as they are. */
typedef struct type_info {
    const char *name;
    int block_elems; /* values of a block; 1: plain numbers */
    int block_bytes;
    int gguf;       /* number in GGUF, -1: none */
    const char *st; /* name in safetensors, NULL: none */
    /* n elements (a multiple of block_elems) -> f32; bit-equal to the PyPI package gguf. NULL: none. */
    void (*dequantize)(const void *blocks, float *out, int64_t n);
    /* f32 -> plain floats, round to nearest even; NULL: none. */
    void (*quantize)(const float *in, void *floats, int64_t n);
    /* How the packer reads blocks (pack_codes.h): as they are, and for kernels without codebooks and zero
     * points (pack_widen). NULL: it does not. */
    const struct pack_reader *pack, *wide;
    const struct encode_shape *shape; /* how blocks are encoded in steps (encode.h); NULL: they are not */
    int row_bytes; /* bytes before the blocks of each row; if not 0, dequantize takes one whole row */
    int sparse;    /* outliers of each row in 10,000ths of its columns; they are after the row's blocks */
    type_id dense; /* with row_bytes: the type of the row without outliers */
} type_info;

#define NIB_TYPE(id) extern const type_info type_##id;
#include "numbers/types.def"
#undef NIB_TYPE

const type_info *type_get(type_id id); /* never NULL for id < TYPE_COUNT */
/* Find a type by its number in GGUF, its name in safetensors, or its name (in any case). False:
 * there is none; *out is unchanged. */
bool type_from_gguf(uint32_t number, type_id *out);
bool type_from_safetensors(const char *name, type_id *out);
bool type_from_name(const char *name, type_id *out);
/* Names of formats are written in small letters, and read in any case: converts one in place. */
void type_name_small(char *name);
/* Bytes of a row of n elements. False: n is not a multiple of the block, or the number overflows. */
bool type_row_bytes(type_id id, int64_t n, uint64_t *bytes);
/* Number of outliers of a row of k: `sparse` 10,000ths of k, rounded up. Each is a u16 column and a bf16 that
 * is added to the value there. */
static inline int64_t outliers_of_row(int sparse, int64_t k) {
    return k / 10000 * sparse + (k % 10000 * sparse + 9999) / 10000;
}
int64_t type_outliers(type_id id, int64_t k);
/* Dequantizes elements [at, at + n) of a row of k to out [n]; at and n are multiples of the block. */
void type_dequantize_part(type_id id, const void *row, int64_t k, int64_t at, float *out, int64_t n);

/* IEEE half and bfloat16, scalar; the vector versions are in kernels/. Exact for every bit pattern; a NaN
 * becomes quiet and keeps its payload. */
static inline float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    uint32_t u;
    float f;
    if (magnitude >= 0x7c00u) { /* infinity or NaN */
        u = 0x7f800000u | (magnitude & 0x3ffu) << 13 | (magnitude > 0x7c00u ? 0x400000u : 0);
    } else if (magnitude >= 0x0400u) { /* normal: the exponent's bias goes from 15 to 127 */
        u = (magnitude << 13) + (112u << 23);
    } else { /* subnormal or zero: a multiple of 2^-24, which a float holds exactly */
        f = (float)magnitude * 0x1p-24f;
        memcpy(&u, &f, sizeof u);
    }
    u |= sign;
    memcpy(&f, &u, sizeof f);
    return f;
}
uint16_t half_from_float(float f); /* round to nearest even */
static inline float bf16_to_float(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
/* Round to nearest even; NaNs stay NaNs. */
static inline uint16_t bf16_from_float(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    const uint32_t quiet = u >> 16 | 0x40u, near = (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? quiet : near);
}

#endif

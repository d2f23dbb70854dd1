/* encode.h - encodes f32 values to the blocks of a file type, with searched scales.
 *
 * The error of a value is weighted by its group's root mean square plus its own magnitude, times the
 * importance of its column (pack_scale.h). Scales, minima and, in the types with blocks of 256, the two
 * levels of scales are chosen to make the sum of squared errors small. The same bytes on every machine.
 *
 * A block can also be encoded in steps, for methods that choose codes themselves (GPTQ): scales first, then a
 * level for each value, then the bytes. All functions are pure; threads may call them at the same time. */
#ifndef NIB_NUMBERS_ENCODE_H
#define NIB_NUMBERS_ENCODE_H

#include "numbers/pack_isa.h"

enum { ENCODE_MAX = 256 /* values of a block */, ENCODE_GROUPS = 16 /* of a block */ };

/* A block that is being encoded. Of the arrays only the type's groups and values are set; sub and sub_min
 * only if the type has them. */
typedef struct encode_block {
    uint16_t d, dmin; /* halves, as in the file; of blocks with one group and a minimum, dmin is that minimum,
                         or the zero point where the type has one */
    int8_t sub[ENCODE_GROUPS];
    uint8_t sub_min[ENCODE_GROUPS];
    float scale[ENCODE_GROUPS], min[ENCODE_GROUPS]; /* of each group, as the dequantizer computes them */
    int8_t level[ENCODE_MAX];
} encode_block;

/* The properties of a block type that rounding needs. A value is scale * v + min, where v is the level itself
 * or, with a table, the entry that the level names. */
typedef struct encode_shape {
    type_id type;
    int elems, group;     /* values of a block; values of a group */
    int low, high;        /* the smallest and the largest level */
    bool asym;            /* has a minimum: scale >= 0, and min <= 0 if sub_max is not 0 */
    int sub_low, sub_max; /* a group's scale is d times an integer of this range; sub_max 0: d itself */
    int sub_min_max;      /* a group's minimum is -dmin times 0...this */
    const int8_t *table;  /* NULL: none */
    bool zero;            /* asym: the minimum is -scale times an integer of 0...high */
    /* Writes a block from the scales of b and the codes, its levels minus low. */
    void (*put)(const encode_block *b, const uint8_t *codes, void *block);
} encode_shape;

/* The shape of a type; NULL: it has no blocks, or they cannot be encoded in steps. */
const encode_shape *encode_shape_of(type_id type);

/* Finds the scales of one block x [elems], and the nearest level of each value. weight: [elems], 0 or more,
 * the importance of each column; NULL: all the same. Values that are not finite count as 0. */
void encode_scales(const encode_shape *s, const float *x, const float *weight, encode_block *out);
/* The same with the loops of a given instruction set, which all give the same result. */
void encode_scales_by(const pack_isa *isa, const encode_shape *s, const float *x, const float *weight,
                      encode_block *out);
/* The nearest level to a value of group g. */
int encode_nearest(const encode_shape *s, const encode_block *b, int g, float x);
/* The value of a level of group g. */
float encode_value(const encode_shape *s, const encode_block *b, int g, int level);
/* Writes the block's bytes, type_info.block_bytes of them. */
void encode_put(const encode_shape *s, const encode_block *b, void *block);

/* Whether encode_row can write a type: it has a shape, a codebook or a quantizer. */
bool encode_can(type_id type);
/* Encodes x [n] to blocks. n: a multiple of the type's block; of a type with codebooks a whole row. weight:
 * [n], as above, or NULL. False: encode_can is false, and nothing is written. */
bool encode_row(type_id type, const float *x, const float *weight, int64_t n, void *blocks);

#endif

/* encode.h - encodes f32 values to the blocks of a file type, with searched scales.
 *
 * The quantizers of types.def take the scale that reaches the largest value. Here the error of a value is
 * weighted by its group's root mean square plus its own magnitude, times the importance of its column
 * (pack_scale.h). Scales, minima and, in the types with blocks of 256, the two levels of scales are chosen to
 * make the sum of squared errors small. The same bytes on every machine.
 *
 * A block can also be encoded in steps, for methods that choose codes themselves (GPTQ): scales first, then a
 * level for each value, then the bytes. */
#ifndef NIB_QUANT_ENCODE_H
#define NIB_QUANT_ENCODE_H

#include "quant/types.h"

enum { ENCODE_MAX = 256 /* values of a block */, ENCODE_GROUPS = 16 /* of a block */ };

/* What a block type is, as far as rounding goes. A value is scale * v + min, where v is the level itself or,
 * with a table, the entry that the level names. */
typedef struct encode_shape {
    type_id type;
    int elems, group;     /* of a block; of a group */
    int low, high;        /* levels */
    bool asym;            /* a minimum: scale >= 0, and min <= 0 where sub_max is not 0 */
    int sub_low, sub_max; /* a group's scale is d times an integer of this range; sub_max 0: d itself */
    int sub_min_max;      /* a group's minimum is -dmin times 0...this */
    const int8_t *table;  /* NULL: none */
    bool zero;            /* asym: the minimum is -scale times an integer of 0...high */
} encode_shape;

typedef struct encode_block {
    uint16_t d, dmin; /* halves, as in the file; of blocks with one group and a minimum dmin is that, with an
                         integer zero that integer */
    int8_t sub[ENCODE_GROUPS];
    uint8_t sub_min[ENCODE_GROUPS];
    float scale[ENCODE_GROUPS], min[ENCODE_GROUPS]; /* of each group, as the type's dequantizer has them */
    int8_t level[ENCODE_MAX];
} encode_block;

/* NULL: the type has no blocks, or none that can be made here. */
const encode_shape *encode_shape_of(type_id type);

/* Finds the scales of one block and rounds to them. weight: [elems], how much an error in each column
 * matters, 0 or more; NULL: all the same. Values that are not finite count as 0. */
void encode_scales(const encode_shape *s, const float *x, const float *weight, encode_block *out);
/* The nearest level to a value of group g. */
int encode_nearest(const encode_shape *s, const encode_block *b, int g, float x);
float encode_value(const encode_shape *s, const encode_block *b, int g, int level);
/* The block's bytes. */
void encode_put(const encode_shape *s, const encode_block *b, void *block);

/* n values (a multiple of the type's block) to blocks, of any type with a shape, a code book (n is then a
 * whole row) or a quantizer in types.def; false: it has none. weight: [n] or NULL. */
bool encode_can(type_id type);
bool encode_row(type_id type, const float *x, const float *weight, int64_t n, void *blocks);

#endif

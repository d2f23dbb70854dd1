/* encode.c - see encode.h: the shapes of the types, single values, whole rows. */
#include "numbers/encode.h"

#include "base/num.h"
#include "numbers/blocks.h"
#include "numbers/codebook.h"

#include <math.h>

#define SHAPE(id, elems_, group_, low_, high_, asym_, sub_low_, sub_max_, sub_min_max_, table_)              \
    {                                                                                                        \
        .type = TYPE_##id, .elems = elems_, .group = group_, .low = low_, .high = high_, .asym = asym_,      \
        .sub_low = sub_low_, .sub_max = sub_max_, .sub_min_max = sub_min_max_, .table = table_               \
    }
static const encode_shape shapes[] = {
    SHAPE(Q4_0, 32, 32, -8, 7, false, 0, 0, 0, NULL),
    SHAPE(Q4_1, 32, 32, 0, 15, true, 0, 0, 0, NULL),
    SHAPE(Q5_0, 32, 32, -16, 15, false, 0, 0, 0, NULL),
    SHAPE(Q5_1, 32, 32, 0, 31, true, 0, 0, 0, NULL),
    SHAPE(Q8_0, 32, 32, -127, 127, false, 0, 0, 0, NULL),
    SHAPE(IQ4_NL, 32, 32, 0, 15, false, 0, 0, 0, iq4_values),
    SHAPE(N2G64, 64, 64, 0, 3, true, 0, 0, 0, NULL),
    SHAPE(N3G64, 64, 64, 0, 7, true, 0, 0, 0, NULL),
    SHAPE(Q2_K, 256, 16, 0, 3, true, 0, 15, 15, NULL),
    SHAPE(Q3_K, 256, 16, -4, 3, false, -32, 31, 0, NULL),
    SHAPE(Q4_K, 256, 32, 0, 15, true, 0, 63, 63, NULL),
    SHAPE(Q5_K, 256, 32, 0, 31, true, 0, 63, 63, NULL),
    SHAPE(Q6_K, 256, 16, -32, 31, false, -128, 127, 0, NULL),
    SHAPE(IQ4_XS, 256, 32, 0, 15, false, -32, 31, 0, iq4_values),
};

#define SHAPE_ZERO(id, elems_)                                                                               \
    { .type = TYPE_##id, .elems = elems_, .group = elems_, .high = 15, .asym = true, .zero = true }
static const encode_shape zero_shapes[] = {SHAPE_ZERO(N4G32, 32), SHAPE_ZERO(N4G64, 64),
                                           SHAPE_ZERO(N4G128, 128)};

const encode_shape *encode_shape_of(type_id type) {
    for (size_t i = 0; i < NUM_COUNT(shapes); i++)
        if (shapes[i].type == type)
            return &shapes[i];
    for (size_t i = 0; i < NUM_COUNT(zero_shapes); i++)
        if (zero_shapes[i].type == type)
            return &zero_shapes[i];
    return NULL;
}

/* Rounds a value in units of the scale to a level; NaN gives the lowest. */
static inline int round_to(float v, int low, int high) {
    if (!(v > (float)low))
        return low;
    return v >= (float)high ? high : (int)lrintf(v);
}

static int nearest_entry(const int8_t *table, float v) {
    int at = 0;
    while (at < 15 && v > 0.5f * (float)(table[at] + table[at + 1]))
        at++;
    return at;
}

static inline int nearest(const encode_shape *s, float scale, float min, float x) {
    const float v = scale == 0 ? 0 : (x - min) / scale;
    return s->table ? nearest_entry(s->table, v) : round_to(v, s->low, s->high);
}

static inline float value_of(const encode_shape *s, int level) {
    return (float)(s->table ? s->table[level] : level);
}

int encode_nearest(const encode_shape *s, const encode_block *b, int g, float x) {
    return nearest(s, b->scale[g], b->min[g], x);
}

float encode_value(const encode_shape *s, const encode_block *b, int g, int level) {
    return b->scale[g] * value_of(s, level) + b->min[g];
}

bool encode_can(type_id type) {
    return encode_shape_of(type) || codebook_has(type) || type_get(type)->quantize;
}

bool encode_row(type_id type, const float *x, const float *weight, int64_t n, void *blocks) {
    const encode_shape *s = encode_shape_of(type);
    const type_info *info = type_get(type);
    if (codebook_has(type)) {
        codebook_encode(type, x, weight, n, blocks);
        return true;
    }
    if (type == TYPE_F16) {
        pack_isa_best()->round->f16_write(x, blocks, n);
        return true;
    }
    if (!s) {
        if (info->quantize)
            info->quantize(x, blocks, n);
        return info->quantize != NULL;
    }
    uint8_t *out = blocks;
    for (int64_t i = 0; i + s->elems <= n; i += s->elems, out += info->block_bytes) {
        encode_block b;
        encode_scales(s, x + i, weight ? weight + i : NULL, &b);
        encode_put(s, &b, out);
    }
    return true;
}

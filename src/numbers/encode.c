/* encode.c - see encode.h: single values, blocks, whole rows. */
#include "numbers/encode.h"

#include "base/num.h"
#include "numbers/codebook.h"

#include <math.h>

const encode_shape *encode_shape_of(type_id type) {
    return type_get(type)->shape;
}

void encode_put(const encode_shape *s, const encode_block *b, void *block) {
    uint8_t codes[ENCODE_MAX] = {0};
    for (int i = 0; i < s->elems; i++)
        codes[i] = (uint8_t)(b->level[i] - s->low);
    s->put(b, codes, block);
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

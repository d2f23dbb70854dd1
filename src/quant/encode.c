/* encode.c - see encode.h. First every group gets the scale (and minimum) that is best for itself, by the
 * searches of pack_scale.c. Types with blocks of 256 store that scale as an integer times the block's scale.
 * For these, two steps alternate a few times: every group takes the best of the neighbouring integers, and
 * the block's scale (and that of the minima) is fitted to all levels by least squares. The result with the
 * smallest error is used. */
#include "quant/encode.h"

#include "base/num.h"
#include "quant/blocks.h"
#include "quant/codebook.h"
#include "quant/pack_scale.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 3, LANES = 8 };

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

/* ---- one value ---- */

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

/* ---- one group ---- */

typedef struct group {
    const float *x, *weight; /* [n] */
    int n;
} group;

static float total(const float lanes[LANES]) {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Adding and subtracting 1.5 * 2^23 rounds to an integer. */
static inline float whole(float v, float low, float high) {
    const float q = (v + 12582912.0f) - 12582912.0f;
    return num_either(q > high, high, num_either(q < low, low, q));
}

static float error_of(const encode_shape *s, const group *g, float scale, float min) {
    float sums[LANES] = {0};
    const float low = (float)s->low, high = (float)s->high, inverse = scale == 0 ? 0 : 1 / scale;
    if (s->table) {
        for (int i = 0; i < g->n; i++) {
            const float d = g->x[i] - scale * (float)s->table[nearest_entry(s->table, g->x[i] * inverse)];
            sums[i % LANES] += g->weight[i] * d * d;
        }
        return total(sums);
    }
    for (int i = 0; i < g->n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float x = g->x[i + j] - min, d = x - scale * whole(x * inverse, low, high);
            sums[j] += g->weight[i + j] * d * d;
        }
    return total(sums);
}

static void range_of(const float *x, int n, float *low, float *high, float *peak) {
    *low = *high = *peak = x[0];
    for (int i = 1; i < n; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
        *peak = fabsf(x[i]) > fabsf(*peak) ? x[i] : *peak;
    }
}

/* The least-squares scale for the table entries that are nearest at `scale`. */
static float fit_table(const encode_shape *s, const group *g, float scale) {
    float products = 0, squares = 0;
    for (int i = 0; i < g->n; i++) {
        const float q = (float)s->table[nearest_entry(s->table, g->x[i] / scale)], wq = g->weight[i] * q;
        products += wq * g->x[i];
        squares += wq * q;
    }
    return squares > 0 ? products / squares : 0;
}

static uint16_t search_table(const encode_shape *s, const group *g, float peak) {
    enum { STEPS = 9 };
    uint16_t best = half_from_float(peak / (float)s->table[0]);
    if (!(fabsf(peak) > 1e-9f) || half_to_float(best) == 0)
        return best;
    float min_error = error_of(s, g, half_to_float(best), 0);
    for (int i = 0; i < STEPS; i++) {
        const float reach = (float)s->table[0] * (0.85f + 0.05f * (float)i);
        for (int sign = -1; sign <= 1; sign += 2) {
            const uint16_t h = half_from_float(fit_table(s, g, (float)sign * peak / reach));
            const float scale = half_to_float(h);
            const float e = scale == 0 || !isfinite(scale) ? INFINITY : error_of(s, g, scale, 0);
            if (e < min_error) {
                min_error = e;
                best = h;
            }
        }
    }
    return best;
}

/* The least-squares scale, as f16, for the levels that are nearest at `step` with this zero point. */
static uint16_t fit_zero(const encode_shape *s, const group *g, float step, int zero) {
    float products = 0, squares = 0;
    for (int i = 0; i < g->n; i++) {
        const float q = whole(g->x[i] / step + (float)zero, (float)s->low, (float)s->high) - (float)zero;
        products += g->weight[i] * q * g->x[i];
        squares += g->weight[i] * q * q;
    }
    return half_from_float(squares > 0 ? products / squares : 0);
}

/* Searches a scale and a zero point. Steps begin at two thirds of the step that covers the whole range; each
 * is tried with the zero points around the one that the lowest value needs. */
static void search_zero(const encode_shape *s, const group *g, uint16_t *scale, uint16_t *zero) {
    enum { STEPS = 9 };
    float low, high, peak, min_error = INFINITY;
    range_of(g->x, g->n, &low, &high, &peak);
    low = fminf(low, 0);
    high = fmaxf(high, 0);
    *scale = *zero = 0;
    for (int i = 0; i < STEPS && high - low > 1e-9f; i++) {
        const float step = (high - low) / (float)s->high * (0.68f + 0.045f * (float)i);
        const int at = round_to(-low * (float)s->high / (high - low), s->low, s->high);
        for (int z = NUM_MAX(at - 1, s->low); z <= NUM_MIN(at + 1, s->high); z++) {
            const uint16_t h = fit_zero(s, g, step, z);
            const float of = half_to_float(h),
                        e = of > 0 && isfinite(of) ? error_of(s, g, of, -(of * (float)z)) : INFINITY;
            if (e < min_error) {
                min_error = e;
                *scale = h;
                *zero = (uint16_t)z;
            }
        }
    }
}

/* The best f16 scale and minimum for this group alone. min: the zero point if the type has an integer one. */
static void search_group(const encode_shape *s, const group *g, const float *column, uint16_t *scale,
                         uint16_t *min) {
    const pack_values v = {.x = g->x, .column = column, .n = g->n};
    float low, high, peak;
    range_of(g->x, g->n, &low, &high, &peak);
    *min = 0;
    if (s->zero) {
        search_zero(s, g, scale, min);
    } else if (s->table) {
        *scale = search_table(s, g, peak);
    } else if (s->low ==
               -s->high) { /* 8 bits: the scale covers the largest value; a search would gain nothing */
        *scale = half_from_float(fabsf(peak) / (float)s->high);
    } else if (!s->asym) {
        const int zero = s->high + 1; /* levels are -zero...zero - 1 */
        *scale = pack_scale_search(&v, zero, peak, half_from_float(-peak / (float)zero));
    } else {
        if (s->sub_max && low > 0)
            low = 0;
        *scale = half_from_float((high - low) / (float)s->high);
        *min = half_from_float(low);
        pack_scale_search_line(&v, s->high, low, high, scale, min);
        if (s->sub_max && half_to_float(*min) > 0)
            *min = 0;
    }
}

/* ---- blocks whose groups share scales ---- */

static void set_scales(const encode_shape *s, encode_block *b) {
    const float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
    for (int g = 0; g < s->elems / s->group; g++) {
        b->scale[g] = d * (float)b->sub[g];
        b->min[g] = s->asym ? -(dmin * (float)b->sub_min[g]) : 0;
    }
}

static float block_error(const encode_shape *s, const group *groups, const encode_block *b) {
    float sum = 0;
    for (int g = 0; g < s->elems / s->group; g++)
        sum += error_of(s, &groups[g], b->scale[g], b->min[g]);
    return sum;
}

/* Each group takes the best of the neighbouring integers. */
static void step_groups(const encode_shape *s, const group *groups, encode_block *b) {
    const float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
    for (int g = 0; g < s->elems / s->group; g++) {
        const int at = b->sub[g], at_min = b->sub_min[g], reach = s->asym ? 1 : 0;
        float min_error = INFINITY;
        for (int i = at - 1; i <= at + 1; i++)
            for (int j = at_min - reach; j <= at_min + reach; j++) {
                if (i < s->sub_low || i > s->sub_max || j < 0 || j > s->sub_min_max)
                    continue;
                const float e = error_of(s, &groups[g], d * (float)i, -(dmin * (float)j));
                if (e < min_error) {
                    min_error = e;
                    b->sub[g] = (int8_t)i;
                    b->sub_min[g] = (uint8_t)j;
                }
            }
    }
}

/* Fits the block's two scales to the levels by least squares; false: they are not determined. */
static bool fit_block(const encode_shape *s, const group *groups, encode_block *b) {
    double aa = 0, am = 0, mm = 0, ax = 0, mx = 0; /* x = d a - dmin m */
    for (int g = 0; g < s->elems / s->group; g++)
        for (int i = 0; i < groups[g].n; i++) {
            const float x = groups[g].x[i];
            const double w = (double)groups[g].weight[i], m = s->asym ? (double)b->sub_min[g] : 0;
            const double a = (double)b->sub[g] * (double)value_of(s, nearest(s, b->scale[g], b->min[g], x));
            aa += w * a * a;
            am += w * a * m;
            mm += w * m * m;
            ax += w * a * (double)x;
            mx += w * m * (double)x;
        }
    const double det = aa * mm - am * am;
    if (s->asym && mm > 0) {
        if (!(det > 1e-9 * aa * mm))
            return false;
        const double d = (ax * mm - mx * am) / det, dmin = (ax * am - mx * aa) / det;
        b->d = half_from_float((float)d);
        b->dmin = half_from_float((float)dmin);
        return d > 0 && dmin > 0;
    }
    if (!(aa > 0))
        return false;
    b->d = half_from_float((float)(ax / aa));
    return true;
}

static void share_scales(const encode_shape *s, const group *groups, const uint16_t *scale,
                         const uint16_t *min, encode_block *b) {
    const int n = s->elems / s->group;
    float peak = 0, deepest = 0;
    for (int g = 0; g < n; g++) {
        const float of = half_to_float(scale[g]);
        peak = fabsf(of) > fabsf(peak) ? of : peak;
        deepest = fmaxf(deepest, -half_to_float(min[g]));
    }
    const int reach = s->sub_low < 0 ? s->sub_low : s->sub_max;
    b->d = half_from_float(peak / (float)reach);
    b->dmin = half_from_float(s->sub_min_max ? deepest / (float)s->sub_min_max : 0);
    const float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
    for (int g = 0; g < n; g++) {
        b->sub[g] = (int8_t)(d == 0 ? 0 : round_to(half_to_float(scale[g]) / d, s->sub_low, s->sub_max));
        b->sub_min[g] = (uint8_t)(dmin == 0 ? 0 : round_to(-half_to_float(min[g]) / dmin, 0, s->sub_min_max));
    }
    set_scales(s, b);
    float min_error = block_error(s, groups, b);
    for (int r = 0; r < ROUNDS && min_error > 0; r++) {
        encode_block next = *b;
        step_groups(s, groups, &next);
        set_scales(s, &next);
        if (fit_block(s, groups, &next))
            set_scales(s, &next);
        const float e = isfinite(half_to_float(next.d)) ? block_error(s, groups, &next) : INFINITY;
        if (!(e < min_error))
            break;
        min_error = e;
        *b = next;
    }
}

/* ---- a block ---- */

/* The weights of the errors, as in pack_scale.c. */
static void fill_weights(const float *x, const float *column, int n, float *weight) {
    float squares[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < LANES; j++)
            squares[j] += x[i + j] * x[i + j];
    const float rms = sqrtf(total(squares) / (float)n);
    for (int i = 0; i < n; i++)
        weight[i] = (rms + fabsf(x[i])) * (column ? column[i] : 1);
}

void encode_scales(const encode_shape *s, const float *from, const float *column, encode_block *b) {
    float x[ENCODE_MAX] = {0}, weight[ENCODE_MAX] = {0};
    group groups[ENCODE_GROUPS] = {{0}};
    uint16_t scale[ENCODE_GROUPS] = {0}, min[ENCODE_GROUPS] = {0};
    const int n = s->elems / s->group;
    memset(b, 0, sizeof *b);
    for (int i = 0; i < s->elems; i++)
        x[i] = isfinite(from[i]) ? from[i] : 0;
    for (int g = 0; g < n; g++) {
        const int at = g * s->group;
        const float *of = column ? column + at : NULL;
        fill_weights(x + at, of, s->group, weight + at);
        groups[g] = (group){x + at, weight + at, s->group};
        search_group(s, &groups[g], of, &scale[g], &min[g]);
    }
    if (s->sub_max) {
        share_scales(s, groups, scale, min, b);
    } else {
        b->d = scale[0];
        b->dmin = min[0];
        b->scale[0] = half_to_float(scale[0]);
        b->min[0] = s->zero ? -(b->scale[0] * (float)min[0]) : s->asym ? half_to_float(min[0]) : 0;
    }
    for (int i = 0; i < s->elems; i++)
        b->level[i] = (int8_t)nearest(s, b->scale[i / s->group], b->min[i / s->group], x[i]);
}

/* ---- rows ---- */

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

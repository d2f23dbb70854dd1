/* encode_search.c - see encode.h. First every group gets the scale (and minimum) that is best for itself, by
 * the searches of pack_scale.c or, for tables and integer zero points, by those below. Types with blocks of
 * 256 store that scale as an integer times the block's scale. For these, two steps alternate a few times:
 * every group takes the best of the neighbouring integers, and the block's scale (and that of the minima) is
 * fitted to all levels by least squares. The result with the smallest error is used. */
#include "base/num.h"
#include "numbers/encode.h"

#include <math.h>
#include <string.h>

enum { ROUNDS = 3, LANES = 8, N_TRY = 18 /* most candidates of one call of the kernels */ };

/* A block in work. */
typedef struct search {
    const encode_shape *s;
    const pack_isa *isa;
    int n; /* groups */
    encode_group groups[ENCODE_GROUPS];
    const float *column[ENCODE_GROUPS]; /* importance of each group's columns; NULL: all the same */
    /* sums of each group over weight and weight * value, for types with a minimum */
    double sum_w[ENCODE_GROUPS], sum_wx[ENCODE_GROUPS];
} search;

static void errors_of(const search *f, int g, const float *scale, const float *min, int n, float *out) {
    f->isa->encode->errors(&f->groups[g], scale, min, n, out);
}

static void sums_of(const search *f, const encode_group *g, const float *inverse, float min, int n,
                    encode_sums *out) {
    f->isa->encode->sums(g, inverse, min, n, out);
}

static bool is_scale(float scale) {
    return scale != 0 && isfinite(scale);
}

/* ---- the best scale of one group ---- */

/* 8 bits: the scale covers the largest value; a search would gain nothing. */
static bool is_searched(const encode_shape *s) {
    return s->low != -s->high;
}

/* The least-squares scale (a half) of the candidate whose levels, scaled best, leave the smallest error. */
static uint16_t best_fit(const search *f, int g, const float *inverse, int n) {
    encode_sums sums[N_TRY];
    float most = 0, scale = 0;
    sums_of(f, &f->groups[g], inverse, 0, n, sums);
    for (int i = 0; i < n; i++) {
        const float fit = sums[i].wqq > 0 ? sums[i].wqx / sums[i].wqq : 0, gain = fit * sums[i].wqx;
        if (gain > most) {
            most = gain;
            scale = fit;
        }
    }
    return half_from_float(scale);
}

/* Tries scales of both signs that put the largest value near the table's lowest entry, then fits the best one
 * once more to the levels that it gives. */
static uint16_t search_table(const search *f, int g, float peak) {
    enum { STEPS = N_TRY / 2 };
    const float lowest = (float)f->s->table[0], min[3] = {0};
    float inverse[N_TRY], scale[3], error[3];
    uint16_t tried[3] = {half_from_float(peak / lowest)};
    if (!(fabsf(peak) > 1e-9f) || !is_scale(half_to_float(tried[0])))
        return tried[0];
    for (int i = 0; i < STEPS; i++) {
        inverse[2 * i] = lowest * (0.85f + 0.05f * (float)i) / peak;
        inverse[2 * i + 1] = -inverse[2 * i];
    }
    tried[1] = best_fit(f, g, inverse, N_TRY);
    inverse[0] = 1 / half_to_float(is_scale(half_to_float(tried[1])) ? tried[1] : tried[0]);
    tried[2] = best_fit(f, g, inverse, 1);
    for (int i = 0; i < 3; i++)
        scale[i] = half_to_float(tried[i]);
    errors_of(f, g, scale, min, 3, error);
    int best = 0;
    for (int i = 1; i < 3; i++)
        best = is_scale(scale[i]) && error[i] < error[best] ? i : best;
    return tried[best];
}

/* Searches a scale and a zero point. Steps begin at two thirds of the step that covers the whole range; each
 * is tried with the zero points around the one that the lowest value needs. */
static void search_zero(const search *f, int g, float low, float high, uint16_t *scale, uint16_t *zero) {
    enum { STEPS = 9 };
    const int top = f->s->high;
    float inverse[STEPS], of[STEPS], min[STEPS], error[STEPS], min_error = INFINITY;
    encode_sums sums[STEPS];
    low = fminf(low, 0);
    high = fmaxf(high, 0);
    *scale = *zero = 0;
    if (!(high - low > 1e-9f))
        return;
    for (int i = 0; i < STEPS; i++)
        inverse[i] = (float)top / ((high - low) * (0.68f + 0.045f * (float)i));
    const int at = (int)lrintf(-low * ((float)top / (high - low)));
    for (int z = NUM_MAX(at - 1, 0); z <= NUM_MIN(at + 1, top); z++) {
        encode_group shifted = f->groups[g]; /* levels less the zero point */
        shifted.low = (float)-z;
        shifted.high = (float)(top - z);
        sums_of(f, &shifted, inverse, 0, STEPS, sums);
        for (int i = 0; i < STEPS; i++) {
            of[i] = half_to_float(half_from_float(sums[i].wqq > 0 ? sums[i].wqx / sums[i].wqq : 0));
            min[i] = -(of[i] * (float)z);
        }
        errors_of(f, g, of, min, STEPS, error);
        for (int i = 0; i < STEPS; i++)
            if (of[i] > 0 && error[i] < min_error) {
                min_error = error[i];
                *scale = half_from_float(of[i]);
                *zero = (uint16_t)z;
            }
    }
}

/* The best f16 scale and minimum for this group alone. min: the zero point if the type has an integer one. */
static void search_group(const search *f, int g, uint16_t *scale, uint16_t *min) {
    const encode_shape *s = f->s;
    const pack_values v = {.x = f->groups[g].x, .column = f->column[g], .n = f->groups[g].n};
    pack_range ends = {INFINITY, -INFINITY, false};
    f->isa->round->ends(v.x, v.n, &ends);
    const float low = s->sub_max ? fminf(ends.low, 0) : ends.low, high = ends.high,
                peak = high > -ends.low ? high : ends.low;
    *min = 0;
    if (s->zero) {
        search_zero(f, g, low, high, scale, min);
    } else if (s->table) {
        *scale = search_table(f, g, peak);
    } else if (!is_searched(s)) {
        *scale = half_from_float(fabsf(peak) / (float)s->high);
    } else if (!s->asym) {
        const int zero = s->high + 1; /* levels are -zero...zero - 1 */
        *scale = f->isa->round->search(&v, zero, peak, half_from_float(-peak / (float)zero));
    } else {
        *scale = half_from_float((high - low) / (float)s->high);
        *min = half_from_float(low);
        f->isa->round->search_line(&v, s->high, low, high, scale, min);
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

static float block_error(const search *f, const encode_block *b) {
    float sum = 0, of;
    for (int g = 0; g < f->n; g++) {
        errors_of(f, g, &b->scale[g], &b->min[g], 1, &of);
        sum += of;
    }
    return sum;
}

/* Each group takes the best of the neighbouring integers. */
static void step_groups(const search *f, encode_block *b) {
    const encode_shape *s = f->s;
    const float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
    for (int g = 0; g < f->n; g++) {
        const int at = b->sub[g], at_min = b->sub_min[g], reach = s->asym ? 1 : 0;
        float scale[9], min[9], error[9], min_error = INFINITY;
        int n = 0;
        for (int i = NUM_MAX(at - 1, s->sub_low); i <= NUM_MIN(at + 1, s->sub_max); i++)
            for (int j = NUM_MAX(at_min - reach, 0); j <= NUM_MIN(at_min + reach, s->sub_min_max); j++) {
                scale[n] = d * (float)i;
                min[n++] = -(dmin * (float)j);
            }
        errors_of(f, g, scale, min, n, error);
        n = 0;
        for (int i = NUM_MAX(at - 1, s->sub_low); i <= NUM_MIN(at + 1, s->sub_max); i++)
            for (int j = NUM_MAX(at_min - reach, 0); j <= NUM_MIN(at_min + reach, s->sub_min_max); j++, n++)
                if (error[n] < min_error) {
                    min_error = error[n];
                    b->sub[g] = (int8_t)i;
                    b->sub_min[g] = (uint8_t)j;
                }
    }
}

/* Fits the block's two scales to the levels by least squares; false: they are not determined. */
static bool fit_block(const search *f, encode_block *b) {
    double aa = 0, am = 0, mm = 0, ax = 0, mx = 0; /* x = d a - dmin m */
    for (int g = 0; g < f->n; g++) {
        const float inverse = b->scale[g] == 0 ? 0 : 1 / b->scale[g];
        const double a = (double)b->sub[g], m = (double)b->sub_min[g];
        encode_sums sum;
        sums_of(f, &f->groups[g], &inverse, b->min[g], 1, &sum);
        aa += a * a * (double)sum.wqq;
        am += a * m * (double)sum.wq;
        mm += m * m * f->sum_w[g];
        ax += a * ((double)sum.wqx + (double)b->min[g] * (double)sum.wq);
        mx += m * f->sum_wx[g];
    }
    const double det = aa * mm - am * am;
    if (mm > 0) {
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

/* The nearest integer to v in low...high; NaN gives the lowest. */
static int integer_near(float v, int low, int high) {
    return v > (float)low ? (int)lrintf(fminf(v, (float)high)) : low;
}

static void share_scales(const search *f, const uint16_t *scale, const uint16_t *min, encode_block *b) {
    const encode_shape *s = f->s;
    float peak = 0, deepest = 0;
    for (int g = 0; g < f->n; g++) {
        const float of = half_to_float(scale[g]);
        peak = fabsf(of) > fabsf(peak) ? of : peak;
        deepest = fmaxf(deepest, -half_to_float(min[g]));
    }
    const int reach = s->sub_low < 0 ? s->sub_low : s->sub_max;
    b->d = half_from_float(peak / (float)reach);
    b->dmin = half_from_float(s->sub_min_max ? deepest / (float)s->sub_min_max : 0);
    const float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
    for (int g = 0; g < f->n; g++) {
        b->sub[g] = (int8_t)(d == 0 ? 0 : integer_near(half_to_float(scale[g]) / d, s->sub_low, s->sub_max));
        b->sub_min[g] =
            (uint8_t)(dmin == 0 ? 0 : integer_near(-half_to_float(min[g]) / dmin, 0, s->sub_min_max));
    }
    set_scales(s, b);
    float min_error = block_error(f, b);
    for (int r = 0; r < ROUNDS && min_error > 0; r++) {
        encode_block next = *b;
        step_groups(f, &next);
        set_scales(s, &next);
        if (fit_block(f, &next))
            set_scales(s, &next);
        const float e = isfinite(half_to_float(next.d)) ? block_error(f, &next) : INFINITY;
        if (!(e < min_error))
            break;
        min_error = e;
        *b = next;
    }
}

/* ---- a block ---- */

static float total(const float lanes[LANES]) {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Fills x and weight [s->group] of a group: finite values, and, for a search, the weights of their errors as
 * in pack_scale.c. */
static void fill_group(search *f, int g, const float *from, const float *column, float *x, float *weight) {
    const encode_shape *s = f->s;
    const int n = s->group;
    float squares[LANES] = {0}, w[LANES] = {0}, wx[LANES] = {0};
    for (int i = 0; i < n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            x[i + j] = num_either(fabsf(from[i + j]) < INFINITY, from[i + j], 0);
            squares[j] += x[i + j] * x[i + j];
        }
    const float rms = sqrtf(total(squares) / (float)n);
    for (int i = 0; i < n && is_searched(s); i += LANES)
        for (int j = 0; j < LANES; j++) {
            weight[i + j] = (rms + fabsf(x[i + j])) * (column ? column[i + j] : 1);
            w[j] += weight[i + j];
            wx[j] += weight[i + j] * x[i + j];
        }
    f->groups[g] = (encode_group){.x = x,
                                  .weight = weight,
                                  .n = n,
                                  .low = s->table ? -128 : (float)s->low,
                                  .high = s->table ? 127 : (float)s->high,
                                  .table = s->table};
    f->column[g] = column;
    f->sum_w[g] = (double)total(w);
    f->sum_wx[g] = (double)total(wx);
}

/* The nearest level of each value. */
static void fill_levels(const search *f, encode_block *b) {
    const encode_shape *s = f->s;
    for (int g = 0; g < f->n; g++) {
        const encode_group *of = &f->groups[g];
        const int low = s->low, n = of->n;
        int8_t *level = b->level + g * n;
        uint8_t code[ENCODE_MAX];
        if (s->table && b->scale[g] != 0) {
            f->isa->encode->entries(of, b->scale[g], level);
        } else if (s->table) {
            memset(level, encode_nearest(s, b, g, 0), (size_t)n);
        } else {
            f->isa->round->codes(of->x, n, b->min[g], b->scale[g], -low, s->high - low, code);
            for (int i = 0; i < n; i++)
                level[i] = (int8_t)(code[i] + low);
        }
    }
}

void encode_scales_by(const pack_isa *isa, const encode_shape *s, const float *from, const float *column,
                      encode_block *b) {
    _Alignas(32) float x[ENCODE_MAX], weight[ENCODE_MAX];
    uint16_t scale[ENCODE_GROUPS] = {0}, min[ENCODE_GROUPS] = {0};
    search f; /* only f.n groups are filled: zeroing the others would take as long as a group's search */
    f.s = s;
    f.isa = isa;
    f.n = s->elems / s->group;
    for (int g = 0, at = 0; g < f.n; g++, at += s->group) {
        fill_group(&f, g, from + at, column ? column + at : NULL, x + at, weight + at);
        search_group(&f, g, &scale[g], &min[g]);
    }
    if (s->sub_max) {
        share_scales(&f, scale, min, b);
    } else {
        b->d = scale[0];
        b->dmin = min[0];
        b->scale[0] = half_to_float(scale[0]);
        b->min[0] = s->zero ? -(b->scale[0] * (float)min[0]) : s->asym ? half_to_float(min[0]) : 0;
    }
    fill_levels(&f, b);
}

void encode_scales(const encode_shape *s, const float *x, const float *weight, encode_block *out) {
    encode_scales_by(pack_isa_best(), s, x, weight, out);
}

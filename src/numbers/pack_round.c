/* pack_round.c - uniform formats: their names, and rounding to nearest.
 * Symmetric groups span from the value with the largest magnitude, which gets the lowest code (so the scale
 * may be negative, and every code can be used), asymmetric ones from the smallest value to the largest.
 * Groups with their own scales span a little less if that reduces the error (pack_scale.h). Scales are
 * rounded to f16 before codes are computed, so that the codes compensate for the rounding. */
#include "numbers/pack_round.h"

#include "base/num.h"
#include "numbers/hadamard.h"
#include "numbers/pack_scale.h"
#include "numbers/tile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_HALF = 0x7bff, HALF_NAN = 0x7e00 };

/* ---- the formats and their names ---- */

bool pack_uniform(int bits, int group, bool asym, bool two, int64_t k, pack_format *out) {
    const bool known = group == 16 || group == 32 || group == 64 || group == 128 || group == PACK_GROUP_ROW;
    if (bits < 2 || bits > 8 || !known || k <= 0)
        return false;
    if (two && (asym || bits > 7 || group < 32 || group == PACK_GROUP_ROW))
        return false;
    if ((group == PACK_GROUP_ROW || two) && k > MAX_PACK_ROW)
        return false;
    *out = (pack_format){.layout = PACK_TILE,
                         .type = TYPE_F32,
                         .bits = (uint8_t)bits,
                         .asym = asym,
                         .group = (uint8_t)group,
                         .scale = two ? PACK_SCALE_TWO : PACK_SCALE_F16};
    return true;
}

bool pack_from_name(const char *name, int64_t k, pack_format *out) {
    char *end;
    if (name[0] != 'u' || name[1] < '2' || name[1] > '8' || name[2] != 'g')
        return false;
    const bool row = !strncmp(name + 3, "row", 3);
    if (!row && (name[3] < '1' || name[3] > '9'))
        return false;
    const long group = row ? PACK_GROUP_ROW : strtol(name + 3, &end, 10);
    const char *rest = row ? name + 6 : end;
    const bool asym = *rest == 'a', two = *rest == 't';
    rest += asym || two;
    const bool planes = *rest == 'p';
    rest += planes;
    const bool rotated = *rest == 'h';
    if (rest[rotated] != '\0' || (!row && group > 128) ||
        !pack_uniform(name[1] - '0', (int)group, asym, two, k, out))
        return false;
    out->packing = planes ? PACK_PLANES : PACK_PARTS;
    out->rotated = rotated ? PACK_ROTATED : 0;
    return true;
}

void pack_name(const pack_format *f, char out[PACK_NAME]) {
    const bool planes = f->layout == PACK_TILE && f->packing == PACK_PLANES;
    char group[8] = "row";
    if (f->layout != PACK_TILE || f->type != TYPE_F32) {
        snprintf(out, PACK_NAME, "%s%s", type_get((type_id)f->type)->name, planes ? ".planes" : "");
        return;
    }
    if (f->group != PACK_GROUP_ROW)
        snprintf(group, sizeof group, "%d", f->group);
    snprintf(out, PACK_NAME, "u%dg%s%s%s%s%s", f->bits, group, f->asym ? "a" : "",
             f->scale == PACK_SCALE_TWO ? "t" : "", planes ? "p" : "", f->rotated ? "h" : "");
}

/* ---- rounding ---- */

static const pack_range range_empty = {INFINITY, -INFINITY, false};

static void ends(const float *x, int n, pack_range *r) {
    for (int i = 0; i < n; i++) {
        r->bad = r->bad || !isfinite(x[i]);
        r->low = x[i] < r->low ? x[i] : r->low;
        r->high = x[i] > r->high ? x[i] : r->high;
    }
}

static void to_codes(const float *x, int n, float min, float step, int zero, int max, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        const float q = step == 0 || isnan(step) ? 0 : rintf((x[i] - min) / step);
        codes[i] = (uint8_t)((int)NUM_MIN(NUM_MAX(q, (float)-zero), (float)(max - zero)) + zero);
    }
}

static void f16_values(const void *raw, float *out, int64_t n) {
    type_F16.dequantize(raw, out, n);
}

static void f16_write(const float *x, void *raw, int64_t n) {
    type_F16.quantize(x, raw, n);
}

const pack_rounder pack_rounder_plain = {
    f16_values, f16_write, ends, pack_scale_search, pack_scale_search_line, to_codes};

static uint16_t keep_scale(const pack_values *v, int zero, float peak, uint16_t plain) {
    (void)v;
    (void)zero;
    (void)peak;
    return plain;
}

static void keep_line(const pack_values *v, int max, float low, float high, uint16_t *scale, uint16_t *min) {
    (void)v;
    (void)max;
    (void)low;
    (void)high;
    (void)scale; /* they cover the whole range already */
    (void)min;
}

pack_rounder pack_round_plainly(const pack_rounder *by) {
    pack_rounder plain = *by;
    plain.search = keep_scale;
    plain.search_line = keep_line;
    return plain;
}

static pack_range ends_of(const pack_rounder *by, const float *x, int n) {
    pack_range r = range_empty;
    by->ends(x, n, &r);
    return r;
}

/* The nearest finite f16. */
static uint16_t finite_half(float x) {
    const uint16_t h = half_from_float(x);
    return (h & 0x7fff) > MAX_HALF ? (uint16_t)((h & 0x8000) | MAX_HALF) : h;
}

/* The largest u for which |(code - zero) * u| <= 127. */
static int max_two(const pack_format *f) {
    return 127 /
           NUM_MAX(tile_zero(f), 1); /* formats with a minimum have no zero point and no PACK_SCALE_TWO */
}

/* The smallest step >= 0 with which codes of PACK_SCALE_TWO cover the range. */
static float two_step(const pack_format *f, const pack_range *r) {
    const int zero = tile_zero(f);
    return fmaxf(0, fmaxf(-r->low / (float)zero, r->high / (float)(zero - 1)));
}

static float peak_of(const pack_range *r) {
    return -r->low > r->high ? r->low : r->high;
}

/* A group's scale and minimum as f16, such that they cover its range. */
static pack_whole scales_of(const pack_format *f, const pack_range *r) {
    if (r->bad)
        return (pack_whole){HALF_NAN, 0};
    if (!f->asym)
        return (pack_whole){finite_half(peak_of(r) / (float)-tile_zero(f)), 0};
    const uint16_t min = finite_half(r->low);
    return (pack_whole){finite_half((r->high - half_to_float(min)) / (float)((1 << f->bits) - 1)), min};
}

static void put_half(uint8_t *at, uint16_t h) {
    memcpy(at, &h, sizeof h);
}

void pack_round_values(const pack_rounder *by, const pack_format *f, type_id file_type, const void *row,
                       int64_t k, int64_t at, float *out, int64_t n) {
    if (file_type == TYPE_F16)
        by->f16_values((const uint8_t *)row + 2 * at, out, n);
    else
        type_dequantize_part(file_type, row, k, at, out, n);
    if (f->rotated)
        hadamard(out, n, hadamard_block(k, INT64_C(1) << f->rotated));
}

pack_whole pack_round_whole(const pack_rounder *by, const pack_format *f, type_id file_type, const void *row,
                            int64_t k, float *values) {
    const bool two = f->scale == PACK_SCALE_TWO;
    const int step = two ? f->group : PACK_CHUNK;
    pack_range all = range_empty;
    float max = 0;
    if (!two && f->group != PACK_GROUP_ROW)
        return (pack_whole){0, 0};
    for (int64_t at = 0; at < k; at += PACK_CHUNK) {
        const int len = (int)NUM_MIN(k - at, PACK_CHUNK);
        pack_round_values(by, f, file_type, row, k, at, values, len);
        for (int g = 0; g < len; g += step) {
            const pack_range one = ends_of(by, values + g, NUM_MIN(step, len - g));
            all.bad = all.bad || one.bad;
            all.low = fminf(all.low, one.low);
            all.high = fmaxf(all.high, one.high);
            if (two && !one.bad)
                max = fmaxf(max, two_step(f, &one));
        }
    }
    if (!two)
        return scales_of(f, &all);
    return (pack_whole){all.bad ? HALF_NAN : finite_half(max / (float)max_two(f)), 0};
}

static uint8_t two_byte(const pack_format *f, const pack_range *r, float all) {
    const float step = two_step(f, r);
    if (all == 0 || isnan(all) || step == 0)
        return 0;
    return (uint8_t)NUM_MIN(ceilf(step / all), (float)max_two(f));
}

/* The best scale and minimum that a search finds for one group. */
static pack_whole search(const pack_rounder *by, const pack_format *f, const pack_values *v,
                         const pack_range *r) {
    pack_whole s = scales_of(f, r);
    if (r->bad)
        return s;
    if (f->asym)
        by->search_line(v, (1 << f->bits) - 1, r->low, r->high, &s.scale, &s.min);
    else
        s.scale = by->search(v, tile_zero(f), peak_of(r), s.scale);
    return s;
}

/* Rounds one group: its codes, and its scale unless the whole row shares it. at: where row r's scale is
 * stored. */
static void round_group(const pack_rounder *by, const pack_format *f, const pack_values *v,
                        const pack_whole *whole, uint8_t *codes, uint8_t *at, int r) {
    const pack_range one = ends_of(by, v->x, v->n);
    pack_whole s = *whole;
    float step;
    if (f->group != PACK_GROUP_ROW && f->scale == PACK_SCALE_TWO) {
        at[r] = two_byte(f, &one, half_to_float(whole->scale));
        step = half_to_float(whole->scale) * (float)at[r];
    } else {
        if (f->group != PACK_GROUP_ROW) {
            s = search(by, f, v, &one);
            put_half(at + 2 * r, s.scale);
            if (f->asym)
                put_half(at + 2 * (PACK_PANEL + r), s.min);
        }
        step = half_to_float(s.scale);
    }
    by->codes(v->x, v->n, half_to_float(s.min), step, tile_zero(f), (1 << f->bits) - 1, codes);
}

/* The values of the group that begins at `at` in a chunk. */
static pack_values group_of(const float *values, const float *imatrix, int len, int at, int group) {
    return (pack_values){values + at, imatrix ? imatrix + at : NULL, NUM_MIN(group, len - at)};
}

void pack_round_chunk(const pack_rounder *by, const pack_format *f, const float *values, const float *imatrix,
                      int len, const pack_whole *whole, uint8_t *codes, uint8_t *scales, int r) {
    const int group = f->group;
    if (f->group == PACK_GROUP_ROW) {
        round_group(by, f, &(pack_values){values, NULL, len}, whole, codes, NULL, r);
        return;
    }
    for (int g = 0; g * group < len; g++) {
        const pack_values v = group_of(values, imatrix, len, g * group, group);
        round_group(by, f, &v, whole, codes + g * group, scales + g * tile_scale_step(f), r);
    }
}

void pack_round_leave(const pack_rounder *by, const pack_format *f, float *values, const float *imatrix,
                      int len) {
    const int zero = tile_zero(f);
    uint8_t codes[MAX_PACK_SCALE];
    for (int at = 0; at < len; at += f->group) {
        const pack_values v = group_of(values, imatrix, len, at, f->group);
        const pack_range one = ends_of(by, v.x, v.n);
        const pack_whole s = search(by, f, &v, &one);
        const float step = half_to_float(s.scale), min = half_to_float(s.min);
        by->codes(v.x, v.n, min, step, zero, (1 << f->bits) - 1, codes);
        for (int i = 0; i < v.n; i++)
            values[at + i] -= step * (float)(codes[i] - zero) + min;
    }
}

void pack_round_tail(const pack_format *f, const pack_whole *whole, uint8_t *tail, int r) {
    put_half(tail + 2 * r, whole->scale);
    if (f->asym)
        put_half(tail + 2 * (PACK_PANEL + r), whole->min);
}

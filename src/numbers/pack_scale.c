/* pack_scale.c - see pack_scale.h. A step that reaches the largest value exactly is rarely the best: a
 * smaller one clips that value and represents the others better. For given codes, least squares gives the
 * best step. So the search rounds to codes with some steps around the plain one, computes the least-squares
 * step of these codes, rounds it to f16, and keeps the one with the smallest error. The error of a value is
 * weighted by the group's root mean square plus its magnitude: without weights the squared error falls
 * further, but answers get worse, because large weights are multiplied with large activations
 * (docs/optimisation-log.md has both measurements). Twice as many steps, or steps of the other sign, gain
 * less than 1 % more. Groups with a minimum are searched in the same way: least squares gives the step and
 * the minimum of each candidate's codes. Sums are kept by lanes and added in one order, so that compilers may
 * vectorize them without changing the result. */
#include "numbers/pack_scale.h"

#include "base/num.h"
#include "numbers/types.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 8, N_STEP = 8 };

/* The nearest code: adding and subtracting 1.5 * 2^23 rounds to an integer, ties to even. */
static inline float code_of(float x, float low, float high) {
    const float q = (x + 12582912.0f) - 12582912.0f;
    return num_either(q > high, high, num_either(q < low, low, q));
}

static float total(const float lanes[LANES]) {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* A group, padded to a multiple of LANES with values of weight 0. */
typedef struct group {
    float x[MAX_PACK_SCALE], weight[MAX_PACK_SCALE];
    int n;
    float low, high; /* the smallest and the largest code */
} group;

static void fill(group *g, const pack_values *v, int zero, int max) {
    float squares[LANES] = {0};
    const int n = v->n;
    g->n = (n + LANES - 1) / LANES * LANES;
    g->low = (float)-zero;
    g->high = (float)(max - zero);
    memcpy(g->x, v->x, (size_t)n * sizeof *g->x);
    memset(g->x + n, 0, (size_t)(g->n - n) * sizeof *g->x);
    for (int i = 0; i < g->n; i += LANES)
        for (int j = 0; j < LANES; j++)
            squares[j] += g->x[i + j] * g->x[i + j];
    const float rms = sqrtf(total(squares) / (float)n);
    for (int i = 0; i < n; i++)
        g->weight[i] = (rms + fabsf(g->x[i])) * (v->column ? v->column[i] : 1);
    memset(g->weight + n, 0, (size_t)(g->n - n) * sizeof *g->weight);
}

/* The least-squares step for the codes that rounding with 1 / step = `inverse` gives. */
static float best_step(const group *g, float inverse) {
    float products[LANES] = {0}, squares[LANES] = {0};
    for (int i = 0; i < g->n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float q = code_of(g->x[i + j] * inverse, g->low, g->high), wq = g->weight[i + j] * q;
            products[j] += g->x[i + j] * wq;
            squares[j] += q * wq;
        }
    const float all = total(squares);
    return all > 0 ? total(products) / all : 0;
}

/* The least-squares step and minimum for the codes that rounding from `from` on with 1 / step = `inverse`
 * gives; false: all codes are equal. */
static bool best_line(const group *g, float inverse, float from, float *step, float *min) {
    float w[LANES] = {0}, wq[LANES] = {0}, wqq[LANES] = {0}, wx[LANES] = {0}, wqx[LANES] = {0};
    for (int i = 0; i < g->n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float x = g->x[i + j] - from, weight = g->weight[i + j];
            const float q = code_of(x * inverse, g->low, g->high);
            w[j] += weight;
            wq[j] += weight * q;
            wqq[j] += weight * q * q;
            wx[j] += weight * x;
            wqx[j] += weight * q * x;
        }
    const float sw = total(w), sq = total(wq), sqq = total(wqq), sx = total(wx), sqx = total(wqx);
    const float det = sw * sqq - sq * sq;
    if (!(det > 0))
        return false;
    *step = (sw * sqx - sq * sx) / det;
    *min = from + (sqq * sx - sq * sqx) / det;
    return true;
}

static float error_of(const group *g, float step, float min) {
    float sums[LANES] = {0};
    const float inverse = 1 / step;
    for (int i = 0; i < g->n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            const float x = g->x[i + j] - min, d = x - step * code_of(x * inverse, g->low, g->high);
            sums[j] += g->weight[i + j] * d * d;
        }
    return total(sums);
}

static bool is_size(float size) { /* within these bounds cubes and steps are finite */
    return size > 1e-9f && size < 6e4f;
}

static bool is_step(uint16_t h) {
    const float step = half_to_float(h);
    return fabsf(step) > 0 && isfinite(step);
}

uint16_t pack_scale_search(const pack_values *v, int zero, float peak, uint16_t plain) {
    group g;
    if (!is_size(fabsf(peak)) || half_to_float(plain) == 0)
        return plain;
    fill(&g, v, zero, 2 * zero - 1);
    uint16_t best = plain;
    float min_error = error_of(&g, half_to_float(plain), 0);
    for (int i = 0; i < N_STEP; i++) {
        const float reach = (float)zero - 1 + (float)i / (N_STEP - 1) * (3 + (float)zero / 8);
        const uint16_t h = half_from_float(best_step(&g, -reach / peak));
        if (h == best || !is_step(h))
            continue;
        const float e = error_of(&g, half_to_float(h), 0);
        if (e < min_error) {
            min_error = e;
            best = h;
        }
    }
    return best;
}

void pack_scale_search_line(const pack_values *v, int max, float low, float high, uint16_t *scale,
                            uint16_t *min) {
    group g;
    if (!is_size(high - low) || !is_size(fmaxf(fabsf(low), fabsf(high))) || !(half_to_float(*scale) > 0))
        return;
    fill(&g, v, 0, max);
    float min_error = error_of(&g, half_to_float(*scale), half_to_float(*min)), step, from;
    for (int i = 0; i < N_STEP && min_error > 0; i++) {
        const float reach = (float)max - 1 + (float)i / (N_STEP - 1) * (2 + (float)max / 8);
        if (!best_line(&g, reach / (high - low), low, &step, &from))
            continue;
        const uint16_t h = half_from_float(step), m = half_from_float(from);
        if (!is_step(h) || !isfinite(half_to_float(m)))
            continue;
        const float e = error_of(&g, half_to_float(h), half_to_float(m));
        if (e < min_error) {
            min_error = e;
            *scale = h;
            *min = m;
        }
    }
}

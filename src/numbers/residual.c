/* residual.c - see residual.h. */
#include "numbers/residual.h"

#include "base/num.h"
#include "numbers/types.h"

#include <math.h>
#include <string.h>

enum { GRID = 32, TOGETHER = 16, BYTES = 16, LONG = 1024 };

bool residual_bits_known(int bits) {
    return bits == 2 || bits == 4 || bits == 8 || bits == 16;
}

/* Bytes of a channel, rounded up: to whole vectors, and for long channels to the link's transfer unit. */
static int64_t step_of(int bits, int64_t n) {
    const int64_t bytes = num_div_up(n, 8 * BYTES / bits) * BYTES;
    return num_round_up(bytes, bytes >= LONG ? RESIDUAL_ALIGN : 32);
}

bool residual_bytes(int bits, int64_t n, int64_t k, uint64_t *bytes) {
    enum { MAX = 1 << 28 };
    if (n < 1 || k < 1 || n > MAX || k > MAX)
        return false;
    const uint64_t all = (uint64_t)step_of(bits, n) * (uint64_t)k + (uint64_t)n * sizeof(float);
    *bytes = (all + RESIDUAL_ALIGN - 1) / RESIDUAL_ALIGN * RESIDUAL_ALIGN;
    return true;
}

residual residual_in(void *memory, int bits, int64_t n, int64_t k) {
    const int64_t step = step_of(bits, n);
    return (residual){.bits = bits,
                      .n = n,
                      .k = k,
                      .step = step,
                      .rows = memory,
                      .scale = (float *)(void *)((uint8_t *)memory + step * k)};
}

/* Nearest code in -max..max; NaN gives max. Adding and subtracting 1.5 * 2^23 rounds to an integer. */
static inline float code_of(float v, float inverse, float max) {
    const float magic = 12582912.0f;
    float q = v * inverse;
    q = q < max ? q : max;
    q = q > -max ? q : -max;
    return (q + magic) - magic;
}

static float sum_of(const float *lanes) {
    float sum = lanes[0];
    for (int l = 1; l < TOGETHER; l++)
        sum += lanes[l];
    return sum;
}

/* Adds the squared errors of n values, a multiple of TOGETHER. */
static inline void add_errors(const float *x, int64_t n, float scale, float inverse, float max,
                              float *error) {
    float sums[TOGETHER];
    memcpy(sums, error, sizeof sums);
    for (int64_t i = 0; i < n; i += TOGETHER)
        for (int l = 0; l < TOGETHER; l++) {
            const float v = x[i + l], d = v - scale * code_of(v, inverse, max);
            sums[l] += d * d;
        }
    memcpy(error, sums, sizeof sums);
}

/* The squared error, or infinity as soon as it is above `bound`: sums of squares only grow, rounded too.
 * Sums are kept in lanes, so that the loop vectorizes and the order of additions is the same everywhere. */
static float squared_error(const float *x, int64_t k, float scale, float max, float bound) {
    enum { PART = 16 * TOGETHER };
    const float inverse = 1 / scale;
    const int64_t whole = k / TOGETHER * TOGETHER;
    float error[TOGETHER] = {0};
    for (int64_t i = 0; i < whole; i += PART) {
        add_errors(x + i, NUM_MIN(whole - i, (int64_t)PART), scale, inverse, max, error);
        if (sum_of(error) > bound)
            return INFINITY;
    }
    for (int64_t i = whole; i < k; i++) {
        const float d = x[i] - scale * code_of(x[i], inverse, max);
        error[0] += d * d;
    }
    return sum_of(error);
}

/* The scale with the smallest squared error, of a grid that ends at the scale that covers the largest value;
 * of equal ones the smallest. From the largest scale down, most of the small ones are above the best error
 * after a part of the row. */
static float best_scale(const float *x, int64_t k, float max) {
    float peak = 0, best = 0, min_error = INFINITY;
    for (int64_t i = 0; i < k; i++)
        peak = fabsf(x[i]) > peak ? fabsf(x[i]) : peak;
    for (int g = GRID; g >= 1 && peak > 0; g--) {
        const float scale = peak / max * (float)g / GRID;
        const float error = isfinite(1 / scale) ? squared_error(x, k, scale, max, min_error) : INFINITY;
        if (error <= min_error && error < INFINITY) {
            min_error = error;
            best = scale;
        }
    }
    return best;
}

static void set_halves(residual *r, int64_t i, int64_t n, const float *values) {
    for (int64_t o = 0; o < n; o++)
        r->scale[i + o] = 1;
    for (int64_t c = 0; c < r->k; c++)
        for (int64_t o = 0; o < n; o++) {
            const uint16_t h = half_from_float(values[o * r->k + c]);
            memcpy(r->rows + c * r->step + 2 * (i + o), &h, sizeof h);
        }
}

void residual_set(residual *r, int64_t i, const float *values) {
    const int64_t n = NUM_MIN(r->n - i, (int64_t)TOGETHER);
    if (r->bits == 16) {
        set_halves(r, i, n, values);
        return;
    }
    const int zero = residual_zero(r->bits), per = 8 / r->bits;
    const int shift = (int)(i / TOGETHER % per) * r->bits, mask = ((1 << r->bits) - 1) << shift;
    const float max = (float)(zero - 1);
    float inverse[TOGETHER];
    for (int64_t o = 0; o < n; o++) {
        const float scale = best_scale(values + o * r->k, r->k, max);
        r->scale[i + o] = scale;
        inverse[o] = scale > 0 ? 1 / scale : 0;
    }
    uint8_t *at = r->rows + i / (TOGETHER * per) * BYTES;
    for (int64_t c = 0; c < r->k; c++, at += r->step)
        for (int64_t o = 0; o < n; o++) {
            const int code = (int)code_of(values[o * r->k + c], inverse[o], max) + zero;
            at[o] = (uint8_t)((at[o] & ~mask) | code << shift);
        }
}

float residual_code(const residual *r, int64_t c, int64_t i) {
    const uint8_t *row = r->rows + c * r->step;
    if (r->bits == 16)
        return half_to_float((uint16_t)(row[2 * i] | row[2 * i + 1] << 8));
    const int per = 8 / r->bits, shift = (int)(i / TOGETHER % per) * r->bits;
    const int code = row[i / (TOGETHER * per) * BYTES + i % TOGETHER] >> shift & ((1 << r->bits) - 1);
    return (float)(code - residual_zero(r->bits));
}

float residual_energy(const residual *r, int64_t c) {
    const int per = 8 / NUM_MIN(r->bits, 8), mask = (1 << NUM_MIN(r->bits, 8)) - 1,
              zero = residual_zero(r->bits);
    const uint8_t *row = r->rows + c * r->step;
    float sums[TOGETHER] = {0}, sum = 0;
    for (int64_t i = 0; i < r->n; i += TOGETHER) {
        const int n = (int)NUM_MIN(r->n - i, (int64_t)TOGETHER), shift = (int)(i / TOGETHER % per) * r->bits;
        const uint8_t *at = row + i / (TOGETHER * per) * BYTES;
        for (int l = 0; l < n; l++) {
            const float code =
                r->bits == 16 ? residual_code(r, c, i + l) : (float)((at[l] >> shift & mask) - zero);
            sums[l] += code * r->scale[i + l] * (code * r->scale[i + l]);
        }
    }
    for (int l = 0; l < TOGETHER; l++)
        sum += sums[l];
    return sum;
}

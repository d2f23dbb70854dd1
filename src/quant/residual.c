/* residual.c - see residual.h. */
#include "quant/residual.h"

#include "base/mem.h"
#include "quant/types.h"

#include <math.h>
#include <string.h>

enum { GRID = 32 };

bool residual_bits_known(int bits) {
    return bits == 2 || bits == 4 || bits == 8 || bits == 16;
}

static int64_t channel_bytes(int bits, int64_t n) {
    return (n * bits + 7) / 8;
}

uint64_t residual_bytes(int bits, int64_t n, int64_t k) {
    return (uint64_t)channel_bytes(bits, n) * (uint64_t)k + (uint64_t)n * sizeof(float);
}

nib_status residual_open(residual *r, int bits, int64_t n, int64_t k, nib_error *err) {
    const size_t bytes = (size_t)residual_bytes(bits, n, k);
    *r = (residual){.bits = bits, .n = n, .k = k, .step = channel_bytes(bits, n)};
    r->scale = mem_map(bytes);
    if (!r->scale)
        return nib_fail_nomem(err, bytes, "a residual");
    r->rows = (uint8_t *)(r->scale + n);
    return NIB_OK;
}

void residual_close(residual *r) {
    if (r->scale)
        mem_unmap(r->scale, (size_t)residual_bytes(r->bits, r->n, r->k));
    memset(r, 0, sizeof *r);
}

static int largest_code(int bits) {
    return (1 << (bits - 1)) - 1;
}

static float code_of(float v, float inverse, float max) {
    const float q = rintf(v * inverse);
    return q > max ? max : q < -max ? -max : q;
}

/* The scale of a grid up to the one that reaches the largest value with the smallest squared error. */
static float best_scale(const float *x, int64_t k, int bits) {
    const float max = (float)largest_code(bits);
    float peak = 0, best = 0;
    double min_error = INFINITY;
    for (int64_t i = 0; i < k; i++)
        peak = fmaxf(peak, fabsf(x[i]));
    for (int g = 1; g <= GRID && peak > 0; g++) {
        const float scale = peak / max * (float)g / GRID, inverse = 1 / scale;
        double error = 0;
        for (int64_t i = 0; i < k && isfinite(inverse); i++) {
            const float d = x[i] - scale * code_of(x[i], inverse, max);
            error += (double)d * (double)d;
        }
        if (isfinite(inverse) && error < min_error) {
            min_error = error;
            best = scale;
        }
    }
    return best;
}

void residual_set(residual *r, int64_t i, const float *values) {
    if (r->bits == 16) {
        r->scale[i] = 1;
        for (int64_t c = 0; c < r->k; c++) {
            const uint16_t h = half_from_float(values[c]);
            memcpy(r->rows + c * r->step + 2 * i, &h, sizeof h);
        }
        return;
    }
    const float scale = best_scale(values, r->k, r->bits), inverse = scale > 0 ? 1 / scale : 0;
    const int max = largest_code(r->bits), per = 8 / r->bits, shift = (int)(i % per) * r->bits;
    r->scale[i] = scale;
    for (int64_t c = 0; c < r->k; c++) { /* codes are kept above zero: 1 more than the largest is zero */
        const int code = (int)code_of(values[c], inverse, (float)max) + max + 1;
        uint8_t *at = r->rows + c * r->step + i / per;
        *at = (uint8_t)((*at & ~(((1 << r->bits) - 1) << shift)) | code << shift);
    }
}

void residual_add(const residual *r, int64_t c, float x, float *acc) {
    const uint8_t *row = r->rows + c * r->step;
    const int per = r->bits == 16 ? 1 : 8 / r->bits, mask = (1 << (r->bits & 15)) - 1;
    const int zero = r->bits == 16 ? 0 : largest_code(r->bits) + 1;
    if (r->bits == 16) {
        for (int64_t i = 0; i < r->n; i++)
            acc[i] += x * half_to_float((uint16_t)(row[2 * i] | row[2 * i + 1] << 8));
        return;
    }
    if (r->bits == 4) {
        for (int64_t i = 0; i + 1 < r->n; i += 2) {
            acc[i] += x * (float)((row[i / 2] & 15) - zero);
            acc[i + 1] += x * (float)((row[i / 2] >> 4) - zero);
        }
        if (r->n % 2)
            acc[r->n - 1] += x * (float)((row[r->n / 2] & 15) - zero);
        return;
    }
    for (int64_t i = 0; i < r->n; i++)
        acc[i] += x * (float)((row[i / per] >> (int)(i % per) * r->bits & mask) - zero);
}

void residual_finish(const residual *r, const float *acc, float *y) {
    for (int64_t i = 0; i < r->n; i++)
        y[i] += acc[i] * r->scale[i];
}

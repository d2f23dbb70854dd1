/* quantize.c - quantizes f32 to the float types and to the plain blocks of 32.
 * For finite inputs whose scale is a normal number the bytes equal those of the PyPI package gguf: the same
 * products, divisions and roundings in the same order. Where that package leaves the result to the processor
 * (a scale so small that its inverse is infinite, NaN inputs), codes are clamped and no behaviour is
 * undefined. */
#include "numbers/blocks.h"
#include "numbers/dequant.h"

#include <math.h>
#include <string.h>

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

void quantize_f32(const float *in, void *blocks, int64_t n) {
    memcpy(blocks, in, (size_t)n * sizeof *in);
}

void quantize_f16(const float *in, void *blocks, int64_t n) {
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        put_u16(p + 2 * i, half_from_float(in[i]));
}

void quantize_bf16(const float *in, void *blocks, int64_t n) {
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        put_u16(p + 2 * i, bf16_from_float(in[i]));
}

/* Truncates to 0...max; NaN gives 0. */
static uint8_t code(float v, int max) {
    if (!(v > 0))
        return 0;
    return v >= (float)max ? (uint8_t)max : (uint8_t)v;
}

static float inverse(float d) {
    return d == 0 ? 0.0f : 1.0f / d;
}

/* The element with the largest magnitude, with its sign; the first of equals. */
static float signed_peak(const float *x) {
    float peak = x[0];
    for (int i = 1; i < 32; i++) {
        if (fabsf(x[i]) > fabsf(peak))
            peak = x[i];
    }
    return peak;
}

static void range_of(const float *x, float *min, float *max) {
    *min = *max = x[0];
    for (int i = 1; i < 32; i++) {
        *min = x[i] < *min ? x[i] : *min;
        *max = x[i] > *max ? x[i] : *max;
    }
}

static void put_nibbles(uint8_t qs[16], const uint8_t q[32]) {
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)((q[i] & 15) | q[i + 16] << 4);
}

static void put_fifth_bits(uint8_t qh[4], const uint8_t q[32]) {
    memset(qh, 0, 4);
    for (int i = 0; i < 32; i++)
        qh[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
}

void quantize_q4_0(const float *in, void *blocks, int64_t n) {
    block_q4_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, in += 32) {
        const float d = signed_peak(in) / -8.0f, id = inverse(d);
        uint8_t q[32];
        for (int j = 0; j < 32; j++)
            q[j] = code(in[j] * id + 8.5f, 15);
        put_u16(b->d, half_from_float(d));
        put_nibbles(b->qs, q);
    }
}

void quantize_q4_1(const float *in, void *blocks, int64_t n) {
    block_q4_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, in += 32) {
        float min, max;
        range_of(in, &min, &max);
        const float d = (max - min) / 15.0f, id = inverse(d);
        uint8_t q[32];
        for (int j = 0; j < 32; j++)
            q[j] = code((in[j] - min) * id + 0.5f, 15);
        put_u16(b->d, half_from_float(d));
        put_u16(b->m, half_from_float(min));
        put_nibbles(b->qs, q);
    }
}

void quantize_q5_0(const float *in, void *blocks, int64_t n) {
    block_q5_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, in += 32) {
        const float d = signed_peak(in) / -16.0f, id = inverse(d);
        uint8_t q[32];
        for (int j = 0; j < 32; j++)
            q[j] = code(in[j] * id + 16.5f, 31);
        put_u16(b->d, half_from_float(d));
        put_fifth_bits(b->qh, q);
        put_nibbles(b->qs, q);
    }
}

void quantize_q5_1(const float *in, void *blocks, int64_t n) {
    block_q5_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, in += 32) {
        float min, max;
        range_of(in, &min, &max);
        const float d = (max - min) / 31.0f, id = inverse(d);
        uint8_t q[32];
        for (int j = 0; j < 32; j++)
            q[j] = code((in[j] - min) * id + 0.5f, 31);
        put_u16(b->d, half_from_float(d));
        put_u16(b->m, half_from_float(min));
        put_fifth_bits(b->qh, q);
        put_nibbles(b->qs, q);
    }
}

void quantize_q8_0(const float *in, void *blocks, int64_t n) {
    block_q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, in += 32) {
        float peak = fabsf(in[0]);
        for (int j = 1; j < 32; j++)
            peak = fabsf(in[j]) > peak ? fabsf(in[j]) : peak;
        const float d = peak / 127.0f, id = inverse(d);
        int32_t q[32];
        put_u16(b->d, half_from_float(d));
        /* Half away from zero; NaN gives 0. Without branches, so that the loop vectorizes. */
        for (int j = 0; j < 32; j++) {
            const float v = in[j] * id, a = fabsf(v), near = a < 127 ? a : 127;
            const int32_t whole = (int32_t)near, up = near - (float)whole >= 0.5f, number = v == v;
            q[j] = (v < 0 ? -(whole + up) : whole + up) * number;
        }
        for (int j = 0; j < 32; j++)
            b->qs[j] = (int8_t)q[j];
    }
}

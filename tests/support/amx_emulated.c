/* amx_emulated.c - see amx_emulated.h. Compiled for AVX-512: call nothing of it on lesser processors. */
#include "support/amx_emulated.h"

#include "kernels/lanes/lanes.h"

#include <float.h>
#include <math.h>
#include <string.h>

#define amx_blocked amx_emulated
#include "../src/kernels/cpu/amx/tile_blocked.c"

static _Thread_local tiles_config config;
static _Thread_local uint8_t registers[8][16][64];
int amx_emulated_faults;

static void need(bool fine) {
    if (!fine)
        amx_emulated_faults++;
}

void tiles_configure(const tiles_config *c) {
    need(c->palette == 1 && c->start_row == 0);
    for (int i = 0; i < 16; i++)
        need(c->bytes[i] <= 64 && c->rows[i] <= 16 && (i < 8 || (!c->bytes[i] && !c->rows[i])));
    config = *c;
    memset(registers, 0, sizeof registers);
}

void tiles_release(void) {
    memset(&config, 0, sizeof config);
    memset(registers, 0xa5, sizeof registers);
}

void emulated_zero(int i) {
    need(config.rows[i] > 0);
    memset(registers[i], 0, sizeof registers[i]);
}

void emulated_load(int i, const void *from, int64_t step) {
    emulated_zero(i);
    for (int r = 0; r < config.rows[i]; r++)
        memcpy(registers[i][r], (const char *)from + r * step, config.bytes[i]);
}

void emulated_store(int i, void *to, int64_t step) {
    need(config.rows[i] > 0);
    for (int r = 0; r < config.rows[i]; r++)
        memcpy((char *)to + r * step, registers[i][r], config.bytes[i]);
}

/* Multiplies four codes of a row with the four of each column. */
LANES_UNCHECKED static void add_codes(int32_t sums[16], const uint8_t row[4], const uint8_t line[64],
                                      bool is_signed) {
    for (int n = 0; n < 16; n++)
        for (int k = 0; k < 4; k++) {
            const uint8_t w = line[4 * n + k];
            sums[n] += (int8_t)row[k] * (is_signed ? (int8_t)w : w);
        }
}

void emulated_dot(int sum, int a, int b, bool is_signed) {
    need(config.rows[sum] == config.rows[a] && config.bytes[sum] == config.bytes[b] &&
         config.bytes[a] == 4 * config.rows[b]);
    for (int m = 0; m < config.rows[sum]; m++) {
        int32_t sums[16] = {0};
        for (int q = 0; q < config.rows[b]; q++)
            add_codes(sums, registers[a][m] + 4 * q, registers[b][q], is_signed);
        for (int n = 0; n < config.bytes[sum] / 4; n++) {
            int32_t total;
            memcpy(&total, &registers[sum][m][4 * n], 4);
            total += sums[n];
            memcpy(&registers[sum][m][4 * n], &total, 4);
        }
    }
}

/* Numbers too small for a normal float are zero, in operands and results, as in the unit. */
LANES_UNCHECKED static inline float flushed(float x) {
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}
static float from_bf16(const uint8_t *p) {
    const uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
    float x;
    memcpy(&x, &bits, sizeof x);
    return flushed(x);
}

/* A row of sums: 16 columns, for each the chain of even elements and that of odd ones. */
typedef struct row_chains {
    float of[2][16];
} row_chains;

LANES_UNCHECKED static void add_products(row_chains *c, const float x[2], const row_chains *w) {
    for (int odd = 0; odd < 2; odd++)
        for (int n = 0; n < 16; n++)
            c->of[odd][n] = flushed(fmaf(x[odd], w->of[odd][n], c->of[odd][n]));
}

void emulated_dot_bf16(int sum, int a, int b) {
    need(config.rows[sum] == config.rows[a] && config.bytes[sum] == config.bytes[b] &&
         config.bytes[a] == 4 * config.rows[b]);
    row_chains w[16];
    for (int q = 0; q < config.rows[b]; q++)
        for (int n = 0; n < 16; n++)
            for (int odd = 0; odd < 2; odd++)
                w[q].of[odd][n] = from_bf16(&registers[b][q][4 * n + 2 * odd]);
    for (int m = 0; m < config.rows[sum]; m++) {
        row_chains c = {{{0}}};
        for (int q = 0; q < config.rows[b]; q++)
            add_products(
                &c, (float[2]){from_bf16(&registers[a][m][4 * q]), from_bf16(&registers[a][m][4 * q + 2])},
                w + q);
        for (int n = 0; n < config.bytes[sum] / 4; n++) {
            float total;
            memcpy(&total, &registers[sum][m][4 * n], 4);
            total = flushed(flushed(total) + flushed(c.of[0][n] + c.of[1][n]));
            memcpy(&registers[sum][m][4 * n], &total, 4);
        }
    }
}

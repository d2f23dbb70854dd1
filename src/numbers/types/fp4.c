/* fp4.c - MXFP4 and NVFP4: codes that are floats of 4 bits (e2m1). */
#include "numbers/types/type.h"

#include <math.h>

const int8_t e2m1_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

float block_mxfp4_scale(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void dequantize_mxfp4(const void *blocks, float *out, int64_t n) {
    const block_mxfp4 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_mxfp4_scale(b->e);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)e2m1_values[b->qs[j] & 15];
            out[j + 16] = d * (float)e2m1_values[b->qs[j] >> 4];
        }
    }
}

/* The scale for doubled values, a half: m * 2^-10 or (8 + m) * 2^(e - 11); NaN counts as 0. */
static uint16_t nvfp4_scale(uint8_t scale) {
    const int e = scale >> 3 & 15, m = scale & 7;
    if (scale == 127)
        return 0;
    return half_from_float(e ? ldexpf((float)(8 + m), e - 11) : (float)m * 0x1p-10f);
}

static void dequantize_nvfp4(const void *blocks, float *out, int64_t n) {
    const block_nvfp4 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++)
        for (int g = 0; g < 4; g++, out += 16) {
            const float d = half_to_float(nvfp4_scale(b->scale[g]));
            for (int j = 0; j < 8; j++) {
                out[j] = d * (float)e2m1_values[b->qs[g][j] & 15];
                out[j + 8] = d * (float)e2m1_values[b->qs[g][j] >> 4];
            }
        }
}

static void read_mxfp4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_mxfp4 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->narrow[i * s->step] = b[i].e;
        nibbles_32(b[i].qs, codes + 32 * i);
    }
}

static void read_nvfp4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_nvfp4 *b = blocks;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < 4; g++, codes += 16) {
            s->wide[(4 * i + g) * s->step] = nvfp4_scale(b[i].scale[g]);
            for (int j = 0; j < 8; j++) {
                codes[j] = b[i].qs[g][j] & 15;
                codes[j + 8] = b[i].qs[g][j] >> 4;
            }
        }
}

const type_info type_MXFP4 = {
    BLOCKS("mxfp4", 32, sizeof(block_mxfp4), 39), .dequantize = dequantize_mxfp4,
    .pack = READER(read_mxfp4, .bits = 4, .group = 32, .scale = PACK_SCALE_E8M0, .table = PACK_TABLE_MXFP4)};
const type_info type_NVFP4 = {BLOCKS("nvfp4", 64, sizeof(block_nvfp4), 40), .dequantize = dequantize_nvfp4,
                              .pack = READER(read_nvfp4, .bits = 4, .group = 16, .table = PACK_TABLE_MXFP4)};

/* scaled.c - F8G64 and F4G64: floats of 8 and 4 bits with scales in f32. They hold matrices of folders in
 * memory; no file has them. */
#include "numbers/types/type.h"

static void dequantize_f8g64(const void *blocks, float *out, int64_t n) {
    const block_f8g64 *b = blocks;
    for (; n > 0; n -= 64, b++)
        for (int i = 0; i < 64; i++) {
            const float v = block_e4m3(b->codes[i] & 0x7f) * block_float(b->scale);
            *out++ = b->codes[i] & 0x80 ? -v : v;
        }
}

static void dequantize_f4g64(const void *blocks, float *out, int64_t n) {
    const block_f4g64 *b = blocks;
    for (; n > 0; n -= 64, b++)
        for (int g = 0; g < 4; g++) {
            const float scale = block_float(b->whole) * block_e4m3(b->scale[g]);
            for (int i = 0; i < 16; i++)
                *out++ = scale * (float)e2m1_values[b->qs[g / 2][i] >> g % 2 * 4 & 15];
        }
}

const type_info type_F8G64 = {BLOCKS("f8g64", 64, sizeof(block_f8g64), -1), .dequantize = dequantize_f8g64};
const type_info type_F4G64 = {BLOCKS("f4g64", 64, sizeof(block_f4g64), -1), .dequantize = dequantize_f4g64};

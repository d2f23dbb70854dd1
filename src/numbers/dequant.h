/* dequant.h - the reference functions of the rows of types.def; call them through type_get(). */
#ifndef NIB_NUMBERS_DEQUANT_H
#define NIB_NUMBERS_DEQUANT_H

#include <stdint.h>

/* blocks -> out [n] in f32; n is a multiple of the type's block, or a whole row of a type with codebooks. */
typedef void dequantize_fn(const void *blocks, float *out, int64_t n);
/* in [n] -> blocks, each value rounded to nearest; n is a multiple of the type's block. */
typedef void quantize_fn(const float *in, void *blocks, int64_t n);

dequantize_fn dequantize_f32, dequantize_f16, dequantize_bf16, dequantize_f8_e4m3, dequantize_f8_e5m2,
    dequantize_f64, dequantize_i32, dequantize_i64;
dequantize_fn dequantize_q4_0, dequantize_q4_1, dequantize_q5_0, dequantize_q5_1, dequantize_q8_0;
dequantize_fn dequantize_iq4_nl, dequantize_mxfp4, dequantize_nvfp4;
dequantize_fn dequantize_n4g32, dequantize_n4g64, dequantize_n4g128;
dequantize_fn dequantize_n2g64, dequantize_n3g64, dequantize_c3, dequantize_c4;
dequantize_fn dequantize_c3o45, dequantize_c4o45, dequantize_c3o100, dequantize_c4o100;
dequantize_fn dequantize_q2_k, dequantize_q3_k, dequantize_q4_k, dequantize_q5_k, dequantize_q6_k;
dequantize_fn dequantize_iq4_xs, dequantize_tq1_0, dequantize_tq2_0;
dequantize_fn dequantize_iq1_s, dequantize_iq1_m, dequantize_iq2_xxs, dequantize_iq2_xs, dequantize_iq2_s,
    dequantize_iq3_xxs, dequantize_iq3_s;

quantize_fn quantize_f32, quantize_f16, quantize_bf16;
quantize_fn quantize_q4_0, quantize_q4_1, quantize_q5_0, quantize_q5_1, quantize_q8_0;

#endif

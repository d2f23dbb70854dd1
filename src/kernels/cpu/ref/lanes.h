/* lanes.h - 16 lanes as a plain array: the functions of lanes/lanes.h in C. */
#ifndef NIB_KERNELS_REF_LANES_H
#define NIB_KERNELS_REF_LANES_H

#define LANES_PLAIN
#include "kernels/lanes/lanes.h"
#include "numbers/blocks.h"

#include <math.h>
#include <string.h>

enum { ROWS_N = 1, ROWS_M = 1, ROWS_N1 = 1, ATTEND_TILE = 8, ATTEND_VEC = 1 };

/* A call for each operation: inlined, these loops take sanitizer builds minutes to compile. */
#define LANE_FN static __attribute__((noinline, unused))
#define LANE_OP LANES_UNCHECKED LANE_FN

typedef struct vf {
    float f[LANES];
} vf;
typedef struct vm {
    bool b[LANES];
} vm;

#define LANE_WISE(expression)                                                                                \
    vf r;                                                                                                    \
    for (int i = 0; i < LANES; i++)                                                                          \
        r.f[i] = (expression);                                                                               \
    return r

LANE_OP vf v_set(float x) {
    LANE_WISE(x);
}
LANE_OP vf v_zero(void) {
    return v_set(0);
}
LANE_FN vf v_load(const float *p) {
    LANE_WISE(p[i]);
}
LANE_FN vf v_load_part(const float *p, int n) {
    LANE_WISE(i < n ? p[i] : 0);
}
LANE_FN void v_store_part(float *p, vf a, int n) {
    memcpy(p, a.f, (size_t)n * sizeof *p);
}
LANE_FN void v_store(float *p, vf a) {
    v_store_part(p, a, LANES);
}
LANE_OP vf v_add(vf a, vf b) {
    LANE_WISE(a.f[i] + b.f[i]);
}
LANE_OP vf v_sub(vf a, vf b) {
    LANE_WISE(a.f[i] - b.f[i]);
}
LANE_OP vf v_mul(vf a, vf b) {
    LANE_WISE(a.f[i] * b.f[i]);
}
LANE_OP vf v_div(vf a, vf b) {
    LANE_WISE(a.f[i] / b.f[i]);
}
/* The processor has the instruction, which rounds as fmaf does. fmaf is a call for each lane. */
static bool ref_has_fma;
LANE_OP __attribute__((target("fma"))) vf ref_fma_unit(vf a, vf b, vf c) {
    LANE_WISE(__builtin_fmaf(a.f[i], b.f[i], c.f[i]));
}
LANE_OP vf v_fma(vf a, vf b, vf c) {
    if (ref_has_fma)
        return ref_fma_unit(a, b, c);
    LANE_WISE(fmaf(a.f[i], b.f[i], c.f[i]));
}
LANE_OP vf v_fnma(vf a, vf b, vf c) {
    for (int i = 0; i < LANES; i++)
        a.f[i] = -a.f[i];
    return v_fma(a, b, c);
}
LANE_OP vf v_min(vf a, vf b) {
    LANE_WISE(a.f[i] < b.f[i] ? a.f[i] : b.f[i]);
}
LANE_OP vf v_max(vf a, vf b) {
    LANE_WISE(a.f[i] > b.f[i] ? a.f[i] : b.f[i]);
}
LANE_OP vf v_round(vf a) {
    LANE_WISE(rintf(a.f[i]));
}
LANE_OP vf v_abs(vf a) {
    LANE_WISE(fabsf(a.f[i]));
}
LANE_OP vf v_copysign(vf a, vf sign) {
    LANE_WISE(copysignf(a.f[i], sign.f[i]));
}
LANE_OP float ref_pow2(float n) {
    const uint32_t bits = n >= -126 && n <= 127 ? (uint32_t)((int)n + 127) << 23 : 0;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
/* Multiplies in two steps, because 2^n itself may be too large or too small for a float. The first step is
 * exact. */
LANE_OP float ref_times_pow2(float p, float n) {
    const float half = truncf(n * 0.5f);
    return p * ref_pow2(half) * ref_pow2(n - half);
}
LANE_OP vf v_times_pow2(vf p, vf n) {
    LANE_WISE(ref_times_pow2(p.f[i], n.f[i]));
}
LANE_OP vm v_less(vf a, vf b) {
    vm m;
    for (int i = 0; i < LANES; i++)
        m.b[i] = a.f[i] < b.f[i];
    return m;
}
LANE_OP vm v_between(int lo, int hi) {
    vm m;
    for (int i = 0; i < LANES; i++)
        m.b[i] = lo <= i && i < hi;
    return m;
}
LANE_OP vf v_select(vm m, vf a, vf b) {
    LANE_WISE(m.b[i] ? a.f[i] : b.f[i]);
}
LANE_FN vf v_load_f16(const uint16_t *p) {
    LANE_WISE(half_to_float(p[i]));
}
LANE_FN vf v_load_f16_part(const uint16_t *p, int n) {
    LANE_WISE(i < n ? half_to_float(p[i]) : 0);
}
LANE_FN vf v_load_bf16(const uint16_t *p) {
    LANE_WISE(bf16_to_float(p[i]));
}
LANE_FN void v_store_f16(uint16_t *p, vf a) {
    for (int i = 0; i < LANES; i++)
        p[i] = half_from_float(a.f[i]);
}
LANE_FN vf v_load_u8(const uint8_t *p) {
    LANE_WISE((float)p[i]);
}
LANE_FN vf v_load_u4(const uint8_t *p, bool high) {
    LANE_WISE((float)(high ? p[i] >> 4 : p[i] & 15));
}
LANE_FN vf v_permute(vf x, const int32_t *from) {
    LANE_WISE(x.f[from[i]]);
}
LANE_FN vf v_load_e4m3(const uint8_t *p) {
    LANE_WISE(copysignf(block_e4m3(p[i] & 0x7f), p[i] & 0x80 ? -1 : 1));
}
LANE_FN vf v_load_e2m1(const uint8_t *p, bool high) {
    LANE_WISE((float)e2m1_values[high ? p[i] >> 4 : p[i] & 15]);
}
LANE_OP float v_sum(vf a) {
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a.f[i] += a.f[i + n];
    return a.f[0];
}
LANE_OP float v_largest(vf a) {
    for (int n = LANES / 2; n > 0; n /= 2)
        for (int i = 0; i < n; i++)
            a.f[i] = a.f[i] > a.f[i + n] ? a.f[i] : a.f[i + n];
    return a.f[0];
}
static inline const float *v_before(const vf *a, const float *p) {
    (void)a;
    return p;
}

#endif

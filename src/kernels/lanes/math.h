/* math.h - exp, tanh and the normal distribution over 16 lanes. Included after a folder's lanes.h.
 * Bounds against double precision over the whole range (tests/test_kernels_rows.c has those of activations):
 *   v_exp 1.5 ulp (results below the smallest normal: 1 unit of the smallest subnormal), v_tanh 3 ulp.
 * The polynomials are minimax fits made for this file. NaN gives NaN everywhere. */
#ifndef NIB_KERNELS_LANES_MATH_H
#define NIB_KERNELS_LANES_MATH_H

#include "kernels/lanes/lanes.h"

/* e^x = 2^n * e^r with |r| <= ln2 / 2. v_times_pow2 gives infinity, subnormal numbers and zero without a
 * special case. Beyond the limits the result is infinity or zero, so x is clamped. */
LANES_INLINE vf v_exp(vf x) {
    x = v_min(v_set(90.0f), v_max(v_set(-105.0f), x)); /* NaN is the second operand, so it is the result */
    const vf n = v_round(v_mul(x, v_set(0x1.715476p+0f)));
    vf r = v_fnma(n, v_set(0x1.62e4p-1f), x); /* the upper bits of ln2: n times them is exact */
    r = v_fnma(n, v_set(0x1.7f7d1cp-20f), r);
    vf p = v_fma(v_set(0.0013814489357173443f), r, v_set(0.00836873333901167f));
    p = v_fma(p, r, v_set(0.04166838899254799f));
    p = v_fma(p, r, v_set(0.1666652113199234f));
    p = v_fma(p, r, v_set(0.4999999403953552f));
    p = v_fma(v_mul(r, r), p, r);
    p = v_add(p, v_set(1.0f));
    return v_times_pow2(p, n);
}

LANES_INLINE vf v_sigmoid(vf x) {
    return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_sub(v_zero(), x))));
}

LANES_INLINE vf v_tanh(vf x) {
    const vf a = v_abs(x), z = v_mul(x, x);
    vf p = v_fma(v_set(-0.005717013496905565f), z, v_set(0.02065056562423706f));
    p = v_fma(p, z, v_set(-0.05374349281191826f));
    p = v_fma(p, z, v_set(0.13331490755081177f));
    p = v_fma(p, z, v_set(-0.3333328366279602f));
    const vf near = v_fma(v_mul(p, z), x, x);
    const vf e = v_exp(v_add(a, a));
    const vf far = v_sub(v_set(1.0f), v_div(v_set(2.0f), v_add(e, v_set(1.0f))));
    return v_select(v_less(a, v_set(0.625f)), near, v_copysign(far, x));
}

/* e^x - 1 for x <= 0, with a small relative error also near 0. */
LANES_INLINE vf v_expm1(vf x) {
    const vf t = v_tanh(v_mul(x, v_set(0.5f)));
    return v_div(v_add(t, t), v_sub(v_set(1.0f), t));
}

/* The exact gelu: x times Phi(x), the normal distribution's probability below x. With a = |x|, Phi(-a) is
 * e^(-a^2/2) * f(a) / 2, and f(a) = erfcx(a / sqrt 2) is smooth: t * polynomial(t), t = 2 / (2 + a / sqrt 2).
 * The rounding error of a^2/2 is added back, so that the far tail keeps its relative precision. */
LANES_INLINE vf v_gelu_erf(vf x) {
    const vf a = v_abs(x);
    const vf t = v_div(v_set(2.0f), v_fma(a, v_set(0.70710678118654752f), v_set(2.0f)));
    vf p = v_fma(v_set(-0.05927408114075661f), t, v_set(0.2855786085128784f));
    p = v_fma(p, t, v_set(-0.4892837703227997f));
    p = v_fma(p, t, v_set(0.2804572880268097f));
    p = v_fma(p, t, v_set(-0.028275903314352036f));
    p = v_fma(p, t, v_set(0.20338638126850128f));
    p = v_fma(p, t, v_set(0.24292674660682678f));
    p = v_fma(p, t, v_set(0.28239965438842773f));
    p = v_fma(p, t, v_set(0.28208503127098083f));
    p = v_mul(v_mul(p, t), v_set(0.5f));
    const vf h = v_mul(a, v_set(0.5f)), square = v_mul(h, a);
    const vf negative = v_sub(v_zero(), square), e = v_exp(negative);
    const vf lost = v_fma(h, a, negative);
    const vf tail = v_mul(p, v_fnma(lost, e, e));
    const vf below = v_select(v_less(x, v_zero()), tail, v_sub(v_set(1.0f), tail));
    return v_mul(x, below);
}

#endif

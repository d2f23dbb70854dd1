/* divergence.c - see divergence.h.
 * With d = other - base and p = softmax(base):  KL = log(sum p e^d) - sum p d,  where both terms vanish with
 * d, so that no two large numbers are subtracted. d is taken relative to its value at the largest logit of
 * base, which changes neither side and keeps e^d small where p is. Sums are in double over blocks of lanes,
 * in one order. */
#include "measure/divergence.h"

#include "base/num.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { LANES = 8, BLOCK = 256 };

/* Replaces x by e^x for x in [-87, 87], to about one unit in the last place; x is clamped to that range. */
static void exponentials(float x[restrict BLOCK]) {
    for (int i = 0; i < BLOCK; i++) {
        const float v = num_either(x[i] > 87.0f, 87.0f, num_either(x[i] < -87.0f, -87.0f, x[i]));
        /* adding 1.5 * 2^23 rounds to an integer, which is in the lowest bits */
        const float moved = v * 1.44269504f + 12582912.0f, whole = moved - 12582912.0f;
        const float r = (v - whole * 0.693359375f) - whole * -2.12194440e-4f; /* ln 2 in two parts */
        float p = 1.0f / 720;
        p = p * r + 1.0f / 120;
        p = p * r + 1.0f / 24;
        p = p * r + 1.0f / 6;
        p = p * r + 0.5f;
        p = p * r * r + r + 1.0f;
        int32_t bits;
        memcpy(&bits, &p, sizeof bits);
        bits += (int32_t)whole * (1 << 23);
        memcpy(&x[i], &bits, sizeof bits);
    }
}

typedef struct sums {
    double p[LANES], pd[LANES], pe[LANES];
} sums;

static void add(sums *s, const float *restrict base, const float *restrict other, float max, float shift,
                int n) {
    float p[BLOCK], d[BLOCK], e[BLOCK];
    for (int i = 0; i < n; i++) {
        p[i] = base[i] - max;
        e[i] = d[i] = (other[i] - base[i]) - shift;
    }
    for (int i = n; i < BLOCK; i++)
        p[i] = e[i] = d[i] = 0;
    exponentials(p);
    exponentials(e);
    for (int i = n; i < BLOCK; i++)
        p[i] = 0;
    for (int i = 0; i < BLOCK; i += LANES)
        for (int j = 0; j < LANES; j++) {
            s->p[j] += (double)p[i + j];
            s->pd[j] += (double)p[i + j] * (double)d[i + j];
            s->pe[j] += (double)p[i + j] * (double)e[i + j];
        }
}

static double total(const double *lanes) {
    double sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

/* Index of the largest entry of base; -1: an entry of either row is not finite. */
static int64_t largest(const float *base, const float *other, int64_t n) {
    float max[LANES], poison[LANES] = {0}; /* 0 times anything finite is 0 */
    int64_t i = 0;
    for (int j = 0; j < LANES; j++)
        max[j] = base[0];
    for (; i + LANES <= n; i += LANES)
        for (int j = 0; j < LANES; j++) {
            poison[j] += 0 * base[i + j] + 0 * other[i + j];
            max[j] = base[i + j] > max[j] ? base[i + j] : max[j];
        }
    for (; i < n; i++) {
        poison[0] += 0 * base[i] + 0 * other[i];
        max[0] = base[i] > max[0] ? base[i] : max[0];
    }
    for (int j = 1; j < LANES; j++) {
        poison[0] += poison[j];
        max[0] = max[j] > max[0] ? max[j] : max[0];
    }
    if (poison[0] != 0)
        return -1;
    for (i = 0; base[i] != max[0];)
        i++;
    return i;
}

double divergence(const float *base, const float *other, int64_t n) {
    sums s = {{0}, {0}, {0}};
    const int64_t top = largest(base, other, n);
    if (top < 0)
        return NAN;
    const float max = base[top], shift = other[top] - base[top];
    for (int64_t i = 0; i < n; i += BLOCK)
        add(&s, base + i, other + i, max, shift, (int)(n - i < BLOCK ? n - i : BLOCK));
    const double all = total(s.p);
    return fmax(0, log(total(s.pe) / all) - total(s.pd) / all);
}

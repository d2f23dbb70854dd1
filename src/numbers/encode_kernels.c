/* encode_kernels.c - the reference: see encode_kernels.h. */
#include "numbers/encode_kernels.h"

#include "base/num.h"

enum { LANES = 8, TABLE = 16 };

static float total(const float lanes[LANES]) {
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

/* Rounds to an integer by adding and subtracting 1.5 * 2^23, ties to even; NaN gives the highest. */
static inline float whole(float v, float low, float high) {
    const float q = (v + 12582912.0f) - 12582912.0f, below = num_either(q < high, q, high);
    return num_either(below > low, below, low);
}

static inline float nearest_value(const encode_group *g, float v) {
    const float q = whole(v, g->low, g->high);
    int at = 0;
    if (!g->table)
        return q;
    for (int half = TABLE / 2; half > 0; half /= 2)
        at += 2 * (int)q > g->table[at + half - 1] + g->table[at + half] ? half : 0;
    return (float)g->table[at];
}

static void sums(const encode_group *g, const float *inverse, float min, int n_try, encode_sums *out) {
    for (int t = 0; t < n_try; t++) {
        float wq[LANES] = {0}, wqq[LANES] = {0}, wqx[LANES] = {0};
        for (int i = 0; i < g->n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                const float x = g->x[i + j] - min, q = nearest_value(g, x * inverse[t]);
                const float w = g->weight[i + j] * q;
                wq[j] += w;
                wqq[j] += w * q;
                wqx[j] += w * x;
            }
        out[t] = (encode_sums){total(wq), total(wqq), total(wqx)};
    }
}

static void errors(const encode_group *g, const float *scale, const float *min, int n_try, float *out) {
    for (int t = 0; t < n_try; t++) {
        float error[LANES] = {0};
        const float inverse = scale[t] == 0 ? 0 : 1 / scale[t];
        for (int i = 0; i < g->n; i += LANES)
            for (int j = 0; j < LANES; j++) {
                const float x = g->x[i + j] - min[t], d = x - scale[t] * nearest_value(g, x * inverse);
                error[j] += g->weight[i + j] * d * d;
            }
        out[t] = total(error);
    }
}

static void entries(const encode_group *g, float scale, int8_t *level) {
    for (int i = 0; i < g->n; i++) {
        const float v = g->x[i] / scale;
        int at = 0;
        for (int e = 0; e + 1 < TABLE; e++)
            at += v > 0.5f * (float)(g->table[e] + g->table[e + 1]);
        level[i] = (int8_t)at;
    }
}

const encode_kernels encode_kernels_plain = {sums, errors, entries};

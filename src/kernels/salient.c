/* salient.c - see salient.h. */
#include "kernels/salient.h"

#include "base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool salient_rule_from_name(const char *name, salient_rule *out) {
    static const char *const names[] = {"approx", "exact", "random"};
    for (int i = 0; i < (int)NUM_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (salient_rule)i;
            return true;
        }
    return false;
}

/* Of a chunk of n channels, ascending. */
typedef struct chunk {
    const float *x;
    int n, want, first; /* first: number of its first channel */
    int32_t *out;
} chunk;

/* About the want-th largest of n magnitudes with this root mean square, were they normally distributed: the
 * upper tail's quantile, by Hastings' approximation (Abramowitz and Stegun 26.2.23). */
static float expected_kth(int n, int want, float rms) {
    const double p = fmin(0.5 * want / n, 0.4999), t = sqrt(-2 * log(p));
    const double top = 2.515517 + t * (0.802853 + t * 0.010328);
    const double bottom = 1 + t * (1.432788 + t * (0.189269 + t * 0.001308));
    return rms * (float)fmax(0, t - top / bottom);
}

/* 31: the strongest. */
static inline int bucket_of(float x, float boundary, float above, float below) {
    const float a = fabsf(x), v = a >= boundary ? 16 + (a - boundary) * above : a * below;
    return v >= SALIENT_BUCKETS - 1 ? SALIENT_BUCKETS - 1 : v > 0 ? (int)v : 0;
}

static void pick_approx(const chunk *c) {
    int count[SALIENT_BUCKETS] = {0}, taken = 0, last = SALIENT_BUCKETS - 1, n_out = 0;
    double squares = 0;
    float peak = 0;
    for (int i = 0; i < c->n; i++) {
        squares += (double)c->x[i] * (double)c->x[i];
        peak = fmaxf(peak, fabsf(c->x[i]));
    }
    float boundary = expected_kth(c->n, c->want, (float)sqrt(squares / c->n));
    if (!(boundary < peak))
        boundary = 0.5f * peak;
    const float above = peak > boundary ? 16 / (peak - boundary) : 0,
                below = boundary > 0 ? 16 / boundary : 0;
    for (int i = 0; i < c->n; i++)
        count[bucket_of(c->x[i], boundary, above, below)]++;
    while (last > 0 && taken + count[last] < c->want)
        taken += count[last--];
    int of_last = c->want - taken;
    for (int i = 0; i < c->n && n_out < c->want; i++) {
        const int at = bucket_of(c->x[i], boundary, above, below);
        if (at > last || (at == last && of_last-- > 0))
            c->out[n_out++] = c->first + i;
    }
}

static int by_magnitude(const void *a, const void *b, void *user) {
    const float *x = user;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const float p = fabsf(x[i]), q = fabsf(x[j]);
    return p > q ? -1 : p < q ? 1 : i < j ? -1 : i > j;
}

static int by_number(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return i < j ? -1 : i > j;
}

static void pick_sorted(const chunk *c, bool by_size) {
    int32_t order[SALIENT_CHUNK];
    uint64_t s = 1;
    for (int i = 0; i < c->n; i++) {
        uint32_t bits;
        memcpy(&bits, c->x + i, sizeof bits);
        s = (s ^ bits) * UINT64_C(6364136223846793005) + 1442695040888963407u;
        order[i] = i;
    }
    for (int i = c->n - 1; i > 0 && !by_size; i--) {
        s = s * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const int j = (int)((s >> 33) % (uint64_t)(i + 1)), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
    if (by_size)
        qsort_r(order, (size_t)c->n, sizeof *order, by_magnitude, (void *)(uintptr_t)c->x);
    qsort(order, (size_t)c->want, sizeof *order, by_number);
    for (int i = 0; i < c->want; i++)
        c->out[i] = c->first + order[i];
}

int64_t salient_pick(salient_rule rule, const float *x, int64_t k, int64_t k_chunk, int32_t *out) {
    int64_t n = 0;
    for (int64_t at = 0; at < k; at += SALIENT_CHUNK) {
        chunk c = {
            .x = x + at, .n = (int)NUM_MIN(k - at, (int64_t)SALIENT_CHUNK), .first = (int)at, .out = out + n};
        c.want = (int)NUM_MIN(num_div_up(k_chunk * c.n, SALIENT_CHUNK), (int64_t)c.n);
        if (c.want <= 0)
            continue;
        if (rule == SALIENT_APPROX)
            pick_approx(&c);
        else
            pick_sorted(&c, rule == SALIENT_EXACT);
        n += c.want;
    }
    return n;
}

/* salient.c - see salient.h. */
#include "kernels/salient.h"

#include "base/num.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool salient_rule_from_name(const char *name, salient_rule *out) {
    static const char *const names[] = {"approx", "exact", "random", "static", "weighted"};
    for (int i = 0; i < (int)NUM_COUNT(names); i++)
        if (!strcmp(name, names[i])) {
            *out = (salient_rule)i;
            return true;
        }
    return false;
}

/* Selects channels of a chunk of n, ascending. */
typedef struct chunk {
    const float *x;
    int n, want, first; /* first: number of its first channel */
    int32_t *out;
} chunk;

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

int64_t salient_pick(const kernel_table *t, salient_rule rule, const float *x, int64_t k, int64_t k_chunk,
                     int32_t *out) {
    int64_t n = 0;
    for (int64_t at = 0; at < k; at += SALIENT_CHUNK) {
        chunk c = {
            .x = x + at, .n = (int)NUM_MIN(k - at, (int64_t)SALIENT_CHUNK), .first = (int)at, .out = out + n};
        c.want = salient_of_chunk(c.n, k_chunk);
        if (c.want <= 0)
            continue;
        if (rule == SALIENT_APPROX || rule == SALIENT_WEIGHTED)
            t->salient_of(c.x, c.n, c.want, c.first, c.out);
        else
            pick_sorted(&c, rule != SALIENT_RANDOM);
        n += c.want;
    }
    return n;
}

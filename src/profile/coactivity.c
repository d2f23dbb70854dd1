/* coactivity.c - see coactivity.h. */
#include "profile/coactivity.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t coactivity_bytes(int n) {
    return (uint64_t)n * (uint64_t)n * sizeof(uint32_t);
}

nib_status coactivity_open(coactivity *c, int n, nib_error *err) {
    if (n < 1 || n > MAX_COACTIVITY)
        return nib_fail(err, NIB_E_USAGE, "expected 1 to %d parts, found %d", MAX_COACTIVITY, n);
    *c = (coactivity){.n = n, .both = mem_calloc((size_t)n * (size_t)n, sizeof *c->both)};
    return c->both ? NIB_OK : nib_fail_nomem(err, coactivity_bytes(n), "counts of parts active together");
}

void coactivity_close(coactivity *c) {
    mem_free(c->both);
    *c = (coactivity){0};
}

static uint32_t *at(const coactivity *c, int a, int b) {
    return &c->both[(size_t)a * (size_t)c->n + (size_t)b];
}

void coactivity_add(coactivity *c, const uint8_t *active) {
    c->n_token++;
    for (int a = 0; a < c->n; a++)
        for (int b = 0; active[a] && b < c->n; b++)
            *at(c, a, b) += active[b];
}

double coactivity_share(const coactivity *c, int a) {
    return c->n_token > 0 ? (double)*at(c, a, a) / (double)c->n_token : 0;
}

double coactivity_pmi(const coactivity *c, int a, int b) {
    const double alone = (double)*at(c, a, a) * (double)*at(c, b, b);
    const double both = (double)*at(c, a, b) * (double)c->n_token;
    if (alone == 0)
        return 0;
    return both == 0 ? -INFINITY : log(both / alone);
}

/* The term of one cell of the 2 x 2 table of a and b: p ln(p / (pa pb)). */
static double term(double p, double pa, double pb) {
    return p > 0 ? p * log(p / (pa * pb)) : 0;
}

double coactivity_information(const coactivity *c) {
    double sum = 0;
    int64_t n_pair = 0;
    for (int a = 0; a < c->n; a++)
        for (int b = a + 1; b < c->n && c->n_token > 0; b++, n_pair++) {
            const double pa = coactivity_share(c, a), pb = coactivity_share(c, b);
            const double p = (double)*at(c, a, b) / (double)c->n_token;
            sum += term(p, pa, pb) + term(pa - p, pa, 1 - pb) + term(pb - p, 1 - pa, pb) +
                   term(1 - pa - pb + p, 1 - pa, 1 - pb);
        }
    return n_pair > 0 ? sum / (double)n_pair : 0;
}

typedef struct pair {
    int a, b;
    double pmi;
} pair;

/* Whether the pair satisfies the rule. Pairs are ordered by PMI, then by number, so that every machine finds
 * the same clusters. */
static bool keeps(const coactivity *c, const coactivity_rule *rule, int a, int b, double *pmi) {
    const uint32_t one = *at(c, a, a), other = *at(c, b, b), both = *at(c, a, b);
    const uint32_t rarer = one < other ? one : other;
    *pmi = coactivity_pmi(c, a, b);
    return rarer > 0 && *pmi >= rule->min_pmi && (double)both >= rule->min_share * (double)rarer;
}

static int by_pmi(const void *x, const void *y) {
    const pair *p = x, *q = y;
    if (p->pmi != q->pmi)
        return p->pmi < q->pmi ? 1 : -1;
    return p->a != q->a ? p->a - q->a : p->b - q->b;
}

static size_t list_pairs(const coactivity *c, const coactivity_rule *rule, pair *to) {
    size_t n = 0;
    double pmi;
    for (int a = 0; a < c->n; a++)
        for (int b = a + 1; b < c->n; b++)
            if (keeps(c, rule, a, b, &pmi)) {
                if (to)
                    to[n] = (pair){a, b, pmi};
                n++;
            }
    return n;
}

/* Merges cluster y into x if the rule allows it. */
static void join(const coactivity *c, const coactivity_rule *rule, int *cluster, int x, int y) {
    double pmi;
    int size = 0;
    for (int i = 0; i < c->n; i++)
        size += cluster[i] == x || cluster[i] == y;
    if (size > rule->max)
        return;
    for (int i = 0; i < c->n; i++)
        for (int j = 0; cluster[i] == x && j < c->n; j++)
            if (cluster[j] == y && !keeps(c, rule, i, j, &pmi))
                return;
    for (int i = 0; i < c->n; i++)
        if (cluster[i] == y)
            cluster[i] = x;
}

nib_status coactivity_cluster(const coactivity *c, const coactivity_rule *rule, int *cluster, int *n_cluster,
                              nib_error *err) {
    const size_t n = list_pairs(c, rule, NULL);
    pair *pairs = mem_array(n + 1, sizeof *pairs);
    int *number = mem_array((size_t)c->n, sizeof *number);
    if (!pairs || !number) {
        mem_free(pairs);
        mem_free(number);
        return nib_fail_nomem(err, n * sizeof *pairs, "pairs of parts");
    }
    list_pairs(c, rule, pairs);
    qsort(pairs, n, sizeof *pairs, by_pmi);
    for (int i = 0; i < c->n; i++)
        cluster[i] = i;
    for (size_t i = 0; i < n; i++)
        if (cluster[pairs[i].a] != cluster[pairs[i].b])
            join(c, rule, cluster, cluster[pairs[i].a], cluster[pairs[i].b]);
    for (int i = 0; i < c->n; i++)
        number[i] = -1;
    *n_cluster = 0;
    for (int i = 0; i < c->n; i++) {
        int *to = &number[cluster[i]];
        *to = *to < 0 ? (*n_cluster)++ : *to;
        cluster[i] = *to;
    }
    mem_free(pairs);
    mem_free(number);
    return NIB_OK;
}

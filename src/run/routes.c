/* routes.c - see routes.h. */
#include "run/routes.h"

#include "base/mem.h"

#include <string.h>

static bool same_shape(const weight *a, const weight *b) {
    return a->n == b->n && a->k == b->k && !memcmp(&a->format, &b->format, sizeof a->format);
}

static bool has_route(const weight *w) {
    return !w->vector && w->format.layout == PACK_TILE;
}

/* The n-th weight of the model, counted as `of` counts them. */
static const weight *weight_at(const model *m, const routes *r, int at) {
    int b = model_n_block(m) - 1;
    while (r->first[b] > at)
        b--;
    return &model_block(m, b)->weights[at - r->first[b]];
}

/* list has room for every weight; pointers into it stay valid. */
static void settle(routes *r, const model *m, const policy *p, const kernel_table *t, int act_bits,
                   int n_weight) {
    for (int i = 0; i < n_weight; i++) {
        const weight *w = weight_at(m, r, i);
        if (!has_route(w))
            continue;
        for (int j = 0; j < i && !r->of[i]; j++)
            if (r->of[j] && same_shape(w, weight_at(m, r, j)))
                r->of[i] = r->of[j];
        if (r->of[i])
            continue;
        policy_route(p, t, w->n, w->k, &w->format, act_bits, &r->list[r->n]);
        r->of[i] = &r->list[r->n++];
    }
}

nib_status routes_open(routes *r, const model *m, const policy *p, const kernel_table *t, int act_bits,
                       nib_error *err) {
    int n_weight = 0;
    memset(r, 0, sizeof *r);
    for (int b = 0; b < model_n_block(m); b++)
        n_weight += model_block(m, b)->n_weight;
    r->first = mem_calloc((size_t)model_n_block(m), sizeof *r->first);
    r->of = mem_calloc((size_t)n_weight, sizeof *r->of);
    r->list = mem_calloc((size_t)n_weight, sizeof *r->list);
    if (!r->first || !r->of || !r->list) {
        routes_close(r);
        return nib_fail_nomem(err, (size_t)n_weight * (sizeof *r->of + sizeof *r->list),
                              "the kernels' routes");
    }
    for (int b = 1; b < model_n_block(m); b++)
        r->first[b] = r->first[b - 1] + model_block(m, b - 1)->n_weight;
    settle(r, m, p, t, act_bits, n_weight);
    return NIB_OK;
}

void routes_close(routes *r) {
    mem_free(r->first);
    mem_free(r->of);
    mem_free(r->list);
    memset(r, 0, sizeof *r);
}

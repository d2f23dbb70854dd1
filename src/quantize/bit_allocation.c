/* bit_allocation.c - see bit_allocation.h: a multiple-choice knapsack (plan/choose.h), solved exactly. */
#include "quantize/bit_allocation.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/choose.h"
#include "quantize/mix.h"

#include <math.h>
#include <string.h>
#include <strings.h>

static const allocation_format known[] = {{TYPE_N2G64, 2, "u2g64aw"}, {TYPE_N3G64, 3, "u3g64aw"},
                                          {TYPE_Q4_0, 4, "u4g32w"},   {TYPE_Q5_0, 5, "u5g32w"},
                                          {TYPE_Q8_0, 8, "u8g32"},    {TYPE_C3, 3, "u3g64aw"},
                                          {TYPE_C4, 4, "u4g32w"}};

static nib_status add_format(allocation_list *l, const char *name, size_t n_name, nib_error *err) {
    const char *plain = mix_plain_name(name, n_name);
    const size_t n_plain = plain ? strlen(plain) : n_name;
    for (size_t i = 0; i < NUM_COUNT(known) && l->n < ALLOCATION_FORMATS; i++) {
        const char *of = type_get(known[i].type)->name;
        if (strlen(of) == n_plain && !strncasecmp(of, plain ? plain : name, n_plain)) {
            l->of[l->n++] = known[i];
            return NIB_OK;
        }
    }
    return nib_fail(err, NIB_E_USAGE,
                    "--bits: expected up to %d of n2g64, n3g64, c3, c4, q4_0, q5_0, q8_0, found '%.*s'",
                    ALLOCATION_FORMATS, (int)NUM_MIN(n_name, (size_t)40), name);
}

nib_status allocate_find(const char *names, allocation_list *out, nib_error *err) {
    *out = (allocation_list){.n = 0};
    for (const char *at = names ? names : "n2g64,n3g64,q4_0,q5_0,q8_0"; at;) {
        const char *comma = strchr(at, ',');
        NIB_TRY(add_format(out, at, comma ? (size_t)(comma - at) : strlen(at), err));
        at = comma ? comma + 1 : NULL;
    }
    return NIB_OK;
}

nib_status allocate_choose(const allocation_list *list, const double *cost, const double *weights,
                           int n_block, double bits, int *choice, double *kl, nib_error *err) {
    enum { MAX_NODE = 2000000 };
    const size_t n_option = (size_t)n_block * (size_t)list->n;
    choose_option *options = mem_calloc(n_option + 1, sizeof *options);
    int *first = mem_calloc((size_t)n_block + 1, sizeof *first);
    nib_status status = NIB_OK;
    choose_result r = {0};
    double all = 0;
    if (!options || !first) {
        status = nib_fail_nomem(err, n_option * sizeof *options, "an allocation of bits");
    } else {
        for (int b = 0; b < n_block; b++) {
            first[b + 1] = (b + 1) * list->n;
            all += weights[b];
            for (int f = 0; f < list->n; f++)
                options[b * list->n + f] = (choose_option){.time = weights[b] * list->of[f].bits,
                                                           .loss = fmax(0, cost[b * list->n + f])};
        }
        const choose_problem p = {.options = options,
                                  .first = first,
                                  .n_block = n_block,
                                  .max_bytes = INFINITY,
                                  .max_loss = INFINITY,
                                  .max_time = bits * all * (1 + 1e-12),
                                  .max_node = MAX_NODE};
        status = choose(&p, choice, &r, err);
    }
    mem_free(options);
    mem_free(first);
    *kl = r.loss;
    if (status == NIB_OK && !r.found)
        return nib_fail(err, NIB_E_USAGE, "--bits: expected an average that the formats can have, found %s",
                        num_text(bits, 4));
    return status;
}

/* Number of values in the matrices that a block owns. */
static double weights_of(const block *b) {
    double n = 0;
    for (int w = 0; w < b->n_weight; w++)
        if (!b->weights[w].vector && b->weights[w].shared_block < 0)
            n += (double)b->weights[w].n * (double)b->weights[w].k;
    return n;
}

static nib_status choose_types(const quality *q, const model *m, const allocation_list *list, double bits,
                               bool layers_only, type_id *types, double *kl, nib_error *err) {
    const int n = model_n_block(m);
    double *cost = mem_calloc((size_t)n * (size_t)list->n + 1, sizeof *cost);
    double *weights = mem_array((size_t)n, sizeof *weights);
    int *choice = mem_calloc((size_t)n, sizeof *choice);
    nib_status status = NIB_OK;
    if (!weights || !choice || !cost)
        status = nib_fail_nomem(err, (size_t)n * sizeof *weights, "an allocation of bits");
    for (int b = 0; b < n && status == NIB_OK; b++) {
        const bool counts = !layers_only || model_block(m, b)->layer >= 0;
        weights[b] = counts ? weights_of(model_block(m, b)) : 0;
        for (int f = 0; f < list->n; f++)
            cost[b * list->n + f] = counts ? q->kl[b * list->n + f] : 0;
    }
    if (status == NIB_OK)
        status = allocate_choose(list, cost, weights, n, bits, choice, kl, err);
    for (int b = 0; b < n && status == NIB_OK; b++)
        types[b] = list->of[choice[b]].type;
    mem_free(cost);
    mem_free(weights);
    mem_free(choice);
    return status;
}

static nib_status check_bits(const allocation_list *list, double bits, nib_error *err) {
    int low = 8, high = 2;
    for (int i = 0; i < list->n; i++) {
        low = NUM_MIN(low, list->of[i].bits);
        high = NUM_MAX(high, list->of[i].bits);
    }
    if (bits >= low && bits <= high)
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE, "--bits: expected %d to %d, found %s", low, high, num_text(bits, 4));
}

nib_status allocate_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                         const allocation_list *list, double bits, bool layers_only, type_id *types,
                         double *kl, nib_error *err) {
    const char *formats[ALLOCATION_FORMATS];
    quality q = {0};
    model_imatrix channels = {0};
    NIB_TRY(check_bits(list, bits, err));
    for (int i = 0; i < list->n; i++)
        formats[i] = list->of[i].recipe;
    const quality_options how = {.formats = formats, .n_format = list->n};
    nib_status status = measure_quality(name, o, c, &how, &q, &channels, err);
    if (status == NIB_OK)
        status = choose_types(&q, m, list, bits, layers_only, types, kl, err);
    imatrix_clear(&channels);
    quality_clear(&q);
    return status;
}

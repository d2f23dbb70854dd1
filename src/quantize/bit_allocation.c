/* bit_allocation.c - see bit_allocation.h: a multiple-choice knapsack (plan/choose.h), solved exactly. */
#include "quantize/bit_allocation.h"

#include "base/mem.h"
#include "base/num.h"
#include "plan/choose.h"

#include <math.h>
#include <string.h>

const allocation_format allocation_formats[ALLOCATION_FORMATS] = {{TYPE_N2G64, 2, "u2g64aw"},
                                                                  {TYPE_N3G64, 3, "u3g64aw"},
                                                                  {TYPE_Q4_0, 4, "u4g32w"},
                                                                  {TYPE_Q5_0, 5, "u5g32w"},
                                                                  {TYPE_Q8_0, 8, "u8g32"}};

nib_status allocate_choose(const double *cost, const double *weights, int n_block, double bits, int *choice,
                           double *kl, nib_error *err) {
    enum { MAX_NODE = 2000000 };
    const size_t n_way = (size_t)n_block * ALLOCATION_FORMATS;
    choose_way *ways = mem_calloc(n_way + 1, sizeof *ways);
    int *first = mem_calloc((size_t)n_block + 1, sizeof *first);
    nib_status status = NIB_OK;
    choose_result r = {0};
    double all = 0;
    if (!ways || !first) {
        status = nib_fail_nomem(err, n_way * sizeof *ways, "an allocation of bits");
    } else {
        for (int b = 0; b < n_block; b++) {
            first[b + 1] = (b + 1) * ALLOCATION_FORMATS;
            all += weights[b];
            for (int f = 0; f < ALLOCATION_FORMATS; f++)
                ways[b * ALLOCATION_FORMATS + f] =
                    (choose_way){.time = weights[b] * allocation_formats[f].bits,
                                 .loss = fmax(0, cost[b * ALLOCATION_FORMATS + f])};
        }
        const choose_problem p = {.ways = ways,
                                  .first = first,
                                  .n_block = n_block,
                                  .max_bytes = INFINITY,
                                  .max_loss = INFINITY,
                                  .max_time = bits * all * (1 + 1e-12),
                                  .max_node = MAX_NODE};
        status = choose(&p, choice, &r, err);
    }
    mem_free(ways);
    mem_free(first);
    *kl = r.loss;
    if (status == NIB_OK && !r.found)
        return nib_fail(err, NIB_E_USAGE, "--bits: expected 2 to 8, found %s", num_text(bits, 4));
    return status;
}

/* Values in matrices that a block owns. */
static double weights_of(const block *b) {
    double n = 0;
    for (int w = 0; w < b->n_weight; w++)
        if (!b->weights[w].vector && b->weights[w].shared_block < 0)
            n += (double)b->weights[w].n * (double)b->weights[w].k;
    return n;
}

static nib_status choose_types(const quality *q, const model *m, double bits, type_id *types, double *kl,
                               nib_error *err) {
    const int n = model_n_block(m);
    double *weights = mem_array((size_t)n, sizeof *weights);
    int *choice = mem_calloc((size_t)n, sizeof *choice);
    nib_status status = NIB_OK;
    if (!weights || !choice)
        status = nib_fail_nomem(err, (size_t)n * sizeof *weights, "an allocation of bits");
    for (int b = 0; b < n && status == NIB_OK; b++)
        weights[b] = weights_of(model_block(m, b));
    if (status == NIB_OK)
        status = allocate_choose(q->kl, weights, n, bits, choice, kl, err);
    for (int b = 0; b < n && status == NIB_OK; b++)
        types[b] = allocation_formats[choice[b]].type;
    mem_free(weights);
    mem_free(choice);
    return status;
}

nib_status allocate_bits(const char *name, const nib_engine_options *o, const calibration *c, const model *m,
                         double bits, type_id *types, double *kl, nib_error *err) {
    const char *formats[ALLOCATION_FORMATS];
    quality q = {0};
    channel_stats channels = {0};
    if (!(bits >= 2 && bits <= 8))
        return nib_fail(err, NIB_E_USAGE, "--bits: expected 2 to 8, found %s", num_text(bits, 4));
    for (int i = 0; i < ALLOCATION_FORMATS; i++)
        formats[i] = allocation_formats[i].recipe;
    const quality_options how = {.formats = formats, .n_format = ALLOCATION_FORMATS};
    nib_status status = measure_quality(name, o, c, &how, &q, &channels, err);
    if (status == NIB_OK)
        status = choose_types(&q, m, bits, types, kl, err);
    channel_stats_clear(&channels);
    quality_clear(&q);
    return status;
}

/* trial_choice.c - the parts of trial.h that need no clock: the bytes of rotating weights, the shapes of a
 * model, the candidates of a product, and the choice among them by their times. */
#include "base/num.h"
#include "measure/trial.h"

#include <stdlib.h>
#include <string.h>

uint64_t trial_bytes(uint64_t l3, uint64_t ram_free, uint64_t cap) {
    const uint64_t min = (uint64_t)64 << 20, spare = (uint64_t)128 << 20;
    uint64_t want = NUM_MAX((uint64_t)1 << 30, 3 * l3), free_bytes = ram_free / 2;
    if (cap != NIB_AUTO)
        free_bytes = NUM_MIN(free_bytes, cap > spare ? cap - spare : 0);
    want = NUM_MIN(want, free_bytes) / 4096 * 4096;
    return want < min ? 0 : want;
}

static void add_shape(const weight *w, trial_shape *list, int *n) {
    for (int i = 0; i < *n; i++)
        if (list[i].n == w->n && list[i].k == w->k &&
            !memcmp(&list[i].format, &w->format, sizeof w->format)) {
            list[i].count++;
            return;
        }
    if (*n < TRIAL_MAX_SHAPES)
        list[(*n)++] = (trial_shape){.n = w->n, .k = w->k, .format = w->format, .act_bits = 8, .count = 1};
}

int trial_shapes_of(const model *m, trial_shape out[TRIAL_MAX_SHAPES]) {
    int n = 0;
    for (int b = 0; b < model_n_block(m); b++) {
        const block *of = model_block(m, b);
        for (int i = 0; i < of->program.n_op; i++) {
            const op *o = &of->program.ops[i];
            if (o->kind == OP_LINEAR && of->weights[o->w].format.layout == PACK_TILE)
                add_shape(&of->weights[o->w], out, &n);
        }
    }
    return n;
}

bool trial_has_planes(const kernel_table *t, const trial_shape *s) {
    pack_format planes = s->format;
    planes.packing = PACK_PLANES;
    for (int i = 0; i < t->n_strategy && s->format.packing == PACK_PARTS; i++)
        if (t->strategies[i]->can(&planes, 1) && !t->strategies[i]->can(&s->format, 1))
            return true;
    return false;
}

int64_t trial_rows_of(int bucket) {
    return bucket == ROW_BUCKETS - 1 ? 512 : row_bucket_last(bucket);
}

void trial_candidates(const kernel_table *t, const pack_format *f, int64_t n_row, trial_result *out) {
    const int bucket = row_bucket(n_row);
    const strategy *rule = row_bucket_rule(t, f, bucket);
    for (int i = 0; i < t->n_strategy; i++) {
        if (!row_bucket_can(t->strategies[i], f, bucket))
            continue;
        if (t->strategies[i] == rule)
            out->rule = out->n;
        out->times[out->n++] = (trial_time){.strategy = t->strategies[i], .isa = t->strategy_isa[i]};
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void trial_judge(double *samples, int n, double *best, double *spread) {
    qsort(samples, (size_t)n, sizeof *samples, by_size);
    *best = samples[0];
    *spread = (samples[n / 4] - samples[0]) / samples[0];
}

bool trial_beats(const trial_result *r, int challenger, int holder) {
    const trial_time *a = &r->times[challenger], *b = &r->times[holder];
    const double off = a->spread * NUM_MIN(1, 4.0 / NUM_MAX(a->n_sample, 1)) +
                       b->spread * NUM_MIN(1, 4.0 / NUM_MAX(b->n_sample, 1));
    const double margin = NUM_MAX(off, 0.01);
    return a->best > 0 && b->best > 0 && a->best < b->best * (1 - margin);
}

void trial_choose(trial_result *out) {
    out->chosen = out->fastest = out->rule;
    for (int i = 0; i < out->n; i++) {
        const trial_time *t = &out->times[i];
        if (t->best <= 0)
            continue;
        if (t->best < out->times[out->fastest].best)
            out->fastest = i;
        if (trial_beats(out, i, out->rule) &&
            (out->chosen == out->rule || t->best < out->times[out->chosen].best))
            out->chosen = i;
    }
}

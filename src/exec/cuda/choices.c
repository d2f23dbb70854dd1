/* choices.c - the strategy of each product on the GPU. The kernel map is applied when the back end is opened;
 * each launch of a product of few rows looks its strategy up by the number of columns (kernels/kernel_map.h).
 * The map has no choices for `wide` and `batch`. So prompt rows never use it, however few they are. If many
 * sequences may decode together (cuda.batched), no row uses it. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "profile/gpu_kernels.h"

#include <stdio.h>
#include <string.h>

/* Writes the choices that differ from the rule's, such as "1 split, 2-8 bitwise". */
static void other_than_rule(const kernel_choice *choice, const kernel_choice *rule, char *out, size_t size) {
    size_t at = 0;
    out[0] = 0;
    for (int b = 0, e; b < ROW_BUCKETS && at < size; b = e) {
        const strategy *s = choice->by_bucket[b];
        char last[32] = "";
        for (e = b + 1; s != rule->by_bucket[b] && e < ROW_BUCKETS && choice->by_bucket[e] == s;)
            e++;
        if (s == rule->by_bucket[b])
            continue;
        if (row_bucket_last(e - 1) > row_bucket_first(b))
            snprintf(last, sizeof last, "-%lld", (long long)row_bucket_last(e - 1));
        at += (size_t)snprintf(out + at, size - at, "%s%lld%s %s", at ? ", " : "",
                               (long long)row_bucket_first(b), last, s->name);
    }
}

/* Logs one line for each shape and format. */
static void say(const cuda *c, const weight *w, const kernel_choice *choice, const kernel_choice *rule) {
    char format[PACK_NAME], what[256];
    other_than_rule(choice, rule, what, sizeof what);
    pack_name(&w->format, format);
    if (what[0])
        log_line(c->setup.log, "by the kernel map, %s %lld x %lld, rows: %s", format, (long long)w->n,
                 (long long)w->k, what);
}

static bool same_shape(const weight *a, const weight *b) {
    return a->n == b->n && a->k == b->k && !memcmp(&a->format, &b->format, sizeof a->format);
}

/* The choice of an earlier weight with the same shape and format; NULL: this is the first one. */
static const kernel_choice *known_choice(const cuda *c, int b, int w, const weight *of) {
    for (int i = 0; i <= b; i++) {
        const block *in = layout_block(c->setup.layout, i);
        for (int j = 0; j < (i < b ? in->n_weight : w); j++) {
            const weight *other = &in->weights[j];
            if (!other->vector && other->format.layout == PACK_TILE && same_shape(other, of))
                return &c->choice[cuda_number(c, i, j)];
        }
    }
    return NULL;
}

static void choose_all(cuda *c, const kernel_table *t) {
    for (int b = 0; b < layout_n_block(c->setup.layout); b++) {
        const block *of = layout_block(c->setup.layout, b);
        for (int i = 0; i < of->n_weight; i++) {
            const weight *w = &of->weights[i];
            kernel_choice rule, *choice = &c->choice[cuda_number(c, b, i)];
            if (w->vector || w->format.layout != PACK_TILE)
                continue;
            const kernel_choice *known = known_choice(c, b, i, w);
            if (known) {
                *choice = *known;
                continue;
            }
            kernel_map_choice(c->setup.kernels, t, w->n, w->k, &w->format, 8, choice);
            kernel_map_choice(NULL, t, w->n, w->k, &w->format, 8, &rule);
            say(c, w, choice, &rule);
        }
    }
}

nib_status choices_make(cuda *c, nib_error *err) {
    const size_t n = (size_t)cuda_number(c, layout_n_block(c->setup.layout), 0) + 1;
    gpu_kernels *gpu;
    if (!c->setup.kernels || !c->setup.kernels->n_shape)
        return NIB_OK;
    if (c->batched) {
        log_line(c->setup.log, "the kernel map has no kernels for many sequences and is not used");
        return NIB_OK;
    }
    gpu = mem_calloc(1, sizeof *gpu);
    c->choice = mem_calloc(n, sizeof *c->choice);
    nib_status status = gpu && c->choice ? gpu_kernels_probe(gpu, err)
                                         : nib_fail_nomem(err, n * sizeof *c->choice, "the kernels' choices");
    if (status == NIB_OK)
        choose_all(c, &gpu->table);
    mem_free(gpu);
    return status;
}

void choices_drop(cuda *c) {
    mem_free(c->choice);
}

const cuda_strategy *choices_by(const cuda *c, int b, int w, int64_t n_col) {
    if (!c->choice || w < 0)
        return NULL;
    const kernel_choice *choice = &c->choice[cuda_number(c, b, w)];
    const strategy *s = choice->by_bucket[row_bucket(n_col)];
    /* NULL for the rule's strategies and those for prompt rows. */
    return s && s->rule_rows == 0 ? gpu_strategy(s) : NULL;
}

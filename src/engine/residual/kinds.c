/* kinds.c - see kinds.h. */
#include "engine/residual/kinds.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

/* The products of one input in one block, while they are collected. */
typedef struct input {
    reg in;
    char name[PLAN_NAME];
    int64_t k, n;
    int first_op, end_op;
} input;

static int find_kind(residual_kinds *k, const input *in) {
    int i = 0;
    while (i < k->n && strcmp(k->names[i], in->name) != 0)
        i++;
    if (i == TUNE_MAX_KIND)
        i--;
    else if (i == k->n) {
        k->n++;
        snprintf(k->names[i], PLAN_NAME, "%s", in->name);
        k->kinds[i] = (tune_kind){0};
    }
    k->kinds[i].k = NUM_MAX(k->kinds[i].k, in->k);
    k->kinds[i].n = NUM_MAX(k->kinds[i].n, in->n);
    return i;
}

bool residual_is_of(const block *b, const weight *w) {
    return b->layer >= 0 && !w->vector && w->shared_block < 0 && w->n_piece > 0 &&
           w->format.layout == PACK_TILE && !weight_is_second(w);
}

static bool is_product(const block *b, const op *o) {
    return o->kind == OP_LINEAR && residual_is_of(b, &b->weights[o->w]);
}

static void end_input(residual_kinds *k, const block *b, int8_t *kind_of, input *in) {
    if (in->n > 0) {
        const int kind = find_kind(k, in);
        for (int i = in->first_op; i < in->end_op; i++) {
            const op *o = &b->program.ops[i];
            if (is_product(b, o) && o->in == in->in)
                kind_of[o->w] = (int8_t)kind;
        }
    }
    memset(in, 0, sizeof *in);
    in->in = REG_NONE;
}

static void add_block(residual_kinds *k, const block *b, int8_t *kind_of) {
    input in = {.in = REG_NONE};
    for (int i = 0; i < b->program.n_op; i++) {
        const op *o = &b->program.ops[i];
        if (is_product(b, o)) {
            if (o->in != in.in)
                end_input(k, b, kind_of, &in);
            if (in.n == 0)
                in.first_op = i;
            const size_t at = strlen(in.name);
            snprintf(in.name + at, sizeof in.name - at, "%s%s", at ? "+" : "", b->weights[o->w].name);
            in.in = o->in;
            in.k = o->k;
            in.n += o->n;
            in.end_op = i + 1;
        }
        if (o->out == in.in) /* the op overwrites the register, so later products have another input */
            end_input(k, b, kind_of, &in);
    }
    end_input(k, b, kind_of, &in);
}

nib_status residual_kinds_open(residual_kinds *out, const layout *lay, nib_error *err) {
    const int n_block = layout_n_block(lay);
    int n = 0;
    for (int b = 0; b < n_block; b++)
        n += layout_block(lay, b)->n_weight;
    memset(out, 0, sizeof *out);
    out->of = mem_array((size_t)n + 1, sizeof *out->of);
    if (!out->of)
        return nib_fail_nomem(err, (size_t)n, "the kinds of products");
    memset(out->of, -1, (size_t)n + 1);
    for (int b = 0, first = 0; b < n_block; first += layout_block(lay, b++)->n_weight)
        add_block(out, layout_block(lay, b), out->of + first);
    out->n_weight = n;
    return NIB_OK;
}

void residual_kinds_close(residual_kinds *k) {
    mem_free(k->of);
    memset(k, 0, sizeof *k);
}

nib_status residual_kinds_choose(const residual_kinds *k, const plan_residual *list, int n, tune_choice *out,
                                 nib_error *err) {
    *out = (tune_choice){{0}, {0}};
    for (int i = 0; i < n; i++) {
        int at = 0;
        while (at < k->n && strcmp(k->names[at], list[i].products) != 0)
            at++;
        if (at == k->n)
            return nib_fail(err, NIB_E_MODEL, "\"residuals\": the model has no products \"%s\"",
                            list[i].products);
        out->k_chunk[at] = list[i].k_chunk;
        out->n_tb[at] = list[i].n_tb;
    }
    return NIB_OK;
}

void residual_kinds_drop(residual_kinds *k, const tune_choice *c) {
    for (int i = 0; i < k->n_weight; i++)
        if (k->of[i] >= 0 && c->k_chunk[k->of[i]] == 0)
            k->of[i] = -1;
}

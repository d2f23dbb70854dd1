/* experts.c - binds the weights of a mixture of experts. The matrices of a layer's experts become one weight,
 * a stack: one under the other in the order of their numbers, whether the checkpoint has a tensor for each
 * expert, one for all, or one for all gates and ups. Every matrix is padded to whole panels with rows that
 * repeat its first ones, so that an expert is a range of panels. Their outputs are not used. */
#include "base/num.h"
#include "model/binder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Where a stack is in the checkpoint. */
typedef struct stack {
    slot_id slot;
    const arch_tensor *row;
    int64_t n, k;               /* of one expert */
    int64_t n_all, first, step; /* its rows are first + i * step of n_all of its tensor */
    bool transposed;
    const container_tensor *whole; /* the tensor of all experts; NULL: each has its own */
} stack;

/* A parameter of a checkpoint's module has no suffix in HF folders. */
static const container_tensor *find_matrix(const binder *b, const arch_tensor *row, int e) {
    const container_tensor *t = bind_find(b, row, e, ".weight");
    return t == NULL && b->m->gguf_arch == NULL ? bind_find(b, row, e, "") : t;
}

bool bind_is_mixture(const binder *b) {
    return b->m->cfg.hp.n_expert > 0 && find_matrix(b, bind_row(b, SLOT_ROUTER), 0) != NULL;
}

static nib_status wrong_stack(const stack *s, const container_tensor *t, int64_t n_expert, nib_error *err) {
    const int64_t rows = s->transposed ? s->k : s->n_all, cols = s->transposed ? s->n_all : s->k;
    if (s->whole == NULL)
        return bind_wrong_shape(t, rows, cols, err);
    return nib_fail(err, NIB_E_MODEL, "tensor %s: expected shape [%lld, %lld, %lld]", t->name,
                    (long long)n_expert, (long long)rows, (long long)cols);
}

static bool fits(const stack *s, const container_tensor *t, int64_t n_expert) {
    const int64_t rows = s->transposed ? s->k : s->n_all, cols = s->transposed ? s->n_all : s->k;
    if (s->whole == NULL)
        return bind_has_shape(t, rows, cols);
    return t->n_dim == 3 && t->shape[0] == n_expert && t->shape[1] == rows && t->shape[2] == cols;
}

/* Expert e's part of a tensor of all experts, as a tensor of its own: of transposed ones the loader reads
 * columns. It keeps the name, by which unused.c knows it. */
static const container_tensor *part_of(binder *b, const stack *s, int64_t e) {
    container_tensor *t = arena_alloc(b->src.mem, sizeof *t);
    if (t == NULL)
        return NULL;
    *t = *s->whole;
    t->n_dim = 2;
    t->shape[0] = s->k;
    t->shape[1] = s->n_all;
    t->bytes = s->whole->bytes / (uint64_t)s->whole->shape[0];
    t->offset += (uint64_t)e * t->bytes;
    return t;
}

/* Adds n rows of expert e, from its row r on. */
static weight_piece *add_rows(weight_piece *p, const stack *s, const container_tensor *t, int64_t before,
                              int64_t r, int64_t n) {
    if (s->step == 1) {
        *p = (weight_piece){t, before + s->first + r, n};
        return p + 1;
    }
    for (int64_t i = r; i < r + n; i++)
        *p++ = (weight_piece){t, before + s->first + i * s->step, 1};
    return p;
}

static nib_status fill_stack(binder *b, const stack *s, int64_t n_expert, weight_piece *p, type_id type,
                             nib_error *err) {
    const int64_t padding = num_round_up(s->n, PACK_PANEL) - s->n;
    for (int64_t e = 0; e < n_expert; e++) {
        const container_tensor *t = s->whole == NULL ? find_matrix(b, s->row, (int)e) : s->whole;
        int64_t before = s->whole == NULL ? 0 : e * s->n_all;
        if (t == NULL)
            return bind_missing(b, s->row, ".weight", err);
        if (!fits(s, t, n_expert) || t->type != type)
            return wrong_stack(s, t, n_expert, err);
        if (s->transposed && s->whole != NULL) {
            t = part_of(b, s, e);
            before = 0;
            if (t == NULL)
                return nib_fail_nomem(err, sizeof *t, "an expert's tensor");
        }
        p = add_rows(p, s, t, before, 0, s->n);
        for (int64_t i = 0; i < padding; i += s->n)
            p = add_rows(p, s, t, before, 0, NUM_MIN(s->n, padding - i));
    }
    return NIB_OK;
}

static nib_status bind_matrices(binder *b, const stack *s, const container_tensor *first, nib_error *err) {
    const int64_t n_expert = b->m->cfg.hp.n_expert, each = num_round_up(s->n, PACK_PANEL);
    const bool single = s->whole != NULL && !s->transposed && s->n_all == s->n && each == s->n;
    const int64_t n_pad = (each - s->n + s->n - 1) / s->n,
                  n_piece = single ? 1 : n_expert * (s->step == 1 ? 1 + n_pad : each);
    weight *w = NULL;
    weight_piece *p = NULL;
    if (n_piece > INT32_MAX / 2)
        return nib_fail(err, NIB_E_MODEL, "%s: too many pieces", slot_name(s->slot));
    if (!fits(s, first, n_expert))
        return wrong_stack(s, first, n_expert, err);
    NIB_TRY(bind_new_weight(b, slot_name(s->slot), (int)n_piece, &w, &p, err));
    if (single)
        *p = (weight_piece){s->whole, 0, n_expert * s->n};
    else
        NIB_TRY(fill_stack(b, s, n_expert, p, first->type, err));
    w->n_expert = n_expert;
    w->expert_n = s->n;
    b->out->slot[s->slot].there = true;
    b->out->slot[s->slot].w = b->out->n;
    return bind_finish_matrix(b, w, first, n_expert * each, s->k, s->transposed, err);
}

/* The biases of all experts, one after the other. */
static nib_status bind_biases(binder *b, const stack *s, nib_error *err) {
    const int64_t n_expert = b->m->cfg.hp.n_expert;
    const container_tensor *t = bind_find(b, s->row, 0, b->m->gguf_arch != NULL ? ".bias" : "_bias");
    if (t == NULL)
        return s->row->flags & T_BIAS ? bind_missing(b, s->row, ".bias", err) : NIB_OK;
    if (t->n_dim != 2 || t->shape[0] != n_expert || t->shape[1] != s->n_all)
        return bind_wrong_shape(t, n_expert, s->n_all, err);
    if (s->n_all == s->n)
        return bind_vector(b, bind_bias_name(s->slot), t, n_expert * s->n, &b->out->slot[s->slot].b, err);
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, bind_bias_name(s->slot), (int)(n_expert * (s->step == 1 ? 1 : s->n)), &w, &p,
                            err));
    for (int64_t e = 0; e < n_expert; e++)
        p = add_rows(p, s, t, e * s->n_all, 0, s->n);
    b->out->slot[s->slot].b = b->out->n;
    return bind_finish_vector(b, w, t, n_expert * s->n, err);
}

/* n, k: of one expert. fused: the slot of a tensor with both gate and up; SLOT_COUNT: none. */
static nib_status bind_stack(binder *b, slot_id slot, slot_id fused, int64_t n, int64_t k, nib_error *err) {
    stack s = {.slot = slot, .row = bind_row(b, slot), .n = n, .k = k, .n_all = n, .step = 1};
    const container_tensor *t = find_matrix(b, s.row, 0);
    const arch_tensor *both = fused != SLOT_COUNT ? bind_row(b, fused) : NULL;
    if (t == NULL && both != NULL && (t = find_matrix(b, both, 0)) != NULL) {
        const row_order order = b->m->gguf_arch != NULL ? ROWS_CONCAT : both->order;
        const bool is_second = (slot == SLOT_UP_EXPS) != (order == ROWS_SWAPPED);
        s.row = both;
        s.n_all = 2 * n;
        s.step = order == ROWS_PAIRED ? 2 : 1;
        s.first = !is_second ? 0 : order == ROWS_PAIRED ? 1 : n;
    }
    if (t == NULL)
        return s.row != NULL && (s.row->flags & T_OPTIONAL)
                   ? NIB_OK
                   : bind_missing(b, s.row ? s.row : both, ".weight", err);
    s.transposed = b->m->gguf_arch == NULL && (s.row->flags & T_TRANSPOSED) && !t->packed;
    s.whole = t->n_dim == 3 ? t : NULL;
    NIB_TRY(bind_matrices(b, &s, t, err));
    return bind_biases(b, &s, err);
}

static nib_status bind_router(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const arch_tensor *row = bind_row(b, SLOT_CHOICE_BIAS);
    b->of_router = true;
    NIB_TRY(bind_linear(b, SLOT_ROUTER, hp->n_expert, hp->d_model, SLOT_COUNT, 0, err));
    b->of_router = false;
    b->out->weights[b->out->slot[SLOT_ROUTER].w].exact = true;
    if (bind_find(b, bind_row(b, SLOT_HASH), 0, "") != NULL)
        return bind_table(b, SLOT_HASH, hp->n_vocab * hp->n_expert_used, hp->n_expert_used, err);
    const char *suffix = b->m->gguf_arch != NULL ? ".bias" : "";
    const container_tensor *t = bind_find(b, row, 0, suffix);
    if (t == NULL)
        return row == NULL || (row->flags & T_OPTIONAL) ? NIB_OK : bind_missing(b, row, suffix, err);
    b->out->slot[SLOT_CHOICE_BIAS].there = true;
    return bind_vector(b, bind_bias_name(SLOT_CHOICE_BIAS), t, hp->n_expert,
                       &b->out->slot[SLOT_CHOICE_BIAS].w, err);
}

/* A mixture beside a dense layer (Gemma 4): both have norms of their own, and so has the router, whose input
 * is also scaled. */
static nib_status bind_branch(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    NIB_TRY(bind_table(b, SLOT_ROUTER_NORM, hp->d_model, 0, err));
    NIB_TRY(bind_factor(b, b->out->slot[SLOT_ROUTER_NORM].w, 1 / sqrt((double)hp->d_model), err));
    NIB_TRY(bind_table(b, SLOT_EXPERT_SCALE, hp->n_expert, 0, err));
    NIB_TRY(bind_norm(b, SLOT_DENSE_POST_NORM, hp->d_model, 1, err));
    NIB_TRY(bind_norm(b, SLOT_EXPERT_NORM, hp->d_model, 1, err));
    return bind_norm(b, SLOT_EXPERT_POST_NORM, hp->d_model, 1, err);
}

/* The experts that all rows use are one feed-forward layer. */
static nib_status bind_shared(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t ff = hp->d_shared, d = hp->d_model;
    const slot_id fused = bind_row(b, SLOT_GATE_UP_SHEXP) != NULL ? SLOT_GATE_UP_SHEXP : SLOT_COUNT;
    if (ff == 0)
        return NIB_OK;
    NIB_TRY(bind_linear(b, SLOT_GATE_SHEXP, ff, d, fused, 2 * ff, err));
    NIB_TRY(bind_linear(b, SLOT_UP_SHEXP, ff, d, fused, 2 * ff, err));
    NIB_TRY(bind_linear(b, SLOT_DOWN_SHEXP, d, ff, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_SHEXP_ROUTER, 1, d, SLOT_COUNT, 0, err));
    if (b->out->slot[SLOT_SHEXP_ROUTER].there)
        b->out->weights[b->out->slot[SLOT_SHEXP_ROUTER].w].exact = true;
    return NIB_OK;
}

nib_status bind_mixture(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t d = hp->d_latent > 0 ? hp->d_latent : hp->d_model, ff = hp->d_expert;
    if (hp->d_latent > 0) {
        NIB_TRY(bind_linear(b, SLOT_LATENT_DOWN, d, hp->d_model, SLOT_COUNT, 0, err));
        NIB_TRY(bind_linear(b, SLOT_LATENT_UP, hp->d_model, d, SLOT_COUNT, 0, err));
    }
    NIB_TRY(bind_router(b, err));
    NIB_TRY(bind_branch(b, err));
    if (bind_row(b, SLOT_GATE_EXPS) || bind_row(b, SLOT_GATE_UP_EXPS))
        NIB_TRY(bind_stack(b, SLOT_GATE_EXPS, SLOT_GATE_UP_EXPS, ff, d, err));
    NIB_TRY(bind_stack(b, SLOT_UP_EXPS, SLOT_GATE_UP_EXPS, ff, d, err));
    NIB_TRY(bind_stack(b, SLOT_DOWN_EXPS, SLOT_COUNT, d, ff, err));
    return bind_shared(b, err);
}

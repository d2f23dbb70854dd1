/* streams.c - binds the weights of residuals that have several streams. */
#include "model/binder.h"

#include <math.h>

/* The matrices of a stream each, one under the other: a tensor for each in HF folders, one for all in GGUF.
 */
static nib_status bind_each(binder *b, slot_id slot, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->n_stream - 1;
    const arch_tensor *row = bind_row(b, slot);
    const container_tensor *first = NULL;
    weight *w = NULL;
    weight_piece *p = NULL;
    if (row == NULL || n < 1)
        return NIB_OK;
    NIB_TRY(bind_new_weight(b, slot_name(slot), (int)n, &w, &p, err));
    for (int64_t i = 0; i < n; i++) {
        binder at = *b;
        at.layer = (int)i; /* the names have the stream's number */
        const container_tensor *t = bind_find(&at, row, 0, ".weight");
        const bool whole =
            t != NULL && t->n_dim == 3 && t->shape[0] == n && t->shape[1] == d && t->shape[2] == d;
        if (t == NULL)
            return bind_missing(&at, row, ".weight", err);
        if ((!whole && !bind_has_shape(t, d, d)) || (first != NULL && t->type != first->type))
            return bind_wrong_shape(t, d, d, err);
        first = t;
        p[i] = (weight_piece){t, whole ? i * d : 0, d};
    }
    b->out->slot[slot].there = true;
    b->out->slot[slot].w = b->out->n;
    return bind_finish_matrix(b, w, first, n * d, d, false, err);
}

nib_status bind_exact(binder *b, slot_id slot, int64_t n, int64_t k, nib_error *err) {
    NIB_TRY(bind_linear(b, slot, n, k, SLOT_COUNT, 0, err));
    if (b->out->slot[slot].there)
        b->out->weights[b->out->slot[slot].w].exact = true;
    return NIB_OK;
}

static nib_status bind_altup(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->n_stream;
    const container_tensor *laurel = bind_find(b, bind_row(b, SLOT_LAUREL_L), 0, ".weight");
    const int64_t low = laurel != NULL && laurel->n_dim == 2 ? laurel->shape[0] : 1; /* no key has it */
    NIB_TRY(bind_exact(b, SLOT_ALTUP_ROUTER, n, d, err));
    NIB_TRY(bind_norm(b, SLOT_ALTUP_ROUTER_NORM, d, 1, err));
    NIB_TRY(bind_factor(b, b->out->slot[SLOT_ALTUP_ROUTER_NORM].w, 1 / (double)d, err));
    NIB_TRY(bind_exact(b, SLOT_ALTUP_PREDICT, n * n, n, err));
    NIB_TRY(bind_exact(b, SLOT_ALTUP_CORRECT, n, n, err));
    NIB_TRY(bind_table(b, SLOT_ALTUP_SCALE, d, 0, err));
    NIB_TRY(bind_linear(b, SLOT_LAUREL_L, low, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_LAUREL_R, d, low, SLOT_COUNT, 0, err));
    return bind_norm(b, SLOT_LAUREL_NORM, d, 1, err);
}

/* first: the slots of a site, in the order of slots.def. */
static nib_status bind_site(binder *b, slot_id first, bool injects, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t n = hp->n_stream, all = n * hp->d_model;
    NIB_TRY(bind_norm(b, first, all, n, err));
    NIB_TRY(bind_linear(b, first + 1, hp->stream_rank, all, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, first + 2, all, hp->stream_rank, SLOT_COUNT, 0, err));
    return injects ? bind_exact(b, first + 3, n, all, err) : NIB_OK;
}

/* first: the slots of a site of manifold-constrained hyper-connections. n: factors. */
static nib_status bind_connection(binder *b, slot_id first, int64_t n, int64_t n_scale, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    NIB_TRY(bind_exact(b, first, n, hp->n_stream * hp->d_model, err));
    NIB_TRY(bind_table(b, first + 1, n_scale, 0, err));
    return bind_table(b, first + 2, n, 0, err);
}

nib_status bind_streams(binder *b, block_part part, nib_error *err) {
    const int64_t n = b->m->cfg.hp.n_stream;
    if (n < 2)
        return NIB_OK;
    switch (part) {
    case PART_EMBED: return bind_each(b, SLOT_ALTUP_PROJ, err);
    case PART_LAYER:
        if (bind_row(b, SLOT_ALTUP_ROUTER) != NULL)
            return bind_altup(b, err);
        if (bind_row(b, SLOT_CONNECT) != NULL) {
            NIB_TRY(bind_connection(b, SLOT_CONNECT, n * (n + 2), 3, err));
            return bind_connection(b, SLOT_CONNECT_FFN, n * (n + 2), 3, err);
        }
        NIB_TRY(bind_site(b, SLOT_MIX_NORM, true, err));
        return bind_site(b, SLOT_MIX_FFN_NORM, true, err);
    case PART_HEAD:
        NIB_TRY(bind_each(b, SLOT_ALTUP_UNEMBED, err));
        if (bind_row(b, SLOT_CONNECT_OUT) != NULL)
            return bind_connection(b, SLOT_CONNECT_OUT, n, 1, err);
        return bind_row(b, SLOT_MIX_OUT_NORM) ? bind_site(b, SLOT_MIX_OUT_NORM, false, err) : NIB_OK;
    }
    return NIB_OK;
}

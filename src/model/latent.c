/* latent.c - binds the weights of latent attention: rows of low rank from which queries, keys and values
 * come, and the part of the keys that is rotated. */
#include "base/num.h"
#include "model/binder.h"

/* The rotated rows of each head of q are its last ones in files, and its first ones here. */
nib_status bind_latent_attention(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t n = hp->n_head, d = hp->d_head, turned = hp->n_rot, plain = d - turned, v = hp->d_value;
    const int64_t low = hp->kv_low_rank, d_model = hp->d_model, both = plain + v;
    const row_runs q[] = {{plain, turned, d, (int)n}, {0, plain, d, (int)n}};
    const row_runs low_kv = {0, low, low, 1}, k_turned = {low, turned, turned, 1};
    const row_runs k = {0, plain, both, (int)n}, values = {plain, v, both, (int)n};
    const slot_id from = hp->q_low_rank > 0 ? SLOT_Q_B : SLOT_Q;
    if (hp->q_low_rank > 0) {
        NIB_TRY(bind_linear(b, SLOT_Q_A, hp->q_low_rank, d_model, SLOT_COUNT, 0, err));
        NIB_TRY(bind_norm(b, SLOT_Q_A_NORM, hp->q_low_rank, 1, err));
    }
    NIB_TRY(bind_rows(b, from, from, n * d, hp->q_low_rank > 0 ? hp->q_low_rank : d_model, q, 2, err));
    NIB_TRY(bind_rows(b, SLOT_KV_A, SLOT_LOW_KV, low + turned, d_model, &low_kv, 1, err));
    NIB_TRY(bind_rows(b, SLOT_KV_A, SLOT_K_TURNED, low + turned, d_model, &k_turned, 1, err));
    NIB_TRY(bind_norm(b, SLOT_KV_A_NORM, low, 1, err));
    NIB_TRY(bind_rows(b, SLOT_KV_B, SLOT_K, n * both, low, &k, 1, err));
    NIB_TRY(bind_rows(b, SLOT_KV_B, SLOT_V, n * both, low, &values, 1, err));
    return bind_linear(b, SLOT_O, d_model, n * v, SLOT_COUNT, 0, err);
}

/* The matrices of o_group groups of heads are one under the other, each padded to whole panels with rows that
 * repeat its first ones, whose outputs are not used. */
static nib_status bind_groups(binder *b, slot_id slot, int64_t n, int64_t k, nib_error *err) {
    const int64_t n_group = b->m->cfg.hp.o_group, each = num_round_up(n, PACK_PANEL);
    const arch_tensor *row = bind_row(b, slot);
    const container_tensor *t = bind_find(b, row, 0, ".weight");
    const int64_t n_pad = num_div_up(each - n, n);
    weight *w = NULL;
    weight_piece *p = NULL;
    if (t == NULL)
        return bind_missing(b, row, ".weight", err);
    if (!bind_has_shape(t, n_group * n, k))
        return bind_wrong_shape(t, n_group * n, k, err);
    NIB_TRY(bind_new_weight(b, slot_name(slot), (int)(n_group * (1 + n_pad)), &w, &p, err));
    for (int64_t g = 0; g < n_group; g++) {
        *p++ = (weight_piece){t, g * n, n};
        for (int64_t i = 0; i < each - n; i += n)
            *p++ = (weight_piece){t, g * n, NUM_MIN(n, each - n - i)};
    }
    b->out->slot[slot].there = true;
    b->out->slot[slot].w = b->out->n;
    return bind_finish_matrix(b, w, t, n_group * each, k, false, err);
}

/* What makes entries of `width` channels; overlaps: of two halves. first: its slots in the order of
 * slots.def. */
static nib_status bind_pool(binder *b, slot_id first, int64_t width, int64_t every, bool overlaps,
                            nib_error *err) {
    const int64_t d = b->m->cfg.hp.d_model, all = width * (overlaps ? 2 : 1);
    NIB_TRY(bind_linear(b, first, all, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, first + 1, all, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_table(b, first + 2, every * all, all, err));
    return bind_norm(b, first + 3, width, 1, err);
}

nib_status bind_compressed_attention(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t d = hp->d_model, n = hp->n_head, width = hp->d_head, low = hp->q_low_rank;
    const uint8_t kind = b->m->cfg.layer[b->layer];
    const bool chooses = kind & LAYER_CHOOSES;
    NIB_TRY(bind_linear(b, SLOT_Q_A, low, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_norm(b, SLOT_Q_A_NORM, low, 1, err));
    NIB_TRY(bind_linear(b, SLOT_Q_B, n * width, low, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_K, width, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_norm(b, SLOT_K_NORM, width, 1, err));
    if (kind & LAYER_POOLED)
        NIB_TRY(bind_pool(b, SLOT_POOL_X, width, chooses ? hp->pool_chosen : hp->pool_all, chooses, err));
    if (chooses) {
        NIB_TRY(bind_pool(b, SLOT_INDEX_X, hp->index_width, hp->pool_chosen, true, err));
        NIB_TRY(bind_linear(b, SLOT_INDEX_Q, hp->index_head * hp->index_width, low, SLOT_COUNT, 0, err));
        NIB_TRY(bind_exact(b, SLOT_INDEX_W, hp->index_head, d, err));
    }
    NIB_TRY(bind_groups(b, SLOT_O_LOW, hp->o_low_rank, n / hp->o_group * width, err));
    return bind_linear(b, SLOT_O, d, hp->o_group * hp->o_low_rank, SLOT_COUNT, 0, err);
}

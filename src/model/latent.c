/* latent.c - binds the weights of latent attention: rows of low rank from which queries, keys and values
 * come, and the part of the keys that is rotated. */
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
    NIB_TRY(bind_linear(b, SLOT_O_LOW, hp->o_group * hp->o_low_rank, n / hp->o_group * width, SLOT_COUNT, 0,
                        err));
    return bind_linear(b, SLOT_O, d, hp->o_group * hp->o_low_rank, SLOT_COUNT, 0, err);
}

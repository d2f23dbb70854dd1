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

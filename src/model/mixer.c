/* mixer.c - binds the weights of a recurrent layer's mixer, and says of which parts its input projection
 * consists. */
#include "model/binder.h"

#include <string.h>

/* ---- parts of a projection ---- */

/* The width of a part of a recurrent layer's input projection. */
static int64_t mixer_width(const hparams *hp, mixer_kind mixer, slot_id slot) {
    if (mixer == MIXER_CONV)
        return hp->d_model;
    if (slot == SLOT_REC_DT || slot == SLOT_REC_BETA)
        return hp->rec_head;
    if (slot != SLOT_REC_X || mixer == MIXER_SCAN)
        return hp->rec_inner;
    return hp->rec_inner + 2 * hp->rec_group * hp->rec_state;
}

bool mixer_is_tiled(const model *m) {
    return m->gguf_arch != NULL && (m->arch->flags & A_TILED_GGUF);
}

int mixer_parts(mixer_kind mixer, const slot_id **out) {
    static const slot_id parts[MIXER_COUNT][4] = {
        [MIXER_CONV] = {SLOT_REC_B, SLOT_REC_Z, SLOT_REC_X, SLOT_COUNT},
        [MIXER_SSD] = {SLOT_REC_Z, SLOT_REC_X, SLOT_REC_DT, SLOT_COUNT},
        [MIXER_SCAN] = {SLOT_REC_X, SLOT_REC_Z, SLOT_COUNT},
        [MIXER_KDA] = {SLOT_COUNT},
        [MIXER_DELTA] = {SLOT_REC_X, SLOT_REC_Z, SLOT_REC_BETA, SLOT_REC_DT},
    };
    int n = 0;
    while (mixer != MIXER_NONE && n < 4 && parts[mixer][n] != SLOT_COUNT)
        n++;
    *out = parts[mixer];
    return n;
}

/* Where a part begins in the whole projection; SLOT_COUNT: the width of all. */
static int64_t mixer_offset(const hparams *hp, mixer_kind mixer, slot_id slot) {
    const slot_id *parts;
    const int n = mixer_parts(mixer, &parts);
    int64_t at = 0;
    for (int i = 0; i < n && parts[i] != slot; i++)
        at += mixer_width(hp, mixer, parts[i]);
    return at;
}

bool mixer_part(const model *m, slot_id slot, int64_t *first, int64_t *n) {
    const hparams *hp = &m->cfg.hp;
    switch (slot) {
    case SLOT_REC_B:
    case SLOT_REC_X:
    case SLOT_REC_Z:
    case SLOT_REC_DT:
    case SLOT_REC_BETA:
        *first = mixer_offset(hp, m->arch->mixer, slot);
        *n = mixer_width(hp, m->arch->mixer, slot);
        return true;
    case SLOT_REC_DT_LOW:
        *first = 0;
        *n = hp->rec_dt_rank;
        return true;
    case SLOT_REC_BC:
        *first = hp->rec_dt_rank;
        *n = 2 * hp->rec_state;
        return true;
    default: return false;
    }
}

/* ---- weights ---- */

nib_status bind_table(binder *b, slot_id slot, int64_t n, int64_t n_col, nib_error *err) {
    const arch_tensor *row = bind_row(b, slot);
    if (row == NULL)
        return NIB_OK;
    const char *suffix = row->flags & T_BARE ? "" : ".weight";
    const container_tensor *t = bind_find(b, row, 0, suffix);
    if (t == NULL)
        return row->flags & T_OPTIONAL ? NIB_OK : bind_missing(b, row, suffix, err);
    const bool flat = t->n_dim == 3 && t->shape[1] == 1;  /* HF's convolutions: [channels, 1, taps] */
    const bool heads = t->n_dim == 4 && t->shape[2] == n; /* Kimi's A_log: [1, 1, heads, 1] */
    if (bind_count(t) != n || (t->n_dim > 2 && !flat && !heads) || (n_col == 0 && t->n_dim > 1 && !heads))
        return bind_wrong_shape(t, n, -1, err);
    NIB_TRY(bind_elements(b, slot_name(slot), t, n, &b->out->slot[slot].w, err));
    weight *w = &b->out->weights[b->out->slot[slot].w];
    w->n_col = n_col;
    w->minus_exp = (row->flags & T_MINUS_EXP) && b->m->gguf_arch == NULL;
    b->out->slot[slot].there = true;
    return suffix[0] ? bind_bias(b, row, n_col ? n / n_col : n, err) : NIB_OK;
}

/* Factors of x, B and C, which the taps of the convolution take (rec_x_scale and the like). */
static nib_status scale_taps(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    weight *w = &b->out->weights[b->out->slot[SLOT_REC_CONV].w];
    const int64_t x = hp->rec_inner * hp->rec_tap, each = hp->rec_group * hp->rec_state * hp->rec_tap;
    const double in = hp->rec_in_scale;
    if (in * hp->rec_x_scale == 1 && in * hp->rec_b_scale == 1 && in * hp->rec_c_scale == 1)
        return NIB_OK;
    float *times = arena_array(b->src.mem, (size_t)w->k, sizeof *times);
    if (times == NULL)
        return nib_fail_nomem(err, (size_t)w->k * sizeof *times, "factors of a convolution");
    for (int64_t i = 0; i < w->k; i++)
        times[i] = (float)(in * (i < x ? hp->rec_x_scale : i < x + each ? hp->rec_b_scale : hp->rec_c_scale));
    w->times = times;
    return NIB_OK;
}

/* Mamba-2's norm is of groups, or of the whole row: GGUF has it in rows of a group, or in one dimension. */
static void group_norm(binder *b, int64_t width) {
    weight *w = &b->out->weights[b->out->slot[SLOT_REC_NORM].w];
    if (b->m->gguf_arch != NULL)
        b->out->slot[SLOT_REC_NORM].whole_row = w->pieces[0].tensor->n_dim == 1;
    w->n_col = b->out->slot[SLOT_REC_NORM].whole_row ? 0 : width;
}

/* Qwen3-Next: the queries of all groups, then the keys, then the values, from a tensor that has `each` rows
 * of every group. */
static nib_status bind_qkv(binder *b, int64_t each, int64_t d_k, int64_t d_v, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const arch_tensor *row = bind_row(b, SLOT_REC_QKVZ);
    const container_tensor *t = bind_find(b, row, 0, ".weight");
    if (t == NULL)
        return bind_missing(b, row, ".weight", err);
    if (!bind_has_shape(t, each * hp->rec_group, hp->d_model))
        return bind_wrong_shape(t, each * hp->rec_group, hp->d_model, err);
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, slot_name(SLOT_REC_X), 3 * (int)hp->rec_group, &w, &p, err));
    for (int i = 0; i < 3; i++)
        for (int64_t g = 0; g < hp->rec_group; g++)
            *p++ = (weight_piece){t, g * each + i * d_k, i < 2 ? d_k : d_v};
    b->out->slot[SLOT_REC_X].there = true;
    b->out->slot[SLOT_REC_X].w = b->out->n;
    return bind_finish_matrix(b, w, t, hp->rec_group * (2 * d_k + d_v), hp->d_model, false, err);
}

/* Qwen3-Next: q, k, v and z in one tensor, beta and the decay in another, both group by group. */
static nib_status bind_grouped(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t dk = hp->rec_state, v = hp->rec_inner / hp->rec_group, share = hp->rec_head / hp->rec_group;
    const int64_t each = 2 * dk + 2 * v, all = each * hp->rec_group, d = hp->d_model;
    const int n = (int)hp->rec_group;
    const row_runs z = {2 * dk + v, v, each, n};
    const row_runs beta = {0, share, 2 * share, n}, decay = {share, share, 2 * share, n};
    const arch_tensor *own = bind_row(b, SLOT_REC_X);
    if (own != NULL && bind_find(b, own, 0, ".weight") != NULL) {
        NIB_TRY(bind_linear(b, SLOT_REC_X, hp->rec_inner + 2 * n * dk, d, SLOT_COUNT, 0, err));
        NIB_TRY(bind_linear(b, SLOT_REC_Z, hp->rec_inner, d, SLOT_COUNT, 0, err));
    } else {
        NIB_TRY(bind_qkv(b, each, dk, v, err));
        NIB_TRY(bind_rows(b, SLOT_REC_QKVZ, SLOT_REC_Z, all, d, &z, 1, err));
    }
    NIB_TRY(bind_rows(b, SLOT_REC_BA, SLOT_REC_BETA, 2 * hp->rec_head, d, &beta, 1, err));
    return bind_rows(b, SLOT_REC_BA, SLOT_REC_DT, 2 * hp->rec_head, d, &decay, 1, err);
}

/* Mamba-1: dt, B and C come from x; B and C are normed like two heads. */
static nib_status bind_low_rank(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t rank = hp->rec_dt_rank, n = hp->rec_state, inner = hp->rec_inner, all = rank + 2 * n;
    const arch_tensor *rows[] = {bind_row(b, SLOT_REC_B_NORM), bind_row(b, SLOT_REC_C_NORM)};
    NIB_TRY(bind_linear(b, SLOT_REC_DT_LOW, rank, inner, SLOT_REC_X_PROJ, all, err));
    NIB_TRY(bind_linear(b, SLOT_REC_BC, 2 * n, inner, SLOT_REC_X_PROJ, all, err));
    NIB_TRY(bind_linear(b, SLOT_REC_DT, inner, rank, SLOT_COUNT, 0, err));
    NIB_TRY(bind_norm(b, SLOT_REC_DT_NORM, rank, 1, err));
    const container_tensor *of[] = {bind_find(b, rows[0], 0, ".weight"), bind_find(b, rows[1], 0, ".weight")};
    if (of[0] == NULL && of[1] == NULL)
        return NIB_OK;
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, slot_name(SLOT_REC_B_NORM), 2, &w, &p, err));
    for (int i = 0; i < 2; i++) {
        if (of[i] == NULL)
            return bind_missing(b, rows[i], ".weight", err);
        if (of[i]->n_dim != 1 || of[i]->shape[0] != n || of[i]->type != of[0]->type)
            return bind_wrong_shape(of[i], n, -1, err);
        p[i] = (weight_piece){of[i], 0, n};
    }
    b->out->slot[SLOT_REC_B_NORM].there = b->out->slot[SLOT_REC_B_NORM].per_entry = true;
    b->out->slot[SLOT_REC_B_NORM].w = b->out->n;
    return bind_finish_vector(b, w, of[0], 2 * n, err);
}

/* Kimi: q, k and v, and their taps, have tensors of their own; the decay and the gate are of low rank. */
static nib_status bind_kda(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    static const slot_id in[] = {SLOT_REC_XQ, SLOT_REC_XK, SLOT_REC_XV},
                         taps[] = {SLOT_REC_CONV_Q, SLOT_REC_CONV_K, SLOT_REC_CONV_V};
    const int64_t inner = hp->rec_inner, d = hp->d_model, rank = hp->rec_dt_rank;
    weight *w = NULL;
    weight_piece *p = NULL;
    for (int kind = 0; kind < 2; kind++) {
        const slot_id to = kind ? SLOT_REC_CONV : SLOT_REC_X;
        const container_tensor *t = NULL;
        NIB_TRY(bind_new_weight(b, slot_name(to), 3, &w, &p, err));
        for (int i = 0; i < 3; i++) {
            const arch_tensor *row = bind_row(b, (kind ? taps : in)[i]);
            const container_tensor *of = bind_find(b, row, 0, ".weight");
            if (of == NULL)
                return bind_missing(b, row, ".weight", err);
            if (kind ? bind_count(of) != inner * hp->rec_tap : !bind_has_shape(of, inner, d))
                return bind_wrong_shape(of, inner, kind ? hp->rec_tap : d, err);
            if (t != NULL && of->type != t->type)
                return bind_wrong_shape(of, inner, d, err);
            t = of;
            p[i] = (weight_piece){of, 0, kind ? inner * hp->rec_tap : inner};
        }
        b->out->slot[to].there = true;
        b->out->slot[to].w = b->out->n;
        w->n_col = kind ? hp->rec_tap : 0;
        NIB_TRY(kind ? bind_finish_vector(b, w, t, 3 * inner * hp->rec_tap, err)
                     : bind_finish_matrix(b, w, t, 3 * inner, d, false, err));
    }
    NIB_TRY(bind_linear(b, SLOT_REC_BETA, hp->rec_head, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_REC_DT_LOW, rank, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_REC_DT, inner, rank, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_REC_Z_LOW, rank, d, SLOT_COUNT, 0, err));
    return bind_linear(b, SLOT_REC_Z, inner, rank, SLOT_COUNT, 0, err);
}

/* The projections of the layer's input. */
static nib_status bind_input(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const mixer_kind mixer = b->m->arch->mixer;
    const int64_t all = mixer_offset(hp, mixer, SLOT_COUNT);
    const slot_id *parts;
    const int n_part = mixer_parts(mixer, &parts);
    if (bind_row(b, SLOT_REC_BA))
        return bind_grouped(b, err);
    if (mixer == MIXER_KDA)
        return bind_kda(b, err);
    for (int i = 0; i < n_part; i++)
        NIB_TRY(
            bind_linear(b, parts[i], mixer_width(hp, mixer, parts[i]), hp->d_model, SLOT_REC_IN, all, err));
    return mixer == MIXER_SCAN ? bind_low_rank(b, err) : NIB_OK;
}

nib_status bind_mixer(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const mixer_kind mixer = b->m->arch->mixer;
    const int64_t d = hp->d_model, inner = mixer == MIXER_CONV ? d : hp->rec_inner;
    const int64_t each = mixer == MIXER_SCAN ? hp->rec_state : 1; /* of a head's or channel's decay */
    const int64_t n = mixer == MIXER_SCAN ? inner : hp->rec_head, groups = hp->rec_group;
    NIB_TRY(bind_input(b, err));
    NIB_TRY(bind_table(b, SLOT_REC_CONV, mixer_width(hp, mixer, SLOT_REC_X) * hp->rec_tap, hp->rec_tap, err));
    if (mixer == MIXER_SSD) {
        NIB_TRY(scale_taps(b, err));
        static const slot_id parts[] = {SLOT_REC_Z, SLOT_REC_X, SLOT_REC_DT};
        for (int i = 0; i < 3; i++) /* the factor is of the input, but the output is multiplied */
            NIB_TRY(bind_factor(b, b->out->slot[parts[i]].b, 1 / hp->rec_in_scale, err));
    }
    const bool delta = mixer == MIXER_DELTA || mixer == MIXER_KDA;
    NIB_TRY(bind_table(b, SLOT_REC_DT_BIAS, mixer == MIXER_KDA ? inner : n, 0, err));
    NIB_TRY(bind_table(b, SLOT_REC_A, n * each, mixer == MIXER_DELTA ? 0 : each, err));
    NIB_TRY(bind_table(b, SLOT_REC_D, n, mixer == MIXER_SSD, err));
    NIB_TRY(bind_norm(b, SLOT_REC_NORM, inner, delta ? hp->rec_head : groups, err));
    if (mixer == MIXER_SSD && b->out->slot[SLOT_REC_NORM].there)
        group_norm(b, inner / groups);
    return bind_linear(b, SLOT_REC_OUT, d, inner, SLOT_COUNT, 0, err);
}

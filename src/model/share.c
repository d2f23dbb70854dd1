/* share.c - a rank's share of every layer: some of its attention heads and feed-forward neurons.
 *
 * Products before attention and before the activation are cut by outputs, those after them by inputs
 * (Megatron-LM, arXiv 1909.08053). So a rank computes its heads and neurons without the others, and has a
 * part of each sum at the end of a sub-layer; OP_REDUCE adds the parts of all ranks. The first rank's part
 * has the bias. Embedding, norms, the residual stream and the output head are whole.
 *
 * A share is whole groups of heads with the same keys and values, or with more ranks than groups a part of
 * one; and neurons in parts of up to 256, of a mixture those of every expert. Blocks of a file's format are
 * never cut. Of a recurrent layer a rank has heads of the state, or channels of a short convolution, with
 * what belongs to them: so it keeps the state of its heads alone. */
#include "base/num.h"
#include "model/internal.h"

#include <math.h>
#include <string.h>

static const slot_id norms[] = {SLOT_Q_NORM, SLOT_K_NORM, SLOT_V_NORM}; /* of heads */

typedef struct range {
    int64_t first, n;
} range;

static nib_status refuse(int layer, const char *what, nib_error *err) {
    return nib_fail(err, NIB_E_USAGE, "layer %d: %s cannot be split over devices by tensors yet", layer,
                    what);
}

static bool has(const bound *b, slot_id slot) {
    return b->slot[slot].there;
}

/* What has no rule here. */
static nib_status check(const model *m, int layer, const bound *b, nib_error *err) {
    const hparams *hp = &m->cfg.hp;
    const uint8_t kind = m->cfg.layer[layer];
    if ((kind & LAYER_RECURRENT) && m->arch->mixer == MIXER_SCAN) /* dt, B and C are made of all channels */
        return refuse(layer, "a selective scan", err);
    if (has(b, SLOT_LATENT_DOWN))
        return refuse(layer, "a mixture of experts behind a projection", err);
    if (has(b, SLOT_O_LOW))
        return refuse(layer, "compressed attention", err);
    if (hp->n_stream > 1 || has(b, SLOT_ALTUP_ROUTER))
        return refuse(layer, "a residual of several streams", err);
    if (hp->n_kv_shared > 0)
        return refuse(layer, "attention to another layer's keys and values", err);
    if (hp->alibi_max_bias > 0)
        return refuse(layer, "attention with ALiBi", err);
    if (isfinite(m->cfg.shape[layer].sparsity))
        return refuse(layer, "a sparse activation", err);
    for (size_t i = 0; i < NUM_COUNT(norms); i++)
        if (has(b, norms[i]) && b->slot[norms[i]].whole_row)
            return refuse(layer, "a norm of all heads together", err);
    return NIB_OK;
}

/* ---- how much ---- */

/* Part i of n_part of n units, which are cut at multiples of `step`. */
static range part_of(int64_t n, int64_t step, int i, int n_part) {
    const int64_t steps = n / step, first = steps * i / n_part;
    return (range){first * step, (steps * (i + 1) / n_part - first) * step};
}

/* Columns at whose multiples a row of the file may be cut. */
static int64_t column_step(const weight *w) {
    return w->transposed ? 1 : NUM_MAX(type_get(w->type)->block_elems, (int64_t)1);
}

/* The fewest units, a divisor of n, whose columns a row can be cut behind. */
static int64_t whole_units(int64_t n, int64_t columns, int64_t whole) {
    int64_t step = 1;
    while (step < n && (step * columns % whole || n % step))
        step++;
    return step;
}

/* Whole groups of heads with the same keys and values, if there are enough of the n groups. Otherwise as many
 * ranks as are needed share a group, and each has its keys and values. o: the matrix behind the heads. */
static nib_status cut_heads(const model *m, int layer, const weight *o, int64_t n_head, int64_t n,
                            range *heads, range *kv_heads, nib_error *err) {
    const int64_t group = n_head / n, each = o->k / n_head;
    const int64_t whole = column_step(o), step = whole_units(n, group * each, whole);
    const int n_rank = m->share.n, rank = m->share.rank;
    if (n / step >= n_rank) {
        *kv_heads = part_of(n, step, rank, n_rank);
        *heads = (range){kv_heads->first * group, kv_heads->n * group};
        return NIB_OK;
    }
    const int64_t within = n_rank % n ? 0 : n_rank / n, some = whole_units(group, each, whole);
    if (within == 0 || group / some < within || some * each % whole)
        return nib_fail(
            err, NIB_E_USAGE,
            "layer %d: its heads have %lld parts that devices can share (groups of heads, whole blocks of "
            "%s), found %d devices",
            layer, (long long)(n / step), type_get(o->type)->name, n_rank);
    *kv_heads = (range){rank / within, 1};
    *heads = part_of(group, some, (int)(rank % within), (int)within);
    heads->first += kv_heads->first * group;
    return NIB_OK;
}

/* Neurons in front of the slot `down`, in large parts, because kernels and activations have groups of inputs.
 */
static nib_status cut_neurons(const model *m, int layer, const bound *b, slot_id slot, int64_t n, range *out,
                              nib_error *err) {
    const weight *down = &b->weights[b->slot[slot].w];
    const int64_t whole = column_step(down);
    int64_t step = 256;
    while (step > 1 && (n % step || n / step < m->share.n || step % whole))
        step /= 2;
    if (n % step || n / step < m->share.n || step % whole)
        return nib_fail(
            err, NIB_E_USAGE,
            "layer %d: the %lld inputs of %s cannot be shared by %d devices in whole blocks of %s", layer,
            (long long)n, down->name, m->share.n, type_get(down->type)->name);
    *out = part_of(n, step, m->share.rank, m->share.n);
    return NIB_OK;
}

/* ---- the cut ---- */

/* Where rows of a weight are looked for, from the last ones on. */
typedef struct cursor {
    int piece;
    int64_t at; /* its first row */
} cursor;

/* Appends the pieces of rows [row, row + n) of w, which begin at or behind the cursor, to out; returns how
 * many. */
static int append(const weight *w, cursor *c, int64_t row, int64_t n, weight_piece *out) {
    int n_piece = 0;
    while (n > 0) {
        while (c->at + w->pieces[c->piece].n_row <= row)
            c->at += w->pieces[c->piece++].n_row;
        const weight_piece *p = &w->pieces[c->piece];
        const int64_t some = NUM_MIN(n, c->at + p->n_row - row);
        out[n_piece++] = (weight_piece){p->tensor, p->first_row + row - c->at, some};
        row += some;
        n -= some;
    }
    return n_piece;
}

/* Rows of a matrix, or elements of a vector: these parts, one behind the other, of n_row units. */
static nib_status keep_parts(model *m, weight *w, const range *parts, int n_part, int64_t n_row,
                             nib_error *err) {
    const int64_t each = (w->vector ? w->k : w->n) / n_row;
    const size_t most = (size_t)(w->n_piece + n_part);
    weight_piece *pieces = arena_array(&m->mem, most, sizeof *pieces);
    float *times = w->times ? arena_array(&m->mem, (size_t)w->k, sizeof *times) : NULL;
    cursor c = {0, 0};
    int n_piece = 0;
    int64_t n = 0;
    if (!pieces || (w->times && !times))
        return nib_fail_nomem(err, most * sizeof *pieces, w->name);
    for (int i = 0; i < n_part; i++) {
        const int64_t first = parts[i].first * each, some = parts[i].n * each;
        n_piece += append(w, &c, first, some, pieces + n_piece);
        if (times)
            memcpy(times + n, w->times + first, (size_t)some * sizeof *times);
        n += some;
    }
    w->pieces = pieces;
    w->n_piece = n_piece;
    if (w->vector) {
        w->times = times;
        w->k = n;
        w->bytes = (uint64_t)n * sizeof(float);
        return NIB_OK;
    }
    w->n = n;
    pack_bytes(&w->format, w->n, w->k, &w->bytes); /* the whole matrix did not overflow */
    return NIB_OK;
}

/* Rows of the stacked matrices of experts, or elements of their biases: this part of each of n_group groups
 * of `each`. Matrices are padded to whole panels with rows that repeat their first ones, as in experts.c. */
static nib_status keep_stacked(model *m, weight *w, range part, int64_t n_group, int64_t each,
                               nib_error *err) {
    const int64_t padded = w->n_expert ? num_round_up(part.n, PACK_PANEL) : part.n;
    const size_t most = (size_t)w->n_piece + (size_t)(n_group * (1 + padded - part.n));
    weight_piece *pieces = arena_array(&m->mem, most, sizeof *pieces);
    cursor c = {0, 0};
    int n_piece = 0;
    if (!pieces)
        return nib_fail_nomem(err, most * sizeof *pieces, w->name);
    for (int64_t g = 0; g < n_group; g++) {
        const int64_t first = g * each + part.first;
        const cursor begin = c; /* not behind the group */
        n_piece += append(w, &c, first, part.n, pieces + n_piece);
        for (int64_t done = part.n, n; done < padded; done += n) {
            cursor again = begin;
            n = NUM_MIN(part.n, padded - done);
            n_piece += append(w, &again, first, n, pieces + n_piece);
        }
    }
    w->pieces = pieces;
    w->n_piece = n_piece;
    if (w->vector) {
        w->k = n_group * part.n;
        w->bytes = (uint64_t)w->k * sizeof(float);
        return NIB_OK;
    }
    w->n = n_group * padded;
    w->expert_n = part.n;
    pack_bytes(&w->format, w->n, w->k, &w->bytes);
    return NIB_OK;
}

/* These parts of the outputs of a slot, which have n_unit units, and what belongs to them. */
static nib_status keep_output_parts(model *m, bound *b, slot_id slot, const range *parts, int n_part,
                                    int64_t n_unit, nib_error *err) {
    if (b->slot[slot].w < 0)
        return NIB_OK;
    NIB_TRY(keep_parts(m, &b->weights[b->slot[slot].w], parts, n_part, n_unit, err));
    return b->slot[slot].b < 0 ? NIB_OK
                               : keep_parts(m, &b->weights[b->slot[slot].b], parts, n_part, n_unit, err);
}

static nib_status keep_outputs(model *m, bound *b, slot_id slot, range part, int64_t n_unit, nib_error *err) {
    return keep_output_parts(m, b, slot, &part, 1, n_unit, err);
}

/* The inputs of a slot. Only the first rank's sum has the bias. */
static nib_status keep_inputs(const model *m, bound *b, slot_id slot, range part, int64_t n_unit,
                              nib_error *err) {
    weight *w = &b->weights[b->slot[slot].w];
    const int64_t each = w->k / n_unit;
    const bool zeros = w->format.scale == PACK_SCALE_ZERO;
    const type_info *type = type_get(w->type);
    w->k_file = w->k;
    w->first_col = part.first * each;
    w->k = part.n * each;
    if (m->share.rank > 0)
        b->slot[slot].b = -1;
    if (!pack_choose(w->type, w->k, &w->format) || type->row_bytes || type->sparse ||
        w->format.group == PACK_GROUP_ROW)
        return nib_fail(err, NIB_E_USAGE,
                        "%s: expected a type whose rows can be cut between devices, found %s", w->name,
                        type->name);
    if (m->wide && zeros)
        pack_widen(&w->format);
    pack_bytes(&w->format, w->n, w->k, &w->bytes);
    return NIB_OK;
}

/* Of latent attention each rank has the row of low rank, which is the cache, and what makes it; keys and
 * values of heads come from it. */
static nib_status cut_attention(model *m, int layer, bound *b, nib_error *err) {
    layer_shape *shape = &m->cfg.shape[layer];
    const slot_id of_queries[] = {SLOT_Q, SLOT_Q_B, SLOT_ATTN_GATE, SLOT_SINKS}, of_keys[] = {SLOT_K, SLOT_V};
    const bool latent = has(b, SLOT_LOW_KV);
    const int64_t n = shape->n_head, n_kv = latent ? n : shape->n_kv_head;
    range heads, kv_heads;
    NIB_TRY(cut_heads(m, layer, &b->weights[b->slot[SLOT_O].w], n, shape->n_kv_head, &heads, &kv_heads, err));
    for (size_t i = 0; i < NUM_COUNT(of_queries); i++)
        NIB_TRY(keep_outputs(m, b, of_queries[i], heads, n, err));
    for (size_t i = 0; i < NUM_COUNT(of_keys); i++)
        NIB_TRY(keep_outputs(m, b, of_keys[i], latent ? heads : kv_heads, n_kv, err));
    for (size_t i = 0; i < NUM_COUNT(norms); i++)
        if (b->slot[norms[i]].per_entry)
            NIB_TRY(norms[i] == SLOT_Q_NORM ? keep_outputs(m, b, norms[i], heads, n, err)
                                            : keep_outputs(m, b, norms[i], kv_heads, n_kv, err));
    NIB_TRY(keep_inputs(m, b, SLOT_O, heads, n, err));
    shape->n_head = heads.n;
    shape->n_kv_head = kv_heads.n;
    return NIB_OK;
}

/* Channels of b, c and x, and of the convolution between their products. */
static nib_status cut_channels(model *m, int layer, bound *b, nib_error *err) {
    static const slot_id outputs[] = {SLOT_REC_B, SLOT_REC_Z, SLOT_REC_X, SLOT_REC_CONV};
    layer_shape *shape = &m->cfg.shape[layer];
    const int64_t n = shape->rec_inner;
    range part;
    NIB_TRY(cut_neurons(m, layer, b, SLOT_REC_OUT, n, &part, err));
    for (size_t i = 0; i < NUM_COUNT(outputs); i++)
        NIB_TRY(keep_outputs(m, b, outputs[i], part, n, err));
    NIB_TRY(keep_inputs(m, b, SLOT_REC_OUT, part, n, err));
    shape->rec_inner = part.n;
    return NIB_OK;
}

/* Heads of a state, and the groups whose B and C, or q and k, they read. If a delta net is tiled, a share is
 * whole runs of a head for each group, and then reads all groups, or a part of one run. */
static nib_status cut_states(const model *m, int layer, const bound *b, range *heads, range *groups,
                             nib_error *err) {
    const layer_shape *shape = &m->cfg.shape[layer];
    const weight *out = &b->weights[b->slot[SLOT_REC_OUT].w];
    const int64_t n_group = shape->rec_group;
    if (!mixer_is_tiled(m))
        return cut_heads(m, layer, out, shape->rec_head, n_group, heads, groups, err);
    NIB_TRY(cut_heads(m, layer, out, shape->rec_head, shape->rec_head / n_group, heads, groups, err));
    *groups = (range){heads->first % n_group, NUM_MIN(heads->n, n_group)};
    return NIB_OK;
}

static nib_status cut_recurrent(model *m, int layer, bound *b, nib_error *err) {
    static const slot_id of_heads[] = {SLOT_REC_Z, SLOT_REC_DT, SLOT_REC_BETA,
                                       SLOT_REC_A, SLOT_REC_D,  SLOT_REC_DT_BIAS};
    layer_shape *shape = &m->cfg.shape[layer];
    const int64_t n = shape->rec_head, n_group = shape->rec_group, d_state = m->cfg.hp.rec_state;
    const int64_t each = n_group * d_state, width = shape->rec_inner + 2 * each;
    const bool first = m->arch->mixer == MIXER_SSD; /* the values are before B and C */
    range heads, groups;
    NIB_TRY(cut_states(m, layer, b, &heads, &groups, err));
    if (first && has(b, SLOT_REC_NORM) && (b->slot[SLOT_REC_NORM].whole_row || heads.n < n / n_group))
        return refuse(layer, "a norm of all heads together", err);
    const int64_t d_head = shape->rec_inner / n, at = first ? shape->rec_inner : 0;
    const range values = {heads.first * d_head + (first ? 0 : 2 * each), heads.n * d_head};
    const range b_or_q = {at + groups.first * d_state, groups.n * d_state};
    const range c_or_k = {b_or_q.first + each, b_or_q.n};
    const range parts[] = {first ? values : b_or_q, first ? b_or_q : c_or_k, first ? c_or_k : values};
    NIB_TRY(keep_output_parts(m, b, SLOT_REC_X, parts, 3, width, err));
    NIB_TRY(keep_output_parts(m, b, SLOT_REC_CONV, parts, 3, width, err));
    for (size_t i = 0; i < NUM_COUNT(of_heads); i++)
        NIB_TRY(keep_outputs(m, b, of_heads[i], heads, n, err));
    if (has(b, SLOT_REC_NORM) && (b->slot[SLOT_REC_NORM].per_entry || first))
        NIB_TRY(keep_outputs(m, b, SLOT_REC_NORM, heads, n, err));
    NIB_TRY(keep_inputs(m, b, SLOT_REC_OUT, heads, n, err));
    shape->rec_inner = heads.n * d_head;
    shape->rec_head = heads.n;
    shape->rec_group = groups.n;
    return NIB_OK;
}

static nib_status cut_dense(model *m, int layer, bound *b, nib_error *err) {
    layer_shape *shape = &m->cfg.shape[layer];
    range part;
    NIB_TRY(cut_neurons(m, layer, b, SLOT_DOWN, shape->d_ff, &part, err));
    NIB_TRY(keep_outputs(m, b, SLOT_GATE, part, shape->d_ff, err));
    NIB_TRY(keep_outputs(m, b, SLOT_UP, part, shape->d_ff, err));
    NIB_TRY(keep_inputs(m, b, SLOT_DOWN, part, shape->d_ff, err));
    shape->d_ff = part.n;
    return NIB_OK;
}

/* The outputs of every expert of a stack. */
static nib_status keep_experts(model *m, bound *b, slot_id slot, range part, nib_error *err) {
    if (b->slot[slot].w < 0)
        return NIB_OK;
    weight *w = &b->weights[b->slot[slot].w];
    const int64_t n_expert = w->n_expert, each = w->expert_n;
    NIB_TRY(keep_stacked(m, w, part, n_expert, num_round_up(each, PACK_PANEL), err));
    return b->slot[slot].b < 0 ? NIB_OK
                               : keep_stacked(m, &b->weights[b->slot[slot].b], part, n_expert, each, err);
}

/* Every rank has a part of every expert, and the same router. */
static nib_status cut_mixture(model *m, int layer, bound *b, nib_error *err) {
    const hparams *hp = &m->cfg.hp;
    range part;
    NIB_TRY(cut_neurons(m, layer, b, SLOT_DOWN_EXPS, hp->d_expert, &part, err));
    NIB_TRY(keep_experts(m, b, SLOT_GATE_EXPS, part, err));
    NIB_TRY(keep_experts(m, b, SLOT_UP_EXPS, part, err));
    NIB_TRY(keep_inputs(m, b, SLOT_DOWN_EXPS, part, hp->d_expert, err));
    if (!has(b, SLOT_DOWN_SHEXP))
        return NIB_OK;
    NIB_TRY(cut_neurons(m, layer, b, SLOT_DOWN_SHEXP, hp->d_shared, &part, err));
    NIB_TRY(keep_outputs(m, b, SLOT_GATE_SHEXP, part, hp->d_shared, err));
    NIB_TRY(keep_outputs(m, b, SLOT_UP_SHEXP, part, hp->d_shared, err));
    return keep_inputs(m, b, SLOT_DOWN_SHEXP, part, hp->d_shared, err);
}

nib_status share_cut(model *m, int layer, bound *b, nib_error *err) {
    if (m->share.n <= 1)
        return NIB_OK;
    const uint8_t kind = m->cfg.layer[layer];
    NIB_TRY(check(m, layer, b, err));
    if (kind & LAYER_RECURRENT)
        NIB_TRY(m->arch->mixer == MIXER_CONV ? cut_channels(m, layer, b, err)
                                             : cut_recurrent(m, layer, b, err));
    if (!(kind & LAYER_NO_ATTENTION))
        NIB_TRY(cut_attention(m, layer, b, err));
    if (has(b, SLOT_DOWN))
        NIB_TRY(cut_dense(m, layer, b, err));
    return has(b, SLOT_ROUTER) ? cut_mixture(m, layer, b, err) : NIB_OK;
}

void share_advice(bound *b) {
    enum { ADVICE_BLOCK = 128 };
    for (int i = 0; i < b->n; i++) {
        weight *w = &b->weights[i];
        if (w->k_file)
            w->n8 = (uint8_t)NUM_MAX(w->n8 - w->first_col / ADVICE_BLOCK, 0);
    }
}

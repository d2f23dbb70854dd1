/* as_gguf_tensors.c - see as_gguf.h: lists the tensors of the GGUF file and the rows that each is made of. */
#include "model/as_gguf.h"

#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"
#include "model/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct naming {
    const model *m;
    gguf_tensors *out;
    size_t cap;
    int block;
    int first_layer; /* number of its first layer in names */
} naming;

/* ---- names ---- */

static const arch_tensor *row_of(const model *m, slot_id slot) {
    const config_source as_gguf = {.arch = m->arch, .gguf_arch = ""};
    for (const arch_tensor *r = m->arch->tensors; r->slot != SLOT_COUNT; r++)
        if (r->slot == slot && config_condition(&as_gguf, r->when))
            return r;
    return NULL;
}

/* The pattern of a slot's name; NULL: a GGUF file of the family has no such tensor. */
static const char *pattern_of(const model *m, slot_id slot) {
    const arch_tensor *row = row_of(m, slot);
    const char *name = row == NULL ? NULL : row->gguf != NULL ? row->gguf : slot_gguf_name(slot);
    return name != NULL && *name != '\0' ? name : NULL;
}

static const char *suffix_of(const model *m, slot_id slot, bool bias) {
    return bias ? ".bias" : row_of(m, slot)->flags & T_BARE ? "" : ".weight";
}

static slot_id slot_of(const char *name, bool *bias) {
    for (int i = 0; i < SLOT_COUNT; i++) {
        const char *slot = slot_name((slot_id)i);
        const size_t n = strlen(slot);
        if (strncmp(name, slot, n) == 0 && (name[n] == '\0' || strcmp(name + n, ".bias") == 0)) {
            *bias = name[n] != '\0';
            return (slot_id)i;
        }
    }
    return SLOT_COUNT;
}

/* A pattern may list several names: in Falcon a second norm changes the name of the first. */
static const char *spell(naming *n, const char *list, const char *suffix, bool last) {
    char one[128] = "", all[160];
    const int layer = n->first_layer + NUM_MAX(model_block(n->m, n->block)->layer, 0);
    while (list_next(&list, one, sizeof one) && last && *list != '\0')
        continue;
    const char *percent = strstr(one, "%d");
    if (percent != NULL)
        snprintf(all, sizeof all, "%.*s%d%s%s", (int)(percent - one), one, layer, percent + 2, suffix);
    else
        snprintf(all, sizeof all, "%s%s", one, suffix);
    return arena_strndup(&n->out->mem, all, strlen(all));
}

/* ---- one tensor ---- */

static nib_status add(naming *n, gguf_tensor **out, nib_error *err) {
    if (mem_grow((void **)&n->out->all, &n->cap, n->out->n + 1, sizeof **out))
        return nib_fail_nomem(err, (n->out->n + 1) * sizeof **out, "a list of tensors");
    *out = &n->out->all[n->out->n++];
    memset(*out, 0, sizeof **out);
    (*out)->block = n->block;
    (*out)->w = -1;
    (*out)->as.file = -1;
    return NIB_OK;
}

static nib_status set_bytes(gguf_tensor *t, nib_error *err) {
    uint64_t row;
    const int64_t k = t->as.shape[t->as.n_dim - 1];
    if (!type_row_bytes(t->as.type, k, &row))
        return nib_fail(err, NIB_E_MODEL, "tensor '%s': expected rows of whole blocks, found %lld values",
                        t->as.name, (long long)k);
    t->as.bytes = row;
    for (int d = 0; d + 1 < t->as.n_dim; d++)
        t->as.bytes *= (uint64_t)t->as.shape[d];
    return NIB_OK;
}

static nib_status turn(const naming *n, slot_id slot, gguf_tensor *t, nib_error *err) {
    const hparams *hp = model_hparams(n->m);
    const arch_desc *a = n->m->arch;
    if (a->rope_hf == ROPE_HALF && a->rope_gguf == ROPE_INTERLEAVED && hp->n_rot > 0)
        t->n_turn = slot == SLOT_Q   ? n->m->cfg.shape[NUM_MAX(model_block(n->m, n->block)->layer, 0)].n_head
                    : slot == SLOT_K ? hp->n_kv_head
                                     : 0;
    if (t->n_turn && hp->n_rot != hp->d_head)
        return nib_fail(err, NIB_E_MODEL,
                        "a GGUF file of %s cannot express that %lld of %lld dimensions are rotated", a->name,
                        (long long)hp->n_rot, (long long)hp->d_head);
    return NIB_OK;
}

/* The delta net's heads of values in GGUF's order: all first heads of the groups, then all second ones. Rows
 * [first, first + n_head * each) of the tensor move, and the columns of the output projection. */
static nib_status tile(naming *n, slot_id slot, gguf_tensor *t, nib_error *err) {
    const hparams *hp = model_hparams(n->m);
    const int64_t heads = hp->rec_head, share = heads / NUM_MAX(hp->rec_group, 1),
                  d = hp->rec_inner / NUM_MAX(heads, 1);
    int64_t first = 0, each = 1;
    if (!(n->m->arch->flags & A_TILED_GGUF) || share <= 1)
        return NIB_OK;
    switch (slot) {
    case SLOT_REC_X:
    case SLOT_REC_CONV:
        first = 2 * hp->rec_group * hp->rec_state;
        each = d;
        break;
    case SLOT_REC_Z: each = d; break;
    case SLOT_REC_DT:
    case SLOT_REC_BETA:
    case SLOT_REC_A:
    case SLOT_REC_DT_BIAS: break;
    case SLOT_REC_OUT:
        if (d % type_get(t->from)->block_elems != 0)
            return nib_fail(err, NIB_E_MODEL, "tensor %s: expected heads of whole blocks, found %lld columns",
                            t->as.name, (long long)d);
        t->n_tile = hp->rec_group;
        t->tile = d;
        return NIB_OK;
    default: return NIB_OK;
    }
    const container_tensor *from = t->pieces[0].tensor;
    weight_piece *pieces = arena_array(&n->out->mem, (size_t)heads + 1, sizeof *pieces);
    if (pieces == NULL)
        return nib_fail_nomem(err, ((size_t)heads + 1) * sizeof *pieces, "a tensor's description");
    t->n_piece = 0;
    if (first > 0)
        pieces[t->n_piece++] = (weight_piece){from, 0, first};
    for (int64_t h = 0; h < heads; h++) {
        const int64_t head = h % hp->rec_group * share + h / hp->rec_group;
        pieces[t->n_piece++] = (weight_piece){from, first + head * each, each};
    }
    t->pieces = pieces;
    return NIB_OK;
}

/* The factor of row r of a slot's tensor in a GGUF file that has factors in its weights. */
static double baked(const hparams *hp, slot_id slot, int64_t r) {
    const int64_t inner = hp->rec_inner, each = hp->rec_group * hp->rec_state;
    switch (slot) {
    case SLOT_EMBED: return hp->embed_scale;
    case SLOT_HEAD: return hp->logit_scale;
    case SLOT_Q:
    case SLOT_V: return hp->attn_in_scale;
    case SLOT_K: return hp->attn_in_scale * hp->key_scale;
    case SLOT_O: return hp->attn_out_scale;
    case SLOT_GATE: return hp->gate_scale;
    case SLOT_DOWN: return hp->down_scale;
    case SLOT_REC_OUT: return hp->rec_out_scale;
    case SLOT_REC_IN: /* z, x, B, C, dt */
        return hp->rec_in_scale * (r < inner                  ? hp->rec_z_scale
                                   : r < 2 * inner            ? hp->rec_x_scale
                                   : r < 2 * inner + each     ? hp->rec_b_scale
                                   : r < 2 * inner + 2 * each ? hp->rec_c_scale
                                                              : hp->rec_dt_scale);
    default: return 1;
    }
}

/* Whether the weight after w is its bias. */
static bool is_bias_of(const naming *n, int w) {
    const weight *of = &model_block(n->m, n->block)->weights[w];
    const size_t k = strlen(of->name);
    return strncmp(of[1].name, of->name, k) == 0 && strcmp(of[1].name + k, ".bias") == 0 &&
           strcmp(of->name, slot_name(SLOT_REC_CONV)) != 0;
}

static nib_status bake(naming *n, slot_id slot, gguf_tensor *t, nib_error *err) {
    const hparams *hp = model_hparams(n->m);
    bool changes = false;
    if (!(n->m->arch->flags & A_BAKED_GGUF) || t->as.n_dim != 2)
        return NIB_OK;
    if (model_block(n->m, n->block)->n_weight > t->w + 1 && is_bias_of(n, t->w))
        return nib_fail(err, NIB_E_MODEL, "a GGUF file of %s cannot express biases", n->m->arch->name);
    if (hp->tied_head && hp->embed_scale != hp->logit_scale)
        return nib_fail(err, NIB_E_MODEL,
                        "a GGUF file of %s cannot express different factors of the embedding and of a head "
                        "that is the embedding",
                        n->m->arch->name);
    float *times = arena_array(&n->out->mem, (size_t)t->as.shape[0], sizeof *times);
    if (times == NULL)
        return nib_fail_nomem(err, (size_t)t->as.shape[0] * sizeof *times, "factors of rows");
    for (int64_t r = 0; r < t->as.shape[0]; r++) {
        times[r] = (float)baked(hp, slot, r);
        changes = changes || times[r] != 1;
    }
    t->row_times = changes ? times : NULL;
    return NIB_OK;
}

/* For packed pieces: the smallest type that holds all of them exactly. */
static nib_status find_type(const naming *n, gguf_tensor *t, nib_error *err) {
    static const type_id wider[] = {TYPE_Q4_0, TYPE_Q5_0, TYPE_Q8_0, TYPE_F32};
    size_t widest = 0;
    for (int i = 0; i < t->n_piece; i++) {
        const container_tensor *of = t->pieces[i].tensor;
        type_id type;
        size_t w = 0;
        if (i > 0 && of == t->pieces[i - 1].tensor)
            continue;
        if ((of->packed != NULL) != (t->pieces[0].tensor->packed != NULL))
            return nib_fail(err, NIB_E_MODEL,
                            "tensor %s: expected all of its parts quantized, or none, found both",
                            t->as.name);
        if (!of->packed)
            return NIB_OK;
        NIB_TRY(packed_type(model_container(n->m), of, &type, err));
        if (type == TYPE_BF16 || type == TYPE_F16 || type == TYPE_MXFP4) {
            t->as.type = type; /* fp8 and nvfp4 are rounded once, to the type that is written */
            t->from = of->packed->kind == PACKED_FP8 || of->packed->kind == PACKED_NVFP4 ? TYPE_F32 : type;
            return NIB_OK;
        }
        while (w + 1 < NUM_COUNT(wider) && wider[w] != type)
            w++;
        widest = NUM_MAX(widest, w);
    }
    t->from = t->as.type = wider[widest];
    return NIB_OK;
}

/* Copies the pieces of a stack of experts without the rows that only pad it. */
static int copy_stack(const weight *of, weight_piece *to) {
    const int64_t each = of->n / of->n_expert;
    int64_t row = 0;
    int n = 0;
    for (int i = 0; i < of->n_piece; row += of->pieces[i++].n_row)
        if (each == of->expert_n || row % each < of->expert_n)
            to[n++] = of->pieces[i];
    return n;
}

/* The stack of experts whose bias weight w is; NULL: it is another weight. */
static const weight *stack_of_bias(const block *b, const weight *w) {
    for (int i = 0; i < b->n_weight; i++) {
        const size_t n = strlen(b->weights[i].name);
        if (b->weights[i].n_expert > 0 && strncmp(w->name, b->weights[i].name, n) == 0 &&
            strcmp(w->name + n, ".bias") == 0)
            return &b->weights[i];
    }
    return NULL;
}

/* Gives the tensor of a stack of experts, or of their biases, a dimension for the experts. */
static void shape_stack(gguf_tensor *t, const weight *w, const weight *stack) {
    t->as.n_dim = w->vector ? 2 : 3;
    t->as.shape[0] = stack->n_expert;
    t->as.shape[1] = stack->expert_n;
    t->as.shape[2] = w->k;
}

/* Adds a tensor of weights w[0..n_part) of the block, one under the other. */
static nib_status put(naming *n, const char *name, const int *w, int n_part, nib_error *err) {
    const block *b = model_block(n->m, n->block);
    const weight *first = &b->weights[w[0]];
    gguf_tensor *t = NULL;
    int n_piece = 0;
    NIB_TRY(add(n, &t, err));
    for (int i = 0; i < n_part; i++)
        n_piece += b->weights[w[i]].n_piece;
    weight_piece *pieces = arena_array(&n->out->mem, (size_t)n_piece, sizeof *pieces);
    if (name == NULL || pieces == NULL)
        return nib_fail_nomem(err, 64, "a tensor's description");
    t->as.name = name;
    t->w = w[0];
    t->from = first->type;
    t->as.type = first->vector ? TYPE_F32 : first->type;
    t->as.n_dim = first->vector ? 1 : 2;
    t->pieces = pieces;
    t->transposed = first->transposed;
    t->add = first->add;
    t->minus_exp = first->minus_exp;
    for (int i = 0; i < n_part; i++) {
        const weight *of = &b->weights[w[i]];
        if (of->type != first->type || of->transposed != first->transposed ||
            (!of->vector && of->k != first->k))
            return nib_fail(err, NIB_E_MODEL,
                            "tensor %s: expected parts of one type and width, found different ones", name);
        if (of->n_expert > 0) {
            t->n_piece += copy_stack(of, pieces + t->n_piece);
        } else {
            memcpy(pieces + t->n_piece, of->pieces, (size_t)of->n_piece * sizeof *pieces);
            t->n_piece += of->n_piece;
        }
        t->as.shape[0] += of->vector ? of->k : of->n;
    }
    if (!first->vector)
        t->as.shape[1] = first->k;
    if (first->n_col > 0) {
        t->as.n_dim = 2;
        t->as.shape[0] /= first->n_col;
        t->as.shape[1] = first->n_col;
        for (int i = 0; i < t->n_piece; i++) { /* rows of the table instead of elements */
            pieces[i].first_row /= first->n_col;
            pieces[i].n_row /= first->n_col;
        }
    }
    const weight *stack = first->vector ? stack_of_bias(b, first) : first;
    if (stack != NULL && stack->n_expert > 0)
        shape_stack(t, first, stack);
    t->vector = first->vector && first->n_col == 0;
    t->from = first->type;
    if (!first->vector)
        NIB_TRY(find_type(n, t, err));
    return set_bytes(t, err);
}

static nib_status put_values(naming *n, const char *name, const float *values, int64_t k, nib_error *err) {
    gguf_tensor *t = NULL;
    NIB_TRY(add(n, &t, err));
    t->as.name = name;
    t->from = t->as.type = TYPE_F32;
    t->as.n_dim = 1;
    t->as.shape[0] = k;
    t->data = values;
    return set_bytes(t, err);
}

/* ---- blocks ---- */

static int find_weight(const block *b, slot_id slot, bool bias) {
    bool is_bias = false;
    for (int w = 0; w < b->n_weight; w++)
        if (slot_of(b->weights[w].name, &is_bias) == slot && is_bias == bias)
            return w;
    return -1;
}

/* Tensors of several parts, in their order. */
static const struct {
    slot_id home;
    int n_part;
    slot_id parts[3];
} fused[] = {
    {SLOT_Q_GATE, 2, {SLOT_Q, SLOT_ATTN_GATE}},
    {SLOT_QKV, 3, {SLOT_Q, SLOT_K, SLOT_V}},
    {SLOT_GATE_UP, 2, {SLOT_GATE, SLOT_UP}},
    {SLOT_REC_BA, 2, {SLOT_REC_BETA, SLOT_REC_DT}},
    {SLOT_REC_X_PROJ, 2, {SLOT_REC_DT_LOW, SLOT_REC_BC}},
};

/* The slot whose GGUF tensor contains this slot's rows: a fused one, or the slot itself. */
static slot_id home_of(const model *m, slot_id slot) {
    const slot_id *parts;
    if (pattern_of(m, slot) != NULL)
        return slot;
    for (size_t f = 0; f < NUM_COUNT(fused); f++)
        for (int i = 0; i < fused[f].n_part; i++)
            if (slot == fused[f].parts[i] && pattern_of(m, fused[f].home) != NULL)
                return fused[f].home;
    for (int i = mixer_parts(m->arch->mixer, &parts) - 1; i >= 0; i--)
        if (slot == parts[i])
            return SLOT_REC_IN;
    return slot;
}

/* The parts of a fused tensor, in order. */
static int parts_of(const model *m, slot_id home, const slot_id **out) {
    for (size_t f = 0; f < NUM_COUNT(fused); f++)
        if (home == fused[f].home) {
            *out = fused[f].parts;
            return fused[f].n_part;
        }
    return mixer_parts(m->arch->mixer, out);
}

static int by_row(const void *a, const void *b) {
    const int64_t x = ((const weight_piece *)a)->first_row, y = ((const weight_piece *)b)->first_row;
    return (x > y) - (x < y);
}

static nib_status put_fused(naming *n, slot_id home, bool bias, nib_error *err) {
    const block *b = model_block(n->m, n->block);
    const slot_id *parts;
    const int n_part = parts_of(n->m, home, &parts);
    int w[4] = {-1, -1, -1, -1};
    for (int i = 0; i < n_part; i++) {
        w[i] = find_weight(b, parts[i], bias);
        if (w[i] < 0)
            return nib_fail(err, NIB_E_MODEL, "%s has no %s%s, which a GGUF file of %s needs", b->name,
                            slot_name(parts[i]), bias ? " bias" : "", n->m->arch->name);
    }
    NIB_TRY(put(n, spell(n, pattern_of(n->m, home), suffix_of(n->m, home, bias), false), w, n_part, err));
    NIB_TRY(bake(n, home, &n->out->all[n->out->n - 1], err));
    if (home == SLOT_Q_GATE ||
        home == SLOT_REC_BA) { /* heads of both alternate, as in the checkpoint's tensor */
        gguf_tensor *t = &n->out->all[n->out->n - 1];
        qsort((weight_piece *)(uintptr_t)t->pieces, (size_t)t->n_piece, sizeof *t->pieces, by_row);
    }
    return NIB_OK;
}

/* Parts of one tensor of a checkpoint that GGUF has under a name of its own, rows in the checkpoint's order:
 * the first part adds it. */
static slot_id whole_of(const block *b, slot_id slot) {
    const bool latent = find_weight(b, SLOT_LOW_KV, false) >= 0;
    if (!latent)
        return SLOT_COUNT;
    switch (slot) {
    case SLOT_Q:
    case SLOT_Q_B: return slot;
    case SLOT_LOW_KV: return SLOT_KV_A;
    case SLOT_K: return SLOT_KV_B;
    default: return SLOT_COUNT;
    }
}

static nib_status put_whole(naming *n, slot_id whole, int w, bool bias, nib_error *err) {
    NIB_TRY(put(n, spell(n, pattern_of(n->m, whole), bias ? ".bias" : ".weight", false), &w, 1, err));
    gguf_tensor *t = &n->out->all[n->out->n - 1];
    const container_tensor *of = t->pieces[0].tensor;
    weight_piece *piece = arena_alloc(&n->out->mem, sizeof *piece);
    if (piece == NULL)
        return nib_fail_nomem(err, sizeof *piece, "a tensor's description");
    *piece = (weight_piece){of, 0, of->shape[0]};
    t->pieces = piece;
    t->n_piece = 1;
    t->as.shape[0] = of->shape[0];
    return set_bytes(t, err);
}

/* The norms of B and C are one weight, and two tensors: the last one becomes that of B, and C's follows. */
static nib_status split_norm(naming *n, nib_error *err) {
    gguf_tensor *c = NULL;
    NIB_TRY(add(n, &c, err));
    gguf_tensor *b = c - 1;
    *c = *b;
    b->as.shape[0] = c->as.shape[0] = b->as.shape[0] / 2;
    b->n_piece = c->n_piece = 1;
    c->pieces = b->pieces + 1;
    c->as.name = spell(n, pattern_of(n->m, SLOT_REC_C_NORM), ".weight", false);
    if (c->as.name == NULL)
        return nib_fail_nomem(err, 64, "a tensor's description");
    NIB_TRY(set_bytes(b, err));
    return set_bytes(c, err);
}

/* q, k and v of Kimi's delta net, or their taps, are one weight, and three tensors. */
static nib_status put_three(naming *n, slot_id slot, int w, nib_error *err) {
    static const slot_id names[2][3] = {{SLOT_REC_XQ, SLOT_REC_XK, SLOT_REC_XV},
                                        {SLOT_REC_CONV_Q, SLOT_REC_CONV_K, SLOT_REC_CONV_V}};
    gguf_tensor all, *t = NULL;
    for (int i = 0; i < 3; i++) {
        const char *name = spell(n, pattern_of(n->m, names[slot == SLOT_REC_CONV][i]), ".weight", false);
        NIB_TRY(i == 0 ? put(n, name, &w, 1, err) : add(n, &t, err));
        t = &n->out->all[n->out->n - 1];
        if (i == 0)
            all = *t;
        *t = all;
        if (name == NULL)
            return nib_fail_nomem(err, 64, "a tensor's description");
        t->as.name = name;
        t->as.shape[0] = all.as.shape[0] / 3;
        t->pieces = all.pieces + i;
        t->n_piece = 1;
        NIB_TRY(set_bytes(t, err));
        if (slot == SLOT_REC_CONV) { /* [1, channels, 1, taps] */
            t->as.n_dim = 4;
            t->as.shape[3] = t->as.shape[1];
            t->as.shape[1] = t->as.shape[0];
            t->as.shape[0] = t->as.shape[2] = 1;
        }
    }
    return NIB_OK;
}

static nib_status put_weight(naming *n, int w, nib_error *err) {
    const block *b = model_block(n->m, n->block);
    bool bias = false;
    const slot_id slot = slot_of(b->weights[w].name, &bias);
    if (b->weights[w].shared_block >= 0)
        return NIB_OK;
    if (n->m->ahead && (slot == SLOT_EMBED || slot == SLOT_OUT_NORM || slot == SLOT_HEAD))
        return NIB_OK; /* the model's own */
    if ((slot == SLOT_PLE_IN || slot == SLOT_PLE_IN_NORM) && b->layer > 0)
        return NIB_OK; /* the first layer has added it for all */
    const slot_id whole = slot == SLOT_PLE_IN ? slot : whole_of(b, slot);
    if (whole != SLOT_COUNT)
        return put_whole(n, whole, w, bias, err);
    if (slot == SLOT_K_TURNED || (slot == SLOT_V && find_weight(b, SLOT_LOW_KV, false) >= 0))
        return NIB_OK; /* put_whole has added it */
    if (n->m->arch->mixer == MIXER_KDA && (slot == SLOT_REC_X || slot == SLOT_REC_CONV))
        return put_three(n, slot, w, err);
    const slot_id home = slot == SLOT_COUNT ? slot : home_of(n->m, slot);
    if (slot == SLOT_COUNT || pattern_of(n->m, home) == NULL)
        return nib_fail(err, NIB_E_MODEL, "GGUF has no place for %s of %s", b->weights[w].name, b->name);
    if (home != slot) { /* the first part adds the whole fused tensor */
        const slot_id *parts;
        parts_of(n->m, home, &parts);
        return slot == parts[0] ? put_fused(n, home, bias, err) : NIB_OK;
    }
    /* the norm before both sub-layers: a single one has the last of its names */
    const bool alone = slot == SLOT_ATTN_NORM && find_weight(b, SLOT_FFN_NORM, false) < 0;
    NIB_TRY(put(n, spell(n, pattern_of(n->m, slot), suffix_of(n->m, slot, bias), alone), &w, 1, err));
    if (slot == SLOT_REC_B_NORM)
        return split_norm(n, err);
    if (slot == SLOT_ALTUP_PROJ || slot == SLOT_ALTUP_UNEMBED) { /* a matrix for each of the other streams */
        gguf_tensor *t = &n->out->all[n->out->n - 1];
        t->as.n_dim = 3;
        t->as.shape[2] = t->as.shape[1];
        t->as.shape[0] /= t->as.shape[1] = t->as.shape[2];
        return NIB_OK;
    }
    NIB_TRY(bake(n, slot, &n->out->all[n->out->n - 1], err));
    NIB_TRY(tile(n, slot, &n->out->all[n->out->n - 1], err));
    return turn(n, slot, &n->out->all[n->out->n - 1], err);
}

/* ---- rotary factors ---- */

static nib_status put_factors(naming *n, nib_error *err) {
    const config *c = &n->m->cfg;
    const rope_params *r = &c->ropes[0];
    const int64_t half = r->n_rot / 2;
    if (c->n_rope == 0)
        return NIB_OK;
    if (r->kind == ROPE_LONG) {
        NIB_TRY(put_values(n, "rope_factors_long.weight", r->divide_long, half, err));
        return put_values(n, "rope_factors_short.weight", r->divide, half, err);
    }
    if (r->kind != ROPE_LLAMA3 && r->kind != ROPE_PART)
        return NIB_OK;
    rope_params plain = *r;
    float *values = arena_array(&n->out->mem, 3 * (size_t)half, sizeof *values), one;
    if (values == NULL)
        return nib_fail_nomem(err, 3 * (size_t)half * sizeof *values, "rope factors");
    plain.kind = ROPE_PLAIN;
    rope_frequencies(r, c->hp.n_ctx_train, 0, values + half, &one);
    rope_frequencies(&plain, c->hp.n_ctx_train, 0, values + 2 * half, &one);
    for (int64_t i = 0; i < half; i++)
        values[i] = values[half + i] > 0 ? values[2 * half + i] / values[half + i] : 1e30f;
    return put_values(n, "rope_freqs.weight", values, half, err);
}

/* Factors of the stream after each layer. */
static nib_status put_scales(naming *n, nib_error *err) {
    const config *c = &n->m->cfg;
    for (int64_t i = 0; i < c->hp.n_layer && (n->m->arch->flags & A_LAYER_SCALE); i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.layer_output_scale.weight", (long long)i);
        const char *kept = arena_strndup(&n->out->mem, name, strlen(name));
        if (kept == NULL)
            return nib_fail_nomem(err, sizeof name, "a tensor's name");
        NIB_TRY(put_values(n, kept, &c->shape[i].scale, 1, err));
    }
    return NIB_OK;
}

/* ---- a GGUF file's own ---- */

/* Records the first weight that uses each of the file's tensors. */
static void note_use(naming *n, int b, int w) {
    const weight *of = &model_block(n->m, b)->weights[w];
    const container_tensor *first = container_tensor_at(model_container(n->m), 0);
    for (int p = 0; p < of->n_piece && of->shared_block < 0; p++) {
        gguf_tensor *t = &n->out->all[of->pieces[p].tensor - first];
        if (t->block < 0) {
            t->block = b;
            t->w = w;
        }
    }
}

static void note_ahead(naming *n, int b, int w) {
    const block *at = model_block(n->m->next, b);
    const container_tensor *first = container_tensor_at(model_container(n->m), 0);
    for (int p = 0; p < at->weights[w].n_piece && at->weights[w].shared_block < 0; p++) {
        gguf_tensor *t = &n->out->all[at->weights[w].pieces[p].tensor - first];
        if (t->block < 0 && t->ahead == NULL) {
            t->ahead = at;
            t->ahead_w = w;
        }
    }
}

static nib_status put_own(naming *n, nib_error *err) {
    const container *c = model_container(n->m);
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        gguf_tensor *t = NULL;
        int64_t rows = 1;
        weight_piece *piece = arena_alloc(&n->out->mem, sizeof *piece);
        if (piece == NULL)
            return nib_fail_nomem(err, sizeof *piece, "a tensor's description");
        NIB_TRY(add(n, &t, err));
        t->as = *container_tensor_at(c, i);
        t->from = t->as.type;
        for (int d = 0; d + 1 < t->as.n_dim; d++)
            rows *= t->as.shape[d];
        *piece = (weight_piece){container_tensor_at(c, i), 0, t->as.n_dim == 1 ? t->as.shape[0] : rows};
        t->pieces = piece;
        t->n_piece = 1;
        t->block = -1;
    }
    for (int b = 0; b < model_n_block(n->m); b++)
        for (int w = 0; w < model_block(n->m, b)->n_weight; w++)
            note_use(n, b, w);
    for (int b = 0; n->m->next != NULL && b < model_n_block(n->m->next); b++)
        for (int w = 0; w < model_block(n->m->next, b)->n_weight; w++)
            note_ahead(n, b, w);
    return NIB_OK;
}

static nib_status put_blocks(naming *n, nib_error *err) {
    for (n->block = 0; n->block < model_n_block(n->m); n->block++)
        for (int w = 0; w < model_block(n->m, n->block)->n_weight; w++)
            NIB_TRY(put_weight(n, w, err));
    n->block = -1;
    return NIB_OK;
}

/* The tensors of the head that predicts later tokens. */
static nib_status put_ahead(naming *n, nib_error *err) {
    const size_t first = n->out->n;
    naming head = *n;
    head.m = n->m->next;
    head.first_layer = (int)n->m->cfg.hp.n_layer;
    NIB_TRY(put_blocks(&head, err));
    n->cap = head.cap;
    for (size_t i = first; i < n->out->n; i++) {
        gguf_tensor *t = &n->out->all[i];
        t->ahead = model_block(head.m, t->block);
        t->ahead_w = t->w;
        t->block = t->w = -1;
    }
    return NIB_OK;
}

static nib_status put_all(naming *n, nib_error *err) {
    if (n->m->gguf_arch != NULL)
        return put_own(n, err);
    NIB_TRY(put_blocks(n, err));
    if (n->m->next != NULL)
        NIB_TRY(put_ahead(n, err));
    NIB_TRY(put_scales(n, err));
    return put_factors(n, err);
}

nib_status gguf_tensors_open(const model *m, gguf_tensors *out, nib_error *err) {
    naming n = {.m = m, .out = out};
    memset(out, 0, sizeof *out);
    arena_init(&out->mem);
    const nib_status status = put_all(&n, err);
    if (status != NIB_OK)
        gguf_tensors_close(out);
    return status;
}

size_t gguf_tensors_narrow(gguf_tensors *tensors) {
    size_t n = 0;
    for (size_t i = 0; i < tensors->n; i++) {
        gguf_tensor *t = &tensors->all[i];
        const type_id usual = t->from;
        type_id all = usual;
        for (int p = 0; p < t->n_piece && t->pieces[p].tensor->packed; p++) {
            const type_id one = packed_narrow(t->pieces[p].tensor->packed, usual);
            if (p > 0 && one != all)
                all = usual;
            else if (p == 0)
                all = one;
        }
        if (all == usual)
            continue;
        t->from = t->as.type = all;
        set_bytes(t, NULL);
        n++;
    }
    return n;
}

void gguf_tensors_close(gguf_tensors *t) {
    mem_free(t->all);
    arena_deinit(&t->mem);
    memset(t, 0, sizeof *t);
}

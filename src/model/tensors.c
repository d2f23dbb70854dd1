/* tensors.c - binds slots to tensors: finds each weight under its family's name, checks its shape and type
 * against the configuration, and records which rows of which tensors it consists of (fused projections are
 * split here). */
#include "model/binder.h"

#include "base/num.h"
#include "formats/packed_matrix.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name, *bias, *gguf;
} slots[SLOT_COUNT] = {
#define SLOT(id, name, gguf) {name, name ".bias", gguf},
#include "model/slots.def"
#undef SLOT
};

const char *slot_name(slot_id id) {
    return slots[id].name;
}

const char *slot_gguf_name(slot_id id) {
    return slots[id].gguf;
}

const char *bind_bias_name(slot_id id) {
    return slots[id].bias;
}

/* The first %d of a pattern becomes the layer, the second the head. */
static void spell(const char *pattern, int layer, int head, const char *suffix, char *out) {
    size_t n = 0;
    int k = 0;
    out[0] = '\0';
    while (*pattern != '\0' && n < BIND_NAME - 12) {
        if (pattern[0] == '%' && pattern[1] == 'd') {
            n += (size_t)snprintf(out + n, BIND_NAME - n, "%d", k++ == 0 ? layer : head);
            pattern += 2;
        } else {
            out[n++] = *pattern++;
        }
    }
    snprintf(out + n, BIND_NAME - n, "%s", suffix);
}

static const container_tensor *look_up(const binder *b, const char *name) {
    const container_tensor *t = container_find(b->m->c, name);
    if (t == NULL && b->gap->file == NULL) {
        b->gap->file = container_absent_file(b->m->c, name);
        snprintf(b->gap->tensor, sizeof b->gap->tensor, "%s", name);
    }
    return t;
}

/* Checkpoints of the bare model omit the family's prefix; text models inside larger ones have an additional
 * prefix. Writes the i-th spelling of a name. */
enum { HF_SPELLINGS = 4 };
static void spell_hf(const arch_desc *arch, const char *name, int i, char *out) {
    const size_t n = arch->hf_base != NULL ? strlen(arch->hf_base) : 0;
    const char *bare = n > 0 && strncmp(name, arch->hf_base, n) == 0 ? name + n : name;
    static const char *const prefix[HF_SPELLINGS] = {"", "", "language_model.", "model.language_model."};
    snprintf(out, BIND_NAME + 32, "%s%s", prefix[i], i == 1 || i == 3 ? bare : name);
}

static const container_tensor *find_hf(const binder *b, const char *name) {
    char spelling[BIND_NAME + 32];
    const container_tensor *t = NULL;
    for (int i = 0; i < HF_SPELLINGS && t == NULL; i++) {
        spell_hf(b->m->arch, name, i, spelling);
        t = look_up(b, spelling);
    }
    return t;
}

const container_tensor *config_find_hf(const config_source *s, const char *name) {
    char spelling[BIND_NAME + 32];
    const container_tensor *t = NULL;
    for (int i = 0; i < HF_SPELLINGS && t == NULL; i++) {
        spell_hf(s->arch, name, i, spelling);
        t = container_find(s->c, spelling);
    }
    return t;
}

/* Spells a name of the binder's layer. */
static void spell_row(const binder *b, const char *pattern, int head, const char *suffix, char *out) {
    const int layer = b->m->first_layer + (b->m->ahead ? NUM_MAX(b->layer, 0) : b->layer);
    char apart[BIND_NAME];
    snprintf(apart, sizeof apart, "%s", pattern);
    if (b->m->ahead && b->m->gguf_arch == NULL && b->m->arch->hf_ahead != NULL)
        config_spell_ahead(b->m->arch, apart, sizeof apart);
    spell(apart, layer, head, suffix, out);
}

static const char *row_names(const binder *b, const arch_tensor *row) {
    if (b->m->gguf_arch == NULL)
        return row->hf != NULL ? row->hf : "";
    return row->gguf != NULL ? row->gguf : slots[row->slot].gguf;
}

const container_tensor *bind_find(const binder *b, const arch_tensor *row, int head, const char *suffix) {
    char pattern[128], name[BIND_NAME];
    if (row == NULL)
        return NULL;
    const char *list = row_names(b, row);
    while (list_next(&list, pattern, sizeof pattern)) {
        spell_row(b, pattern, head, suffix, name);
        const container_tensor *t = b->m->gguf_arch != NULL ? look_up(b, name) : find_hf(b, name);
        if (t != NULL)
            return t;
    }
    return NULL;
}

const arch_tensor *bind_row(const binder *b, slot_id slot) {
    for (const arch_tensor *r = b->m->arch->tensors; r->slot != SLOT_COUNT; r++)
        if (r->slot == slot && config_condition(&b->src, r->when))
            return r;
    return NULL;
}

nib_status bind_missing(const binder *b, const arch_tensor *row, const char *suffix, nib_error *err) {
    char pattern[128] = "", name[BIND_NAME];
    const char *list = row_names(b, row);
    list_next(&list, pattern, sizeof pattern);
    spell_row(b, pattern, 0, suffix, name);
    return nib_fail(err, NIB_E_MODEL, "tensor %s is missing (%s of %s)", name, slots[row->slot].name,
                    b->m->arch->name);
}

nib_status bind_wrong_shape(const container_tensor *t, int64_t rows, int64_t cols, nib_error *err) {
    char found[160];
    size_t n = 0;
    found[0] = '\0';
    for (int i = 0; i < t->n_dim && n < sizeof found - 24; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, "%s%lld", i > 0 ? ", " : "",
                              (long long)t->shape[i]);
    if (cols < 0)
        return nib_fail(err, NIB_E_MODEL, "tensor %s: expected shape [%lld], found [%s]", t->name,
                        (long long)rows, found);
    return nib_fail(err, NIB_E_MODEL, "tensor %s: expected shape [%lld, %lld], found [%s]", t->name,
                    (long long)rows, (long long)cols, found);
}

/* --- one weight ---------------------------------------------------------------------------------- */

nib_status bind_new_weight(binder *b, const char *name, int n_piece, weight **out, weight_piece **pieces,
                           nib_error *err) {
    weight *w = &b->out->weights[b->out->n];
    size_t n_byte = (size_t)n_piece * sizeof **pieces;
    *pieces = arena_alloc(b->src.mem, n_byte);
    if (*pieces == NULL)
        return nib_fail_nomem(err, n_byte, name);
    memset(w, 0, sizeof *w);
    w->name = name;
    w->pieces = *pieces;
    w->n_piece = n_piece;
    w->shared_block = w->shared_index = -1;
    *out = w;
    return NIB_OK;
}

/* The type of a matrix whose tensors are packed: one that holds all of them. */
static nib_status packed_pieces_type(const binder *b, weight *w, nib_error *err) {
    const container_tensor *last = NULL;
    for (int i = 0; i < w->n_piece; i++) {
        const container_tensor *t = w->pieces[i].tensor;
        type_id type = TYPE_F32; /* of a router, whatever its form: few weights, for kernels of its own */
        if (t == last)
            continue;
        if (t->packed == NULL)
            return nib_fail(err, NIB_E_MODEL, "tensor %s: expected it packed as '%s' is, found %s", t->name,
                            last ? last->name : t->name, type_get(t->type)->name);
        if (!b->of_router)
            NIB_TRY(packed_runs_as(b->m->c, t, &type, err));
        w->type = last == NULL ? type : packed_join(type, w->type);
        last = t;
    }
    return NIB_OK;
}

nib_status bind_finish_matrix(binder *b, weight *w, const container_tensor *t, int64_t n, int64_t k,
                              bool transposed, nib_error *err) {
    w->n = n;
    w->k = k;
    w->type = t->type;
    if (t->packed != NULL)
        NIB_TRY(packed_pieces_type(b, w, err));
    w->transposed = transposed;
    if (transposed && type_get(w->type)->block_elems != 1)
        return nib_fail(err, NIB_E_MODEL,
                        "tensor %s: expected an unquantized type for a transposed matrix, found %s", t->name,
                        type_get(t->type)->name);
    if (!pack_choose(w->type, k, &w->format))
        return nib_fail(err, NIB_E_MODEL, "tensor %s: %s weights cannot be computed with", t->name,
                        type_get(t->type)->name);
    if (b->m->wide && w->format.scale == PACK_SCALE_ZERO)
        pack_widen(&w->format);
    if (!pack_bytes(&w->format, n, k, &w->bytes))
        return nib_fail(err, NIB_E_MODEL, "tensor %s: [%lld, %lld] is too large", t->name, (long long)n,
                        (long long)k);
    b->out->n++;
    return NIB_OK;
}

nib_status bind_finish_vector(binder *b, weight *w, const container_tensor *t, int64_t k, nib_error *err) {
    const bool listed = w->name == slots[SLOT_HASH].name && (t->type == TYPE_I64 || t->type == TYPE_I32);
    if (t->type != TYPE_F32 && t->type != TYPE_F16 && t->type != TYPE_BF16 && !listed)
        return nib_fail(err, NIB_E_MODEL, "tensor %s: expected f32, f16 or bf16, found %s", t->name,
                        type_get(t->type)->name);
    w->n = 1;
    w->k = k;
    w->type = t->type;
    w->vector = true;
    w->bytes = (uint64_t)k * 4;
    b->out->n++;
    return NIB_OK;
}

/* A matrix of one row may have one dimension. */
bool bind_has_shape(const container_tensor *t, int64_t rows, int64_t cols) {
    return (t->n_dim == 2 && t->shape[0] == rows && t->shape[1] == cols) ||
           (t->n_dim == 1 && rows == 1 && t->shape[0] == cols);
}

static nib_status bind_matrix(binder *b, const arch_tensor *row, const container_tensor *t, int64_t n,
                              int64_t k, nib_error *err) {
    bool transposed = b->m->gguf_arch == NULL && (row->flags & T_TRANSPOSED);
    int64_t rows = transposed ? k : n, cols = transposed ? n : k;
    if (!bind_has_shape(t, rows, cols))
        return bind_wrong_shape(t, rows, cols, err);
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, slots[row->slot].name, 1, &w, &p, err));
    p[0] = (weight_piece){t, 0, n};
    b->out->slot[row->slot].w = b->out->n;
    b->out->slot[row->slot].there = true;
    return bind_finish_matrix(b, w, t, n, k, transposed, err);
}

int64_t bind_count(const container_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        if (__builtin_mul_overflow(n, t->shape[i], &n))
            return -1;
    return n;
}

/* A vector of all k elements of a tensor. */
nib_status bind_elements(binder *b, const char *name, const container_tensor *t, int64_t k, int *index,
                         nib_error *err) {
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, name, 1, &w, &p, err));
    p[0] = (weight_piece){t, 0, k};
    *index = b->out->n;
    return bind_finish_vector(b, w, t, k, err);
}

nib_status bind_vector(binder *b, const char *name, const container_tensor *t, int64_t k, int *index,
                       nib_error *err) {
    if (t->n_dim < 1 || t->n_dim > 2 || bind_count(t) != k)
        return bind_wrong_shape(t, k, -1, err);
    return bind_elements(b, name, t, k, index, err);
}

/* Binds the bias of a weight, if it exists. */
nib_status bind_bias(binder *b, const arch_tensor *row, int64_t n, nib_error *err) {
    const container_tensor *t = row->flags & T_NO_BIAS ? NULL : bind_find(b, row, 0, ".bias");
    if (t == NULL)
        return row->flags & T_BIAS ? bind_missing(b, row, ".bias", err) : NIB_OK;
    return bind_vector(b, slots[row->slot].bias, t, n, &b->out->slot[row->slot].b, err);
}

/* --- norms --------------------------------------------------------------------------------------- */

/* Each head has a tensor of its own in HF checkpoints (StableLM's q and k norms). */
static nib_status bind_per_head(binder *b, const arch_tensor *row, int64_t n_head, nib_error *err) {
    int64_t d_head = b->m->cfg.hp.d_head;
    const container_tensor *first = bind_find(b, row, 0, ".weight");
    if (first == NULL)
        return row->flags & T_OPTIONAL ? NIB_OK : bind_missing(b, row, ".weight", err);
    weight *w = NULL;
    weight_piece *p = NULL;
    NIB_TRY(bind_new_weight(b, slots[row->slot].name, (int)n_head, &w, &p, err));
    for (int64_t i = 0; i < n_head; i++) {
        const container_tensor *t = bind_find(b, row, (int)i, ".weight");
        if (t == NULL)
            return bind_missing(b, row, ".weight", err);
        if (t->n_dim != 1 || t->shape[0] != d_head || t->type != first->type)
            return bind_wrong_shape(t, d_head, -1, err);
        p[i] = (weight_piece){t, 0, d_head};
    }
    b->out->slot[row->slot].there = true;
    b->out->slot[row->slot].w = b->out->n;
    b->out->slot[row->slot].per_entry = true;
    return bind_finish_vector(b, w, first, n_head * d_head, err);
}

nib_status bind_norm(binder *b, slot_id slot, int64_t width, int64_t n_head, nib_error *err) {
    const arch_tensor *row = bind_row(b, slot);
    const config *c = &b->m->cfg;
    if (row == NULL)
        return NIB_OK;
    b->out->slot[slot].whole_row = row->flags & T_ROW_NORM;
    if (row->flags & T_PLAIN_NORM) {
        b->out->slot[slot].there = true;
        return NIB_OK;
    }
    if ((row->flags & T_PER_HEAD) && b->m->gguf_arch == NULL)
        return bind_per_head(b, row, n_head, err);
    const container_tensor *t = bind_find(b, row, 0, ".weight");
    if (t == NULL) {
        bool may = (row->flags & T_OPTIONAL) || (c->hp.parallel && (row->flags & T_OPT_PARALLEL));
        return may ? NIB_OK : bind_missing(b, row, ".weight", err);
    }
    int64_t k = width;
    if (n_head > 1 && !(row->flags & T_ROW_NORM)) {
        if (bind_count(t) == width)
            b->out->slot[slot].per_entry = true;
        else
            k = width / n_head;
    }
    b->out->slot[slot].there = true;
    NIB_TRY(bind_vector(b, slots[slot].name, t, k, &b->out->slot[slot].w, err));
    if ((b->m->arch->flags & A_NORM_PLUS_1) && !(row->flags & T_AS_IS) && b->m->gguf_arch == NULL)
        b->out->weights[b->out->slot[slot].w].add = 1;
    return bind_bias(b, row, k, err);
}

/* --- projections --------------------------------------------------------------------------------- */

/* Queries and a gate of attention's output in one tensor, head by head. */
static bool is_gated_query(const model *m, slot_id slot) {
    for (const arch_tensor *r = m->arch->tensors; r->slot != SLOT_COUNT; r++)
        if (r->slot == SLOT_Q_GATE)
            return slot == SLOT_Q || slot == SLOT_ATTN_GATE;
    return false;
}

static row_runs runs_of(const model *m, slot_id slot, row_order order, int64_t n_all) {
    const config *c = &m->cfg;
    int64_t first, n;
    if (is_gated_query(m, slot)) {
        const int64_t d_head = c->hp.d_head;
        return (row_runs){slot == SLOT_Q ? 0 : d_head, d_head, 2 * d_head, (int)c->hp.n_head};
    }
    if (mixer_part(m, slot, &first, &n))
        return (row_runs){first, n, n, 1};
    int64_t d = c->hp.d_head, kv = c->hp.n_kv_head, q = c->hp.n_head * d, group = c->hp.n_head / kv * d;
    int64_t ff = n_all / 2;
    if (slot == SLOT_GATE || slot == SLOT_GATE_SHEXP)
        return (row_runs){order == ROWS_SWAPPED ? ff : 0, ff, ff, 1};
    if (slot == SLOT_UP || slot == SLOT_UP_SHEXP)
        return (row_runs){order == ROWS_SWAPPED ? 0 : ff, ff, ff, 1};
    if (order == ROWS_GROUPED) {
        int64_t stride = group + 2 * d;
        if (slot == SLOT_Q)
            return (row_runs){0, group, stride, (int)kv};
        return (row_runs){slot == SLOT_K ? group : group + d, d, stride, (int)kv};
    }
    if (slot == SLOT_Q)
        return (row_runs){0, q, q, 1};
    return (row_runs){slot == SLOT_K ? q : q + kv * d, kv * d, kv * d, 1};
}

/* The runs of each group: of runs[0], then of runs[1]. All have as many groups. */
static void fill_runs(weight_piece *p, const container_tensor *t, const row_runs *runs, int n) {
    for (int i = 0; i < runs->n_run; i++)
        for (int k = 0; k < n; k++)
            *p++ = (weight_piece){t, runs[k].first + i * runs[k].stride, runs[k].run};
}

/* One part (q, gate, ...) of a fused tensor with n_all rows: these runs of its rows. */
static nib_status bind_runs(binder *b, slot_id slot, const arch_tensor *fused, const container_tensor *t,
                            int64_t n_all, int64_t k, const row_runs *runs, int n, nib_error *err) {
    bool transposed = b->m->gguf_arch == NULL && (fused->flags & T_TRANSPOSED);
    int64_t rows = transposed ? k : n_all, cols = transposed ? n_all : k, n_row = 0;
    if (!bind_has_shape(t, rows, cols))
        return bind_wrong_shape(t, rows, cols, err);
    weight *w = NULL;
    weight_piece *p = NULL;
    for (int i = 0; i < n; i++)
        n_row += runs[i].run * runs[i].n_run;
    NIB_TRY(bind_new_weight(b, slots[slot].name, n * runs->n_run, &w, &p, err));
    fill_runs(p, t, runs, n);
    b->out->slot[slot].there = true;
    b->out->slot[slot].w = b->out->n;
    NIB_TRY(bind_finish_matrix(b, w, t, n_row, k, transposed, err));
    const container_tensor *bias = bind_find(b, fused, 0, ".bias");
    if (bias == NULL)
        return fused->flags & T_BIAS ? bind_missing(b, fused, ".bias", err) : NIB_OK;
    if (bias->n_dim != 1 || bias->shape[0] != n_all)
        return bind_wrong_shape(bias, n_all, -1, err);
    NIB_TRY(bind_new_weight(b, slots[slot].bias, n * runs->n_run, &w, &p, err));
    fill_runs(p, bias, runs, n);
    b->out->slot[slot].b = b->out->n;
    return bind_finish_vector(b, w, bias, n_row, err);
}

static nib_status bind_part(binder *b, slot_id slot, const arch_tensor *fused, const container_tensor *t,
                            int64_t n_all, int64_t k, nib_error *err) {
    const row_order order = b->m->gguf_arch != NULL ? ROWS_CONCAT : fused->order;
    const row_runs runs = runs_of(b->m, slot, order, n_all);
    return bind_runs(b, slot, fused, t, n_all, k, &runs, 1, err);
}

/* Binds a projection to its own tensor, or to a part of a fused one. fused_slot: SLOT_COUNT for none. */
nib_status bind_linear(binder *b, slot_id slot, int64_t n, int64_t k, slot_id fused_slot, int64_t n_all,
                       nib_error *err) {
    const arch_tensor *row = bind_row(b, slot);
    const arch_tensor *fused = fused_slot != SLOT_COUNT ? bind_row(b, fused_slot) : NULL;
    if (row == NULL && fused == NULL)
        return NIB_OK;
    const char *suffix = row != NULL && (row->flags & T_BARE) ? "" : ".weight";
    const container_tensor *t = bind_find(b, row, 0, suffix);
    if (row != NULL && t != NULL) {
        /* In GGUF a fused gate|up has the name of up: the number of rows shows which it is. */
        bool is_fused = fused != NULL && t->n_dim == 2 && t->shape[0] == n_all && n_all != n;
        if (!is_fused) {
            NIB_TRY(bind_matrix(b, row, t, n, k, err));
            return bind_bias(b, row, n, err);
        }
    }
    t = bind_find(b, fused, 0, ".weight");
    if (fused != NULL && t != NULL)
        return bind_part(b, slot, fused, t, n_all, k, err);
    const arch_tensor *named = row != NULL && (fused == NULL || *row_names(b, row) != '\0') ? row : fused;
    return named->flags & T_OPTIONAL ? NIB_OK : bind_missing(b, named, ".weight", err);
}

nib_status bind_factor(binder *b, int index, double factor, nib_error *err) {
    if (index < 0 || factor == 1)
        return NIB_OK;
    weight *w = &b->out->weights[index];
    float *times = arena_array(b->src.mem, (size_t)w->k, sizeof *times);
    if (times == NULL)
        return nib_fail_nomem(err, (size_t)w->k * sizeof *times, "factors of a vector");
    for (int64_t i = 0; i < w->k; i++)
        times[i] = (float)factor;
    w->times = times;
    return NIB_OK;
}

/* One logit a head (attend_args.sinks). HF checkpoints have it as a parameter, without ".weight". */
static nib_status bind_sinks(binder *b, nib_error *err) {
    const char *suffix = b->m->gguf_arch != NULL ? ".weight" : "";
    const arch_tensor *row = bind_row(b, SLOT_SINKS);
    const container_tensor *t = bind_find(b, row, 0, suffix);
    if (t == NULL)
        return row == NULL || (row->flags & T_OPTIONAL) ? NIB_OK : bind_missing(b, row, suffix, err);
    b->out->slot[SLOT_SINKS].there = true;
    return bind_vector(b, slots[SLOT_SINKS].name, t, b->m->cfg.shape[b->layer].n_head,
                       &b->out->slot[SLOT_SINKS].w, err);
}

nib_status bind_rows(binder *b, slot_id whole, slot_id part, int64_t n_all, int64_t k, const row_runs *runs,
                     int n, nib_error *err) {
    const arch_tensor *row = bind_row(b, whole);
    const container_tensor *t = bind_find(b, row, 0, ".weight");
    if (t == NULL)
        return bind_missing(b, row, ".weight", err);
    return bind_runs(b, part, row, t, n_all, k, runs, n, err);
}

/* A gate of attention's output with a tensor of its own: a row for each head, or for each column. */
static nib_status bind_gate(binder *b, int64_t n_head, int64_t q, nib_error *err) {
    const container_tensor *t = bind_find(b, bind_row(b, SLOT_ATTN_GATE), 0, ".weight");
    const bool of_heads = t != NULL && t->n_dim == 2 && t->shape[0] == n_head;
    return bind_linear(b, SLOT_ATTN_GATE, of_heads ? n_head : q, b->m->cfg.hp.d_model, SLOT_COUNT, 0, err);
}

static nib_status bind_attention(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const layer_shape *shape = &b->m->cfg.shape[b->layer];
    int64_t q = shape->n_head * shape->d_head, kv = shape->n_kv_head * shape->d_head, d = hp->d_model;
    const int64_t d_value =
        hp->d_value < hp->d_head && shape->d_head == hp->d_head ? hp->d_value : shape->d_head;
    const int64_t v = shape->n_kv_head * d_value, all = q + kv + v;
    if (hp->kv_low_rank > 0) {
        NIB_TRY(bind_latent_attention(b, err));
        return bind_norm(b, SLOT_ATTN_POST_NORM, d, 1, err);
    }
    if (hp->pool_all > 0) {
        NIB_TRY(bind_compressed_attention(b, err));
        return bind_sinks(b, err);
    }
    if (bind_row(b, SLOT_Q_GATE)) {
        NIB_TRY(bind_linear(b, SLOT_Q, q, d, SLOT_Q_GATE, 2 * q, err));
        NIB_TRY(bind_linear(b, SLOT_ATTN_GATE, q, d, SLOT_Q_GATE, 2 * q, err));
    } else {
        NIB_TRY(bind_linear(b, SLOT_Q, q, d, SLOT_QKV, all, err));
        NIB_TRY(bind_gate(b, shape->n_head, q, err));
    }
    NIB_TRY(bind_norm(b, SLOT_Q_NORM, q, shape->n_head, err));
    if (shape->kv_layer == b->layer) {
        NIB_TRY(bind_linear(b, SLOT_K, kv, d, SLOT_QKV, all, err));
        NIB_TRY(bind_linear(b, SLOT_V, v, d, SLOT_QKV, all, err));
        NIB_TRY(bind_norm(b, SLOT_K_NORM, kv, shape->n_kv_head, err));
        NIB_TRY(bind_norm(b, SLOT_V_NORM, kv, shape->n_kv_head, err));
    }
    static const slot_id of_input[] = {SLOT_Q, SLOT_K, SLOT_V};
    for (int i = 0; i < 3; i++) /* the factor is of the input, but the output is multiplied */
        NIB_TRY(bind_factor(b, b->out->slot[of_input[i]].b, 1 / hp->attn_in_scale, err));
    NIB_TRY(bind_sinks(b, err));
    NIB_TRY(bind_linear(b, SLOT_O, d, shape->n_head * d_value, SLOT_COUNT, 0, err));
    return bind_norm(b, SLOT_ATTN_POST_NORM, d, 1, err);
}

static void share_matrix(binder *b, slot_id slot, const block *owner, int index) {
    weight *w = &b->out->weights[b->out->n];
    *w = owner->weights[index];
    w->name = slots[slot].name;
    w->shared_block = 0;
    w->shared_index = index;
    w->bytes = 0;
    b->out->slot[slot].there = true;
    b->out->slot[slot].w = b->out->n++;
}

/* A matrix of the embedding block. */
static nib_status share(binder *b, slot_id slot, slot_id of, const block *embed, nib_error *err) {
    for (int i = 0; i < embed->n_weight; i++)
        if (strcmp(embed->weights[i].name, slots[of].name) == 0) {
            share_matrix(b, slot, embed, i);
            return NIB_OK;
        }
    return nib_fail(err, NIB_E_MODEL, "expected %s or %s to share, found neither", slots[slot].name,
                    slots[of].name);
}

/* The layer's own rows of the projection of all layers. */
static nib_status bind_per_layer(binder *b, const block *embed, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    const int64_t n = hp->d_ple, d = hp->d_model;
    const row_runs own = {n * b->layer, n, n, 1};
    NIB_TRY(share(b, SLOT_EMBED, SLOT_EMBED, embed, err));
    NIB_TRY(share(b, SLOT_PLE_TABLE, SLOT_PLE_TABLE, embed, err));
    NIB_TRY(bind_rows(b, SLOT_PLE_IN, SLOT_PLE_IN, n * hp->n_layer, d, &own, 1, err));
    NIB_TRY(bind_norm(b, SLOT_PLE_IN_NORM, n, 1, err));
    NIB_TRY(bind_linear(b, SLOT_PLE_GATE, n, d, SLOT_COUNT, 0, err));
    NIB_TRY(bind_linear(b, SLOT_PLE_OUT, d, n, SLOT_COUNT, 0, err));
    return bind_norm(b, SLOT_PLE_NORM, d, 1, err);
}

static nib_status bind_layer(binder *b, const block *embed, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    int64_t d = hp->d_model, ff = b->m->cfg.shape[b->layer].d_ff;
    if (hp->d_ple > 0)
        NIB_TRY(bind_per_layer(b, embed, err));
    NIB_TRY(bind_streams(b, PART_LAYER, err));
    const uint8_t kind = b->m->cfg.layer[b->layer];
    if ((kind & LAYER_RECURRENT) || !(kind & LAYER_NO_ATTENTION))
        NIB_TRY(bind_norm(b, SLOT_ATTN_NORM, d, 1, err));
    if (!(kind & LAYER_NO_ATTENTION))
        NIB_TRY(bind_attention(b, err));
    if (kind & LAYER_RECURRENT)
        NIB_TRY(bind_mixer(b, err));
    if (kind & LAYER_NO_FFN)
        return NIB_OK;
    NIB_TRY(bind_norm(b, SLOT_FFN_NORM, d, 1, err));
    const bool mixes = bind_is_mixture(b);
    if (mixes)
        NIB_TRY(bind_mixture(b, err));
    if (!mixes || bind_row(b, SLOT_DENSE_POST_NORM)) {
        NIB_TRY(bind_linear(b, SLOT_GATE, ff, d, bind_row(b, SLOT_GATE_UP) ? SLOT_GATE_UP : SLOT_COUNT,
                            2 * ff, err));
        NIB_TRY(bind_linear(b, SLOT_UP, ff, d, SLOT_GATE_UP, 2 * ff, err));
        NIB_TRY(bind_linear(b, SLOT_DOWN, d, ff, SLOT_COUNT, 0, err));
    }
    NIB_TRY(bind_norm(b, SLOT_FFN_POST_NORM, d, 1, err));
    int a = b->out->slot[SLOT_ATTN_NORM].w, f = b->out->slot[SLOT_FFN_NORM].w;
    if (a >= 0 && f >= 0)
        b->out->slot[SLOT_FFN_NORM].shared =
            b->out->weights[a].pieces[0].tensor == b->out->weights[f].pieces[0].tensor;
    return NIB_OK;
}

/* --- embedding and head -------------------------------------------------------------------------- */

/* A table with any number of rows. */
static nib_status bind_look_up(binder *b, slot_id slot, int64_t k, nib_error *err) {
    const arch_tensor *row = bind_row(b, slot);
    const container_tensor *t = bind_find(b, row, 0, ".weight");
    if (t == NULL)
        return bind_missing(b, row, ".weight", err);
    if (t->n_dim != 2 || t->shape[0] < 1 || t->shape[1] != k)
        return bind_wrong_shape(t, b->m->cfg.hp.n_vocab, k, err);
    return bind_matrix(b, row, t, t->shape[0], k, err);
}

static nib_status bind_embed(binder *b, nib_error *err) {
    const hparams *hp = &b->m->cfg.hp;
    if (b->m->ahead)
        return bind_ahead_in(b, err);
    NIB_TRY(bind_linear(b, SLOT_EMBED, hp->n_vocab, hp->d_embed, SLOT_COUNT, 0, err));
    if (hp->d_embed != hp->d_model)
        NIB_TRY(bind_linear(b, SLOT_EMBED_IN, hp->d_model, hp->d_embed, SLOT_COUNT, 0, err));
    if (hp->d_ple > 0)
        NIB_TRY(bind_look_up(b, SLOT_PLE_TABLE, hp->d_ple * hp->n_layer, err));
    NIB_TRY(bind_streams(b, PART_EMBED, err));
    const arch_tensor *pos = bind_row(b, SLOT_POS);
    const container_tensor *t = bind_find(b, pos, 0, ".weight");
    if (pos != NULL && t == NULL && !(pos->flags & T_OPTIONAL))
        return bind_missing(b, pos, ".weight", err);
    if (pos != NULL && t != NULL) {
        if (t->n_dim != 2 || t->shape[0] <= hp->pos_offset || t->shape[1] != hp->d_model)
            return bind_wrong_shape(t, hp->n_ctx_train + hp->pos_offset, hp->d_model, err);
        NIB_TRY(bind_matrix(b, pos, t, t->shape[0], hp->d_model, err));
    }
    return bind_norm(b, SLOT_EMBED_NORM, hp->d_model, 1, err);
}

static nib_status bind_head(binder *b, const block *embed, nib_error *err) {
    const config *c = &b->m->cfg;
    const hparams *hp = &c->hp;
    NIB_TRY(bind_streams(b, PART_HEAD, err));
    NIB_TRY(bind_ahead_out(b, err));
    if (b->out->slot[SLOT_HEAD].there)
        return NIB_OK;
    if (!b->out->slot[SLOT_OUT_NORM].there)
        NIB_TRY(bind_norm(b, SLOT_OUT_NORM, hp->d_model, 1, err));
    if (hp->d_embed != hp->d_model)
        NIB_TRY(bind_linear(b, SLOT_EMBED_OUT, hp->d_embed, hp->d_model, SLOT_COUNT, 0, err));
    const arch_tensor *row = bind_row(b, SLOT_HEAD);
    const bool gguf = b->m->gguf_arch != NULL, tied = !gguf && hp->tied_head;
    const container_tensor *t = tied ? NULL : bind_find(b, row, 0, ".weight");
    if (tied || (t == NULL && (gguf || !c->tie_said)))
        NIB_TRY(share(b, SLOT_HEAD, SLOT_EMBED, embed, err));
    else if (row == NULL)
        return nib_fail(err, NIB_E_MODEL, "tie_word_embeddings: expected true, found false");
    else if (t == NULL)
        return bind_missing(b, row, ".weight", err);
    else
        NIB_TRY(bind_matrix(b, row, t, hp->n_vocab, hp->d_embed, err));
    return row == NULL ? NIB_OK : bind_bias(b, row, hp->n_vocab, err);
}

static nib_status bind_part_of(binder *b, block_part part, const block *embed, nib_error *err) {
    if (part == PART_EMBED)
        return bind_embed(b, err);
    return part == PART_LAYER ? bind_layer(b, embed, err) : bind_head(b, embed, err);
}

nib_status tensors_bind(model *m, block_part part, int layer, const block *embed, bound *out,
                        nib_error *err) {
    gap missed = {.file = NULL};
    binder b = {m, {m->c, m->arch, m->gguf_arch, &m->mem}, layer, out, &missed};
    memset(out, 0, sizeof *out);
    for (int i = 0; i < SLOT_COUNT; i++)
        out->slot[i].w = out->slot[i].b = -1;
    const nib_status status = bind_part_of(&b, part, embed, err);
    if (missed.file != NULL) /* even if the tensor is optional */
        return nib_fail(err, NIB_E_MODEL, "tensor %s is in %s, as the index says, and that file is not there",
                        missed.tensor, missed.file);
    return status;
}

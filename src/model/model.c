/* model.c - opens a model: finds its family, reads its hyper-parameters, binds its tensors, and builds a
 * program for each block. */
#include "base/mem.h"
#include "base/num.h"
#include "formats/packed_matrix.h"
#include "model/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool in_list(const char *list, const char *name) {
    char each[96];
    while (list_next(&list, each, sizeof each))
        if (strcmp(each, name) == 0)
            return true;
    return false;
}

/* NULL after the last. */
static const char *known_arch(int i) {
    return i >= 0 && arch_registry[i] != NULL ? arch_registry[i]->name : NULL;
}

static nib_status unknown_arch(const char *what, const char *name, nib_error *err) {
    char known[320];
    size_t n = 0;
    known[0] = '\0';
    for (int i = 0; known_arch(i) != NULL && n < sizeof known - 32; i++)
        n += (size_t)snprintf(known + n, sizeof known - n, "%s%s", i > 0 ? ", " : "", known_arch(i));
    return nib_fail(err, NIB_E_MODEL, "%s \"%.60s\": expected a known architecture (%s)", what, name, known);
}

static nib_status find_gguf_arch(model *m, nib_error *err) {
    m->gguf_arch = container_meta_str(m->c, "general.architecture");
    if (m->gguf_arch == NULL)
        return nib_fail(err, NIB_E_MODEL, "expected the key general.architecture, found none");
    for (int i = 0; arch_registry[i] != NULL; i++)
        if (in_list(arch_registry[i]->gguf, m->gguf_arch)) {
            m->arch = arch_registry[i];
            return NIB_OK;
        }
    return unknown_arch("general.architecture", m->gguf_arch, err);
}

static nib_status find_hf_arch(model *m, nib_error *err) {
    const char *type = container_meta_str(m->c, "model_type");
    for (int i = 0; type != NULL && arch_registry[i] != NULL; i++)
        if (in_list(arch_registry[i]->hf, type)) {
            m->arch = arch_registry[i];
            return NIB_OK;
        }
    const meta_value *v = container_meta(m->c, "architectures");
    const char *class = NULL;
    if (v != NULL && v->type == META_ARRAY && v->elem == META_STRING && v->n > 0)
        class = v->v.strings[0].data;
    for (int i = 0; class != NULL && arch_registry[i] != NULL; i++)
        if (in_list(arch_registry[i]->hf_class, class)) {
            m->arch = arch_registry[i];
            return NIB_OK;
        }
    if (type == NULL && class == NULL)
        return nib_fail(err, NIB_E_MODEL, "config.json: expected model_type, found none");
    return unknown_arch("model_type", type != NULL ? type : class, err);
}

/* --- registers ----------------------------------------------------------------------------------- */

reg model_declare_reg(model *m, const char *name) {
    for (int r = REG_OWN; r < m->n_reg; r++)
        if (strcmp(m->regs[r].name, name) == 0)
            return (reg)r;
    assert(m->n_reg < REG_MAX);
    m->regs[m->n_reg].name = name;
    return (reg)m->n_reg++;
}

/* --- blocks -------------------------------------------------------------------------------------- */

static void note_widths(model *m, const op *o) {
    const bool attends = o->kind == OP_ATTENTION;
    const int64_t q = attends ? o->u.attn.n_head * o->u.attn.d_head : o->k;
    const int64_t kv = attends ? o->u.attn.n_kv_head * o->u.attn.d_head : 0;
    const struct {
        reg r;
        int64_t n;
    } use[] = {{o->out, o->n},
               {o->in, q},
               {o->in2, attends                    ? kv
                        : op_is_recurrent(o->kind) ? 0
                        : op_is_stacked(o)         ? 2 * o->u.experts.n_used
                                                   : op_width2(o)},
               {o->in3, attends                    ? kv
                        : op_is_recurrent(o->kind) ? 0
                                                   : 1}};
    for (size_t i = 0; i < sizeof use / sizeof use[0]; i++)
        if (use[i].r != REG_NONE && use[i].n > m->regs[use[i].r].width)
            m->regs[use[i].r].width = use[i].n;
}

/* Copies bound weights and ops to memory that lives as long as the model. */
static nib_status keep_block(model *m, block *to, const bound *b, const op *ops, int n_op, nib_error *err) {
    size_t n_weight_byte = (size_t)b->n * sizeof(weight);
    size_t n_op_byte = (size_t)n_op * sizeof(op);
    weight *weights = arena_alloc(&m->mem, n_weight_byte);
    op *kept = arena_alloc(&m->mem, n_op_byte);
    if (weights == NULL || kept == NULL)
        return nib_fail_nomem(err, n_weight_byte + n_op_byte, "a block's description");
    memcpy(weights, b->weights, (size_t)b->n * sizeof *weights);
    memcpy(kept, ops, (size_t)n_op * sizeof *kept);
    to->weights = weights;
    to->n_weight = b->n;
    to->program = (program){kept, n_op};
    NIB_TRY(block_sum(to, err));
    for (int i = 0; i < b->n; i++) {
        const weight *w = &weights[i];
        if (w->shared_block < 0)
            m->n_param += (uint64_t)(w->n_expert > 0 ? w->n_expert * w->expert_n : w->n) * (uint64_t)w->k;
    }
    for (int i = 0; i < n_op; i++)
        note_widths(m, &kept[i]);
    return NIB_OK;
}

static nib_status make_block(model *m, int i, block_part part, int layer, bound *b, nib_error *err) {
    op ops[PROGRAM_MAX_OP];
    block *to = &m->blocks[i];
    char name[32];
    if (part == PART_LAYER)
        snprintf(name, sizeof name, "layer.%d", layer);
    else
        snprintf(name, sizeof name, "%s", part == PART_EMBED ? "embed" : "head");
    to->layer = layer;
    to->name = arena_strndup(&m->mem, name, strlen(name));
    if (to->name == NULL)
        return nib_fail_nomem(err, sizeof name, "a block's name");
    NIB_TRY(tensors_bind(m, part, layer, &m->blocks[0], b, err));
    if (part == PART_LAYER)
        NIB_TRY(share_cut(m, layer, b, err));
    int n_op = build_program(m, part, layer, b, ops);
    cost_program(m->blocks, b->weights, ops, n_op);
    for (int k = 0; k < n_op; k++)
        model_place_state(m, &ops[k]);
    fuse_program(ops, n_op);
    sites_take_advice(m, ops, n_op, b->weights);
    share_advice(b);
    return keep_block(m, to, b, ops, n_op, err);
}

/* Slots that only layers with keys and values of their own have, or values that are not the keys. */
static bool differs(const model *m, slot_id slot) {
    const bool of_keys = slot == SLOT_K || slot == SLOT_K_NORM || slot == SLOT_V_NORM;
    const bool of_entries = slot >= SLOT_POOL_X && slot <= SLOT_INDEX_W;
    const bool of_choice =
        config_has_slot(m->arch, SLOT_HASH) && (slot == SLOT_HASH || slot == SLOT_CHOICE_BIAS);
    return of_entries || of_choice || (m->cfg.hp.n_kv_shared > 0 && of_keys) ||
           (slot == SLOT_V && (m->cfg.hp.n_kv_shared > 0 || (m->arch->flags & A_VALUES_ARE_KEYS)));
}

/* The slots of the first layer of a kind. */
typedef struct layer_kind {
    int layer; /* -1: there was none yet */
    bool there[SLOT_COUNT], bias[SLOT_COUNT];
} layer_kind;

static void note_kind(layer_kind *first, const bound *b, int layer) {
    first->layer = layer;
    for (int i = 0; i < SLOT_COUNT; i++) {
        first->there[i] = b->slot[i].there;
        first->bias[i] = b->slot[i].b >= 0;
    }
}

/* All layers of one kind have the same weights; a layer that lacks a bias or a norm shows a damaged
 * checkpoint. */
static nib_status check_alike(const model *m, const layer_kind *first, const bound *b, int layer,
                              nib_error *err) {
    for (int i = 0; i < SLOT_COUNT; i++)
        if (!differs(m, (slot_id)i) &&
            (first->there[i] != b->slot[i].there || first->bias[i] != (b->slot[i].b >= 0))) {
            bool bias = first->there[i] == b->slot[i].there;
            bool fewer = bias ? b->slot[i].b < 0 : !b->slot[i].there;
            return nib_fail(err, NIB_E_MODEL, "layer %d has %s %s%s, but layer %d has %s", layer,
                            fewer ? "no" : "a", slot_name((slot_id)i), bias ? " bias" : "", first->layer,
                            fewer ? "one" : "none");
        }
    return NIB_OK;
}

static nib_status make_layers(model *m, bound *b, nib_error *err) {
    enum {
        KINDS = LAYER_SLIDES | LAYER_RECURRENT | LAYER_NO_ATTENTION | LAYER_NO_FFN
    };                              /* the flags that make a kind */
    layer_kind kinds[2][KINDS + 1]; /* dense layers and mixtures */
    for (int i = 0; i < 2 * (KINDS + 1); i++)
        kinds[i / (KINDS + 1)][i % (KINDS + 1)].layer = -1;
    for (int i = 0; i < (int)m->cfg.hp.n_layer; i++) {
        NIB_TRY(make_block(m, i + 1, PART_LAYER, i, b, err));
        layer_kind *kind = &kinds[b->slot[SLOT_ROUTER].there][m->cfg.layer[i] & KINDS];
        if (kind->layer < 0)
            note_kind(kind, b, i);
        NIB_TRY(check_alike(m, kind, b, i, err));
    }
    return NIB_OK;
}

static nib_status make_blocks(model *m, nib_error *err) {
    int n = (int)m->cfg.hp.n_layer + 2;
    m->blocks = arena_array(&m->mem, (size_t)n, sizeof *m->blocks);
    bound *b = mem_array(1, sizeof *b);
    nib_status status = NIB_OK;
    if (m->blocks == NULL || b == NULL) {
        mem_free(b);
        return nib_fail_nomem(err, (size_t)n * sizeof *m->blocks, "blocks");
    }
    status = make_block(m, 0, PART_EMBED, -1, b, err);
    if (status == NIB_OK && b->slot[SLOT_POS].w >= 0) /* the table of learned positions limits the context */
        m->cfg.hp.n_ctx_max = b->weights[b->slot[SLOT_POS].w].n - m->cfg.hp.pos_offset;
    if (status == NIB_OK)
        status = make_layers(m, b, err);
    if (status == NIB_OK)
        status = make_block(m, n - 1, PART_HEAD, -1, b, err);
    if (status == NIB_OK) {
        m->cfg.hp.tied_head = b->weights[b->slot[SLOT_HEAD].w].shared_block >= 0;
        m->n_block = n;
    }
    mem_free(b);
    return status;
}

/* --- opening ------------------------------------------------------------------------------------- */

static nib_status find_name(model *m, nib_error *err) {
    const char *name = container_meta_str(m->c, "general.name");
    char file_name[256];
    if (name == NULL || *name == '\0') {
        const char *path = container_path(m->c);
        size_t n = strlen(path);
        while (n > 0 && path[n - 1] == '/')
            n--;
        size_t start = n;
        while (start > 0 && path[start - 1] != '/')
            start--;
        snprintf(file_name, sizeof file_name, "%.*s", (int)NUM_MIN(n - start, (size_t)255), path + start);
        name = file_name;
    }
    m->name = arena_strndup(&m->mem, name, strlen(name));
    return m->name != NULL ? NIB_OK : nib_fail_nomem(err, strlen(name), "the model's name");
}

/* Says how many packed matrices have no compact format with their values. A router is f32 by choice. */
static void tell_wide(const model *m, const logger *log) {
    const container_tensor *first = NULL;
    size_t n = 0;
    for (int i = 0; i < m->n_block; i++)
        for (int j = 0; j < m->blocks[i].n_weight; j++) {
            const weight *w = &m->blocks[i].weights[j];
            const container_tensor *t = w->pieces[0].tensor;
            if (w->type != TYPE_F32 || t->packed == NULL || t->packed->kind == PACKED_HEADS || w->exact)
                continue;
            first = n++ == 0 ? t : first;
        }
    if (n > 0)
        log_line(log,
                 "in a run %zu matrices are held in f32, the first is %s: no compact format has their values "
                 "(act-order, scales that f16 cannot hold, e5m2, rows that do not fill whole blocks)",
                 n, first->name);
}

static model *new_model(bool wide, nib_error *err) {
    model *m = mem_calloc(1, sizeof *m);
    if (m == NULL) {
        nib_fail_nomem(err, sizeof *m, "a model");
        return NULL;
    }
    arena_init(&m->mem);
    m->wide = wide;
    m->n_reg = REG_OWN;
    return m;
}

static nib_status read_model(model *m, const logger *log, nib_error *err) {
    NIB_TRY(find_name(m, err));
    NIB_TRY(container_get_kind(m->c) == CONTAINER_GGUF ? find_gguf_arch(m, err) : find_hf_arch(m, err));
    const config_source source = {m->c, m->arch, m->gguf_arch, &m->mem};
    NIB_TRY(config_read(&source, &m->cfg, err));
    if (m->ahead) {
        m->first_layer = m->gguf_arch == NULL && m->arch->hf_ahead != NULL ? 0 : (int)m->cfg.hp.n_layer;
        NIB_TRY(config_take_ahead(&source, &m->cfg, err));
    }
    NIB_TRY(make_blocks(m, err));
    if (!m->ahead)
        NIB_TRY(sites_check_advice(m, err));
    tell_wide(m, log);
    return NIB_OK;
}

/* Reads the head that predicts later tokens. A model whose head cannot be computed runs without it. */
static nib_status read_ahead(model *m, const logger *log, nib_error *err) {
    nib_error why = {0};
    if (m->cfg.hp.n_nextn == 0 || m->share.n > 1)
        return NIB_OK;
    model *next = new_model(m->wide, err);
    if (next == NULL)
        return NIB_E_NOMEM;
    next->c = m->c;
    next->ahead = true;
    nib_status status = read_model(next, log, &why);
    if (status == NIB_OK)
        status = tensors_check_unused(next, log, &why);
    if (status == NIB_OK) {
        m->next = next;
        return NIB_OK;
    }
    next->c = NULL;
    model_close(next);
    if (status == NIB_E_NOMEM)
        return nib_fail_nomem(err, 0, "the head that predicts later tokens");
    m->cfg.hp.n_nextn = 0;
    log_line(log, "the head that predicts later tokens is not used: %s", why.message);
    return NIB_OK;
}

nib_status model_open_share(const char *path, const logger *log, const container_visitor *vocabulary,
                            bool wide, model_share share, model **out, nib_error *err) {
    model *m = new_model(wide, err);
    if (m == NULL)
        return NIB_E_NOMEM;
    m->share = share;
    nib_status status = container_open_headers(path, log, vocabulary, &m->c, err);
    if (status == NIB_OK) {
        status = read_model(m, log, err);
        if (status == NIB_OK)
            status = read_ahead(m, log, err);
        if (status == NIB_OK)
            status = tensors_check_unused(m, log, err);
        if (status != NIB_OK)
            nib_fail_prefix(err, status, path);
    }
    if (status != NIB_OK) {
        model_close(m);
        return status;
    }
    *out = m;
    return NIB_OK;
}

nib_status model_open_headers(const char *path, const logger *log, const container_visitor *vocabulary,
                              bool wide, model **out, nib_error *err) {
    return model_open_share(path, log, vocabulary, wide, (model_share){0}, out, err);
}

nib_status model_open_ahead(const char *path, const logger *log, const container_visitor *vocabulary,
                            bool wide, model **out, nib_error *err) {
    model *m = NULL;
    NIB_TRY(model_open_headers(path, log, vocabulary, wide, &m, err));
    *out = m->next;
    if (m->next == NULL)
        nib_fail(err, NIB_E_USAGE, "%s: expected a model with a head that predicts later tokens, found none",
                 path);
    else
        m->c = NULL; /* now the head's */
    m->next = NULL;
    model_close(m);
    return *out != NULL ? NIB_OK : NIB_E_USAGE;
}

nib_status model_open(const char *path, const logger *log, model **out, nib_error *err) {
    return model_open_headers(path, log, NULL, false, out, err);
}

void model_drop_ahead(model *m) {
    if (m->next != NULL)
        m->next->c = NULL; /* the model's */
    model_close(m->next);
    m->next = NULL;
    m->cfg.hp.n_nextn = 0;
}

void model_close(model *m) {
    if (m == NULL)
        return;
    model_drop_ahead(m);
    container_close(m->c);
    arena_deinit(&m->mem);
    mem_free(m);
}

/* --- what others read ---------------------------------------------------------------------------- */

const char *model_arch(const model *m) {
    return m->arch->name;
}

const char *model_name(const model *m) {
    return m->name;
}

const hparams *model_hparams(const model *m) {
    return &m->cfg.hp;
}

const model *model_ahead(const model *m) {
    return m->next;
}

bool model_is_ahead(const model *m) {
    return m->ahead;
}

const container *model_container(const model *m) {
    return m->c;
}

container *model_files(model *m) {
    return m->c;
}

int model_n_block(const model *m) {
    return m->n_block;
}

const block *model_block(const model *m, int i) {
    return &m->blocks[i];
}

int model_n_reg(const model *m) {
    return m->n_reg;
}

int64_t model_reg_width(const model *m, reg r) {
    return m->regs[r].width;
}

int model_n_kv_layer(const model *m) {
    return (int)m->cfg.hp.n_layer;
}

void model_kv_widths(const model *m, int kv_layer, int64_t *k_width, int64_t *v_width) {
    const program *p = &m->blocks[kv_layer + 1].program;
    *k_width = *v_width = 0; /* a layer without attention, or one that uses another's */
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == OP_ATTENTION && op_stores(&p->ops[i])) {
            *k_width = p->ops[i].u.attn.n_kv_head * p->ops[i].u.attn.d_head;
            *v_width = p->ops[i].u.attn.shared ? 0 : *k_width;
        }
}

uint64_t model_state_bytes(const model *m) {
    return (uint64_t)m->n_state * sizeof(float);
}

uint64_t model_heap_bytes(const model *m) {
    const uint64_t own = sizeof *m + m->mem.bytes;
    return m->next != NULL ? own + model_heap_bytes(m->next) : own + container_heap_bytes(m->c);
}

uint64_t model_n_param(const model *m) {
    return m->n_param;
}

int model_n_rope(const model *m) {
    return m->cfg.n_rope;
}

int64_t model_rope_dim(const model *m, int table) {
    return m->cfg.ropes[table].n_rot;
}

void model_rope_freqs(const model *m, int table, int64_t length, float *inv_freq, float *factor) {
    rope_frequencies(&m->cfg.ropes[table], m->cfg.hp.n_ctx_train, length, inv_freq, factor);
}

bool model_rope_keeps(const model *m, int64_t longest, int64_t length, bool extends) {
    for (int i = 0; i < m->cfg.n_rope; i++) {
        const rope_params *r = &m->cfg.ropes[i];
        if (r->kind == ROPE_LONG && ((double)longest > r->orig_ctx) != ((double)length > r->orig_ctx))
            return false;
        if (r->kind == ROPE_DYNAMIC && !extends && NUM_MAX(longest, length) > m->cfg.hp.n_ctx_train)
            return false;
    }
    return true;
}

int64_t model_rope_behind(const model *m, int table) {
    return m->cfg.ropes[table].behind;
}

bool model_rope_varies(const model *m, int table) {
    return m->cfg.ropes[table].kind == ROPE_DYNAMIC || m->cfg.ropes[table].kind == ROPE_LONG;
}

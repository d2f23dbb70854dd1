/* describe.c - describes a model as a JSON document; see nib_tools.h. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "hub/find.h"
#include "model/model.h"

#include <string.h>

static json_t *text_of(const char *text) {
    return jsonx_string(text, strlen(text));
}

static json_t *tensors_of(const container *c) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        if (t->packed) /* computed from others of the list */
            continue;
        json_t *shape = json_array();
        for (int d = 0; d < t->n_dim; d++)
            ok = jsonx_add(shape, json_integer(t->shape[d])) && ok;
        ok = jsonx_add(list, json_pack("{s:o, s:o, s:s, s:I}", "name", text_of(t->name), "shape", shape,
                                       "format", type_get(t->type)->name, "bytes", (json_int_t)t->bytes)) &&
             ok;
    }
    return jsonx_whole(list, ok);
}

static uint64_t tensor_bytes(const container *c) {
    uint64_t n = 0;
    for (size_t i = 0; i < container_n_tensor(c); i++)
        n += container_tensor_at(c, i)->packed ? 0 : container_tensor_at(c, i)->bytes;
    return n;
}

/* Bytes of one position's keys and values in f16, all layers. */
static uint64_t kv_bytes(const model *m) {
    uint64_t n = 0;
    for (int i = 0; i < model_n_kv_layer(m); i++) {
        int64_t k_width, v_width;
        model_kv_widths(m, i, &k_width, &v_width);
        n += (uint64_t)(k_width + v_width) * 2;
    }
    return n;
}

/* Whether matrix i of the embedding block is only a table, of which a token reads one row. */
static bool is_table(const model *m, int i) {
    const block *head = model_block(m, model_n_block(m) - 1), *embed = model_block(m, 0);
    bool multiplies = embed->weights[i].vector;
    for (int o = 0; o < embed->program.n_op; o++)
        multiplies = multiplies || (op_is_product(&embed->program.ops[o]) && embed->program.ops[o].w == i);
    for (int w = 0; w < head->n_weight; w++)
        multiplies = multiplies || (head->weights[w].shared_block == 0 && head->weights[w].shared_index == i);
    return !multiplies;
}

/* Parameters that a token is multiplied by: without those of the experts that it does not use, and without
 * tables. */
static uint64_t active_params(const model *m) {
    const int64_t used = model_hparams(m)->n_expert_used;
    uint64_t n = model_n_param(m);
    for (int b = 0; b < model_n_block(m); b++)
        for (int i = 0; i < model_block(m, b)->n_weight; i++) {
            const weight *w = &model_block(m, b)->weights[i];
            if (b == 0 && is_table(m, i))
                n -= (uint64_t)(w->n - 1) * (uint64_t)w->k;
            if (w->n_expert > used)
                n -= (uint64_t)((w->n_expert - used) * w->expert_n) * (uint64_t)w->k;
        }
    return n;
}

/* Parameters of the head that predicts later tokens, without those that it shares with the model. */
static uint64_t ahead_params(const model *m) {
    const model *head = model_ahead(m);
    uint64_t n = 0;
    for (int b = 0; head && b < model_n_block(head); b++)
        for (int i = 0; i < model_block(head, b)->n_weight; i++) {
            const weight *w = &model_block(head, b)->weights[i];
            if (b == 1 || !strncmp(w->name, "ahead", 5))
                n += (uint64_t)(w->n_expert > 0 ? w->n_expert * w->expert_n : w->n) * (uint64_t)w->k;
        }
    return n;
}

static json_t *document_of(const model *m) {
    const hparams *hp = model_hparams(m);
    const container *c = model_container(m);
    return json_pack(
        "{s:s, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o}",
        "arch", model_arch(m), "name", text_of(model_name(m)), "container",
        container_get_kind(c) == CONTAINER_GGUF ? "gguf" : "safetensors", "n_layer", (json_int_t)hp->n_layer,
        "d_model", (json_int_t)hp->d_model, "n_head", (json_int_t)hp->n_head, "n_kv_head",
        (json_int_t)hp->n_kv_head, "d_head", (json_int_t)hp->d_head, "d_ff", (json_int_t)hp->d_ff, "n_vocab",
        (json_int_t)hp->n_vocab, "n_ctx_train", (json_int_t)hp->n_ctx_train, "params",
        (json_int_t)model_n_param(m), "active_params", (json_int_t)active_params(m), "n_expert",
        (json_int_t)hp->n_expert, "n_expert_used", (json_int_t)hp->n_expert_used, "ahead_params",
        (json_int_t)ahead_params(m), "bytes", (json_int_t)tensor_bytes(c), "kv_bytes",
        (json_int_t)kv_bytes(m), "tensors", tensors_of(c));
}

nib_status nib_model_describe(const char *name, char **json, nib_error *err) {
    char *path;
    model *m;
    NIB_TRY(model_find(name, &path, err));
    const nib_status status = model_open(path, NULL, &m, err);
    mem_free(path);
    NIB_TRY(status);
    json_t *document = document_of(m);
    *json = document ? jsonx_text(document, JSON_COMPACT) : NULL;
    json_decref(document);
    model_close(m);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "a model's description");
}

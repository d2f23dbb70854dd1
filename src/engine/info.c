/* info.c - collects the result of nib_engine_info once. */
#include "engine/info.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "exec/probe.h"

#include <stdio.h>
#include <string.h>

/* Sums the bytes and the elements of the tensors in the files. */
static void count_tensors(const container *c, uint64_t *bytes, uint64_t *params) {
    *bytes = *params = 0;
    for (size_t i = 0; i < container_n_tensor(c); i++) {
        const container_tensor *t = container_tensor_at(c, i);
        uint64_t n = 1;
        for (int d = 0; d < t->n_dim; d++)
            n *= (uint64_t)t->shape[d];
        *bytes += t->packed ? 0 : t->bytes; /* computed from others */
        *params += t->source ? 0 : n;
    }
}

/* Counts the weights that one generated token reads: every product once, and one row of each table. */
static void count_token(const layout *lay, nib_model_info *info) {
    for (int b = 0; b < layout_n_block(lay); b++) {
        const program *p = &layout_block(lay, b)->program;
        for (int i = 0; i < p->n_op; i++) {
            info->token_bytes += p->ops[i].cost.weight_bytes;
            if (p->ops[i].kind != OP_ATTENTION)
                info->token_macs += p->ops[i].cost.macs;
        }
    }
}

static const char *file_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* The pooling in the file that sentence-transformers writes beside a checkpoint. */
static int pooling_of_folder(const char *path) {
    enum { MAX_BYTES = 1 << 16 };
    char at[4096], *text = NULL;
    size_t n_byte;
    json_t *value = NULL;
    int found = NIB_POOLING_MODEL;
    const int n = snprintf(at, sizeof at, "%s/1_Pooling/config.json", path);
    if (n < 0 || (size_t)n >= sizeof at || file_read_all(at, MAX_BYTES, &text, &n_byte, NULL))
        return found;
    if (jsonx_parse(text, n_byte, &value, NULL) == NIB_OK) {
        const char *mode = json_string_value(json_object_get(value, "pooling_mode"));
        if (json_is_true(json_object_get(value, "pooling_mode_lasttoken")) ||
            (mode && !strcmp(mode, "lasttoken")))
            found = NIB_POOLING_LAST;
        else if (json_is_true(json_object_get(value, "pooling_mode_mean_tokens")) ||
                 (mode && !strcmp(mode, "mean")))
            found = NIB_POOLING_MEAN;
    }
    json_decref(value);
    mem_free(text);
    return found;
}

/* GGUF's `ARCH.pooling_type`: 1 is the mean, 3 the last row. */
static int pooling_of(const engine_core *e) {
    enum { GGUF_MEAN = 1, GGUF_LAST = 3 };
    const char *arch = container_meta_str(e->container, "general.architecture");
    char key[128];
    int64_t type;
    snprintf(key, sizeof key, "%s.pooling_type", arch ? arch : "");
    if (!arch || !container_meta_i64(e->container, key, &type))
        return path_is_dir(e->path) ? pooling_of_folder(e->path) : NIB_POOLING_MODEL;
    return type == GGUF_MEAN ? NIB_POOLING_MEAN : type == GGUF_LAST ? NIB_POOLING_LAST : NIB_POOLING_MODEL;
}

void engine_fill_info(const engine_core *e, nib_model_info *info) {
    const char *name = container_meta_str(e->container, "general.name");
    const char *arch = container_meta_str(e->container, "general.architecture");
    count_tensors(e->container, &info->bytes, &info->params);
    if (!arch)
        arch = container_meta_str(e->container, "model_type");
    info->arch = arch ? arch : "unknown";
    info->name = name && *name ? name : file_name(e->path);
    if (e->m) {
        const hparams *h = model_hparams(e->m);
        info->arch = model_arch(e->m);
        if (model_name(e->m) && *model_name(e->m))
            info->name = model_name(e->m);
        info->n_layer = h->n_layer;
        info->d_model = h->d_model;
        info->n_head = h->n_head;
        info->n_kv_head = h->n_kv_head;
        info->d_head = h->d_head;
        info->d_ff = h->d_ff;
        info->n_vocab = h->n_vocab;
        info->n_ctx_train = h->n_ctx_train;
        info->n_ctx = e->resolved.n_ctx;
        info->n_session = e->resolved.n_session;
        info->params = model_n_param(e->m);
        const block *head = layout_block(e->layout, layout_n_block(e->layout) - 1);
        info->d_embed = probe_head_product(&head->program)->k;
        info->pooling = pooling_of(e);
        count_token(e->layout, info);
    }
    info->bos = info->eos = -1;
    info->has_tokenizer = e->text.tokenizer != NULL;
    if (e->text.tokenizer) {
        info->bos = tokenizer_bos(e->text.tokenizer);
        info->eos = tokenizer_eos(e->text.tokenizer);
        info->add_bos = tokenizer_adds_bos(e->text.tokenizer);
        if (!e->m)
            info->n_vocab = tokenizer_n_vocab(e->text.tokenizer);
    }
    info->has_chat_template = container_meta_str(e->container, "tokenizer.chat_template") ||
                              container_meta_str(e->container, "tokenizer_config.chat_template");
}

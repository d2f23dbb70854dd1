/* header.c - see header.h. */
#include "quantize/header.h"

#include "base/file.h"
#include "base/mem.h"
#include "formats/gguf_copy.h"
#include "tokenizer/write_gguf.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- keys ---- */

static bool ends_with(const char *key, const char *end) {
    const size_t n = strlen(key), n_end = strlen(end);
    return n >= n_end && strcmp(key + n - n_end, end) == 0;
}

#define BLOCK_COUNT ".block_count"

/* The advice on activations stays true of tensors whose channels stay the same, and the number of blocks of a
 * file whose head that predicts later tokens is not left out. */
static bool keeps_key(void *user, const char *key) {
    const job *j = user;
    const bool moves = j->permute.m != NULL || j->rotate.m != NULL;
    if (j->drops_ahead && (ends_with(key, BLOCK_COUNT) || ends_with(key, ".nextn_predict_layers")))
        return false;
    return strcmp(key, "general.file_type") != 0 && strcmp(key, "general.quantization_version") != 0 &&
           strcmp(key, "general.alignment") != 0 && strncmp(key, "split.", 6) != 0 &&
           strncmp(key, "quantize.", 9) != 0 && (!moves || strcmp(key, SITES_N8_KEY) != 0);
}

/* Those of a GGUF file that stay, and the number of its blocks if one is left out. */
static nib_status file_keys(const job *j, gguf_writer *w, nib_error *err) {
    enum { MAX_HEADER = 64 << 20 };
    char key[128];
    NIB_TRY(gguf_copy_keys(container_file(j->c, 0), MAX_HEADER, keeps_key, (void *)(uintptr_t)j, w, err));
    if (!j->drops_ahead)
        return NIB_OK;
    snprintf(key, sizeof key, "%s" BLOCK_COUNT, container_meta_str(j->c, "general.architecture"));
    return gguf_writer_set_int(w, key, GGUF_U32, model_n_block(j->m) - 2,
                               err); /* embedding and head are apart */
}

/* Writes the metadata of a folder, and its vocabulary if it has one. */
static nib_status folder_keys(const job *j, gguf_writer *w, nib_error *err) {
    const char *template = container_meta_str(j->c, "tokenizer_config.chat_template");
    const logger silent = {0};
    tokenizer *t = NULL;
    NIB_TRY(gguf_write_config(j->m, w, err));
    nib_status status = tokenizer_open(j->c, &silent, &t, err);
    if (status == NIB_E_NOTFOUND)
        return gguf_writer_set_string(w, "tokenizer.ggml.model", "none", 4, err);
    if (status == NIB_OK)
        status = tokenizer_write_gguf(t, model_hparams(j->m)->n_vocab, w, err);
    tokenizer_close(t);
    if (status == NIB_OK && template)
        status = gguf_writer_set_string(w, "tokenizer.chat_template", template, strlen(template), err);
    return status;
}

nib_status header_write(const job *j, gguf_writer *w, nib_error *err) {
    enum { QUANTIZATION_VERSION = 2 };
    NIB_TRY(container_get_kind(j->c) == CONTAINER_GGUF ? file_keys(j, w, err) : folder_keys(j, w, err));
    NIB_TRY(gguf_writer_set_int(w, "general.file_type", GGUF_U32, j->mix.file_type, err));
    NIB_TRY(gguf_writer_set_int(w, "general.quantization_version", GGUF_U32, QUANTIZATION_VERSION, err));
    if (j->permute.m)
        NIB_TRY(
            gguf_writer_set_ints(w, SITES_N8_KEY, GGUF_U32, j->permute.n8, (size_t)j->permute.n_site, err));
    for (size_t i = 0; i < j->n_tensor; i++) {
        const container_tensor *t = &j->tensors.all[j->order[i]].as;
        const type_id type = j->types[j->order[i]];
        uint64_t row_bytes = 0;
        if (type_get(type)->gguf < 0 || !type_row_bytes(type, tensor_columns(t), &row_bytes))
            return nib_fail(err, NIB_E_MODEL, "tensor '%s' cannot be written to a GGUF file", t->name);
        NIB_TRY(gguf_writer_tensor(w, t->name, type, t->n_dim, t->shape, err));
    }
    return NIB_OK;
}

/* ---- comparing the header with the folder ---- */

static nib_status check_tokens(const job *j, const container *written, nib_error *err) {
    const logger silent = {0};
    tokenizer *a = NULL, *b = NULL;
    bool same = true;
    nib_status status = tokenizer_open(j->c, &silent, &a, err);
    if (status == NIB_E_NOTFOUND)
        return NIB_OK;
    if (status == NIB_OK)
        status = tokenizer_open(written, &silent, &b, err);
    if (status == NIB_OK)
        status = tokenizer_check_same(a, b, &same, err);
    if (status == NIB_OK && !same)
        log_line(&j->log, "the file tokenizes some texts differently than tokenizer.json (a GGUF file cannot "
                          "express how text is normalised)");
    tokenizer_close(a);
    tokenizer_close(b);
    return status;
}

static nib_status check(const job *j, const char *path, nib_error *err) {
    const logger silent = {0};
    model *written = NULL;
    NIB_TRY(model_open(path, &silent, &written, err));
    nib_status status = gguf_check_config(j->m, written, err);
    if (status == NIB_OK)
        status = check_tokens(j, model_container(written), err);
    model_close(written);
    return status;
}

static nib_status write_hollow(const job *j, const char *path, nib_error *err) {
    gguf_writer *w;
    NIB_TRY(gguf_writer_open(path, &w, err));
    nib_status status = header_write(j, w, err);
    for (size_t i = 0; i < j->n_tensor && status == NIB_OK; i++) {
        const gguf_tensor *t = &j->tensors.all[j->order[i]]; /* tensors with their own values come first */
        if (t->data)
            status = gguf_writer_data(w, t->data, t->as.bytes, err);
    }
    if (status == NIB_OK)
        status = gguf_writer_hollow(w, err);
    if (status == NIB_OK)
        return gguf_writer_commit(w, err);
    gguf_writer_abort(w);
    return status;
}

nib_status header_check(const job *j, nib_error *err) {
    if (container_get_kind(j->c) == CONTAINER_GGUF)
        return NIB_OK;
    const size_t size = strlen(j->q->out) + sizeof ".check";
    char *path = mem_alloc(size);
    if (!path)
        return nib_fail_nomem(err, size, "a file name");
    snprintf(path, size, "%s.check", j->q->out);
    nib_status status = write_hollow(j, path, err);
    if (status == NIB_OK) {
        status = check(j, path, err);
        unlink(path);
    }
    mem_free(path);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, container_path(j->c)) : status;
}

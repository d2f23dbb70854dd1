/* read_container.c - opens a checkpoint's tokenizer, from GGUF metadata or from files beside the weights. */
#include "tokenizer/state.h"

#include "base/mem.h"

#include <string.h>

/* The largest published tokenizer.json has 33 MB. */
#define MAX_JSON ((uint64_t)64 << 20)

static nib_status read_beside(const char *folder, const char *name, char **text, size_t *n_byte,
                              nib_error *err) {
    char *path = path_join(folder, name);
    if (!path)
        return nib_fail_nomem(err, strlen(folder) + strlen(name), "a path");
    nib_status status = NIB_OK;
    *text = NULL;
    *n_byte = 0;
    if (path_exists(path))
        status = file_read_all(path, MAX_JSON, text, n_byte, err);
    mem_free(path);
    return status;
}

/* Reads eos_token_id of generation_config.json: a number or a list of numbers. */
static nib_status read_ends(tokenizer *t, const container *c, nib_error *err) {
    const meta_value *v = container_meta(c, "generation.eos_token_id");
    if (v && v->type == META_INT && v->v.i >= 0 && v->v.i < t->vocab.n)
        return tokenizer_add_end(t, (int32_t)v->v.i, err);
    if (v && v->type == META_ARRAY && v->elem == META_INT)
        for (size_t i = 0; i < v->n; i++)
            if (v->v.ints[i] >= 0 && v->v.ints[i] < t->vocab.n)
                NIB_TRY(tokenizer_add_end(t, (int32_t)v->v.ints[i], err));
    return NIB_OK;
}

nib_status tokenizer_read_container(tokenizer *t, const container *c, const logger *log, nib_error *err) {
    if (container_get_kind(c) == CONTAINER_GGUF)
        return tokenizer_read_gguf(t, c, log, err);
    char *json, *config = NULL;
    size_t n_json, n_config = 0;
    NIB_TRY(read_beside(container_path(c), "tokenizer.json", &json, &n_json, err));
    if (!json)
        return nib_fail(err, NIB_E_NOTFOUND, "%s: expected a tokenizer.json, found none", container_path(c));
    nib_status status = read_beside(container_path(c), "tokenizer_config.json", &config, &n_config, err);
    if (status == NIB_OK) {
        status = tokenizer_read_json(t, json, n_json, config, n_config, err);
        if (status != NIB_OK && status != NIB_E_NOMEM)
            nib_fail_prefix(err, status, "tokenizer.json");
    }
    if (status == NIB_OK)
        status = read_ends(t, c, err);
    mem_free(json);
    mem_free(config);
    return status;
}

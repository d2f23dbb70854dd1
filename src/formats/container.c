/* container.c - opens a file or folder by its kind; look-ups that do not depend on the format. */
#include "formats/container_impl.h"

#include "base/mem.h"
#include "formats/gguf.h"

#include <limits.h>
#include <math.h>
#include <string.h>

enum { MAX_FILES = 4096 };

nib_status container_add_file(container *c, const char *path, int *index, nib_error *err) {
    if (c->n_file >= MAX_FILES)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d shards, found more", MAX_FILES);
    if (mem_grow((void **)&c->files, &c->cap_file, c->n_file + 1, sizeof(void *)))
        return nib_fail_nomem(err, (c->n_file + 1) * sizeof(void *), "files");
    NIB_TRY(file_open(path, 0, &c->files[c->n_file], err));
    *index = (int)c->n_file++;
    return NIB_OK;
}

static bool ends_with(const char *s, const char *end) {
    const size_t n = strlen(s), n_end = strlen(end);
    return n >= n_end && !strcmp(s + n - n_end, end);
}

/* A safetensors file has no magic number: its name shows it, or the brace after its header's length. */
static nib_status is_safetensors(const container *c, bool *yes, nib_error *err) {
    uint8_t head[9] = {0};
    if (file_size(c->files[0]) >= sizeof head)
        NIB_TRY(file_read_at(c->files[0], head, 0, sizeof head, err));
    *yes = memcmp(head, GGUF_MAGIC, 4) && (head[8] == '{' || ends_with(c->path, ".safetensors"));
    return NIB_OK;
}

static nib_status read_one_file(container *c, nib_error *err) {
    int index = 0;
    bool safetensors = false;
    NIB_TRY(container_add_file(c, c->path, &index, err));
    NIB_TRY(is_safetensors(c, &safetensors, err));
    if (!safetensors)
        return gguf_read(c, err);
    c->kind = CONTAINER_SAFETENSORS;
    return safetensors_read(c, index, err);
}

static nib_status read_all(container *c, nib_error *err) {
    if (path_is_dir(c->path))
        NIB_TRY(folder_read(c, err));
    else
        NIB_TRY(read_one_file(c, err));
    NIB_TRY(packed_bind(c, err));
    const nib_status status = tensor_table_check_overlap(&c->tensors, err);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, c->path) : status;
}

nib_status container_open_headers(const char *path, const logger *log, const container_visitor *vocabulary,
                                  container **out, nib_error *err) {
    container *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "a container");
    meta_table_init(&c->meta);
    meta_table_init(&c->nulls);
    meta_table_init(&c->absent);
    tensor_table_init(&c->tensors);
    arena_init(&c->packed);
    c->log = log;
    c->meta.vocabulary = vocabulary;
    c->path = mem_strdup(path);
    const nib_status status = c->path ? read_all(c, err) : nib_fail_nomem(err, strlen(path), "a path");
    if (status != NIB_OK) {
        container_close(c);
        return status;
    }
    c->log = NULL;
    c->meta.vocabulary = NULL;
    *out = c;
    return NIB_OK;
}

nib_status container_open(const char *path, const logger *log, container **out, nib_error *err) {
    return container_open_headers(path, log, NULL, out, err);
}

void container_close(container *c) {
    if (!c)
        return;
    for (size_t i = 0; i < c->n_file; i++)
        file_close(c->files[i]);
    mem_free(c->files);
    meta_table_deinit(&c->meta);
    meta_table_deinit(&c->nulls);
    meta_table_deinit(&c->absent);
    tensor_table_deinit(&c->tensors);
    arena_deinit(&c->packed);
    mem_free(c->path);
    mem_free(c);
}

container_kind container_get_kind(const container *c) {
    return c->kind;
}

const char *container_path(const container *c) {
    return c->path;
}

size_t container_n_tensor(const container *c) {
    return c->tensors.n;
}

const container_tensor *container_tensor_at(const container *c, size_t i) {
    return i < c->tensors.n ? &c->tensors.all[i] : NULL;
}

const container_tensor *container_find(const container *c, const char *name) {
    return tensor_table_find(&c->tensors, name);
}

int container_n_file(const container *c) {
    return (int)c->n_file;
}

file *container_file(const container *c, int i) {
    return i >= 0 && (size_t)i < c->n_file ? c->files[i] : NULL;
}

const meta_value *container_meta(const container *c, const char *key) {
    const meta_entry *e = meta_table_find(&c->meta, key);
    return e ? &e->value : NULL;
}

size_t container_n_meta(const container *c) {
    return c->meta.n;
}

const meta_value *container_meta_at(const container *c, size_t i, const char **key) {
    if (i >= c->meta.n)
        return NULL;
    *key = c->meta.entries[i].key;
    return &c->meta.entries[i].value;
}

bool container_meta_i64(const container *c, const char *key, int64_t *out) {
    const meta_value *v = container_meta(c, key);
    if (!v)
        return false;
    if (v->type == META_INT) {
        *out = v->v.i;
        return true;
    }
    /* the bounds are the floats next to the ends of int64_t */
    if (v->type != META_FLOAT || !(v->v.f >= -0x1p63 && v->v.f < 0x1p63) || v->v.f != floor(v->v.f))
        return false;
    *out = (int64_t)v->v.f;
    return true;
}

bool container_meta_f64(const container *c, const char *key, double *out) {
    const meta_value *v = container_meta(c, key);
    if (!v || (v->type != META_FLOAT && v->type != META_INT))
        return false;
    *out = v->type == META_INT ? (double)v->v.i : v->v.f;
    return true;
}

bool container_meta_bool(const container *c, const char *key, bool *out) {
    const meta_value *v = container_meta(c, key);
    if (!v || v->type != META_BOOL)
        return false;
    *out = v->v.b;
    return true;
}

const char *container_meta_str(const container *c, const char *key) {
    const meta_value *v = container_meta(c, key);
    return v && v->type == META_STRING ? v->v.s.data : NULL;
}

bool container_meta_is_null(const container *c, const char *key) {
    return meta_table_find(&c->nulls, key) != NULL;
}

const char *container_absent_file(const container *c, const char *tensor) {
    const meta_entry *e = meta_table_find(&c->absent, tensor);
    return e ? e->value.v.s.data : NULL;
}

void container_drop_vocab(container *c) {
    meta_table_drop_large(&c->meta);
}

uint64_t container_heap_bytes(const container *c) {
    return sizeof *c + c->cap_file * sizeof(void *) + meta_table_bytes(&c->meta) +
           meta_table_bytes(&c->nulls) + meta_table_bytes(&c->absent) + tensor_table_bytes(&c->tensors) +
           c->packed.bytes;
}

uint64_t container_left_out_bytes(const container *c) {
    return meta_table_left_out(&c->meta);
}

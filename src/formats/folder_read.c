/* folder_read.c - reads a folder as it is downloaded: config.json, optional side files, and safetensors in
 * one file or in shards that model.safetensors.index.json lists. */
#include "formats/container_impl.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { MAX_CONFIG = 4 << 20, MAX_TEMPLATE = 1 << 20 };

/* Path of a file in the folder. *exists: whether it exists. */
static nib_status member_path(const container *c, const char *name, char **path, bool *exists,
                              nib_error *err) {
    *path = path_join(c->path, name);
    if (!*path)
        return nib_fail_nomem(err, strlen(c->path) + strlen(name), "a path");
    *exists = path_exists(*path);
    return NIB_OK;
}

/* Skips a JSON string that begins at p. */
static char *after_string(char *p) {
    for (p++; *p && *p != '"'; p++)
        p += *p == '\\' && p[1] != '\0';
    return *p ? p + 1 : p;
}

/* Replaces n characters by a number that is large enough for every use of infinity. */
static void put_infinity(char *at, size_t n) {
    memset(at, ' ', n);
    memcpy(at, "1e30", 4);
}

/* The length of {"__float__": "Infinity"} at p; 0: it is not there. */
static size_t named_infinity(const char *p) {
    int n = 0;
    return sscanf(p, "{ \"__float__\" : \"Infinity\" }%n", &n) == 0 && n > 0 ? (size_t)n : 0;
}

/* Python writes infinity as Infinity, and transformers as an object: both are no JSON numbers. */
static void replace_infinities(char *text) {
    static const char word[] = "Infinity";
    for (char *p = text; *p;) {
        const size_t n = *p == '{'                           ? named_infinity(p)
                         : strncmp(p, word, sizeof word - 1) ? 0
                                                             : sizeof word - 1;
        if (n > 0)
            put_infinity(p, n);
        p = *p == '"' ? after_string(p) : p + 1;
    }
}

static nib_status read_json(const char *path, json_t **out, nib_error *err) {
    char *text;
    size_t n;
    NIB_TRY(file_read_all(path, MAX_CONFIG, &text, &n, err));
    replace_infinities(text);
    const nib_status status = jsonx_parse(text, n, out, err);
    mem_free(text);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, path) : status;
}

static nib_status load_config(container *c, const char *path, const char *prefix, bool wrapped,
                              nib_error *err) {
    json_t *object;
    NIB_TRY(read_json(path, &object, err));
    nib_status status = json_is_object(object) ? config_flatten(c, object, prefix, wrapped, err)
                                               : nib_fail(err, NIB_E_MODEL, "expected a JSON object");
    json_decref(object);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, path) : status;
}

static nib_status read_config(container *c, const char *name, const char *prefix, bool required,
                              nib_error *err) {
    char *path = NULL;
    bool exists = false;
    NIB_TRY(member_path(c, name, &path, &exists, err));
    nib_status status = NIB_OK;
    if (exists)
        status = load_config(c, path, prefix, required, err);
    else if (required)
        status = nib_fail(err, NIB_E_MODEL, "%s: expected a folder with %s, or a .gguf file", c->path, name);
    mem_free(path);
    return status;
}

/* A template in its own file replaces the one in tokenizer_config.json. */
static nib_status read_template(container *c, nib_error *err) {
    static const char key[] = "tokenizer_config.chat_template";
    char *path = NULL, *source = NULL;
    bool exists = false;
    size_t n = 0;
    NIB_TRY(member_path(c, "chat_template.jinja", &path, &exists, err));
    nib_status status = exists ? file_read_all(path, MAX_TEMPLATE, &source, &n, err) : NIB_OK;
    mem_free(path);
    if (status != NIB_OK || !source)
        return status;
    char *text = meta_table_text(&c->meta, n, false);
    if (text) {
        memcpy(text, source, n);
        meta_value value = {.type = META_STRING, .v.s = {text, n}};
        const meta_entry *there = meta_table_find(&c->meta, key);
        if (there)
            c->meta.entries[there - c->meta.entries].value = value;
        else
            status = meta_table_add(&c->meta, key, strlen(key), &value, false, err);
    } else {
        status = nib_fail_nomem(err, n, "a chat template");
    }
    mem_free(source);
    return status;
}

enum { NO_FILE = -1 };

/* *index: the file's number; NO_FILE: it is not there. */
static nib_status read_shard(container *c, const char *name, int *index, nib_error *err) {
    char *path = NULL;
    bool exists = false;
    *index = NO_FILE;
    NIB_TRY(member_path(c, name, &path, &exists, err));
    const nib_status status = exists ? container_add_file(c, path, index, err) : NIB_OK;
    mem_free(path);
    return status == NIB_OK && exists ? safetensors_read(c, *index, err) : status;
}

/* A shard is in the folder of its index: a path to another folder is refused. */
static bool plain_name(const char *name) {
    const char end[] = ".safetensors";
    const size_t n = strlen(name);
    return n >= sizeof end && !strchr(name, '/') && name[0] != '.' &&
           !strcmp(name + n - (sizeof end - 1), end);
}

/* Opens each shard that weight_map names once; `shards` maps their names to file numbers. */
static nib_status read_shards(container *c, const json_t *map, meta_table *shards, nib_error *err) {
    for (void *i = json_object_iter(jsonx_counted(map)); i;
         i = json_object_iter_next(jsonx_counted(map), i)) {
        const char *tensor = json_object_iter_key(i), *name = json_string_value(json_object_iter_value(i));
        int index = 0;
        if (!name || !plain_name(name))
            return nib_fail(
                err, NIB_E_MODEL,
                "weight_map places '%s' in '%s', expected the name of a .safetensors file beside it", tensor,
                name ? name : "(no text)");
        if (meta_table_find(shards, name))
            continue;
        NIB_TRY(read_shard(c, name, &index, err));
        const meta_value value = {.type = META_INT, .v.i = index};
        NIB_TRY(meta_table_add(shards, name, strlen(name), &value, false, err));
    }
    return NIB_OK;
}

/* Remembers a tensor of a file that is not there: only a model that needs it is refused. */
static nib_status add_absent(container *c, const char *tensor, const char *shard, nib_error *err) {
    const size_t n = strlen(shard);
    char *text = meta_table_text(&c->absent, n, false);
    if (!text)
        return nib_fail_nomem(err, n, "the name of a shard");
    memcpy(text, shard, n);
    return meta_table_add(&c->absent, tensor, strlen(tensor),
                          &(meta_value){.type = META_STRING, .v.s = {text, n}}, false, err);
}

static nib_status say_absent(const container *c, const meta_table *shards, nib_error *err) {
    size_t n = 0;
    const char *name = "";
    for (size_t i = 0; i < shards->n; i++)
        if (shards->entries[i].value.v.i == NO_FILE && !n++)
            name = shards->entries[i].key;
    if (n == shards->n)
        return nib_fail(err, NIB_E_MODEL, "%s: not found; expected the shard that the index names", name);
    if (n)
        log_line(c->log, "%s: %zu of the %zu files that the index names are not there (%s%s)", c->path, n,
                 shards->n, name, n > 1 ? ", ..." : "");
    return NIB_OK;
}

static nib_status check_map(container *c, const json_t *map, const meta_table *shards, nib_error *err) {
    for (void *i = json_object_iter(jsonx_counted(map)); i;
         i = json_object_iter_next(jsonx_counted(map), i)) {
        const char *name = json_object_iter_key(i), *shard = json_string_value(json_object_iter_value(i));
        const container_tensor *t = container_find(c, name);
        const int64_t number = meta_table_find(shards, shard)->value.v.i;
        if (number == NO_FILE && !t) {
            NIB_TRY(add_absent(c, name, shard, err));
            continue;
        }
        if (!t || t->file != number)
            return nib_fail(err, NIB_E_MODEL, "weight_map places tensor '%s' in '%s', which does not have it",
                            name, shard);
    }
    return say_absent(c, shards, err);
}

static nib_status read_index(container *c, const char *path, nib_error *err) {
    json_t *index;
    NIB_TRY(jsonx_load(path, JSONX_MAX_TEXT, &index, err));
    const json_t *map = json_object_get(index, "weight_map");
    meta_table shards;
    meta_table_init(&shards);
    nib_status status = json_is_object(map) ? read_shards(c, map, &shards, err)
                                            : nib_fail(err, NIB_E_MODEL, "expected an object \"weight_map\"");
    if (status == NIB_OK)
        status = check_map(c, map, &shards, err);
    meta_table_deinit(&shards);
    json_decref(index);
    return status == NIB_E_MODEL ? nib_fail_prefix(err, status, path) : status;
}

/* The other files of the folder: for each kind of file the alphabetically first name, and the number of
 * files. */
enum { FOUND_SAFETENSORS, FOUND_GGUF, FOUND_BIN, FOUND_OTHER, FOUND_N };
typedef struct found {
    char name[256];
    int n;
} found;

static void note_name(found all[FOUND_N], const char *name) {
    static const struct {
        const char *end;
        int kind;
    } ends[] = {{".safetensors", FOUND_SAFETENSORS},
                {".gguf", FOUND_GGUF},
                {".bin", FOUND_BIN},
                {".pt", FOUND_BIN},
                {".pth", FOUND_BIN},
                {".h5", FOUND_OTHER},
                {".msgpack", FOUND_OTHER},
                {".onnx", FOUND_OTHER}};
    const size_t n = strlen(name);
    for (size_t i = 0; i < NUM_COUNT(ends); i++) {
        const size_t n_end = strlen(ends[i].end);
        found *f = &all[ends[i].kind];
        if (n <= n_end || strcmp(name + n - n_end, ends[i].end) || !strncmp(name, "adapter_", 8))
            continue;
        if (!f->n++ || strcmp(name, f->name) < 0)
            snprintf(f->name, sizeof f->name, "%s", name);
    }
}

static nib_status look_around(const char *path, found all[FOUND_N], nib_error *err) {
    memset(all, 0, FOUND_N * sizeof *all);
    DIR *folder = opendir(path);
    if (!folder)
        return nib_fail_errno(err, "cannot list", path, errno);
    for (const struct dirent *entry; (entry = readdir(folder));)
        note_name(all, entry->d_name);
    closedir(folder);
    return NIB_OK;
}

/* No weights under the usual names: a single safetensors file of another name is accepted. */
static nib_status read_other_weights(container *c, nib_error *err) {
    found all[FOUND_N];
    int index = 0;
    NIB_TRY(look_around(c->path, all, err));
    if (all[FOUND_SAFETENSORS].n == 1) {
        log_line(c->log, "%s: no model.safetensors, using %s", c->path, all[FOUND_SAFETENSORS].name);
        return read_shard(c, all[FOUND_SAFETENSORS].name, &index, err);
    }
    static const char want[] = "expected model.safetensors or model.safetensors.index.json";
    if (all[FOUND_SAFETENSORS].n)
        return nib_fail(err, NIB_E_MODEL, "%s: %s, found %d other .safetensors files (%s, ...)", c->path,
                        want, all[FOUND_SAFETENSORS].n, all[FOUND_SAFETENSORS].name);
    if (all[FOUND_GGUF].n)
        return nib_fail(err, NIB_E_MODEL, "%s: %s, found %s; give that file instead of the folder", c->path,
                        want, all[FOUND_GGUF].name);
    if (all[FOUND_BIN].n)
        return nib_fail(err, NIB_E_MODEL,
                        "%s: %s, found only %s, a Python pickle, which can run code and is not read; convert "
                        "it to safetensors",
                        c->path, want, all[FOUND_BIN].name);
    if (all[FOUND_OTHER].n)
        return nib_fail(err, NIB_E_MODEL, "%s: %s, found only %s, which is not supported", c->path, want,
                        all[FOUND_OTHER].name);
    return nib_fail(err, NIB_E_MODEL, "%s: %s, found no weights", c->path, want);
}

static nib_status read_weights(container *c, nib_error *err) {
    char *path = NULL;
    bool exists = false;
    int index = 0;
    NIB_TRY(member_path(c, "model.safetensors", &path, &exists, err));
    mem_free(path);
    if (exists)
        return read_shard(c, "model.safetensors", &index, err);
    NIB_TRY(member_path(c, "model.safetensors.index.json", &path, &exists, err));
    const nib_status status = exists ? read_index(c, path, err) : read_other_weights(c, err);
    mem_free(path);
    return status;
}

nib_status folder_read(container *c, nib_error *err) {
    c->kind = CONTAINER_SAFETENSORS;
    NIB_TRY(read_config(c, "config.json", "", true, err));
    NIB_TRY(read_config(c, "generation_config.json", "generation.", false, err));
    NIB_TRY(read_config(c, "tokenizer_config.json", "tokenizer_config.", false, err));
    NIB_TRY(read_template(c, err));
    return read_weights(c, err);
}

/* config_read.c - JSON objects flattened into metadata, see container.h. */
#include "formats/container_impl.h"

#include "base/mem.h"

#include <string.h>

enum { MAX_KEY = 1024 };

typedef struct flattening {
    container *c;
    char *key; /* the dotted name so far */
    size_t cap;
} flattening;

static nib_status flatten_members(flattening *f, size_t n_key, const json_t *object, const json_t *except,
                                  nib_error *err);

/* Appends a name at n_key; *n_all is the new length. */
static nib_status append(flattening *f, size_t n_key, const char *name, size_t *n_all, nib_error *err) {
    const size_t n = strlen(name);
    if (n > MAX_KEY - n_key) /* every value stores its full dotted name */
        return nib_fail(err, NIB_E_MODEL, "expected dotted names of at most %d bytes, found a longer one",
                        MAX_KEY);
    if (mem_grow((void **)&f->key, &f->cap, n_key + n + 2, 1))
        return nib_fail_nomem(err, n_key + n + 2, "a key");
    memcpy(f->key + n_key, name, n + 1);
    *n_all = n_key + n;
    return NIB_OK;
}

static nib_status copy_string(meta_table *t, const json_t *s, bool large, meta_string *out, nib_error *err) {
    const size_t n = json_string_length(s);
    char *text = meta_table_text(t, n, large);
    if (!text)
        return nib_fail_nomem(err, n, "metadata text");
    memcpy(text, json_string_value(s), n);
    *out = (meta_string){text, n};
    return NIB_OK;
}

/* The common type of all elements; integers among floats count as floats. False: there is none, or it is a
 * type that is left out. */
static bool common_type(const json_t *array, meta_type *out) {
    *out = META_INT;
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *v = json_array_get(array, i);
        meta_type t;
        if (json_is_integer(v))
            t = META_INT;
        else if (json_is_real(v))
            t = META_FLOAT;
        else if (json_is_boolean(v))
            t = META_BOOL;
        else if (json_is_string(v))
            t = META_STRING;
        else
            return false;
        const bool numbers = (t == META_INT || t == META_FLOAT) && (*out == META_INT || *out == META_FLOAT);
        if (i && t != *out && !numbers)
            return false;
        if (!i || t == META_FLOAT)
            *out = t;
    }
    return true;
}

static nib_status copy_array(meta_table *t, const json_t *array, meta_value *out, bool *large,
                             nib_error *err) {
    const size_t n = json_array_size(array);
    const size_t each = out->elem == META_STRING ? sizeof(meta_string) : sizeof(int64_t);
    void *data = NULL;
    NIB_TRY(meta_table_array(t, n, each, &data, large, err));
    int64_t *ints = data;
    double *floats = data;
    meta_string *strings = data;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        switch (out->elem) {
        case META_BOOL: ints[i] = json_is_true(v); break;
        case META_INT: ints[i] = json_integer_value(v); break;
        case META_FLOAT: floats[i] = json_number_value(v); break;
        default: NIB_TRY(copy_string(t, v, *large, &strings[i], err));
        }
    }
    out->n = n;
    if (out->elem == META_STRING)
        out->v.strings = strings;
    else if (out->elem == META_FLOAT)
        out->v.floats = floats;
    else
        out->v.ints = ints;
    return NIB_OK;
}

static nib_status add_value(flattening *f, size_t n_key, const json_t *v, nib_error *err) {
    meta_table *t = &f->c->meta;
    meta_value value = {0};
    bool large = false;
    switch (json_typeof(v)) {
    case JSON_NULL: return meta_table_add(&f->c->nulls, f->key, n_key, &value, false, err);
    case JSON_TRUE:
    case JSON_FALSE:
        value.type = META_BOOL;
        value.v.b = json_is_true(v);
        break;
    case JSON_INTEGER:
        value.type = META_INT;
        value.v.i = json_integer_value(v);
        break;
    case JSON_REAL:
        value.type = META_FLOAT;
        value.v.f = json_real_value(v);
        break;
    case JSON_STRING:
        value.type = META_STRING;
        NIB_TRY(copy_string(t, v, false, &value.v.s, err));
        break;
    default: /* an array */
        value.type = META_ARRAY;
        if (!common_type(v, &value.elem))
            return NIB_OK;
        NIB_TRY(copy_array(t, v, &value, &large, err));
    }
    return meta_table_add(t, f->key, n_key, &value, large, err);
}

/* The objects of "chat_template": [{"name": ..., "template": ...}, ...] as chat_template (the one called
 * default) and chat_template.NAME. */
static nib_status add_templates(flattening *f, size_t n_key, const json_t *array, nib_error *err) {
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const json_t *text = json_object_get(entry, "template");
        size_t n_all = n_key;
        if (!name || !json_is_string(text))
            continue;
        if (strcmp(name, "default")) {
            NIB_TRY(append(f, n_key, ".", &n_all, err));
            NIB_TRY(append(f, n_all, name, &n_all, err));
        }
        NIB_TRY(add_value(f, n_all, text, err));
    }
    return NIB_OK;
}

static nib_status add_member(flattening *f, size_t n_key, const char *name, const json_t *v, nib_error *err) {
    size_t n_all = 0;
    NIB_TRY(append(f, n_key, name, &n_all, err));
    if (json_is_array(v) && !strcmp(name, "chat_template"))
        return add_templates(f, n_all, v, err);
    if (!json_is_object(v))
        return add_value(f, n_all, v, err);
    if (!strcmp(name, "added_tokens_decoder")) /* thousands of entries, which tokenizer.json repeats */
        return NIB_OK;
    NIB_TRY(append(f, n_all, ".", &n_all, err));
    return flatten_members(f, n_all, v, NULL, err); /* recursion is bounded by JSONX_MAX_DEPTH */
}

/* Flattens the members of object under key[0..n_key), without those that are also members of `except`. */
static nib_status flatten_members(flattening *f, size_t n_key, const json_t *object, const json_t *except,
                                  nib_error *err) {
    for (void *i = json_object_iter(jsonx_counted(object)); i;
         i = json_object_iter_next(jsonx_counted(object), i)) {
        const char *name = json_object_iter_key(i);
        if (!except || !json_object_get(except, name))
            NIB_TRY(add_member(f, n_key, name, json_object_iter_value(i), err));
    }
    return NIB_OK;
}

nib_status config_flatten(container *c, const json_t *object, const char *prefix, bool wrapped,
                          nib_error *err) {
    flattening f = {.c = c};
    size_t n_key = 0;
    const json_t *inner = wrapped ? json_object_get(object, "text_config") : NULL;
    if (!json_is_object(inner))
        inner = NULL;
    nib_status status = append(&f, 0, prefix, &n_key, err);
    if (status == NIB_OK)
        status = flatten_members(&f, n_key, object, inner, err);
    if (status == NIB_OK && inner)
        status = flatten_members(&f, n_key, inner, NULL, err);
    mem_free(f.key);
    return status;
}

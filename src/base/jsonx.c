/* jsonx.c - see jsonx.h. */
#include "base/jsonx.h"
#include "base/buffer.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>
#include <utf8proc.h>

/* ---- memory ---- */

static _Thread_local size_t n_lost;

static void *value_alloc(size_t n_byte) {
    void *p = mem_alloc(n_byte);
    n_lost += !p;
    return p;
}

/* Before main: a program may have values from here on. Blocks of mem.h are blocks of malloc, so a program
 * that gives jansson functions of its own, or frees a text by free, is not disturbed. */
__attribute__((constructor)) static void use_mem(void) {
    json_set_alloc_funcs(value_alloc, mem_free);
}

size_t jsonx_lost(void) {
    return n_lost;
}

void jsonx_lose(void) {
    n_lost++;
}

/* ---- texts ---- */

nib_status jsonx_load(const char *path, uint64_t max_bytes, json_t **out, nib_error *err) {
    char *text;
    size_t n;
    NIB_TRY(file_read_all(path, NUM_MIN(max_bytes, (uint64_t)JSONX_MAX_TEXT), &text, &n, err));
    nib_status status = jsonx_parse(text, n, out, err);
    mem_free(text);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, path);
}

static int add_text(const char *data, size_t n, void *user) {
    buffer *out = user;
    buffer_add(out, data, n);
    return out->no_memory ? -1 : 0;
}

char *jsonx_text(const json_t *value, size_t flags) {
    buffer out = {0};
    /* jansson does not always check the callback's result */
    if (json_dump_callback(value, add_text, &out, flags) == 0 && !out.no_memory)
        return out.data;
    buffer_clear(&out);
    return NULL;
}

static const char *type_text(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or out of range";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

enum { A_NUMBER = 1 << JSON_INTEGER | 1 << JSON_REAL, A_BOOL = 1 << JSON_TRUE | 1 << JSON_FALSE };

static nib_status wrong_type(const char *key, const char *want, const json_t *v, nib_error *err) {
    return nib_fail(err, NIB_E_MODEL, "\"%s\": expected %s, found %s", key, want, type_text(v));
}

/* *found: the value, which has one of the types; NULL if it is absent and not required. */
static nib_status find(const json_t *object, const char *key, bool required, int types, const char *want,
                       const json_t **found, nib_error *err) {
    const json_t *v = json_object_get(object, key);
    *found = v && !json_is_null(v) ? v : NULL;
    if (!*found)
        return required ? nib_fail(err, NIB_E_MODEL, "\"%s\": expected %s, found nothing", key, want)
                        : NIB_OK;
    return types >> json_typeof(v) & 1 ? NIB_OK : wrong_type(key, want, v, err);
}

bool jsonx_put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

bool jsonx_add(json_t *list, json_t *value) {
    return json_array_append_new(list, value) == 0;
}

json_t *jsonx_whole(json_t *value, bool all_there) {
    if (all_there)
        return value;
    json_decref(value);
    return NULL;
}

json_t *jsonx_built(json_t *value, size_t lost) {
    return jsonx_whole(value, n_lost == lost);
}

nib_status jsonx_get_i64(const json_t *object, const char *key, bool required, int64_t *out, nib_error *err) {
    static const char want[] = "an integer";
    const json_t *v;
    NIB_TRY(find(object, key, required, A_NUMBER, want, &v, err));
    if (json_is_integer(v))
        *out = json_integer_value(v);
    if (!json_is_real(v))
        return NIB_OK;
    /* 4096.0 is written by some exporters */
    const double f = json_real_value(v);
    if (f != floor(f) || f < -9007199254740992.0 || f > 9007199254740992.0)
        return wrong_type(key, want, v, err);
    *out = (int64_t)f;
    return NIB_OK;
}

nib_status jsonx_get_f64(const json_t *object, const char *key, bool required, double *out, nib_error *err) {
    const json_t *v;
    NIB_TRY(find(object, key, required, A_NUMBER, "a number", &v, err));
    if (v)
        *out = json_number_value(v);
    return NIB_OK;
}

nib_status jsonx_get_bool(const json_t *object, const char *key, bool required, bool *out, nib_error *err) {
    const json_t *v;
    NIB_TRY(find(object, key, required, A_BOOL, "true or false", &v, err));
    if (v)
        *out = json_is_true(v);
    return NIB_OK;
}

nib_status jsonx_get_string(const json_t *object, const char *key, bool required, const char **out,
                            nib_error *err) {
    const json_t *v;
    NIB_TRY(find(object, key, required, 1 << JSON_STRING, "a string", &v, err));
    if (v)
        *out = json_string_value(v);
    return NIB_OK;
}

json_t *jsonx_string(const char *text, size_t n_byte) {
    static const char replacement[] = "\xEF\xBF\xBD";
    json_t *json = json_stringn(text, n_byte);
    if (json)
        return json;
    char *clean = mem_array(n_byte + 1, sizeof replacement - 1);
    size_t n = 0;
    for (size_t i = 0; clean && i < n_byte;) {
        utf8proc_int32_t code;
        const utf8proc_ssize_t wide =
            utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(n_byte - i), &code);
        memcpy(clean + n, wide > 0 ? text + i : replacement,
               wide > 0 ? (size_t)wide : sizeof replacement - 1);
        n += wide > 0 ? (size_t)wide : sizeof replacement - 1;
        i += wide > 0 ? (size_t)wide : 1;
    }
    json = clean ? json_stringn(clean, n) : NULL;
    n_lost += !clean;
    mem_free(clean);
    return json;
}

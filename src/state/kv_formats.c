/* kv_formats.c - see kv_formats.h. */
#include "state/kv_formats.h"

#include "kernels/kernels.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

static bool is_cache_type(type_id type) {
    return type == TYPE_F16 || type == TYPE_F32 || kv_is_coded(type);
}

type_id kv_format_of(kv_formats f, int layer) {
    const type_id type = f.layers && layer < f.n_layer ? (type_id)f.layers[layer] : f.type;
    return !f.newest ? type : kv_is_coded(type) ? TYPE_F16 : TYPE_COUNT;
}

/* Counts the layers with a property; *n: those that were asked. */
static int count(kv_formats f, bool (*has)(type_id type), int *n) {
    int n_has = 0;
    *n = f.layers ? f.n_layer : 1;
    for (int i = 0; i < *n; i++)
        n_has += has(f.layers ? (type_id)f.layers[i] : f.type);
    return n_has;
}

bool kv_formats_any_coded(kv_formats f) {
    int n;
    return count(f, kv_is_coded, &n) > 0;
}

bool kv_formats_only_whole(kv_formats f) {
    return f.on_disk > 0 || kv_formats_any_coded(f);
}

bool kv_formats_all_coded(kv_formats f) {
    int n;
    return count(f, kv_is_coded, &n) == n;
}

bool kv_formats_any_hosted(kv_formats f) {
    int n;
    return count(f, kv_is_hosted, &n) > 0;
}

/* ---- text ---- */

/* Reads a layer's number. */
static bool read_layer(const char **at, int n_layer, int *out) {
    char *end;
    const long n = isdigit((unsigned char)**at) ? strtol(*at, &end, 10) : -1;
    if (n < 0 || n >= n_layer)
        return false;
    *at = end;
    *out = (int)n;
    return true;
}

/* Reads "0-3=f16" up to a comma or the end. */
static bool read_part(const char **at, uint8_t *layers, int n_layer) {
    int first, last;
    char name[8];
    type_id type;
    if (!read_layer(at, n_layer, &first))
        return false;
    last = first;
    if (**at == '-') {
        ++*at;
        if (!read_layer(at, n_layer, &last) || last < first)
            return false;
    }
    if (*(*at)++ != '=')
        return false;
    const size_t n = strcspn(*at, ",");
    snprintf(name, sizeof name, "%.*s", (int)n, *at);
    if (n >= sizeof name || !type_from_name(name, &type) || !is_cache_type(type))
        return false;
    *at += n;
    for (int i = first; i <= last; i++)
        layers[i] = (uint8_t)type;
    return true;
}

nib_status kv_formats_parse(const char *text, uint8_t *layers, int n_layer, nib_error *err) {
    for (const char *at = text; *at; at += *at == ',') {
        const char *part = at;
        if (!read_part(&at, layers, n_layer))
            return nib_fail(err, NIB_E_USAGE,
                            "keys and values by layer: expected N=TYPE or FIRST-LAST=TYPE with layers from 0 "
                            "to %d and f16, f32, kv8, kv4, kv8h, kv4h or kv4s, found '%.*s'",
                            n_layer - 1, (int)strcspn(part, ","), part);
    }
    return NIB_OK;
}

bool kv_formats_print(kv_formats f, char *out, size_t size) {
    size_t at = 0;
    if (size == 0)
        return false;
    *out = 0;
    for (int i = 0, end; f.layers && i < f.n_layer; i = end) {
        for (end = i + 1; end < f.n_layer && f.layers[end] == f.layers[i]; end++)
            ;
        char range[32];
        snprintf(range, sizeof range, end - i > 1 ? "%d-%d" : "%d", i, end - 1);
        const int n = snprintf(out + at, size - at, "%s%s=%s", at ? "," : "", range,
                               type_get((type_id)f.layers[i])->name);
        if (n < 0 || (size_t)n >= size - at)
            return false;
        at += (size_t)n;
    }
    return true;
}

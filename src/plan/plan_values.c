/* plan_values.c - see plan_values.h. */
#include "plan/plan_values.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

nib_status plan_check_keys(const json_t *value, const char *where, const char *const *known, nib_error *err) {
    const char *key;
    json_t *of;
    if (!json_is_object(value))
        return nib_fail(err, NIB_E_MODEL, "%s: expected an object, found another value", where);
    json_object_foreach(jsonx_counted(value), key, of) {
        const char *const *k = known;
        while (*k && strcmp(*k, key))
            k++;
        if (*k)
            continue;
        char list[256] = "";
        size_t n = 0;
        for (k = known; *k && n < sizeof list; k++)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s%s", k == known ? "" : ", ", *k);
        return nib_fail(err, NIB_E_MODEL, "%s: unknown key \"%.60s\"; expected one of %s", where, key, list);
    }
    return NIB_OK;
}

nib_status plan_get_name(const json_t *from, const char *key, bool required, char *out, size_t size,
                         nib_error *err) {
    const char *text = NULL;
    NIB_TRY(jsonx_get_string(from, key, required, &text, err));
    if (!text)
        return NIB_OK;
    if (strlen(text) >= size)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected at most %zu bytes, found %zu", key, size - 1,
                        strlen(text));
    memcpy(out, text, strlen(text) + 1);
    return NIB_OK;
}

/* Whether `key` has a value. */
static bool is_said(const json_t *from, const char *key) {
    const json_t *there = json_object_get(from, key);
    return there && !json_is_null(there);
}

nib_status plan_get_int(const json_t *from, const char *key, int64_t min, int64_t max, int64_t *out,
                        nib_error *err) {
    int64_t v = min;
    NIB_TRY(jsonx_get_i64(from, key, false, &v, err));
    if (v < min || v > max)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected %lld to %lld, found %lld", key, (long long)min,
                        (long long)max, (long long)v);
    if (is_said(from, key))
        *out = v;
    return NIB_OK;
}

nib_status plan_get_bytes(const json_t *from, const char *key, bool required, uint64_t *out, nib_error *err) {
    int64_t v = 0;
    NIB_TRY(jsonx_get_i64(from, key, required, &v, err));
    if (v < 0)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected bytes, found %lld", key, (long long)v);
    if (is_said(from, key))
        *out = (uint64_t)v;
    return NIB_OK;
}

nib_status plan_get_number(const json_t *from, const char *key, double *out, nib_error *err) {
    double v = 0;
    NIB_TRY(jsonx_get_f64(from, key, false, &v, err));
    if (!(v >= 0) || !isfinite(v))
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected 0 or more, found %s", key, num_text(v, 6));
    if (is_said(from, key))
        *out = v;
    return NIB_OK;
}

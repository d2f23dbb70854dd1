/* quality.c - costs of lower precision: their memory and their JSON. */
#include "profile/quality.h"

#include "base/mem.h"
#include "base/num.h"
#include "profile/profile_file.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1, MAX_BLOCK = 4098 };

void quality_clear(quality *q) {
    mem_free(q->kl);
    mem_free(q->error);
    mem_free(q->kl_activation);
    mem_free(q->error_activation);
    mem_free(q->kl_left_out);
    mem_free(q->place);
    mem_free(q->kl_fewer);
    memset(q, 0, sizeof *q);
}

static double *nothing(int n, int each) {
    const size_t all = (size_t)n * (size_t)each;
    double *x = mem_array(all ? all : 1, sizeof *x);
    for (size_t i = 0; x && i < all; i++)
        x[i] = -1;
    return x;
}

nib_status quality_begin(quality *q, int n_block, const char *const *formats, int n_format, nib_error *err) {
    memset(q, 0, sizeof *q);
    if (n_block < 1 || n_format < 0 || n_format > QUALITY_FORMATS)
        return nib_fail(err, NIB_E_USAGE, "expected some blocks and at most %d formats, found %d and %d",
                        QUALITY_FORMATS, n_block, n_format);
    q->n_block = n_block;
    q->n_format = n_format;
    for (int i = 0; i < n_format; i++)
        snprintf(q->format[i], QUALITY_NAME, "%s", formats[i]);
    q->kl = nothing(n_block, n_format);
    q->error = nothing(n_block, n_format);
    q->kl_activation = nothing(n_block, 2);
    q->error_activation = nothing(n_block, 2);
    q->kl_left_out = nothing(n_block, 1);
    q->place = nothing(n_block, 1);
    q->kl_fewer = nothing(n_block, 1);
    if (q->kl && q->error && q->kl_activation && q->error_activation && q->kl_left_out && q->place &&
        q->kl_fewer)
        return NIB_OK;
    quality_clear(q);
    return nib_fail_nomem(err, (size_t)n_block * QUALITY_FORMATS * sizeof(double), "quality costs");
}

char *quality_path(const char *content, const char *prompts) {
    return profile_path(content, prompts, "-quality.json");
}

char *quality_find(const char *content) {
    return profile_find(content, "-quality.json");
}

nib_status quality_print(const quality *q, char **text, nib_error *err) {
    const size_t n = (size_t)q->n_block, lost = jsonx_lost();
    json_t *formats = json_array();
    for (int i = 0; i < q->n_format; i++)
        json_array_append_new(formats, json_string(q->format[i]));
    json_t *doc =
        json_pack("{s:i, s:s, s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "nibble_quality",
                  VERSION, "content", q->content, "prompts", q->prompts, "n_block", q->n_block, "n_token",
                  (json_int_t)q->n_token, "formats", formats, "kl",
                  profile_numbers(q->kl, n * (size_t)q->n_format, true), "error",
                  profile_numbers(q->error, n * (size_t)q->n_format, true), "kl_activation",
                  profile_numbers(q->kl_activation, n * 2, true), "error_activation",
                  profile_numbers(q->error_activation, n * 2, true), "kl_left_out",
                  profile_numbers(q->kl_left_out, n, true), "place", profile_numbers(q->place, n, true),
                  "kl_fewer", profile_numbers(q->kl_fewer, n, true));
    return profile_text(jsonx_built(doc, lost), text, err);
}

static nib_status read_formats(const json_t *doc, const char *out[QUALITY_FORMATS], int *n, nib_error *err) {
    const json_t *list = json_object_get(doc, "formats");
    const size_t all = json_array_size(list);
    if (!json_is_array(list) || all > QUALITY_FORMATS)
        return nib_fail(err, NIB_E_MODEL, "\"formats\": expected an array of at most %d names",
                        QUALITY_FORMATS);
    for (size_t i = 0; i < all; i++) {
        out[i] = json_string_value(json_array_get(list, i));
        if (!out[i] || !*out[i] || strlen(out[i]) >= QUALITY_NAME)
            return nib_fail(err, NIB_E_MODEL,
                            "\"formats\": expected a name of up to %d characters at place %zu",
                            QUALITY_NAME - 1, i);
    }
    *n = (int)all;
    return NIB_OK;
}

/* Reads the places. Files of older versions, which left layers out in another order, have none. */
static nib_status read_places(const json_t *doc, quality *q, nib_error *err) {
    if (!json_object_get(doc, "place"))
        return NIB_OK;
    NIB_TRY(profile_read_numbers(doc, "place", (size_t)q->n_block, true, q->place, err));
    for (int b = 0; b < q->n_block; b++)
        if (q->place[b] >= q->n_block)
            return nib_fail(err, NIB_E_MODEL, "\"place\": expected at most %d, found %s", q->n_block - 1,
                            num_text(q->place[b], 6));
    return NIB_OK;
}

static nib_status read_all(const json_t *doc, void *out, nib_error *err) {
    quality *q = out;
    const char *formats[QUALITY_FORMATS];
    int64_t version, n_block, n_token;
    int n_format = 0;
    if (!json_is_object(doc))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(profile_read_int(doc, "nibble_quality", VERSION, VERSION, &version, err));
    NIB_TRY(profile_read_int(doc, "n_block", 1, MAX_BLOCK, &n_block, err));
    NIB_TRY(profile_read_int(doc, "n_token", 1, INT64_C(1) << 40, &n_token, err));
    NIB_TRY(read_formats(doc, formats, &n_format, err));
    NIB_TRY(quality_begin(q, (int)n_block, formats, n_format, err));
    const size_t n = (size_t)n_block;
    q->n_token = n_token;
    NIB_TRY(profile_read_keys(doc, q->content, q->prompts, err));
    NIB_TRY(profile_read_numbers(doc, "kl", n * (size_t)n_format, true, q->kl, err));
    NIB_TRY(profile_read_numbers(doc, "error", n * (size_t)n_format, true, q->error, err));
    NIB_TRY(profile_read_numbers(doc, "kl_activation", n * 2, true, q->kl_activation, err));
    NIB_TRY(profile_read_numbers(doc, "error_activation", n * 2, true, q->error_activation, err));
    NIB_TRY(profile_read_numbers(doc, "kl_left_out", n, true, q->kl_left_out, err));
    NIB_TRY(read_places(doc, q, err));
    return profile_read_numbers(doc, "kl_fewer", n, true, q->kl_fewer, err);
}

nib_status quality_load(const char *path, const char *content, quality *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    const nib_status status = profile_load(path, content, read_all, out, out->content, err);
    if (status != NIB_OK)
        quality_clear(out);
    return status;
}

nib_status quality_save(const char *path, const quality *q, nib_error *err) {
    char *text = NULL;
    const nib_status status = quality_print(q, &text, err);
    return profile_save(path, status, text, err);
}

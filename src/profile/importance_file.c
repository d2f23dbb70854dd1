/* importance_file.c - writes and reads a profile as JSON. Derived values (scores, the bound) are written for
 * people and scripts, and computed again when a profile is read. */
#include "profile/importance.h"

#include "profile/profile_file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VERSION = 2, MAX_LAYER = 4096, MAX_PROMPT = 4096 };

char *importance_path(const char *content, const char *prompts) {
    return profile_path(content, prompts, ".json");
}

char *importance_find(const char *content) {
    return profile_find(content, ".json");
}

static json_t *signals_json(const importance *p, double *const of[IMPORTANCE_N]) {
    json_t *all = json_object();
    for (int s = 0; s < IMPORTANCE_N; s++)
        if (json_object_set_new(all, importance_signal_name((importance_signal)s),
                                profile_numbers(of[s], (size_t)p->n_layer, false))) {
            json_decref(all);
            return NULL;
        }
    return all;
}

nib_status importance_print(const importance *p, char **text, nib_error *err) {
    const size_t each = (size_t)p->n_layer, lost = jsonx_lost();
    json_t *prompts = json_array();
    for (int i = 0; i < p->n_prompt; i++)
        json_array_append_new(prompts,
                              profile_numbers(p->by_prompt[IMPORTANCE_MCAP] + (size_t)i * each, each, false));
    json_t *doc =
        json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o}",
                  "nibble_importance", VERSION, "content", p->content, "prompts", p->prompts, "n_layer",
                  p->n_layer, "n_prompt", p->n_prompt, "n_token", (json_int_t)p->n_token, "score",
                  profile_numbers(p->score, each, false), "half_overlap", p->half_overlap, "half_overlap_min",
                  p->half_overlap_min, "gap", p->gap, "sigma", p->sigma, "bound", p->bound, "mean",
                  signals_json(p, p->raw), "spread", signals_json(p, p->spread), "mcap_by_prompt", prompts);
    return profile_text(jsonx_built(doc, lost), text, err);
}

static nib_status read_signals(const json_t *doc, const char *key, const importance *p,
                               double *const to[IMPORTANCE_N], nib_error *err) {
    const json_t *all = json_object_get(doc, key);
    if (!json_is_object(all))
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected an object", key);
    for (int s = 0; s < IMPORTANCE_N; s++) {
        const nib_status status = profile_read_numbers(all, importance_signal_name((importance_signal)s),
                                                       (size_t)p->n_layer, false, to[s], err);
        if (status != NIB_OK)
            return nib_fail_prefix(err, status, key);
    }
    return NIB_OK;
}

static nib_status read_prompts(const json_t *doc, importance *p, nib_error *err) {
    const json_t *list = json_object_get(doc, "mcap_by_prompt");
    if (!json_is_array(list) || json_array_size(list) != (size_t)p->n_prompt)
        return nib_fail(err, NIB_E_MODEL, "\"mcap_by_prompt\": expected an array of %d lists", p->n_prompt);
    for (int i = 0; i < p->n_prompt; i++) {
        json_t *one = json_pack("{s:O}", "mcap_by_prompt", json_array_get(list, (size_t)i));
        if (!one)
            return nib_fail_nomem(err, 1024, "a profile");
        const nib_status status =
            profile_read_numbers(one, "mcap_by_prompt", (size_t)p->n_layer, false,
                                 p->by_prompt[IMPORTANCE_MCAP] + (size_t)i * (size_t)p->n_layer, err);
        json_decref(one);
        NIB_TRY(status);
    }
    return NIB_OK;
}

static nib_status read_all(const json_t *doc, void *out, nib_error *err) {
    importance *p = out;
    int64_t version, n_layer, n_prompt, n_token;
    if (!json_is_object(doc))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(profile_read_int(doc, "nibble_importance", VERSION, VERSION, &version, err));
    NIB_TRY(profile_read_int(doc, "n_layer", 1, MAX_LAYER, &n_layer, err));
    NIB_TRY(profile_read_int(doc, "n_prompt", 1, MAX_PROMPT, &n_prompt, err));
    NIB_TRY(profile_read_int(doc, "n_token", n_prompt, INT64_C(1) << 40, &n_token, err));
    NIB_TRY(importance_begin(p, (int)n_layer, (int)n_prompt, err));
    p->n_token = n_token;
    NIB_TRY(profile_read_keys(doc, p->content, p->prompts, err));
    NIB_TRY(read_signals(doc, "mean", p, p->raw, err));
    NIB_TRY(read_signals(doc, "spread", p, p->spread, err));
    NIB_TRY(read_prompts(doc, p, err));
    NIB_TRY(profile_read_number(doc, "half_overlap", -1, &p->half_overlap, err));
    NIB_TRY(profile_read_number(doc, "half_overlap_min", -1, &p->half_overlap_min, err));
    NIB_TRY(profile_read_number(doc, "gap", 0, &p->gap, err));
    NIB_TRY(profile_read_number(doc, "sigma", 0, &p->sigma, err));
    NIB_TRY(profile_read_number(doc, "bound", 0, &p->bound, err));
    importance_normalise(p->raw[IMPORTANCE_MCAP], p->n_layer, p->score);
    return NIB_OK;
}

nib_status importance_load(const char *path, const char *content, importance *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    const nib_status status = profile_load(path, content, read_all, out, out->content, err);
    if (status != NIB_OK)
        importance_clear(out);
    return status;
}

nib_status importance_save(const char *path, const importance *p, nib_error *err) {
    char *text = NULL;
    const nib_status status = importance_print(p, &text, err);
    return profile_save(path, status, text, err);
}

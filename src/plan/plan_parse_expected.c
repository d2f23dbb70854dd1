/* plan_parse_expected.c - parses a plan's predictions: of itself, with more memory, and of alternatives. */
#include "plan/plan_values.h"

#include "base/num.h"
#include "plan/plan_names.h"

#include <limits.h>
#include <string.h>

static nib_status read_moved(const json_t *from, plan_prediction *out, nib_error *err) {
    static const char *const known[] = {"ram", "disk", "link", "vram", NULL};
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"bytes_per_token\"", known, err));
    NIB_TRY(plan_get_bytes(from, "ram", false, &out->ram_bytes, err));
    NIB_TRY(plan_get_bytes(from, "disk", false, &out->disk_bytes, err));
    NIB_TRY(plan_get_bytes(from, "link", false, &out->link_bytes, err));
    return plan_get_bytes(from, "vram", false, &out->vram_bytes, err);
}

static nib_status read_seconds(const json_t *from, plan_prediction *out, nib_error *err) {
    static const char *const known[] = {"disk", "ram", "compute", "gpu", "link", NULL};
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"seconds_per_token\"", known, err));
    NIB_TRY(plan_get_number(from, "disk", &out->disk_s, err));
    NIB_TRY(plan_get_number(from, "ram", &out->ram_s, err));
    NIB_TRY(plan_get_number(from, "gpu", &out->gpu_s, err));
    NIB_TRY(plan_get_number(from, "link", &out->link_s, err));
    return plan_get_number(from, "compute", &out->compute_s, err);
}

static nib_status read_owners(const json_t *from, plan_prediction *out, nib_error *err) {
    uint64_t sum = 0;
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"owners\"", plan_owner_names, err));
    for (int i = 0; i < NIB_N_OWNER; i++) {
        NIB_TRY(plan_get_bytes(from, plan_owner_names[i], false, &out->owner[i], err));
        if (!num_add_u64(sum, out->owner[i], &sum))
            return nib_fail(err, NIB_E_MODEL, "\"owners\": their sum overflows");
    }
    return sum == out->ram_peak
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "\"owners\": expected a sum of %llu (\"ram_peak\"), found %llu",
                          (unsigned long long)out->ram_peak, (unsigned long long)sum);
}

static nib_status read_predicted(const json_t *from, plan_prediction *out, nib_error *err) {
    static const char *const known[] = {
        "ttft_s",  "tok_s",    "from",      "runs",   "bytes_per_token", "seconds_per_token",
        "quality", "ram_peak", "disk_peak", "owners", "vram_peak",       "prompt_tok_s",
        NULL};
    double prompt = 0; /* prompt length of ttft_s, for people */
    char source[16] = "";
    int64_t n_run = 0;
    out->quality = -1;
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"predicted\"", known, err));
    NIB_TRY(plan_get_number(from, "ttft_s", &out->ttft_s, err));
    NIB_TRY(plan_get_number(from, "tok_s", &out->tok_s, err));
    NIB_TRY(plan_get_name(from, "from", false, source, sizeof source, err));
    NIB_TRY(plan_get_int(from, "runs", 0, INT_MAX, &n_run, err));
    out->guessed = !strcmp(source, "guess");
    out->n_run = (int)n_run;
    if (*source && strcmp(source, plan_prediction_source(out)) != 0)
        return nib_fail(err, NIB_E_MODEL,
                        "\"from\": expected runs (with \"runs\" above 0), profile or guess, found \"%s\"",
                        source);
    NIB_TRY(plan_get_number(from, "quality", &out->quality, err));
    NIB_TRY(plan_get_bytes(from, "ram_peak", false, &out->ram_peak, err));
    NIB_TRY(plan_get_bytes(from, "disk_peak", false, &out->disk_peak, err));
    NIB_TRY(plan_get_bytes(from, "vram_peak", false, &out->vram_peak, err));
    NIB_TRY(plan_get_number(from, "prompt_tok_s", &prompt, err));
    NIB_TRY(read_moved(json_object_get(from, "bytes_per_token"), out, err));
    NIB_TRY(read_seconds(json_object_get(from, "seconds_per_token"), out, err));
    return read_owners(json_object_get(from, "owners"), out, err);
}

static nib_status read_gains(const json_t *from, plan *out, nib_error *err) {
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"one_more_gb\"", plan_tier_names, err));
    for (int t = 0; t < NIB_N_TIER; t++)
        NIB_TRY(plan_get_number(from, plan_tier_names[t], &out->one_more_gb[t], err));
    return NIB_OK;
}

static nib_status read_alternatives(const json_t *list, plan *out, nib_error *err) {
    static const char *const known[] = {"what", "fits", "tok_s", "quality", "ram_peak", NULL};
    const json_t *value;
    size_t i;
    if (!list || json_is_null(list))
        return NIB_OK;
    if (!json_is_array(list) || json_array_size(list) > PLAN_MAX_ALTERNATIVE)
        return nib_fail(err, NIB_E_MODEL, "\"alternatives\": expected a list of at most %d",
                        PLAN_MAX_ALTERNATIVE);
    json_array_foreach(list, i, value) {
        plan_alternative *a = &out->alternatives[out->n_alternative++];
        a->quality = -1;
        NIB_TRY(plan_check_keys(value, "alternative", known, err));
        NIB_TRY(plan_get_name(value, "what", true, a->what, sizeof a->what, err));
        NIB_TRY(jsonx_get_bool(value, "fits", true, &a->fits, err));
        NIB_TRY(plan_get_number(value, "tok_s", &a->tok_s, err));
        NIB_TRY(plan_get_number(value, "quality", &a->quality, err));
        NIB_TRY(plan_get_bytes(value, "ram_peak", false, &a->ram_peak, err));
    }
    return NIB_OK;
}

static nib_status read_device(const json_t *from, plan_device *out, nib_error *err) {
    static const char *const known[] = {
        "guessed",        "driver",   "weights",  "kv",       "activations",
        "kv_in_ram",      "resident", "streamed", "in_place", "in_place_sequences",
        "many_sequences", "whole",    "attended", "in_part",  "apart",
        "experts",        NULL};
    int64_t resident = 0, streamed = 0, in_place = 0, in_part = 0, attended = 0, apart = 0, experts = 0;
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"gpu\"", known, err));
    NIB_TRY(jsonx_get_bool(from, "guessed", false, &out->absent, err));
    NIB_TRY(plan_get_bytes(from, "driver", false, &out->driver, err));
    NIB_TRY(plan_get_bytes(from, "weights", false, &out->weights, err));
    NIB_TRY(plan_get_bytes(from, "kv", false, &out->kv, err));
    NIB_TRY(plan_get_bytes(from, "activations", false, &out->activations, err));
    NIB_TRY(plan_get_bytes(from, "kv_in_ram", false, &out->kv_in_ram, err));
    NIB_TRY(plan_get_bytes(from, "whole", false, &out->whole, err));
    NIB_TRY(jsonx_get_bool(from, "many_sequences", false, &out->many_sequences, err));
    NIB_TRY(plan_get_int(from, "resident", 0, INT_MAX, &resident, err));
    NIB_TRY(plan_get_int(from, "streamed", 0, INT_MAX, &streamed, err));
    NIB_TRY(plan_get_int(from, "in_place", 0, INT_MAX, &in_place, err));
    NIB_TRY(plan_get_int(from, "attended", 0, INT_MAX, &attended, err));
    out->n_attended = (int)attended;
    NIB_TRY(plan_get_int(from, "in_part", 0, INT_MAX, &in_part, err));
    out->n_in_part = (int)in_part;
    NIB_TRY(plan_get_int(from, "apart", 0, INT_MAX, &apart, err));
    NIB_TRY(plan_get_int(from, "experts", 0, INT_MAX, &experts, err));
    out->n_apart = (int)apart;
    out->n_experts = (int)experts;
    out->n_resident = (int)resident;
    out->n_streamed = (int)streamed;
    out->n_in_place = (int)in_place;
    return plan_get_int(from, "in_place_sequences", 0, INT_MAX, &out->in_place_sequences, err);
}

nib_status plan_read_expected(const json_t *from, plan *out, nib_error *err) {
    NIB_TRY(read_predicted(json_object_get(from, "predicted"), &out->predicted, err));
    NIB_TRY(read_device(json_object_get(from, "gpu"), &out->device, err));
    NIB_TRY(read_gains(json_object_get(from, "one_more_gb"), out, err));
    return read_alternatives(json_object_get(from, "alternatives"), out, err);
}

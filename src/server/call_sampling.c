/* call_sampling.c - parses the samplers that all APIs have, by llama-server's names. */
#include "server/call_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const member rows[] = {
    {"typical_p", MEMBER_FLOAT, offsetof(call, sampling.typical_p), 0, 1},
    {"top_n_sigma", MEMBER_FLOAT, offsetof(call, sampling.top_n_sigma), -1, 1e6},
    {"xtc_probability", MEMBER_FLOAT, offsetof(call, sampling.xtc_probability), 0, 1},
    {"xtc_threshold", MEMBER_FLOAT, offsetof(call, sampling.xtc_threshold), 0, 1},
    {"dynatemp_range", MEMBER_FLOAT, offsetof(call, sampling.dynatemp_range), 0, 100},
    {"dynatemp_exponent", MEMBER_FLOAT, offsetof(call, sampling.dynatemp_exponent), 0, 100},
    {"mirostat", MEMBER_I32, offsetof(call, sampling.mirostat), 0, 2},
    {"mirostat_tau", MEMBER_FLOAT, offsetof(call, sampling.mirostat_tau), 0, 1000},
    {"mirostat_eta", MEMBER_FLOAT, offsetof(call, sampling.mirostat_eta), 0, 1000},
    {"dry_multiplier", MEMBER_FLOAT, offsetof(call, sampling.dry_multiplier), 0, 1000},
    {"dry_base", MEMBER_FLOAT, offsetof(call, sampling.dry_base), 0, 1000},
    {"dry_allowed_length", MEMBER_I32, offsetof(call, sampling.dry_allowed_length), 0, 1 << 24},
    {"dry_penalty_last_n", MEMBER_I32, offsetof(call, sampling.dry_window), -1, 1 << 24},
};
const member_table sampler_members = {rows, NUM_COUNT(rows)};

static bool read_breakers(call *c, const json_t *list, fault *why) {
    static const char field[] = "dry_sequence_breakers";
    enum { MAX = 64, MAX_BYTES = 40 };
    const json_t *v;
    size_t i;
    if (!list)
        return true;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > MAX)
        return fault_field(why, field, "expected an array of 1 to %d strings", MAX);
    const char **texts = c->breakers = mem_array(json_array_size(list), sizeof *texts);
    if (!texts)
        return fault_set(why, 503, NULL, "out of memory");
    c->sampling.dry_breakers = texts;
    c->sampling.n_dry_breaker = 0;
    json_array_foreach(list, i, v) {
        const size_t n = json_string_length(v);
        if (n == 0 || n > MAX_BYTES || strlen(json_string_value(v)) != n)
            return fault_field(why, field, "expected strings of 1 to %d bytes without NUL", MAX_BYTES);
        texts[c->sampling.n_dry_breaker++] = json_string_value(v);
    }
    return true;
}

/* Reads names in a list, or a text of letters, as llama-server does. */
static bool read_order(call *c, const json_t *order, fault *why) {
    enum { MAX_NAME = 30 };
    const char *letters = json_string_value(order);
    const size_t n = letters ? json_string_length(order) : json_array_size(order);
    char names[(MAX_NAME + 1) * NIB_MAX_SAMPLERS + 1] = "";
    nib_error err;
    if (!order)
        return true;
    if ((!letters && !json_is_array(order)) || n == 0 || n > NIB_MAX_SAMPLERS)
        return fault_field(why, "samplers", "expected a list of 1 to %d names, or a text of so many letters",
                           NIB_MAX_SAMPLERS);
    for (size_t i = 0, at = 0; i < n; i++) {
        const char *name = letters ? letters + i : json_string_value(json_array_get(order, i));
        at += (size_t)snprintf(names + at, sizeof names - at, "%.*s;", letters ? 1 : MAX_NAME,
                               name ? name : "?");
    }
    return nib_sampling_order(&c->sampling, names, &err) == NIB_OK ||
           fault_field(why, "samplers", "%s", err.message);
}

bool samplers_read(call *c, const json_t *from, fault *why) {
    static const char *const not_here[] = {"adaptive_target", "tfs_z"};
    for (size_t i = 0; i < NUM_COUNT(not_here); i++) {
        const json_t *v = member_get(from, not_here[i]);
        const bool off = json_is_number(v) && (json_number_value(v) < 0 || json_number_value(v) == 1);
        if (v && !off)
            return fault_field(why, not_here[i], "is not supported");
    }
    return members_read(from, &sampler_members, c, why) && read_order(c, member_get(from, "samplers"), why) &&
           read_breakers(c, member_get(from, "dry_sequence_breakers"), why);
}

/* popularity.c - shares of experts: their memory and their JSON. */
#include "profile/popularity.h"

#include "base/mem.h"
#include "base/num.h"
#include "profile/profile_file.h"

#include <string.h>

enum { VERSION = 1, MAX_LAYER = 4096, MAX_EXPERT = 1024 };

void popularity_clear(popularity *p) {
    mem_free(p->share);
    memset(p, 0, sizeof *p);
}

nib_status popularity_begin(popularity *p, int n_layer, int n_expert, nib_error *err) {
    const size_t n = (size_t)n_layer * (size_t)n_expert;
    *p = (popularity){.n_layer = n_layer, .n_expert = n_expert};
    p->share = mem_calloc(n, sizeof *p->share);
    return p->share ? NIB_OK : nib_fail_nomem(err, n * sizeof *p->share, "shares of experts");
}

char *popularity_path(const char *content, const char *prompts) {
    return profile_path(content, prompts, "-experts.json");
}

char *popularity_find(const char *content) {
    return profile_find(content, "-experts.json");
}

char *popularity_runs_path(const char *content) {
    return profile_path(content, "0", "-chosen.json");
}

void popularity_add(popularity *p, const popularity *run) {
    const int64_t before = NUM_MIN(p->n_token, (int64_t)POPULARITY_OLD);
    const double part = (double)run->n_token / (double)(before + run->n_token);
    for (int l = 0; l < p->n_layer; l++) {
        const double *from = run->share + l * p->n_expert;
        double *to = p->share + l * p->n_expert, all = 0;
        for (int e = 0; e < p->n_expert; e++)
            all += from[e];
        for (int e = 0; e < p->n_expert && all > 0; e++)
            to[e] += part * (from[e] - to[e]);
    }
    p->n_token = before + run->n_token;
}

nib_status popularity_print(const popularity *p, char **text, nib_error *err) {
    const size_t lost = jsonx_lost(), n = (size_t)p->n_layer * (size_t)p->n_expert;
    json_t *doc = json_pack("{s:i, s:s, s:s, s:i, s:i, s:I, s:o}", "nibble_experts", VERSION, "content",
                            p->content, "prompts", p->prompts, "n_layer", p->n_layer, "n_expert", p->n_expert,
                            "n_token", (json_int_t)p->n_token, "share", profile_numbers(p->share, n, false));
    return profile_text(jsonx_built(doc, lost), text, err);
}

static nib_status read_all(const json_t *doc, void *out, nib_error *err) {
    popularity *p = out;
    int64_t version, n_layer, n_expert, n_token;
    if (!json_is_object(doc))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(profile_read_int(doc, "nibble_experts", VERSION, VERSION, &version, err));
    NIB_TRY(profile_read_int(doc, "n_layer", 1, MAX_LAYER, &n_layer, err));
    NIB_TRY(profile_read_int(doc, "n_expert", 1, MAX_EXPERT, &n_expert, err));
    NIB_TRY(profile_read_int(doc, "n_token", 1, INT64_C(1) << 40, &n_token, err));
    NIB_TRY(popularity_begin(p, (int)n_layer, (int)n_expert, err));
    p->n_token = n_token;
    NIB_TRY(profile_read_keys(doc, p->content, p->prompts, err));
    return profile_read_numbers(doc, "share", (size_t)(n_layer * n_expert), false, p->share, err);
}

nib_status popularity_load(const char *path, const char *content, popularity *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    const nib_status status = profile_load(path, content, read_all, out, out->content, err);
    if (status != NIB_OK)
        popularity_clear(out);
    return status;
}

nib_status popularity_save(const char *path, const popularity *p, nib_error *err) {
    char *text = NULL;
    const nib_status status = popularity_print(p, &text, err);
    return profile_save(path, status, text, err);
}

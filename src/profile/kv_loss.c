/* kv_loss.c - losses of formats of keys and values: their memory and their JSON. */
#include "profile/kv_loss.h"

#include "base/mem.h"
#include "profile/profile_file.h"

#include <string.h>

enum { VERSION = 1, MAX_LAYER = 4096 };

const char *const kv_loss_formats[KV_LOSS_FORMATS] = {"kv8", "kv4"};

void kv_loss_clear(kv_loss *k) {
    mem_free(k->kl);
    memset(k, 0, sizeof *k);
}

nib_status kv_loss_begin(kv_loss *k, int n_layer, nib_error *err) {
    memset(k, 0, sizeof *k);
    k->n_layer = n_layer;
    k->kl = mem_calloc((size_t)n_layer * KV_LOSS_FORMATS, sizeof *k->kl);
    return k->kl ? NIB_OK
                 : nib_fail_nomem(err, (size_t)n_layer * KV_LOSS_FORMATS * sizeof *k->kl, "losses by layer");
}

char *kv_loss_path(const char *content, const char *prompts) {
    return profile_path(content, prompts, "-kv.json");
}

char *kv_loss_find(const char *content) {
    return profile_find(content, "-kv.json");
}

nib_status kv_loss_print(const kv_loss *k, char **text, nib_error *err) {
    const size_t lost = jsonx_lost();
    json_t *formats = json_array();
    for (int i = 0; i < KV_LOSS_FORMATS; i++)
        json_array_append_new(formats, json_string(kv_loss_formats[i]));
    json_t *doc = json_pack("{s:i, s:s, s:s, s:i, s:I, s:o, s:o, s:o}", "nibble_kv_loss", VERSION, "content",
                            k->content, "prompts", k->prompts, "n_layer", k->n_layer, "n_token",
                            (json_int_t)k->n_token, "formats", formats, "kl",
                            profile_numbers(k->kl, (size_t)k->n_layer * KV_LOSS_FORMATS, false), "all",
                            profile_numbers(k->all, KV_LOSS_FORMATS, false));
    return profile_text(jsonx_built(doc, lost), text, err);
}

static nib_status read_all(const json_t *doc, void *out, nib_error *err) {
    kv_loss *k = out;
    int64_t version, n_layer, n_token;
    const json_t *formats = json_object_get(doc, "formats");
    if (!json_is_object(doc))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(profile_read_int(doc, "nibble_kv_loss", VERSION, VERSION, &version, err));
    NIB_TRY(profile_read_int(doc, "n_layer", 1, MAX_LAYER, &n_layer, err));
    NIB_TRY(profile_read_int(doc, "n_token", 1, INT64_C(1) << 40, &n_token, err));
    for (int i = 0; i < KV_LOSS_FORMATS; i++) {
        const char *name = json_string_value(json_array_get(formats, (size_t)i));
        if (json_array_size(formats) != KV_LOSS_FORMATS || !name || strcmp(name, kv_loss_formats[i]) != 0)
            return nib_fail(err, NIB_E_MODEL, "\"formats\": expected %s at place %d", kv_loss_formats[i], i);
    }
    NIB_TRY(kv_loss_begin(k, (int)n_layer, err));
    k->n_token = n_token;
    NIB_TRY(profile_read_keys(doc, k->content, k->prompts, err));
    NIB_TRY(profile_read_numbers(doc, "all", KV_LOSS_FORMATS, false, k->all, err));
    return profile_read_numbers(doc, "kl", (size_t)n_layer * KV_LOSS_FORMATS, false, k->kl, err);
}

nib_status kv_loss_load(const char *path, const char *content, kv_loss *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    const nib_status status = profile_load(path, content, read_all, out, out->content, err);
    if (status != NIB_OK)
        kv_loss_clear(out);
    return status;
}

nib_status kv_loss_save(const char *path, const kv_loss *k, nib_error *err) {
    char *text = NULL;
    const nib_status status = kv_loss_print(k, &text, err);
    return profile_save(path, status, text, err);
}

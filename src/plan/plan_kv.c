/* plan_kv.c - the formats of keys and values in a plan. */
#include "plan/plan_values.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const kv_names[] = {"auto", "f32", "f16", "kv8", "kv4", "kv8h", "kv4h", "kv4s"};

const char *plan_kv_name(plan_kv kv) {
    return kv_names[kv];
}

bool plan_kv_from_name(const char *name, plan_kv *out) {
    for (int i = PLAN_KV_AUTO; i <= PLAN_KV_4S; i++)
        if (!strcasecmp(name, kv_names[i])) {
            *out = (plan_kv)i;
            return true;
        }
    return false;
}

static json_t *part_json(const char *layers, int n_byte, const char *format, int n_format) {
    return json_pack("{s:s%, s:s%}", "layers", layers, (size_t)n_byte, "format", format, (size_t)n_format);
}

/* The tiers' shares of the bytes of all layers. */
static json_t *shares_json(const plan *p) {
    const double vram = (double)p->device.kv, ram = (double)p->device.kv_in_ram;
    const double share = plan_is_of_gpu(p) && vram > 0 ? vram / (vram + ram) : 0;
    return json_pack("{s:f, s:f, s:f}", "vram", share, "ram", 1 - share - p->kv_on_disk, "disk",
                     p->kv_on_disk);
}

json_t *plan_kv_json_shares(const plan *p) {
    const size_t lost = jsonx_lost();
    json_t *list = plan_kv_json(p), *part;
    size_t i;
    json_array_foreach(list, i, part) jsonx_put(part, "shares", shares_json(p));
    return jsonx_built(list, lost);
}

json_t *plan_kv_json(const plan *p) {
    const size_t lost = jsonx_lost();
    const char *name = plan_kv_name(p->kv);
    json_t *list = json_array();
    if (!p->kv_layers[0])
        jsonx_add(list, part_json("all", 3, name, (int)strlen(name)));
    for (const char *at = p->kv_layers; *at;) {
        const size_t n = strcspn(at, "="), all = strcspn(at, ",");
        jsonx_add(list, part_json(at, (int)n, at + n + 1, (int)(all - n - 1)));
        at += all + (at[all] == ',');
    }
    return jsonx_built(list, lost);
}

static nib_status read_format(const char *name, plan_kv *out, nib_error *err) {
    return plan_kv_from_name(name, out)
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL,
                          "\"kv\": expected auto, f32, f16, kv8, kv4, kv8h, kv4h or kv4s, found \"%s\"",
                          name);
}

/* Reads {"layers", "format"}; the model checks the layers' numbers. */
static nib_status read_part(const json_t *from, bool is_only, plan *out, nib_error *err) {
    static const char *const known[] = {"layers", "format", "shares", NULL}; /* shares: for people */
    char layers[24], format[8];
    plan_kv kv = PLAN_KV_AUTO;
    NIB_TRY(plan_check_keys(from, "\"kv\"", known, err));
    NIB_TRY(plan_get_name(from, "layers", true, layers, sizeof layers, err));
    NIB_TRY(plan_get_name(from, "format", true, format, sizeof format, err));
    NIB_TRY(read_format(format, &kv, err));
    if (!strcmp(layers, "all") && is_only) {
        out->kv = kv;
        return NIB_OK;
    }
    if (!isdigit((unsigned char)*layers) || strspn(layers, "0123456789-") != strlen(layers) ||
        kv == PLAN_KV_AUTO)
        return nib_fail(
            err, NIB_E_MODEL,
            "\"kv\": expected \"all\" alone, or layers as in \"0-3\" with a format, found \"%s\" and \"%s\"",
            layers, format);
    const size_t at = strlen(out->kv_layers);
    const int n = snprintf(out->kv_layers + at, sizeof out->kv_layers - at, "%s%s=%s", at ? "," : "", layers,
                           plan_kv_name(kv));
    out->kv = out->kv == PLAN_KV_AUTO ? kv : out->kv;
    return (size_t)n < sizeof out->kv_layers - at
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "\"kv\": expected at most %d bytes of layers", PLAN_KV_LAYERS);
}

nib_status plan_kv_read(const json_t *from, plan *out, nib_error *err) {
    const json_t *value;
    size_t i;
    out->kv = PLAN_KV_AUTO;
    if (!from || json_is_null(from))
        return NIB_OK;
    if (json_is_string(from))
        return read_format(json_string_value(from), &out->kv, err);
    if (!json_is_array(from))
        return nib_fail(err, NIB_E_MODEL, "\"kv\": expected a list of layers and formats, or one format");
    json_array_foreach(from, i, value) NIB_TRY(read_part(value, json_array_size(from) == 1, out, err));
    return NIB_OK;
}

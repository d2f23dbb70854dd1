/* plan_print.c - writes a plan as JSON, one line for each block, so that plans can be compared line by line.
 */
#include "plan/plan.h"

#include "base/jsonx.h"
#include "base/buffer.h"
#include "base/mem.h"
#include "plan/plan_names.h"
#include "plan/plan_values.h"

#include <string.h>

const char *const plan_tier_names[NIB_N_TIER + 1] = {"ram", "vram", "disk", NULL};
const char *const plan_owner_names[NIB_N_OWNER + 1] = {"weights", "kv",      "activations", "staging",
                                                       "tables",  "runtime", NULL};

/* ---- values; NULL: no memory, or a number that JSON does not have ---- */

static json_t *bytes_json(uint64_t n) {
    return n <= INT64_MAX ? json_integer((json_int_t)n) : NULL;
}

/* A negative number means "unknown" and becomes null. */
static json_t *known_json(double v) {
    return v < 0 ? json_null() : json_real(v);
}

static json_t *slice_json(const plan_slice *s) {
    json_t *of = json_object();
    return jsonx_whole(
        of,
        jsonx_put(of, "format", json_string(s->format)) && jsonx_put(of, "bytes", bytes_json(s->bytes)) &&
            jsonx_put(of, "tier", json_string(s->tier == PLAN_LEFT_OUT ? "none" : plan_tier_names[s->tier])));
}

static json_t *block_json(const plan_block *b) {
    json_t *of = json_object(), *slices = json_array();
    bool ok = jsonx_put(of, "name", json_string(b->name));
    for (int i = 0; i < b->n_slice; i++)
        ok = jsonx_add(slices, slice_json(&b->slices[i])) && ok;
    ok = jsonx_put(of, "slices", slices) && ok;
    if (b->left_out)
        ok = jsonx_put(of, "left_out", json_true()) && ok;
    else
        ok = jsonx_put(of, "activation",
                       json_string(b->activation == 16           ? "a16"
                                   : b->activation == 4          ? "a4"
                                   : b->activation == NIB_ACT_AX ? "ax"
                                                                 : "a8")) &&
             jsonx_put(of, "compute", json_string(b->on_gpu ? "gpu" : "cpu")) && ok;
    if (b->apart)
        ok = jsonx_put(of, "experts", json_string("cpu")) && ok;
    if (b->importance >= 0)
        ok = jsonx_put(of, "importance", json_real(b->importance)) && ok;
    return jsonx_whole(of, ok);
}

static json_t *budget_json(const plan *p) {
    json_t *of = json_object();
    bool ok = true;
    for (int t = 0; t < NIB_N_TIER; t++)
        ok = jsonx_put(of, plan_tier_names[t], p->cap[t] == NIB_AUTO ? json_null() : bytes_json(p->cap[t])) &&
             ok;
    return jsonx_whole(of, ok);
}

static json_t *schedule_json(const plan *p) {
    json_t *of = json_object();
    const bool by_host = !plan_is_of_gpu(p) || p->device.n_in_place || p->device.n_attended;
    const char *attend = by_host ? "processor" : "device";
    bool ok = jsonx_put(of, "kind", json_string("row")) && jsonx_put(of, "block", json_integer(1)) &&
              jsonx_put(of, "micro_batch", json_integer(1)) && jsonx_put(of, "attend", json_string(attend));
    if (p->n_ctx > 0)
        ok = jsonx_put(of, "n_ctx", json_integer(p->n_ctx)) && ok;
    if (p->n_best > 0)
        ok = jsonx_put(of, "n_best", json_integer(p->n_best)) && ok;
    if (p->n_batch > 0)
        ok = jsonx_put(of, "n_batch", json_integer(p->n_batch)) && ok;
    ok = jsonx_put(of, "n_prompt", json_integer(p->n_prompt)) &&
         jsonx_put(of, "n_gen", json_integer(p->n_gen)) && ok;
    if (p->n_thread > 0)
        ok = jsonx_put(of, "threads", json_integer(p->n_thread)) && ok;
    return jsonx_whole(of, jsonx_put(of, "packed", json_boolean(p->packed)) && ok);
}

static json_t *residuals_json(const plan *p) {
    json_t *of = json_object(), *kinds = json_array();
    bool ok = jsonx_put(of, "slowdown", json_real(p->slowdown));
    for (int i = 0; i < p->n_residual; i++) {
        const plan_residual *r = &p->residuals[i];
        json_t *one = json_object();
        const bool whole = jsonx_put(one, "products", json_string(r->products)) &&
                           jsonx_put(one, "k_chunk", json_integer(r->k_chunk)) &&
                           jsonx_put(one, "n_tb", json_integer(r->n_tb));
        ok = jsonx_add(kinds, jsonx_whole(one, whole)) && ok;
    }
    return jsonx_whole(of, jsonx_put(of, "kinds", kinds) && ok);
}

static json_t *owners_json(const plan_prediction *p) {
    json_t *of = json_object();
    bool ok = true;
    for (int i = 0; i < NIB_N_OWNER; i++)
        ok = jsonx_put(of, plan_owner_names[i], bytes_json(p->owner[i])) && ok;
    return jsonx_whole(of, ok);
}

const char *plan_prediction_source(const plan_prediction *p) {
    return p->n_run ? "runs" : p->guessed ? "guess" : "profile";
}

static json_t *device_json(const plan_device *d) {
    json_t *of = json_object();
    const bool ok =
        jsonx_put(of, "guessed", json_boolean(d->absent)) && jsonx_put(of, "driver", bytes_json(d->driver)) &&
        jsonx_put(of, "weights", bytes_json(d->weights)) && jsonx_put(of, "kv", bytes_json(d->kv)) &&
        jsonx_put(of, "activations", bytes_json(d->activations)) &&
        jsonx_put(of, "kv_in_ram", bytes_json(d->kv_in_ram)) &&
        jsonx_put(of, "attended", json_integer(d->n_attended)) &&
        jsonx_put(of, "resident", json_integer(d->n_resident)) &&
        jsonx_put(of, "streamed", json_integer(d->n_streamed)) &&
        jsonx_put(of, "in_place", json_integer(d->n_in_place)) &&
        jsonx_put(of, "in_part", json_integer(d->n_in_part)) &&
        jsonx_put(of, "apart", json_integer(d->n_apart)) &&
        jsonx_put(of, "experts", json_integer(d->n_experts)) &&
        jsonx_put(of, "in_place_sequences", json_integer(d->in_place_sequences)) &&
        jsonx_put(of, "many_sequences", json_boolean(d->many_sequences)) &&
        jsonx_put(of, "whole", bytes_json(d->whole));
    return jsonx_whole(of, ok);
}

static json_t *predicted_json(const plan *of_run) {
    const plan_prediction *p = &of_run->predicted;
    json_t *of = json_object(), *moved = json_object(), *seconds = json_object();
    uint64_t sum = 0;
    for (int i = 0; i < NIB_N_OWNER; i++)
        sum |= p->owner[i];
    bool ok = jsonx_put(moved, "ram", bytes_json(p->ram_bytes)) &&
              jsonx_put(moved, "disk", bytes_json(p->disk_bytes + p->kv_disk_bytes)) &&
              jsonx_put(moved, "link", bytes_json(p->link_bytes)) &&
              jsonx_put(moved, "vram", bytes_json(p->vram_bytes));
    ok = jsonx_put(seconds, "disk", json_real(p->disk_s)) && jsonx_put(seconds, "ram", json_real(p->ram_s)) &&
         jsonx_put(seconds, "compute", json_real(p->compute_s)) && ok;
    if (p->vram_peak)
        ok = jsonx_put(seconds, "gpu", json_real(p->gpu_s)) &&
             jsonx_put(seconds, "link", json_real(p->link_s)) && ok;
    ok = jsonx_put(of, "ttft_s", json_real(p->ttft_s)) && jsonx_put(of, "tok_s", json_real(p->tok_s)) && ok;
    if (of_run->n_prompt > 0 && p->ttft_s > 0)
        ok = jsonx_put(of, "prompt_tok_s", json_real((double)of_run->n_prompt / p->ttft_s)) && ok;
    ok = jsonx_put(of, "from", json_string(plan_prediction_source(p))) &&
         jsonx_put(of, "runs", json_integer(p->n_run)) && ok;
    ok = jsonx_put(of, "bytes_per_token", moved) && ok;
    ok = jsonx_put(of, "seconds_per_token", seconds) && ok;
    ok = jsonx_put(of, "ram_peak", bytes_json(p->ram_peak)) &&
         jsonx_put(of, "disk_peak", bytes_json(p->disk_peak)) && ok;
    if (p->vram_peak)
        ok = jsonx_put(of, "vram_peak", bytes_json(p->vram_peak)) && ok;
    if (sum)
        ok = jsonx_put(of, "owners", owners_json(p)) && ok;
    return jsonx_whole(of, jsonx_put(of, "quality", known_json(p->quality)) && ok);
}

static json_t *gains_json(const plan *p) {
    json_t *of = json_object();
    bool ok = true;
    for (int t = 0; t < NIB_N_TIER; t++)
        ok = jsonx_put(of, plan_tier_names[t], json_real(p->one_more_gb[t])) && ok;
    return jsonx_whole(of, ok);
}

static json_t *alternative_json(const plan_alternative *a) {
    json_t *of = json_object();
    return jsonx_whole(of, jsonx_put(of, "what", json_string(a->what)) &&
                               jsonx_put(of, "fits", json_boolean(a->fits)) &&
                               jsonx_put(of, "tok_s", json_real(a->tok_s)) &&
                               jsonx_put(of, "quality", known_json(a->quality)) &&
                               jsonx_put(of, "ram_peak", bytes_json(a->ram_peak)));
}

static json_t *alternatives_json(const plan *p) {
    json_t *of = json_array();
    bool ok = true;
    for (int i = 0; i < p->n_alternative; i++)
        ok = jsonx_add(of, alternative_json(&p->alternatives[i])) && ok;
    return jsonx_whole(of, ok);
}

static json_t *notes_json(const plan *p) {
    json_t *of = json_array();
    bool ok = true;
    for (int i = 0; i < p->n_note; i++)
        ok = jsonx_add(of, json_string(p->notes[i])) && ok;
    return jsonx_whole(of, ok);
}

/* ---- text ---- */

/* Takes the reference. Numbers get 7 digits; measured values have three. */
static void add_value(buffer *out, const char *before, json_t *value) {
    buffer_text(out, before);
    buffer_json_as(out, value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7));
}

nib_status plan_print(const plan *p, char **text, nib_error *err) {
    const char mode[2] = {p->mode ? p->mode : 'a', 0};
    buffer out = {0};
    add_value(&out, "{\"model\": ", json_string(p->model));
    if (p->content[0])
        add_value(&out, ",\n \"content\": ", json_string(p->content));
    if (p->prompts[0])
        add_value(&out, ",\n \"prompts\": ", json_string(p->prompts));
    add_value(&out, ",\n \"mode\": ", json_string(mode));
    add_value(&out, ",\n \"budget\": ", budget_json(p));
    for (int b = 0; b < p->n_block; b++)
        add_value(&out, b ? ",\n  " : ",\n \"blocks\": [\n  ", block_json(&p->blocks[b]));
    add_value(&out,
              p->n_block ? "\n ],\n \"kv\": " : ",\n \"blocks\": [],\n \"kv\": ", plan_kv_json_shares(p));
    add_value(&out, ",\n \"schedule\": ", schedule_json(p));
    if (p->n_residual)
        add_value(&out, ",\n \"residuals\": ", residuals_json(p));
    if (plan_is_of_gpu(p))
        add_value(&out, ",\n \"gpu\": ", device_json(&p->device));
    add_value(&out, ",\n \"predicted\": ", predicted_json(p));
    add_value(&out, ",\n \"binds\": ", json_string(p->binds));
    add_value(&out, ",\n \"one_more_gb\": ", gains_json(p));
    add_value(&out, ",\n \"alternatives\": ", alternatives_json(p));
    add_value(&out, ",\n \"notes\": ", notes_json(p));
    buffer_text(&out, "}\n");
    if (out.no_memory) {
        buffer_clear(&out);
        return nib_fail(
            err, NIB_E_FAILED,
            "the plan cannot be written: out of memory, or a number or a name that JSON cannot express");
    }
    *text = out.data;
    return NIB_OK;
}

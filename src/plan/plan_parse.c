/* plan_parse.c - parses the JSON of a plan, which is not trusted and may be edited by hand. The keys of every
 * object are checked against a list first: otherwise a misspelt key would have no effect, unnoticed. */
#include "plan/plan.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "plan/plan_names.h"
#include "plan/plan_values.h"
#include "numbers/recipe.h"

#include <stdio.h>
#include <string.h>

enum { MAX_BLOCK = 16384 };

void plan_clear(plan *p) {
    mem_free(p->blocks);
    memset(p, 0, sizeof *p);
}

/* ---- blocks ---- */

static nib_status read_slice(const json_t *from, plan_slice *out, nib_error *err) {
    static const char *const known[] = {"format", "bytes", "tier", NULL};
    char tier[16] = "";
    recipe f;
    const char *name = out->format;
    NIB_TRY(plan_check_keys(from, "slice", known, err));
    NIB_TRY(plan_get_name(from, "format", true, out->format, sizeof out->format, err));
    type_name_small(out->format);
    NIB_TRY(plan_get_name(from, "tier", true, tier, sizeof tier, err));
    NIB_TRY(plan_get_bytes(from, "bytes", true, &out->bytes, err));
    for (out->tier = 0; out->tier < NIB_N_TIER && strcmp(tier, plan_tier_names[out->tier]);)
        out->tier++;
    if (out->tier == NIB_N_TIER && strcmp(tier, "none") != 0)
        return nib_fail(err, NIB_E_MODEL, "\"tier\": expected ram, vram, disk or none, found \"%s\"", tier);
    /* 4096: any length of a row for which all uniform formats exist */
    name += recipe_is_second(name);
    if (!recipe_parse(name, 4096, &f) || f.n_slice > 1 || (name > out->format && f.n_slice == 0))
        return nib_fail(
            err, NIB_E_MODEL,
            "\"format\": expected \"file\" or a uniform format (u4g64, u4g64w, +u4g64), found \"%s\"",
            out->format);
    return NIB_OK;
}

static nib_status read_slices(const json_t *list, plan_block *out, nib_error *err) {
    const json_t *value;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > PLAN_MAX_SLICE)
        return nib_fail(err, NIB_E_MODEL, "\"slices\": expected a list of 1 to %d", PLAN_MAX_SLICE);
    json_array_foreach(list, i, value) {
        plan_slice *s = &out->slices[out->n_slice++];
        NIB_TRY(read_slice(value, s, err));
        for (int j = 0; j < (int)i; j++)
            if (out->slices[j].tier == s->tier && !strcmp(out->slices[j].format, s->format))
                return nib_fail(err, NIB_E_MODEL,
                                "\"slices\": expected each format once in a tier, found %s twice", s->format);
    }
    char all[PACK_NAME], found[PLAN_MAX_SLICE * (PACK_NAME + 2)];
    recipe r;
    if (plan_block_recipe(out, all) && recipe_parse(all, 4096, &r))
        return NIB_OK;
    plan_block_formats(out, found, sizeof found);
    return nib_fail(err, NIB_E_MODEL,
                    "\"slices\": expected one format, and a second slice (+) of its kind at most, found %s",
                    found);
}

/* The GPU computes the blocks that have slices in VRAM. */
static nib_status check_vram(const plan_block *b, nib_error *err) {
    int n = 0;
    for (int i = 0; i < b->n_slice; i++)
        n += b->slices[i].tier == NIB_TIER_VRAM;
    if (n && !b->on_gpu)
        return nib_fail(err, NIB_E_MODEL, "\"compute\": expected gpu for slices in vram, found cpu");
    return NIB_OK;
}

static nib_status read_activation(const json_t *from, plan_block *out, nib_error *err) {
    char text[8] = "";
    NIB_TRY(plan_get_name(from, "activation", !out->left_out, text, sizeof text, err));
    type_name_small(text);
    out->activation = !strcmp(text, "a16")                   ? 16
                      : !strcmp(text, "a8") || out->left_out ? 8
                      : !strcmp(text, "a4")                  ? 4
                      : !strcmp(text, "ax")                  ? NIB_ACT_AX
                                                             : 0;
    return out->activation
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "\"activation\": expected a16, a8, a4 or ax, found \"%s\"", text);
}

static nib_status read_block(const json_t *from, plan_block *out, nib_error *err) {
    static const char *const known[] = {"name",     "slices",     "activation", "compute",
                                        "left_out", "importance", "experts",    NULL};
    char compute[8] = "cpu", experts[8] = "";
    NIB_TRY(plan_check_keys(from, "block", known, err));
    NIB_TRY(plan_get_name(from, "name", true, out->name, sizeof out->name, err));
    NIB_TRY(jsonx_get_bool(from, "left_out", false, &out->left_out, err));
    NIB_TRY(plan_get_name(from, "compute", false, compute, sizeof compute, err));
    out->on_gpu = !strcmp(compute, "gpu");
    if (!out->on_gpu && strcmp(compute, "cpu") != 0)
        return nib_fail(err, NIB_E_MODEL, "\"compute\": expected cpu or gpu, found \"%s\"", compute);
    NIB_TRY(plan_get_name(from, "experts", false, experts, sizeof experts, err));
    out->apart = !strcmp(experts, "cpu");
    if (experts[0] && !(out->apart && out->on_gpu))
        return nib_fail(err, NIB_E_MODEL,
                        "\"experts\": expected cpu, and \"compute\" gpu, found \"%s\" and %s", experts,
                        compute);
    NIB_TRY(read_activation(from, out, err));
    out->importance = -1;
    NIB_TRY(plan_get_number(from, "importance", &out->importance, err));
    if (out->importance > 1)
        return nib_fail(err, NIB_E_MODEL, "\"importance\": expected 0 to 1, found %s",
                        num_text(out->importance, 6));
    const json_t *slices = json_object_get(from, "slices");
    if (!out->left_out) {
        NIB_TRY(read_slices(slices, out, err));
        return check_vram(out, err);
    }
    return !slices || json_is_null(slices) || (json_is_array(slices) && json_array_size(slices) == 0)
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "\"slices\": expected none in a layer that is left out");
}

/* "embed", "layer.0", "layer.1", ..., "head" */
static nib_status check_name(const plan_block *b, int i, int n, nib_error *err) {
    char want[PLAN_NAME];
    if (i == 0 || i == n - 1)
        snprintf(want, sizeof want, "%s", i ? "head" : "embed");
    else
        snprintf(want, sizeof want, "layer.%d", i - 1);
    if (strcmp(b->name, want) != 0)
        return nib_fail(err, NIB_E_MODEL, "\"blocks\": expected \"%s\" in place %d, found \"%s\"", want,
                        i + 1, b->name);
    if (b->left_out && (i == 0 || i == n - 1))
        return nib_fail(err, NIB_E_MODEL, "\"left_out\": expected a layer, found \"%s\"", b->name);
    return NIB_OK;
}

static nib_status read_blocks(const json_t *list, plan *out, nib_error *err) {
    const json_t *value;
    size_t i, n = json_array_size(list);
    if (!json_is_array(list) || n < 2 || n > MAX_BLOCK)
        return nib_fail(err, NIB_E_MODEL, "\"blocks\": expected a list of 2 to %d", MAX_BLOCK);
    out->blocks = mem_calloc(n, sizeof *out->blocks);
    if (!out->blocks)
        return nib_fail_nomem(err, n * sizeof *out->blocks, "the plan");
    out->n_block = (int)n;
    json_array_foreach(list, i, value) {
        plan_block *b = &out->blocks[i];
        nib_status status = read_block(value, b, err);
        if (status == NIB_OK)
            status = check_name(b, (int)i, (int)n, err);
        if (status != NIB_OK) {
            char where[PLAN_NAME + 32];
            snprintf(where, sizeof where, "block %zu (%s)", i + 1, b->name);
            return nib_fail_prefix(err, status, where);
        }
    }
    return NIB_OK;
}

/* ---- the run ---- */

static nib_status read_budget(const json_t *from, plan *out, nib_error *err) {
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"budget\"", plan_tier_names, err));
    for (int t = 0; t < NIB_N_TIER; t++)
        NIB_TRY(plan_get_bytes(from, plan_tier_names[t], false, &out->cap[t], err));
    return NIB_OK;
}

static nib_status read_schedule(const json_t *from, plan *out, nib_error *err) {
    static const char *const known[] = {"kind",     "block", "micro_batch", "attend", "n_ctx",  "n_batch",
                                        "n_prompt", "n_gen", "threads",     "packed", "n_best", NULL};
    const int64_t max = 1 << 24;
    char kind[32] = "row";
    int64_t threads = 0, n_best = 0;
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"schedule\"", known, err));
    NIB_TRY(plan_get_name(from, "kind", false, kind, sizeof kind, err));
    if (strcmp(kind, "row") != 0)
        return nib_fail(err, NIB_E_MODEL, "\"kind\": expected row, found \"%s\"", kind);
    NIB_TRY(plan_get_int(from, "n_ctx", 1, max, &out->n_ctx, err));
    NIB_TRY(plan_get_int(from, "n_batch", 1, max, &out->n_batch, err));
    NIB_TRY(plan_get_int(from, "n_prompt", 0, max, &out->n_prompt, err));
    NIB_TRY(plan_get_int(from, "n_gen", 0, max, &out->n_gen, err));
    NIB_TRY(plan_get_int(from, "threads", 0, 1024, &threads, err));
    NIB_TRY(plan_get_int(from, "n_best", 0, 1 << 24, &n_best, err));
    out->n_thread = (int)threads;
    out->n_best = (int)n_best;
    return jsonx_get_bool(from, "packed", false, &out->packed, err);
}

static nib_status read_residual(const json_t *from, plan_residual *out, nib_error *err) {
    static const char *const known[] = {"products", "k_chunk", "n_tb", NULL};
    int64_t n_tb = 0;
    NIB_TRY(plan_check_keys(from, "residuals of products", known, err));
    NIB_TRY(plan_get_name(from, "products", true, out->products, sizeof out->products, err));
    NIB_TRY(plan_get_int(from, "k_chunk", 0, 1024, &out->k_chunk, err));
    NIB_TRY(plan_get_int(from, "n_tb", 0, 1024, &n_tb, err));
    out->n_tb = (int)n_tb;
    return NIB_OK;
}

static nib_status read_residuals(const json_t *from, plan *out, nib_error *err) {
    /* the keys after the first two are measurements for people */
    static const char *const known[] = {"slowdown",           "kinds", "steps", "ram", "read", "perplexity",
                                        "perplexity_without", NULL};
    const json_t *value;
    size_t i;
    if (!from || json_is_null(from))
        return NIB_OK;
    NIB_TRY(plan_check_keys(from, "\"residuals\"", known, err));
    NIB_TRY(plan_get_number(from, "slowdown", &out->slowdown, err));
    const json_t *kinds = json_object_get(from, "kinds");
    if (!json_is_array(kinds) || json_array_size(kinds) > PLAN_MAX_RESIDUAL)
        return nib_fail(err, NIB_E_MODEL, "\"kinds\": expected a list of at most %d", PLAN_MAX_RESIDUAL);
    json_array_foreach(kinds, i, value)
        NIB_TRY(read_residual(value, &out->residuals[out->n_residual++], err));
    return NIB_OK;
}

static nib_status read_mode(const json_t *from, plan *out, nib_error *err) {
    char mode[8] = "a";
    NIB_TRY(plan_get_name(from, "mode", false, mode, sizeof mode, err));
    if (mode[0] < 'a' || mode[0] > 'c' || mode[1])
        return nib_fail(err, NIB_E_MODEL, "\"mode\": expected a, b or c, found \"%s\"", mode);
    out->mode = mode[0];
    return plan_kv_read(json_object_get(from, "kv"), out, err);
}

/* ---- the whole ---- */

static nib_status read_notes(const json_t *list, plan *out, nib_error *err) {
    const json_t *value;
    size_t i;
    if (!list || json_is_null(list))
        return NIB_OK;
    if (!json_is_array(list) || json_array_size(list) > PLAN_MAX_NOTE)
        return nib_fail(err, NIB_E_MODEL, "\"notes\": expected a list of at most %d", PLAN_MAX_NOTE);
    json_array_foreach(list, i, value) {
        if (!json_is_string(value) || json_string_length(value) >= PLAN_NOTE)
            return nib_fail(err, NIB_E_MODEL, "\"notes\": expected texts of at most %d bytes", PLAN_NOTE - 1);
        snprintf(out->notes[out->n_note++], PLAN_NOTE, "%s", json_string_value(value));
    }
    return NIB_OK;
}

/* Checks the parts together. */
static nib_status check_sums(const plan *p, nib_error *err) {
    uint64_t of[NIB_N_TIER] = {0};
    bool left_out = false, rounded = false;
    for (int b = 0; b < p->n_block; b++) {
        left_out |= p->blocks[b].left_out;
        for (int i = 0; i < p->blocks[b].n_slice; i++) {
            const plan_slice *s = &p->blocks[b].slices[i];
            rounded |= strcmp(s->format, "file") != 0;
            if (s->tier != PLAN_LEFT_OUT && !num_add_u64(of[s->tier], s->bytes, &of[s->tier]))
                return nib_fail(err, NIB_E_MODEL, "\"blocks\": the sum of their bytes overflows");
        }
    }
    if (of[NIB_TIER_RAM] > p->cap[NIB_TIER_RAM])
        return nib_fail(err, NIB_E_MODEL,
                        "\"blocks\": expected at most the ram budget of %llu bytes, found %llu",
                        (unsigned long long)p->cap[NIB_TIER_RAM], (unsigned long long)of[NIB_TIER_RAM]);
    if (of[NIB_TIER_VRAM] > p->cap[NIB_TIER_VRAM])
        return nib_fail(err, NIB_E_MODEL,
                        "\"blocks\": expected at most the vram budget of %llu bytes, found %llu",
                        (unsigned long long)p->cap[NIB_TIER_VRAM], (unsigned long long)of[NIB_TIER_VRAM]);
    if (left_out && p->mode == 'a')
        return nib_fail(err, NIB_E_MODEL,
                        "\"mode\": expected b or c for a plan that leaves layers out, found a");
    if (rounded && p->mode == 'b')
        return nib_fail(err, NIB_E_MODEL,
                        "\"mode\": expected c for a plan with other formats than the file's, found b");
    return NIB_OK;
}

static nib_status read_plan(const json_t *from, plan *out, nib_error *err) {
    static const char *const known[] = {
        "model",     "content", "prompts",     "mode",         "budget", "blocks",    "kv",  "schedule",
        "predicted", "binds",   "one_more_gb", "alternatives", "notes",  "residuals", "gpu", NULL};
    for (int t = 0; t < NIB_N_TIER; t++)
        out->cap[t] = NIB_AUTO;
    NIB_TRY(plan_check_keys(from, "the plan", known, err));
    NIB_TRY(plan_get_name(from, "model", true, out->model, sizeof out->model, err));
    NIB_TRY(plan_get_name(from, "content", false, out->content, sizeof out->content, err));
    NIB_TRY(plan_get_name(from, "prompts", false, out->prompts, sizeof out->prompts, err));
    if (strspn(out->prompts, "0123456789abcdef") != strlen(out->prompts)) /* it becomes part of a path */
        return nib_fail(err, NIB_E_MODEL, "\"prompts\": expected hexadecimal digits, found \"%s\"",
                        out->prompts);
    NIB_TRY(plan_get_name(from, "binds", false, out->binds, sizeof out->binds, err));
    NIB_TRY(read_mode(from, out, err));
    NIB_TRY(read_budget(json_object_get(from, "budget"), out, err));
    NIB_TRY(read_schedule(json_object_get(from, "schedule"), out, err));
    NIB_TRY(plan_read_expected(from, out, err));
    NIB_TRY(read_residuals(json_object_get(from, "residuals"), out, err));
    NIB_TRY(read_notes(json_object_get(from, "notes"), out, err));
    NIB_TRY(read_blocks(json_object_get(from, "blocks"), out, err));
    return check_sums(out, err);
}

nib_status plan_parse(const char *text, size_t n_byte, plan *out, nib_error *err) {
    json_t *value;
    plan p;
    memset(&p, 0, sizeof p);
    NIB_TRY(jsonx_parse(text, n_byte, &value, err));
    nib_status status = read_plan(value, &p, err);
    json_decref(value);
    if (status != NIB_OK) {
        plan_clear(&p);
        return status;
    }
    *out = p;
    return NIB_OK;
}

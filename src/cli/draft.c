/* draft.c - the draft model of --draft-model, or the model's own head that predicts later tokens. It keeps
 * its file's formats and is all in memory: streamed from disk, it would be too slow to help.
 *
 * The head is used unasked where weights are streamed from disk and its memory costs little of the planned
 * speed. A wrong proposal then costs little too, and how many are made follows from measurements
 * (sequence/draft.h). */
#include "cli/cli.h"

#include "base/jsonx.h"
#include "base/num.h"
#include "nib_tools.h"

#include <string.h>

/* A draft model without --draft-max gets the default. */
int64_t cli_draft_max(const cli_args *args) {
    return args->draft_model && args->draft_max < 0 ? -args->draft_max : args->draft_max;
}

static uint64_t bytes_to_come(const nib_engine *draft) {
    nib_memory now;
    uint64_t resident = 0;
    nib_engine_memory(draft, &now);
    for (int i = 0; i < NIB_N_OWNER; i++)
        resident += now.owner[i];
    const uint64_t planned = now.tier[NIB_TIER_RAM].planned;
    return planned > resident ? planned - resident : 0;
}

/* Bytes of the model's own head, as a draft model; 0: it has none. */
static uint64_t head_bytes(const char *model) {
    enum { MORE = 8 << 20 /* its keys, values, rows and tables */ };
    char *text = NULL;
    json_t *is = NULL;
    if (nib_model_describe(model, &text, NULL) == NIB_OK)
        jsonx_parse(text, strlen(text), &is, NULL);
    const uint64_t n = (uint64_t)json_integer_value(json_object_get(is, "ahead_bytes"));
    nib_free(text);
    json_decref(is);
    return n > 0 ? n + n / 8 + MORE : 0;
}

/* The planned tokens a second on the processor with weights that are read from disk; 0: there is no such
 * plan. */
static double streamed_speed(const char *model, const nib_engine_options *options, uint64_t ram) {
    nib_engine_options o = *options;
    char *text = NULL;
    json_t *is = NULL;
    o.ram = ram;
    o.progress = NULL;
    o.log = NULL;
    if (nib_plan(model, &o, NULL, &text, NULL) == NIB_OK)
        jsonx_parse(text, strlen(text), &is, NULL);
    const json_t *by = json_object_get(is, "predicted"), *moved = json_object_get(by, "bytes_per_token");
    const bool streams = json_number_value(json_object_get(moved, "disk")) > 0 &&
                         json_number_value(json_object_get(moved, "vram")) <= 0;
    const double speed = json_number_value(json_object_get(by, "tok_s"));
    nib_free(text);
    json_decref(is);
    return streams ? speed : 0;
}

/* Whether the model's own head is used unasked; *n_byte: bytes that it may have. It pays from an acceptance
 * rate of a seventh on: published heads have 0.6 to 0.9. */
static bool head_pays(const cli_args *args, const nib_engine_options *o, uint64_t *n_byte) {
    enum { SHARE = 8 }; /* at most this fraction of the speed is lost if no proposal is right */
    if (args->draft_model || args->draft_max >= 0 || !args->model || args->plan || o->ram == NIB_AUTO ||
        !o->stream || o->devices || o->hosts)
        return false;
    *n_byte = head_bytes(args->model);
    if (*n_byte == 0 || *n_byte >= o->ram)
        return false;
    const double without = streamed_speed(args->model, o, o->ram);
    return without > 0 && streamed_speed(args->model, o, o->ram - *n_byte) >= without * (SHARE - 1) / SHARE;
}

int cli_open_draft(const cli_args *args, const nib_engine_options *options, nib_engine **draft,
                   uint64_t *n_byte) {
    nib_engine_options o = *options;
    nib_error err;
    uint64_t max = 0;
    const bool unasked = head_pays(args, options, &max);
    if (!args->draft_model && !unasked)
        return 0;
    const int code = cli_named_options(args, &o);
    if (code)
        return code;
    o.n_logits = 0;
    o.n_draft = o.n_best = 0;
    o.grammar = o.stream = false;
    o.residual = NULL;
    o.sparse_v = 0;
    o.devices = o.hosts = NULL; /* proposals are made where tokens are drawn */
    o.split = NIB_SPLIT_LAYER;
    o.ahead = unasked || !strcmp(args->draft_model, "mtp");
    if (o.ahead) { /* one layer: codes would save little, and their blocks cannot be written again */
        o.kv_type = 0;
        o.kv_layers = NULL;
    }
    if (nib_engine_open(o.ahead ? args->model : args->draft_model, &o, draft, &err))
        return unasked && err.status != NIB_E_CANCELLED ? 0 : cli_fail(&err);
    *n_byte = bytes_to_come(*draft);
    if (unasked && *n_byte > max) {
        nib_engine_close(*draft);
        *draft = NULL;
        *n_byte = 0;
    } else if (unasked)
        cli_note(args, "weights are streamed, so the model's own head proposes tokens (--draft-max 0: none)");
    return 0;
}

/* VRAM is counted by engine, so the target gets what the draft model leaves of the cap. */
void cli_leave_vram(const nib_engine *draft, nib_engine_options *options) {
    nib_memory of;
    if (!draft || options->vram == NIB_AUTO)
        return;
    nib_engine_memory(draft, &of);
    options->vram -= NUM_MIN(options->vram, of.tier[NIB_TIER_VRAM].planned);
}

static uint64_t cap_of(void *user, uint64_t ram) {
    return ram + ((const cli_args *)user)->beside;
}

int cli_session_draft(cli_args *args, nib_engine_options *options, nib_engine **draft) {
    options->n_draft = (int32_t)cli_draft_max(args);
    const int code = *draft ? 0 : cli_open_draft(args, options, draft, &args->beside);
    if (code || !*draft)
        return code;
    args->beside = bytes_to_come(*draft);
    options->cap_of = cap_of;
    if (options->ram != NIB_AUTO)
        options->ram -= NUM_MIN(options->ram, args->beside);
    cli_leave_vram(*draft, options);
    return 0;
}

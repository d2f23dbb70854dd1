/* draft.c - the draft model of --draft-model, or the model's own head that predicts later tokens. It keeps
 * its file's formats and is all in memory: streamed from disk, it would be too slow to help. */
#include "cli/cli.h"

#include "base/num.h"

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

int cli_open_draft(const cli_args *args, const nib_engine_options *options, nib_engine **draft,
                   uint64_t *n_byte) {
    nib_engine_options o = *options;
    nib_error err;
    if (!args->draft_model)
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
    o.ahead = !strcmp(args->draft_model, "mtp");
    if (o.ahead) { /* one layer: codes would save little, and their blocks cannot be written again */
        o.kv_type = 0;
        o.kv_layers = NULL;
    }
    if (nib_engine_open(o.ahead ? args->model : args->draft_model, &o, draft, &err))
        return cli_fail(&err);
    *n_byte = bytes_to_come(*draft);
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
    options->lender = *draft;
    options->cap_of = cap_of;
    if (options->ram != NIB_AUTO)
        options->ram -= NUM_MIN(options->ram, args->beside);
    cli_leave_vram(*draft, options);
    return 0;
}

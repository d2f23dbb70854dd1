/* serve_engine.c - see serve.h: the engines of nibble serve and nibble batch. */
#include "cli/serve/serve.h"

#include "base/jsonx.h"
#include "base/num.h"
#include "base/status.h"
#include "nib_tools.h"

#include <string.h>

enum { REQUEST_SHARE = 12, KV_PAGE = 64 /* positions */, USUAL_ROWS = 512 /* of a pass */ };
#define MIN_REQUEST_BYTES (UINT64_C(3) << 20)
#define MAX_REQUEST_BYTES (UINT64_C(64) << 20)

/* 1/REQUEST_SHARE of the cap, within the bounds above. */
static uint64_t request_bytes(uint64_t ram) {
    return NUM_MIN(NUM_MAX(ram / REQUEST_SHARE, MIN_REQUEST_BYTES), MAX_REQUEST_BYTES);
}

uint64_t serve_request_bytes(const cli_args *args) {
    return args->ram == NIB_AUTO ? 0 : request_bytes(args->ram);
}

static uint64_t line_bytes(uint64_t requests, uint64_t max_body) {
    return 2 * NUM_MIN(max_body, requests / SERVE_BODY_SHARE);
}

/* The bytes beside engines grow with the cap, much slower than it. */
uint64_t serve_cap_of(uint64_t ram, uint64_t others, uint64_t max_body) {
    uint64_t cap, next = ram;
    do {
        cap = next;
        const uint64_t requests = request_bytes(cap);
        if (!num_add_u64(ram, others + requests + line_bytes(requests, max_body), &next))
            return UINT64_MAX;
    } while (next > cap);
    return cap;
}

/* Bytes that a line of a batch takes, as read and as its body, under the cap on RAM. */
static uint64_t job_line_bytes(const serve_job *job) {
    return line_bytes(serve_request_bytes(job->args), job->max_body);
}

static uint64_t cap_of(void *user, uint64_t ram) {
    const serve_opening *o = user;
    return serve_cap_of(ram, o->beside, o->job->max_body);
}

static bool cancels(void *user) {
    const serve_opening *o = user;
    return atomic_load(&o->loading) && cli_interrupted();
}

static bool progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const serve_opening *o = user;
    return cli_progress(o->job->args, what, done, total);
}

static void log_line(void *user, const char *line) {
    const serve_opening *o = user;
    cli_log(o->job->args, line);
}

/* Number of contexts in the KV cache: --cache-size may be less than --parallel contexts. */
static int sessions_of(const serve_job *job) {
    const int64_t n_ctx = job->args->ctx_size, n = job->args->cache_size;
    if (n == 0 || n_ctx <= 0)
        return job->n_sequence;
    return (int)NUM_MIN(NUM_MAX(num_div_up(n, n_ctx), 1), (int64_t)job->n_sequence);
}

/* An engine's sessions for other uses than answers. */
int serve_sessions_beside(const serve_job *job) {
    return job->args->embeddings ? 1 : 0;
}

/* The context of a model without -c. A plan that is refused leaves it: opening says why. */
static nib_status usual_context(const serve_job *job, const char *model, const nib_engine_options *o,
                                int64_t *n_ctx, nib_error *err) {
    nib_engine_options one = *o;
    json_t *plan = NULL;
    char *text = NULL;
    one.n_session = 1 + serve_sessions_beside(job);
    one.progress = NULL;
    one.log = NULL;
    nib_status status = nib_plan(model, &one, o->planning, &text, err);
    if (status == NIB_OK)
        status = jsonx_parse(text, strlen(text), &plan, err);
    nib_free(text);
    if (status == NIB_OK)
        *n_ctx = json_integer_value(json_object_get(json_object_get(plan, "schedule"), "n_ctx"));
    json_decref(plan);
    return status == NIB_E_NOMEM ? status : NIB_OK;
}

/* Sets the number of contexts of o->n_ctx positions: as many as leave the weights in memory, at least one. An
 * answer that waits for pages costs less than weights that are streamed for every token. NIB_E_NOFIT: none.
 */
static nib_status fit_contexts(const serve_job *job, const char *model, nib_engine_options *o,
                               nib_error *err) {
    const int beside = serve_sessions_beside(job);
    const bool planned = job->n_position > 0;
    nib_status status = NIB_E_NOFIT;
    if (planned && o->n_ctx > 0)
        o->n_session =
            (int32_t)NUM_MIN(num_div_up(job->n_position, o->n_ctx) + beside, (int64_t)o->n_session);
    nib_engine_options resident = *o;
    resident.stream = planned && o->stream;
    resident.progress = NULL;
    resident.log = NULL;
    for (; status == NIB_E_NOFIT && resident.n_session > beside; resident.n_session--) {
        char *text = NULL;
        status = nib_plan(model, &resident, o->planning, &text, err);
        nib_free(text);
        o->n_session = resident.n_session;
    }
    return status;
}

/* Sets the size of the KV cache if no option does. Under a small cap the usual context may be shorter than
 * the requests that a plan has memory for. */
static nib_status fit_sessions(const serve_job *job, const char *model, nib_engine_options *o,
                               nib_error *err) {
    const cli_args *args = job->args;
    if ((o->ram == NIB_AUTO && job->n_position == 0) || args->parallel || args->cache_size || args->plan)
        return NIB_OK;
    const bool usual = o->n_ctx == 0;
    if (usual)
        NIB_TRY(usual_context(job, model, o, &o->n_ctx, err));
    const int64_t lengths[] = {job->n_ctx, NUM_MIN(job->n_ctx, job->n_position / job->n_sequence)};
    for (size_t i = 0; usual && o->n_ctx > 0 && i < NUM_COUNT(lengths); i++) {
        nib_engine_options longer = *o;
        longer.n_ctx = lengths[i];
        if (longer.n_ctx > o->n_ctx && fit_contexts(job, model, &longer, err) == NIB_OK) {
            *o = longer;
            return NIB_OK;
        }
    }
    const nib_status status = fit_contexts(job, model, o, err);
    return status == NIB_E_NOMEM ? status : NIB_OK;
}

/* The options if any of them asks for a plan, else NULL. */
static const nib_plan_options *planning_of(const nib_plan_options *how) {
    return how->quality || how->speed > 0 || how->mode ? how : NULL;
}

/* The options of plans for requests. *how: those that `o` refers to. Returns an exit code. */
static int plan_options(const serve_job *job, nib_engine_options *o, nib_plan_options *how) {
    cli_engine_options(job->args, o);
    int code = serve_engine_ram(job->args, job->kept_bytes + job_line_bytes(job), &o->ram);
    if (!code)
        code = cli_plan_options(job->args, how);
    if (code)
        return code;
    o->planning = planning_of(how);
    o->n_session = 1;
    o->grammar = true;
    o->progress = NULL;
    o->log = NULL;
    return cli_named_options(job->args, o);
}

int serve_plan(serve_job *job, const nib_workload *work, nib_flow *out, size_t max, size_t *n) {
    const cli_args *args = job->args;
    nib_engine_options o;
    nib_plan_options how;
    nib_error err;
    *n = 0;
    if (args->parallel || args->cache_size || args->plan || args->draft_model || args->devices ||
        args->hosts || !args->model)
        return 0;
    const int code = plan_options(job, &o, &how);
    if (code)
        return code;
    if (nib_plan_flows(args->model, &o, work, NIB_FLOWS_FASTEST, out, max, n, &err) == NIB_OK)
        return 0;
    *n = 0;
    if (work->max_latency_s > 0)
        return cli_fail(&err);
    cli_note(args, "nibble: no plan for the requests: %s", err.message);
    return 0;
}

void serve_follow(serve_job *job, const nib_workload *work, const nib_flow *plan) {
    job->n_sequence = (int)plan->n_sequence;
    job->n_pass = plan->n_pass;
    job->n_position = plan->n_sequence * num_round_up(work->n_position, KV_PAGE);
    job->n_ctx = plan->n_ctx;
    job->kv_on_disk = plan->kv_on_disk;
    job->max_n_ctx = work->max_n_ctx;
    job->format = plan->formats[plan->format];
    job->kv_loss = plan->kv_loss;
    memcpy(job->kv_layers, plan->kv_layers, sizeof job->kv_layers);
}

void serve_keep_trial(serve_job *job, const nib_workload *work, const nib_flow *plan, double tok_s) {
    nib_engine_options o;
    nib_plan_options how;
    nib_error why;
    if (!plan_options(job, &o, &how) && nib_keep_trial(job->args->model, &o, work, plan, tok_s, &why))
        cli_note(job->args, "nibble: the trial is not kept: %s", why.message);
}

/* Rows of logits in one pass: one for each answer, and those of tokens proposed for some of them. */
static int64_t logits_rows(const serve_job *job) {
    enum { ENOUGH = 32 };
    const int64_t all = job->n_sequence * (1 + NUM_MAX(cli_draft_max(job->args), (int64_t)0));
    return NUM_MIN(all, NUM_MAX(job->n_sequence, ENOUGH));
}

static uint64_t without(uint64_t cap, uint64_t taken) {
    return cap == NIB_AUTO ? cap : cap - NUM_MIN(cap, taken);
}

int serve_engine_ram(const cli_args *args, uint64_t others, uint64_t *ram) {
    const uint64_t taken = serve_request_bytes(args) + others;
    char size[32];
    *ram = without(args->ram, taken);
    if (args->ram > taken)
        return 0;
    return cli_usage_error("--ram: expected more than the %s that are reserved for requests",
                           num_format_size(taken, size));
}

/* reserved: bytes that other engines have. */
static int engine_options(const serve_job *job, serve_opening *at, uint64_t reserved, nib_engine_options *o) {
    cli_engine_options(job->args, o);
    const int code = serve_engine_ram(job->args, job->kept_bytes + job_line_bytes(job), &o->ram);
    if (code)
        return code;
    at->beside = job->kept_bytes + job->draft_bytes + reserved;
    o->ram = without(o->ram, job->draft_bytes + reserved);
    cli_leave_vram(job->draft, o);
    o->lender = job->draft;
    o->cap_of = cap_of;
    o->n_session = sessions_of(job) + serve_sessions_beside(job);
    o->n_sequence = job->n_sequence + serve_sessions_beside(job);
    o->n_logits = logits_rows(job);
    o->n_draft = (int32_t)cli_draft_max(job->args);
    o->kv_on_disk = job->kv_on_disk;
    o->max_n_ctx = job->max_n_ctx;
    o->grammar = true;
    if (o->n_batch && o->n_batch < job->n_sequence)
        return cli_usage_error("-b: expected at least the %d sequences of --parallel", job->n_sequence);
    o->cancel = cancels;
    o->progress = progress;
    o->log = log_line;
    o->user = at;
    if (!o->n_batch && NUM_MAX(job->n_pass, job->n_sequence) > USUAL_ROWS)
        o->n_batch = NUM_MAX(job->n_pass, job->n_sequence);
    const int named = cli_named_options(job->args, o);
    if (o->kv_type == NIB_KV_AUTO && job->format.kv_type) {
        o->kv_type = job->format.kv_type == NIB_KV_AUTO ? NIB_KV_F16 : job->format.kv_type;
        o->kv_layers = job->kv_layers;
    }
    return named;
}

/* Reads the options of plans; formats of weights that the plan for requests has chosen stay. */
static int read_planning(const serve_job *job, nib_plan_options *how) {
    const int code = cli_plan_options(job->args, how);
    how->weights = job->format.weights;
    how->kv_loss = job->kv_loss;
    return code;
}

/* Called by the server's loading thread while it serves. */
nib_status serve_open_on_demand(void *user, size_t model, const server_reserved *reserved, nib_engine **out,
                                nib_error *err) {
    serve_job *job = user;
    serve_opening *at = &job->openings[model];
    nib_engine_options o;
    nib_plan_options how;
    if (engine_options(job, at, reserved->ram, &o) ||
        read_planning(job, &how)) /* they were checked at the start */
        return nib_fail(err, NIB_E_USAGE, "the options are invalid");
    o.vram = without(o.vram, reserved->vram);
    o.stream = o.stream && reserved->alone;
    o.progress = NULL;
    o.planning = planning_of(&how);
    NIB_TRY(fit_sessions(job, job->paths[model], &o, err));
    atomic_store(&at->loading, true);
    const nib_status status = nib_engine_open(job->paths[model], &o, out, err);
    atomic_store(&at->loading, false);
    if (status != NIB_OK || nib_engine_info(*out)->has_tokenizer)
        return status;
    nib_engine_close(*out);
    return nib_fail(err, NIB_E_MODEL, "it has no tokenizer: there is nothing to serve");
}

int serve_open_draft(serve_job *job) {
    const cli_args *args = job->args;
    nib_engine_options o;
    if (!args->draft_model)
        return 0;
    if (args->models)
        return cli_usage_error("--draft-model is for one model and cannot be combined with --models");
    serve_opening *at = &job->draft_opening;
    at->job = job;
    int code = engine_options(job, at, 0, &o);
    if (code)
        return code;
    o.n_session = job->n_sequence;
    atomic_store(&at->loading, true);
    code = cli_open_draft(args, &o, &job->draft, &job->draft_bytes);
    atomic_store(&at->loading, false);
    if (!code)
        server_draft(job->server, job->draft, job->draft_bytes);
    return code;
}

memory_use serve_memory(const serve_job *job, const nib_engine *engine) {
    nib_memory own;
    nib_engine_memory(engine, &own);
    const uint64_t ram = job->args->ram, cap = own.tier[NIB_TIER_RAM].cap;
    return (memory_use){engine, job->draft, ram != NIB_AUTO && ram > cap ? ram - cap : job->draft_bytes};
}

/* Opens the model that is loaded at the start. *out NULL: there is none. */
int serve_open_first(serve_job *job, nib_engine **out) {
    nib_engine_options o;
    nib_plan_options how;
    nib_error err;
    serve_opening *at = &job->openings[0];
    int code = engine_options(job, at, 0, &o);
    *out = NULL;
    if (!code)
        code = read_planning(job, &how);
    if (code || !job->args->model)
        return code;
    o.planning = planning_of(&how);
    if (fit_sessions(job, job->args->model, &o, &err))
        return cli_fail(&err);
    atomic_store(&at->loading, true);
    code = cli_open_engine(job->args, &o, out);
    atomic_store(&at->loading, false);
    if (code || nib_engine_info(*out)->has_tokenizer)
        return code;
    nib_engine_close(*out);
    return cli_usage_error("%s has no tokenizer: there is nothing to serve", job->args->model);
}

/* cmd_batch.c - nibble batch: computes the requests of a file together, and writes their answers to another
 * file.
 *
 * server/batch_file.h says what happens to a line. */
#include "cli/bench/lanes.h"
#include "cli/serve/serve.h"
#include "cli/options/workload.h"
#include "server/batch_file.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    USUAL_SEQUENCES = 16,
    USUAL_BODY = 1 << 20,
    MAX_TRIAL = 3,         /* plans that may be tried */
    ALL_QUEUE = 100000,    /* not a limit: answer_lines limits the waiting requests */
    KEYS_UNDER_CAP = 49152 /* maximum lines of an input that cannot be counted first */
};
#define USUAL_REQUEST_BYTES (UINT64_C(256) << 20)
#define SHOW_S              0.2

typedef struct batch_run {
    cli_args *args;
    serve_job serve;
    batch_file work;
    double begun, shown;
    nib_flow flow; /* the schedule; with tok_s: a plan made it */
    nib_workload lengths;
    nib_flow plans[MAX_TRIAL]; /* the fastest ones, of which trial runs may choose */
    size_t n_plan;
    int schedule; /* a nib_schedule */
    bench_lanes lanes;
    bool summed; /* the summary was printed */
} batch_run;

/* ---- all lines ---- */

static void show(batch_run *b) {
    char line[200], of[32] = "", left[64] = "";
    const double now = time_now();
    const int64_t n = batch_file_done(&b->work);
    if (now - b->shown < SHOW_S)
        return;
    b->shown = now;
    if (b->work.n_line)
        snprintf(of, sizeof of, " of %lld", (long long)b->work.n_line);
    if (b->work.n_line && n > b->work.n_kept)
        snprintf(left, sizeof left, ", %.0f s left",
                 (now - b->begun) / (double)(n - b->work.n_kept) *
                     (double)NUM_MAX(b->work.n_line - n, (int64_t)0));
    snprintf(line, sizeof line, "%lld%s lines, %.1f tok/s%s%s%s", (long long)n, of,
             (double)b->work.n_predicted / (now - b->begun), left, b->flow.tok_s > 0 ? "; bound by " : "",
             b->flow.tok_s > 0 ? b->flow.binds : "");
    cli_progress_line(b->args, line);
}

static void wait_for(void *user, int fd, int max_ms) {
    (void)user;
    cli_wait_input(fd, max_ms);
}

/* Fails if a line has no answer. */
static nib_status say_unanswered(const batch_run *b, nib_error *err) {
    const int64_t n = b->work.n_refused + b->work.n_invalid + b->work.n_failed;
    *err = b->work.unread;
    if (err->status || n == 0)
        return err->status;
    if (b->work.n_failed)
        return nib_fail(err, NIB_E_FAILED, "%lld lines have no answer, %lld of them for this reason: %s",
                        (long long)n, (long long)b->work.n_failed, b->work.failed.message);
    return nib_fail(err, NIB_E_FAILED, "%lld lines have no answer: the output says why", (long long)n);
}

/* Answers lines until `most` of them have replies, or all. */
static nib_status answer_lines(batch_run *b, int64_t most, nib_error *err) {
    const server_host host = {.wait = wait_for};
    server *s = b->serve.server;
    const int64_t before = batch_file_done(&b->work) - b->work.n_kept;
    while (!cli_interrupted()) {
        const int64_t done = batch_file_done(&b->work) - b->work.n_kept - before;
        const int64_t left = NUM_MAX(most - done, (int64_t)0); /* lines that are no requests go beyond it */
        NIB_TRY(batch_file_ask(&b->work, s, (size_t)NUM_MIN(2 * (int64_t)b->serve.n_sequence, left), err));
        if (server_n_answer(s) > 0)
            server_compute(s, &host);
        else if (b->work.ended || (left == 0 && b->work.n_asked == 0))
            break;
        else if (b->work.waits)
            cli_wait_input(b->work.in.fd, -1);
        NIB_TRY(batch_file_write(&b->work, s, err));
        show(b);
    }
    return cli_interrupted() ? nib_fail(err, NIB_E_CANCELLED, "interrupted") : NIB_OK;
}

static nib_status answer_all(batch_run *b, nib_error *err) {
    NIB_TRY(answer_lines(b, INT64_MAX, err));
    return say_unanswered(b, err);
}

/* ---- the files ---- */

/* Counts the lines of the input; 0: not known, since it cannot be read twice. */
static nib_status count_lines(batch_run *b, nib_error *err) {
    enum { BLOCK = 64 << 10 };
    struct stat of;
    ssize_t got = 0;
    char *block = mem_alloc(BLOCK), last = '\n';
    if (!block)
        return nib_fail_nomem(err, BLOCK, "counting lines");
    if (!fstat(b->work.in.fd, &of) && S_ISREG(of.st_mode)) {
        while (!cli_interrupted() && (got = read(b->work.in.fd, block, BLOCK)) > 0) {
            for (const char *at = block; (at = memchr(at, '\n', (size_t)(block + got - at))); at++)
                b->work.n_line++;
            last = block[got - 1];
        }
        b->work.n_line += last != '\n';
        got = got < 0 || lseek(b->work.in.fd, 0, SEEK_SET) < 0 ? -1 : 0;
    }
    mem_free(block);
    if (got < 0)
        return nib_fail_errno(err, "cannot read", b->args->input, errno);
    return cli_interrupted() ? nib_fail(err, NIB_E_CANCELLED, "interrupted") : NIB_OK;
}

/* True if both are the same file: the answers would be read as requests. */
static bool is_same_file(int one, int two) {
    struct stat a, b;
    return one >= 0 && two >= 0 && !fstat(one, &a) && !fstat(two, &b) && S_ISREG(a.st_mode) &&
           a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static int open_input(batch_run *b) {
    const char *path = b->args->input;
    if (!strcmp(path, "-"))
        return cli_stdin_closed() ? cli_usage_error("-i -: stdin is closed") : 0;
    if (path_is_dir(path))
        return cli_usage_error("-i: expected a file, found the folder %s", path);
    b->work.in.fd = open(path, O_RDONLY | O_CLOEXEC);
    return b->work.in.fd < 0 ? cli_usage_error("-i: cannot read %s: %s", path, strerror(errno)) : 0;
}

/* Reserves memory for the keys of all lines if their number is known. */
static nib_status open_keys(batch_run *b, nib_error *err) {
    const bool capped = b->args->ram != NIB_AUTO;
    uint64_t n_out;
    NIB_TRY(count_lines(b, err));
    NIB_TRY(batch_output_count(&b->work.out, &n_out, err));
    const uint64_t n = n_out + (b->work.n_line || !capped ? (uint64_t)b->work.n_line : KEYS_UNDER_CAP);
    if (!key_set_open(&b->work.keys, n, capped))
        return nib_fail_nomem(err, key_set_bytes(n), "the ids of lines");
    b->serve.kept_bytes = key_set_bytes(n) + 2 * BATCH_ENVELOPE_BYTES;
    return batch_output_load(&b->work.out, &b->work.keys, err);
}

static int open_files(batch_run *b) {
    const cli_args *args = b->args;
    nib_error err;
    if (!args->input || !args->output)
        return cli_usage_error("which files? usage: nibble batch MODEL -i IN.jsonl -o OUT.jsonl");
    if (args->json && !strcmp(args->output, "-"))
        return cli_usage_error("--json prints on stdout: give a file with -o");
    const int code = open_input(b);
    if (code)
        return code;
    /* before an incomplete last line is cut off */
    b->work.out.fd = strcmp(args->output, "-") ? open(args->output, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const bool same = is_same_file(b->work.in.fd, b->work.out.fd);
    if (b->work.out.fd >= 0)
        close(b->work.out.fd);
    b->work.out.fd = -1;
    if (same)
        return cli_usage_error("-o: expected another file than -i, found the same one");
    if (batch_output_open(&b->work.out, args->output, &err) || open_keys(b, &err))
        return cli_fail(&err);
    return 0;
}

/* ---- a run ---- */

/* Whether a plan that stands on guesses waits until the machine has been measured: where the job is much
 * longer than that takes, and the caps have room for it. */
static bool is_worth_measuring(const batch_run *b) {
    enum { LONG = 120 };
    const uint64_t held = UINT64_C(2) << 30; /* the measurement keeps about 1 GiB of RAM */
    const uint64_t ram = b->args->ram, vram = b->args->vram;
    return b->flow.guessed && b->flow.seconds > LONG && (ram == NIB_AUTO || ram > 2 * held) &&
           (vram == NIB_AUTO || vram > 2 * held);
}

/* Plans from the lengths; b->flow is the fastest plan then. */
static int make_plans(batch_run *b) {
    const int code = serve_plan(&b->serve, &b->lengths, b->plans, MAX_TRIAL, &b->n_plan);
    if (b->n_plan > 0) {
        b->flow = b->plans[0];
        serve_follow(&b->serve, &b->lengths, &b->flow);
    }
    return code;
}

static int plan_lengths(batch_run *b) {
    const nib_hardware_options o = {.folder = b->args->scratch,
                                    .progress = cli_progress,
                                    .log = cli_log,
                                    .cancel = cli_cancel,
                                    .user = b->args};
    char *text = NULL;
    nib_error err;
    int code = make_plans(b);
    if (code || !is_worth_measuring(b))
        return code;
    cli_note(b->args,
             "nibble: measuring this machine, once, since the plan depends on its rates (nibble hw)");
    if (nib_hardware(&o, &text, &err))
        cli_note(b->args, "nibble: %s", err.message);
    else
        code = make_plans(b);
    nib_free(text);
    return code;
}

/* Sets the schedule, and plans what no option decides from the lengths of the requests. */
static int plan_work(batch_run *b) {
    static const char *const kinds[] = {
        [NIB_SCHEDULE_REFILL] = "refill", [NIB_SCHEDULE_BLOCK] = "block", [NIB_SCHEDULE_ROW] = "row"};
    const cli_args *args = b->args;
    nib_workload *work = &b->lengths;
    int kind = NIB_SCHEDULE_REFILL;
    while (args->schedule && kind <= NIB_SCHEDULE_ROW && strcmp(args->schedule, kinds[kind]) != 0)
        kind++;
    if (kind > NIB_SCHEDULE_ROW)
        return cli_usage_error("--schedule: expected refill, block or row, found '%s'", args->schedule);
    if (args->order && strcmp(args->order, "done") != 0 && strcmp(args->order, "input") != 0)
        return cli_usage_error("--order: expected done or input, found '%s'", args->order);
    b->work.in_order = args->order && !strcmp(args->order, "input");
    if (workload_of_file(b->work.in.fd, b->work.n_line, work)) {
        work->max_latency_s = args->max_latency;
        const int code = plan_lengths(b);
        if (code)
            return code;
    }
    if (args->max_latency > 0 && b->n_plan == 0)
        return cli_usage_error("--max-latency needs a plan: a file of requests as input, and no --parallel, "
                               "--cache-size, --plan, --draft-model, --devices or --hosts");
    if (b->flow.tok_s > 0)
        cli_note(args,
                 "nibble: plan for %lld requests of %.0f + %.0f tokens: %lld together, %.1f tok/s, %s binds",
                 (long long)work->n_request, work->n_prompt, work->n_gen, (long long)b->flow.n_sequence,
                 (double)work->n_request * work->n_gen / b->flow.seconds, b->flow.binds);
    b->schedule = kind;
    b->work.max_line = KEYS_UNDER_CAP;
    b->work.name = args->input;
    b->work.stops = cli_interrupted;
    return 0;
}

static int open_server(batch_run *b) {
    serve_job *job = &b->serve;
    const cli_args *args = b->args;
    const uint64_t capped = serve_request_bytes(args), requests = capped ? capped : USUAL_REQUEST_BYTES;
    const uint64_t body = args->max_body == NIB_AUTO ? USUAL_BODY : args->max_body;
    const server_options o = {
        .local = true,
        .models = job->models,
        .n_model = job->n_model,
        .open = serve_open_on_demand,
        .opener = job,
        .ram_cap = args->ram,
        .n_queue = ALL_QUEUE,
        .max_body = NUM_MIN(body, requests / SERVE_BODY_SHARE),
        .request_bytes = requests,
        .prefix_cache = args->prefix_cache,
        .prefix_bytes = args->prefix_cache_size == NIB_AUTO ? 0 : args->prefix_cache_size,
        /* a plan has memory for all running answers, so none comes back */
        .cache_ram = b->flow.tok_s > 0 && args->cache_ram == NIB_AUTO ? 0 : args->cache_ram,
        .n_beside = serve_sessions_beside(job),
        .n_position = args->cache_size,
        .n_draft = (int)cli_draft_max(args),
        .n_draft_min = (int)args->draft_min,
        .schedule = b->schedule,
        .pooling = job->pooling,
        .special_in_messages = args->special_in_messages,
        .log = cli_log,
        .user = job->args};
    nib_error err;
    b->work.in.max = o.max_body + BATCH_ENVELOPE_BYTES;
    b->work.values = requests / 8 * 3;
    job->max_body = body; /* a line as read, and its body */
    return server_open(&o, &job->server, &err) ? cli_fail(&err) : 0;
}

static json_t *summary_json(const batch_run *b, double seconds) {
    const double rate = seconds > 0 ? (double)b->work.n_predicted / seconds : 0.0;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I, s:f, s:f}}", "answered",
                     (json_int_t)b->work.n_answered, "refused", (json_int_t)b->work.n_refused, "invalid",
                     (json_int_t)b->work.n_invalid, "failed", (json_int_t)b->work.n_failed, "retried",
                     (json_int_t)b->work.n_retried, "kept", (json_int_t)b->work.n_kept, "timings", "prompt_n",
                     (json_int_t)b->work.n_prompt, "predicted_n", (json_int_t)b->work.n_predicted, "seconds",
                     seconds, "predicted_per_second", rate);
}

static void say_summary(const batch_run *b, double seconds, bool whole) {
    char more[240] = "";
    size_t n = 0;
    const struct {
        int64_t n;
        const char *what;
    } parts[] = {{b->work.n_refused, "refused (the response says why)"},
                 {b->work.n_invalid, "not requests (the error says why)"},
                 {b->work.n_failed, "failed"},
                 {b->work.n_kept, "answered before"},
                 {b->work.n_retried, "asked again"}};
    for (size_t i = 0; i < NUM_COUNT(parts); i++)
        if (parts[i].n)
            n += (size_t)snprintf(more + n, sizeof more - n, ", %lld %s", (long long)parts[i].n,
                                  parts[i].what);
    cli_note(b->args, "nibble: %lld lines answered%s; %llu + %llu tokens in %.1f s, %.1f tok/s%s",
             (long long)b->work.n_answered, more, (unsigned long long)b->work.n_prompt,
             (unsigned long long)b->work.n_predicted, seconds,
             seconds > 0 ? (double)b->work.n_predicted / seconds : 0.0,
             whole                 ? ""
             : b->work.out.regular ? "; the same command continues, and asks again what has no answer"
                                   : "");
}

/* Adds the schedule, the seconds of lanes, and the memory. */
static void add_engine(batch_run *b, nib_engine *engine, json_t *summary) {
    b->flow.schedule = b->schedule;
    b->flow.n_sequence = b->serve.n_sequence;
    json_object_set_new(summary, "schedule", workload_schedule(&b->flow));
    json_object_set_new(summary, "lanes", bench_lanes_end(&b->lanes, engine));
    json_object_set_new(summary, "memory", memory_json(serve_memory(&b->serve, engine)));
}

/* Says what a run has done. Returns its document, or NULL. engine NULL: none is open. */
static json_t *sum_up(batch_run *b, nib_engine *engine, bool whole) {
    const double seconds = time_now() - b->begun;
    b->summed = true;
    say_summary(b, seconds, whole);
    if (b->args->verbose && engine)
        cli_print_memory(b->args, serve_memory(&b->serve, engine), stderr);
    json_t *summary = b->args->json ? summary_json(b, seconds) : NULL;
    if (summary && engine)
        add_engine(b, engine, summary);
    return summary;
}

static int finish(batch_run *b, nib_engine *engine, nib_status status, nib_error *err) {
    nib_error closing;
    if (batch_output_close(&b->work.out, &closing) && status == NIB_OK) {
        *err = closing;
        status = closing.status;
    }
    json_t *summary = sum_up(b, engine, status == NIB_OK);
    if (status == NIB_OK)
        return summary ? cli_write_json(summary, b->args) : 0;
    cli_made(summary);
    return cli_fail(err);
}

/* ---- trial runs ---- */

/* Lines of a trial run for each of its sequences. */
enum { TRIAL_ROUNDS = 2 };

/* How many of the plans are expected to be about as fast as the first: rates are predicted to some 25 %. */
static size_t n_near(const batch_run *b) {
    size_t n = 0;
    while (n < b->n_plan && b->plans[n].tok_s > 0.75 * b->plans[0].tok_s)
        n++;
    return n;
}

/* Whether trial runs of n plans pay: their first and last passes are not full, and engines are opened. */
static bool is_worth_trying(const batch_run *b, size_t n) {
    enum { LONG = 120, SHARE = 5 };
    int64_t lines = b->plans[0].n_sequence; /* which are not timed */
    for (size_t i = 0; i < n; i++)
        lines += TRIAL_ROUNDS * b->plans[i].n_sequence;
    return n > 1 && b->flow.seconds > LONG && lines * SHARE <= b->work.n_line - (int64_t)b->work.keys.n;
}

/* Opens an engine for a plan. If opening those of n plans would take much of the job's time, *opened is this
 * one, which is not begun; n 0: it never does. Returns an exit code. */
static int open_plan(batch_run *b, size_t n, nib_engine **opened) {
    enum { SHARE = 20 };
    nib_engine *engine = NULL;
    nib_error err;
    const double begun = time_now();
    int code = open_server(b);
    if (!code)
        code = serve_open_first(&b->serve, &engine);
    if (!code && (time_now() - begun) * (double)n * SHARE > b->flow.seconds)
        *opened = engine;
    else if (!code && server_begin(b->serve.server, engine, b->serve.n_sequence, &err))
        code = cli_fail(&err);
    return code;
}

/* Answers some lines by plan i of n, and sets what it reaches, or 0 if it is not the first and cannot be
 * opened. *opened: the engine of the first, if opening takes so long that none is tried. Returns an exit
 * code.
 */
static int try_plan(batch_run *b, size_t i, size_t n, nib_engine **opened) {
    nib_flow *plan = &b->plans[i];
    nib_error err;
    plan->measured_tok_s = 0;
    serve_follow(&b->serve, &b->lengths, plan);
    int code = open_plan(b, i == 0 ? n : 0, opened);
    if (*opened)
        return 0;
    if (!code) {
        b->begun = b->begun > 0 ? b->begun : time_now();
        b->work.max_in_row = 2 * b->serve.n_sequence;
        /* the first plan's first answers find files, caches and clocks cold, which says nothing about it */
        nib_status status = i == 0 ? answer_lines(b, plan->n_sequence, &err) : NIB_OK;
        const uint64_t before = b->work.n_predicted;
        const double begun = time_now();
        if (status == NIB_OK)
            status = answer_lines(b, TRIAL_ROUNDS * plan->n_sequence, &err);
        if (status != NIB_OK)
            code = finish(b, NULL, status, &err);
        plan->measured_tok_s = (double)(b->work.n_predicted - before) / (time_now() - begun);
    } else if (i > 0 && !cli_interrupted()) {
        cli_note(b->args, "nibble: no trial run of %lld together", (long long)plan->n_sequence);
        code = 0;
    }
    server_close(b->serve.server);
    b->serve.server = NULL;
    return code;
}

/* Tries the plans that are expected to be nearly as fast as the first, and follows the one that is fastest
 * when measured. Trial runs are kept for the next time; their answers count. *opened: the engine of the first
 * plan, if none was tried. */
static int try_plans(batch_run *b, nib_engine **opened) {
    const size_t n = n_near(b);
    size_t n_known = 0, best = 0;
    int code = 0;
    for (size_t i = 0; i < n; i++)
        n_known += b->plans[i].measured_tok_s > 0;
    if (n_known < n && !is_worth_trying(b, n))
        return 0;
    for (size_t i = 0; i < n && n_known < n && !code; i++) {
        code = try_plan(b, i, n, opened);
        if (*opened)
            return 0;
        if (!code && b->plans[i].measured_tok_s > 0)
            serve_keep_trial(&b->serve, &b->lengths, &b->plans[i], b->plans[i].measured_tok_s);
    }
    for (size_t i = 0; i < n && !code; i++) {
        best = b->plans[i].measured_tok_s > b->plans[best].measured_tok_s ? i : best;
        if (b->args->verbose && b->plans[i].measured_tok_s > 0)
            cli_note(b->args, "nibble: a trial run of %lld together%s: %.1f tok/s%s",
                     (long long)b->plans[i].n_sequence,
                     b->plans[i].kv_on_disk ? ", keys and values on the disk" : "",
                     b->plans[i].measured_tok_s, n_known == n ? ", earlier" : "");
    }
    b->flow = b->plans[best];
    serve_follow(&b->serve, &b->lengths, &b->flow);
    return code;
}

static int answer(batch_run *b, nib_engine *engine) {
    nib_error err;
    if (server_begin(b->serve.server, engine, b->serve.n_sequence, &err) ||
        bench_lanes_begin(&b->lanes, b->args, engine, &err))
        return cli_fail(&err);
    b->begun = b->begun > 0 ? b->begun : time_now();
    b->work.max_in_row = 2 * b->serve.n_sequence;
    return finish(b, engine, answer_all(b, &err), &err);
}

static int run(cli_args *args) {
    batch_run b = {.args = args, .serve = {.args = args}, .work = {.out = {.fd = -1, .write = cli_write}}};
    nib_engine *engine = NULL;
    int code = serve_read(&b.serve, USUAL_SEQUENCES);
    if (!code)
        code = open_files(&b);
    if (!code)
        code = plan_work(&b);
    if (!code && b.n_plan > 0 && b.schedule == NIB_SCHEDULE_REFILL) /* which plans expect */
        code = try_plans(&b, &engine);
    if (!code && !engine)
        code = open_server(&b);
    if (!code && !engine)
        code = serve_open_draft(&b.serve);
    if (!code && !engine)
        code = serve_open_first(&b.serve, &engine);
    if (!code)
        code = answer(&b, engine);
    if (code && b.begun > 0 && !b.summed) /* trial runs have answered lines */
        cli_made(sum_up(&b, NULL, false));
    server_close(b.serve.server);
    nib_engine_close(b.serve.draft);
    serve_forget(&b.serve);
    batch_file_clear(&b.work);
    key_set_close(&b.work.keys);
    batch_output_close(&b.work.out, NULL);
    if (b.work.in.fd > 0)
        close(b.work.in.fd);
    return code;
}

const cli_command cmd_batch = {
    .name = "batch",
    .usage = "MODEL -i IN.jsonl -o OUT.jsonl",
    .summary = "answer a file of requests, many together",
    .details =
        "Each line of IN is a request in OpenAI's batch format:\n\n"
        "  {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\",\n"
        "   \"body\": {\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}]}}\n\n"
        "The url is /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings, and the body is\n"
        "what 'nibble serve' accepts there, without stream. Each line of OUT is an answer, in the order in\n"
        "which they end: \"response\" has the status code and the body, also if the request was refused.\n"
        "A line that is no request, or that repeats a custom_id, gets an \"error\" with its number instead,\n"
        "and the other lines are answered. A request that fails for a passing reason (memory, a device) "
        "gets\n"
        "no line.\n\n"
        "If OUT exists, it is continued: after an interruption, a full disk or a crash the same command "
        "goes\n"
        "on. A request is kept if OUT has an answer to the same text; one that was refused, failed, was no\n"
        "request or has another text is asked again, and its last line in OUT is the one that counts.\n"
        "A last line that is not whole is cut off. -i - and -o - are stdin and stdout. Memory does not "
        "depend\n"
        "on the files' sizes, except for at most 64 bytes a line for its custom_id. The exit code is 0 when\n"
        "every line has an answer, and 1 when one has none.\n\n"
        "  nibble batch smollm2 -i in.jsonl -o out.jsonl\n"
        "  nibble batch smollm2 -i in.jsonl -o out.jsonl --ram 400M -np 32\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_BATCH,
    .run = run,
};

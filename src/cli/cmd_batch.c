/* cmd_batch.c - nibble batch: computes the requests of a file together, and writes their answers to another
 * file.
 *
 *     line --> answered already: kept
 *          --> not a request: a line with an error
 *          --> server_ask --> server_compute, with others --> server_take --> a line with a response
 *                                                                         --> failed for a passing reason:
 * none
 *
 * Each line is written when its answer is complete, so the next run can continue after any interruption: it
 * keeps the answers to the same requests, and asks all others again. */
#include "cli/batch_output.h"
#include "cli/line_reader.h"
#include "cli/serve.h"

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
    MAX_ID = 1024,             /* bytes of a custom_id */
    ENVELOPE_BYTES = 64 << 10, /* of a line, outside its body */
    USUAL_BODY = 1 << 20,
    ALL_QUEUE = 100000,    /* not a limit: ask_more limits the waiting requests */
    KEYS_UNDER_CAP = 49152 /* maximum lines of an input that cannot be counted first */
};
#define USUAL_REQUEST_BYTES (UINT64_C(256) << 20)
#define SHOW_S              0.2

/* A line that is a request. */
typedef struct request {
    json_t *line;
    const char *custom_id, *method, *url; /* in line */
    size_t n_custom_id;
    uint64_t hash;    /* of what is asked */
    char *tag, *body; /* tag: the hash and the custom_id as JSON; NULL: no request */
} request;

typedef struct batch_run {
    cli_args *args;
    serve_job serve;
    line_reader in;
    batch_output out;
    key_set keys;
    request next; /* read, not yet given to the server */
    bool ended;   /* no more lines, or they cannot be read (unread has the error) */
    nib_error unread;
    bool waits;      /* no line can be read from the pipe now */
    uint64_t values; /* maximum bytes of a line's values */
    int64_t n_line;  /* lines of the input; 0: not known */
    /* Lines. n_refused: the response is an error; n_failed: for a passing reason, which `failed` has;
     * n_retried: those among all of them that the output had without an answer, or with one to another text;
     * n_in_row: failed since the last reply */
    int64_t n_answered, n_refused, n_invalid, n_failed, n_kept, n_retried, n_in_row;
    nib_error failed;
    uint64_t n_prompt, n_predicted; /* tokens */
    double begun, shown;
} batch_run;

/* ---- one line ---- */

static void request_clear(request *q) {
    json_decref(q->line);
    mem_free(q->tag);
    mem_free(q->body);
    *q = (request){0};
}

enum { TAG_HASH = 16 }; /* digits before the custom_id */

/* NULL: out of memory. */
static char *make_tag(uint64_t hash, const json_t *id) {
    char *text = jsonx_text(id, JSON_COMPACT | JSON_ENCODE_ANY);
    const size_t n = text ? strlen(text) + 1 : 0;
    char *tag = text ? mem_alloc(TAG_HASH + n) : NULL;
    if (tag) {
        char digits[TAG_HASH + 1];
        snprintf(digits, sizeof digits, "%016llx", (unsigned long long)hash);
        memcpy(tag, digits, TAG_HASH);
        memcpy(tag + TAG_HASH, text, n);
    }
    mem_free(text);
    return tag;
}

/* text [n]: the line. */
static nib_status read_members(request *q, const char *text, size_t n, nib_error *err) {
    const json_t *id = json_object_get(q->line, "custom_id"), *method = json_object_get(q->line, "method");
    const json_t *url = json_object_get(q->line, "url");
    const json_t *body = json_object_get(q->line, "body");
    q->custom_id = json_string_value(id);
    q->n_custom_id = json_string_length(id);
    q->method = method ? json_string_value(method) : "POST";
    q->url = json_string_value(url);
    if (!json_is_object(q->line))
        return nib_fail(err, NIB_E_USAGE, "expected an object");
    if (!q->custom_id || q->n_custom_id == 0 || q->n_custom_id > MAX_ID)
        return nib_fail(err, NIB_E_USAGE, "custom_id: expected a string of 1 to 1024 bytes");
    if (!q->method)
        return nib_fail(err, NIB_E_USAGE, "method: expected a string");
    if (!q->url)
        return nib_fail(err, NIB_E_USAGE, "url: expected a string");
    if (!json_is_object(body))
        return nib_fail(err, NIB_E_USAGE, "body: expected an object");
    size_t n_body = 0;
    const char *source = jsonx_source(text, n, q->line, body, &n_body);
    q->body = source ? mem_strndup(source, n_body) : NULL;
    q->hash = q->body ? batch_output_hash(q->method, q->url, q->body, n_body) : 0;
    q->tag = q->body ? make_tag(q->hash, id) : NULL;
    return q->tag ? NIB_OK : nib_fail_nomem(err, 0, "a request");
}

/* False: *code and err describe what is wrong with the line. NIB_E_NOMEM says nothing about it. */
static bool parse_line(const batch_run *b, const char *text, size_t n, request *q, const char **code,
                       nib_error *err) {
    mem_bound bound;
    mem_bound_set(&bound, b->values);
    *code = "invalid_json_line";
    nib_status status = jsonx_parse(text, n, &q->line, err);
    if (status == NIB_OK) {
        *code = "invalid_request";
        status = read_members(q, text, n, err);
    }
    mem_bound_end(&bound);
    if (bound.refused)
        nib_fail(err, NIB_E_USAGE, "expected fewer JSON values: they would need too much memory");
    return status == NIB_OK;
}

/* Stops reading lines. Requests that are already running are answered before the run ends with this error. */
static nib_status stop_reading(batch_run *b) {
    b->ended = true;
    return NIB_OK;
}

static nib_status stop_without_keys(batch_run *b) {
    if (b->keys.fixed && b->n_line == 0)
        nib_fail(&b->unread, NIB_E_NOFIT,
                 "under --ram at most %d lines are read from a pipe, since their ids are kept: give a file "
                 "with -i",
                 KEYS_UNDER_CAP);
    else
        nib_fail_nomem(&b->unread, key_set_bytes(b->keys.n), "the ids of lines");
    return stop_reading(b);
}

/* A line [n] that is no request. An error that the output has for the same text is not written again. */
static nib_status refuse_line(batch_run *b, const char *text, size_t n, const char *code, const char *why,
                              nib_error *err) {
    const request *q = &b->next;
    const uint64_t hash = batch_output_hash(NULL, NULL, text, n);
    char number[24];
    bool seen;
    char *id = NULL;
    snprintf(number, sizeof number, "%lld", (long long)b->in.number);
    const uint64_t before = key_set_value(&b->keys, KEY_LINE, number, strlen(number), &seen);
    b->n_retried += before != 0;
    if (before == hash) {
        b->n_invalid++;
        return NIB_OK;
    }
    if (q->custom_id && q->n_custom_id <= MAX_ID &&
        !(id = jsonx_text(json_object_get(q->line, "custom_id"), JSON_COMPACT | JSON_ENCODE_ANY)))
        return nib_fail_nomem(err, q->n_custom_id, "a line of the output");
    const nib_status status = batch_output_error(&b->out, hash, id, b->in.number, code, why, err);
    mem_free(id);
    b->n_invalid += status == NIB_OK;
    return status;
}

/* Makes the line the next request, keeps its answer, or writes an error for it. */
static nib_status take_line(batch_run *b, const char *text, size_t n, bool cut, nib_error *err) {
    request *q = &b->next;
    const char *code = "line_too_long";
    nib_error why;
    bool seen = false;
    size_t blank = 0;
    while (blank < n && strchr(" \t\r", text[blank]) && text[blank])
        blank++;
    if (blank == n)
        return NIB_OK;
    nib_fail(&why, NIB_E_USAGE, "expected a line of at most %zu bytes (--max-body)", b->in.max);
    const bool good = !cut && parse_line(b, text, n, q, &code, &why);
    const uint64_t before = good ? key_set_value(&b->keys, KEY_ID, q->custom_id, q->n_custom_id, &seen) : 0;
    nib_status status = NIB_OK;
    if (!good && why.status == NIB_E_NOMEM) {
        b->unread = why;
        status = stop_reading(b);
    } else if (!good) {
        status = refuse_line(b, text, n, code, why.message, err);
    } else if (seen) {
        status = refuse_line(b, text, n, "duplicate_custom_id", "an earlier line has this custom_id", err);
    } else if (!key_set_see(&b->keys, KEY_ID, q->custom_id, q->n_custom_id)) {
        status = stop_without_keys(b);
    } else if (before != batch_output_state(q->hash, 200)) {
        b->n_retried += before != 0;
        return NIB_OK;
    } else {
        b->n_kept++;
    }
    request_clear(q);
    return status;
}

static nib_status read_line(batch_run *b, nib_error *err) {
    const char *text;
    size_t n;
    const line_result got = line_next(&b->in, &text, &n);
    b->waits = got == LINE_WAIT;
    b->ended = got == LINE_END;
    if (got == LINE_FAILED)
        nib_fail_errno(&b->unread, "cannot read", b->args->input, errno);
    if (got == LINE_NO_MEMORY)
        nib_fail_nomem(&b->unread, b->in.max, "a line");
    if (b->unread.status)
        return stop_reading(b);
    return got == LINE_WHOLE || got == LINE_CUT ? take_line(b, text, n, got == LINE_CUT, err) : NIB_OK;
}

/* ---- all lines ---- */

static void show(batch_run *b) {
    char line[160], of[32] = "";
    const double now = time_now();
    const int64_t n = b->n_answered + b->n_refused + b->n_invalid + b->n_failed + b->n_kept;
    if (now - b->shown < SHOW_S)
        return;
    b->shown = now;
    if (b->n_line)
        snprintf(of, sizeof of, " of %lld", (long long)b->n_line);
    snprintf(line, sizeof line, "%lld%s lines, %.1f tok/s", (long long)n, of,
             (double)b->n_predicted / (now - b->begun));
    cli_progress_line(b->args, line);
}

/* A request that failed for a passing reason has no line in the output. Many in a row end the reading: the
 * others would fail, too. */
static void note_failure(batch_run *b, const server_reply *r) {
    nib_fail(&b->failed, NIB_E_FAILED, "%s", r->lost ? r->why : "out of memory");
    b->n_failed++;
    if (++b->n_in_row >= 2 * b->serve.n_sequence)
        b->ended = true;
}

/* A refusal that the output has for the same request is not written again. */
static nib_status write_reply(batch_run *b, const server_reply *r, nib_error *err) {
    char digits[TAG_HASH + 1] = "";
    const char *id = r->tag + TAG_HASH;
    json_t *text = NULL;
    bool seen;
    memcpy(digits, r->tag, TAG_HASH);
    const uint64_t hash = strtoull(digits, NULL, 16), state = batch_output_state(hash, r->status);
    size_t n_read;
    NIB_TRY(jsonx_parse_first(id, strlen(id), &text, &n_read, err));
    const bool same =
        state == key_set_value(&b->keys, KEY_ID, json_string_value(text), json_string_length(text), &seen);
    json_decref(text);
    if (!same)
        NIB_TRY(batch_output_answer(&b->out, hash, id, r->status, r->body, r->n_byte, err));
    b->n_in_row = 0;
    b->n_answered += r->status == 200;
    b->n_refused += r->status != 200;
    b->n_prompt += r->n_prompt;
    b->n_predicted += r->n_predicted;
    return NIB_OK;
}

static nib_status write_replies(batch_run *b, nib_error *err) {
    server_reply r;
    nib_status status = NIB_OK;
    while (status == NIB_OK && server_take(b->serve.server, &r)) {
        if (r.lost || !r.body)
            note_failure(b, &r);
        else
            status = write_reply(b, &r, err);
        server_reply_clear(&r);
    }
    show(b);
    return status;
}

/* Asks enough requests that a sequence which becomes free gets the next one immediately. */
static nib_status ask_more(batch_run *b, nib_error *err) {
    server *s = b->serve.server;
    b->waits = false;
    while (!b->ended && !b->waits && !cli_interrupted() &&
           server_n_answer(s) < 2 * (size_t)b->serve.n_sequence) {
        const request *q = &b->next;
        if (!q->body) {
            NIB_TRY(read_line(b, err));
        } else if (server_ask(s, q->method, q->url, q->body, strlen(q->body), q->tag)) {
            request_clear(&b->next);
            NIB_TRY(write_replies(b, err)); /* refused requests have a reply already */
        } else {
            return server_n_answer(s) ? NIB_OK : nib_fail_nomem(err, strlen(q->body), "a request");
        }
    }
    return NIB_OK;
}

static void wait_for(void *user, int fd, int max_ms) {
    (void)user;
    cli_wait_input(fd, max_ms);
}

/* Fails if a line has no answer. */
static nib_status say_unanswered(const batch_run *b, nib_error *err) {
    const int64_t n = b->n_refused + b->n_invalid + b->n_failed;
    *err = b->unread;
    if (err->status || n == 0)
        return err->status;
    if (b->n_failed)
        return nib_fail(err, NIB_E_FAILED, "%lld lines have no answer, %lld of them for this reason: %s",
                        (long long)n, (long long)b->n_failed, b->failed.message);
    return nib_fail(err, NIB_E_FAILED, "%lld lines have no answer: the output says why", (long long)n);
}

static nib_status answer_all(batch_run *b, nib_error *err) {
    const server_host host = {.wait = wait_for};
    server *s = b->serve.server;
    while (!cli_interrupted()) {
        NIB_TRY(ask_more(b, err));
        if (server_n_answer(s) > 0)
            server_compute(s, &host);
        else if (b->ended)
            break;
        else if (b->waits)
            cli_wait_input(b->in.fd, -1);
        NIB_TRY(write_replies(b, err));
    }
    if (cli_interrupted())
        return nib_fail(err, NIB_E_CANCELLED, "interrupted");
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
    if (!fstat(b->in.fd, &of) && S_ISREG(of.st_mode)) {
        while (!cli_interrupted() && (got = read(b->in.fd, block, BLOCK)) > 0) {
            for (const char *at = block; (at = memchr(at, '\n', (size_t)(block + got - at))); at++)
                b->n_line++;
            last = block[got - 1];
        }
        b->n_line += last != '\n';
        got = got < 0 || lseek(b->in.fd, 0, SEEK_SET) < 0 ? -1 : 0;
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
    b->in.fd = open(path, O_RDONLY | O_CLOEXEC);
    return b->in.fd < 0 ? cli_usage_error("-i: cannot read %s: %s", path, strerror(errno)) : 0;
}

/* Reserves memory for the keys of all lines if their number is known. */
static nib_status open_keys(batch_run *b, nib_error *err) {
    const bool capped = b->args->ram != NIB_AUTO;
    uint64_t n_out;
    NIB_TRY(count_lines(b, err));
    NIB_TRY(batch_output_count(&b->out, &n_out, err));
    const uint64_t n = n_out + (b->n_line || !capped ? (uint64_t)b->n_line : KEYS_UNDER_CAP);
    if (!key_set_open(&b->keys, n, capped))
        return nib_fail_nomem(err, key_set_bytes(n), "the ids of lines");
    b->serve.kept_bytes = key_set_bytes(n);
    return batch_output_load(&b->out, &b->keys, err);
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
    b->out.fd = strcmp(args->output, "-") ? open(args->output, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const bool same = is_same_file(b->in.fd, b->out.fd);
    if (b->out.fd >= 0)
        close(b->out.fd);
    b->out.fd = -1;
    if (same)
        return cli_usage_error("-o: expected another file than -i, found the same one");
    if (batch_output_open(&b->out, args->output, &err) || open_keys(b, &err))
        return cli_fail(&err);
    return 0;
}

/* ---- a run ---- */

static int open_server(batch_run *b) {
    serve_job *job = &b->serve;
    const cli_args *args = b->args;
    const uint64_t capped = serve_request_bytes(args), requests = capped ? capped : USUAL_REQUEST_BYTES;
    const uint64_t body = args->max_body == NIB_AUTO ? USUAL_BODY : args->max_body;
    const server_options o = {.local = true,
                              .models = job->models,
                              .n_model = job->n_model,
                              .open = serve_open_on_demand,
                              .opener = job,
                              .ram_cap = args->ram,
                              .n_queue = ALL_QUEUE,
                              .max_body = NUM_MIN(body, requests / SERVE_BODY_SHARE),
                              .request_bytes = requests,
                              .prefix_cache = args->prefix_cache,
                              .prefix_bytes =
                                  args->prefix_cache_size == NIB_AUTO ? 0 : args->prefix_cache_size,
                              .cache_ram = args->cache_ram,
                              .n_beside = serve_sessions_beside(job),
                              .n_position = args->cache_size,
                              .n_draft = (int)serve_draft_max(args),
                              .n_draft_min = (int)args->draft_min,
                              .pooling = job->pooling,
                              .special_in_messages = args->special_in_messages,
                              .log = cli_log,
                              .user = job->args};
    nib_error err;
    b->in.max = o.max_body + ENVELOPE_BYTES;
    b->values = requests / 8 * 3;
    job->max_body = body; /* a line as read, and its body */
    job->kept_bytes += 2 * ENVELOPE_BYTES;
    return server_open(&o, &job->server, &err) ? cli_fail(&err) : 0;
}

static json_t *summary_json(const batch_run *b, double seconds) {
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f}", "answered",
                     (json_int_t)b->n_answered, "refused", (json_int_t)b->n_refused, "invalid",
                     (json_int_t)b->n_invalid, "failed", (json_int_t)b->n_failed, "retried",
                     (json_int_t)b->n_retried, "kept", (json_int_t)b->n_kept, "prompt_tokens",
                     (json_int_t)b->n_prompt, "completion_tokens", (json_int_t)b->n_predicted, "seconds",
                     seconds, "tok_s", seconds > 0 ? (double)b->n_predicted / seconds : 0.0);
}

static void say_summary(const batch_run *b, double seconds, bool whole) {
    char more[240] = "";
    size_t n = 0;
    const struct {
        int64_t n;
        const char *what;
    } parts[] = {{b->n_refused, "refused (the response says why)"},
                 {b->n_invalid, "not requests (the error says why)"},
                 {b->n_failed, "failed"},
                 {b->n_kept, "answered before"},
                 {b->n_retried, "asked again"}};
    for (size_t i = 0; i < NUM_COUNT(parts); i++)
        if (parts[i].n)
            n += (size_t)snprintf(more + n, sizeof more - n, ", %lld %s", (long long)parts[i].n,
                                  parts[i].what);
    cli_note(b->args, "nibble: %lld lines answered%s; %llu + %llu tokens in %.1f s, %.1f tok/s%s",
             (long long)b->n_answered, more, (unsigned long long)b->n_prompt,
             (unsigned long long)b->n_predicted, seconds,
             seconds > 0 ? (double)b->n_predicted / seconds : 0.0,
             whole            ? ""
             : b->out.regular ? "; the same command continues, and asks again what has no answer"
                              : "");
}

static int finish(batch_run *b, nib_status status, nib_error *err) {
    const double seconds = time_now() - b->begun;
    const nib_engine *engine = server_engine(b->serve.server);
    nib_error closing;
    if (batch_output_close(&b->out, &closing) && status == NIB_OK) {
        *err = closing;
        status = closing.status;
    }
    say_summary(b, seconds, status == NIB_OK);
    if (b->args->verbose && engine)
        cli_print_memory(b->args, engine, stderr);
    json_t *summary = b->args->json ? summary_json(b, seconds) : NULL;
    if (summary && engine)
        json_object_set_new(summary, "memory", cli_memory_json(engine));
    if (status == NIB_OK)
        return summary ? cli_write_json(summary, b->args) : 0;
    cli_made(summary);
    return cli_fail(err);
}

static int answer(batch_run *b, nib_engine *engine) {
    nib_error err;
    if (server_begin(b->serve.server, engine, b->serve.n_sequence, &err))
        return cli_fail(&err);
    b->begun = time_now();
    return finish(b, answer_all(b, &err), &err);
}

static int run(cli_args *args) {
    batch_run b = {.args = args, .serve = {.args = args}, .out = {.fd = -1}};
    nib_engine *engine = NULL;
    int code = serve_read(&b.serve, USUAL_SEQUENCES);
    if (!code)
        code = open_files(&b);
    if (!code)
        code = open_server(&b);
    if (!code)
        code = serve_open_draft(&b.serve);
    if (!code)
        code = serve_open_first(&b.serve, &engine);
    if (!code)
        code = answer(&b, engine);
    server_close(b.serve.server);
    nib_engine_close(b.serve.draft);
    serve_forget(&b.serve);
    request_clear(&b.next);
    line_reader_clear(&b.in);
    key_set_close(&b.keys);
    batch_output_close(&b.out, NULL);
    if (b.in.fd > 0)
        close(b.in.fd);
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

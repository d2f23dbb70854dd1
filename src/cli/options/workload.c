/* workload.c - see workload.h. */
#include "cli/options/workload.h"

#include "server/line_reader.h"
#include "cli/terminal/terminal.h"

#include "base/jsonx.h"
#include "base/num.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SAMPLE = 1000,      /* lines whose lengths are looked at */
    TOKEN_BYTES = 4,    /* of text */
    USUAL_ANSWER = 256, /* tokens of an answer without a limit */
    LINE_BYTES = 1 << 20,
    SCANNED = 256 << 20 /* bytes of a file whose lines are all looked at for the longest one */
};

/* ---- lengths ---- */

/* Bytes of all texts in a value; an integer of an array is a token. */
static size_t text_bytes(const json_t *v) {
    size_t n = json_is_string(v) ? json_string_length(v) : 0, i;
    const char *key;
    const json_t *each;
    json_array_foreach(v, i, each) n += json_is_integer(each) ? TOKEN_BYTES : text_bytes(each);
    json_object_foreach((json_t *)(uintptr_t)v, key, each) n += text_bytes(each);
    return n;
}

static int64_t answer_of(const json_t *body) {
    static const char *const keys[] = {"max_tokens", "max_completion_tokens", "max_output_tokens"};
    for (size_t i = 0; i < NUM_COUNT(keys); i++)
        if (json_is_integer(json_object_get(body, keys[i])))
            return NUM_MAX(json_integer_value(json_object_get(body, keys[i])), 1);
    return USUAL_ANSWER;
}

static int64_t prompt_of(const json_t *body) {
    static const char *const keys[] = {"messages", "prompt", "input", "instructions"};
    size_t n = 0;
    for (size_t i = 0; i < NUM_COUNT(keys); i++)
        n += text_bytes(json_object_get(body, keys[i]));
    return (int64_t)n / TOKEN_BYTES + 1;
}

/* At most so many tokens: a text has no more than bytes, and those that begin and end it. Compatibility
 * normalization makes a character of several bytes at most 11 times as long (U+FDFA). */
static int64_t most_tokens(const json_t *v) {
    enum { AROUND = 8, LONGER = 11 };
    int64_t n = json_is_number(v);
    size_t i;
    const json_t *each;
    if (json_is_string(v)) {
        const char *s = json_string_value(v);
        for (i = 0, n = AROUND; i < json_string_length(v); i++)
            n += (unsigned char)s[i] < 128 ? 1 : LONGER;
        return n;
    }
    json_array_foreach(v, i, each) n += most_tokens(each);
    return n;
}

/* At most so many positions, which a prompt without a template and a limited answer have; 0: not known. */
static int64_t most_positions(const json_t *body) {
    static const char *const others[] = {"messages", "input", "instructions", "suffix", "tools", "n_predict"};
    const json_t *prompt = json_object_get(body, "prompt");
    for (size_t i = 0; i < NUM_COUNT(others); i++)
        if (json_object_get(body, others[i]))
            return 0;
    const json_t *limit = json_object_get(body, "max_tokens");
    return prompt && json_is_integer(limit) && json_integer_value(limit) > 0 &&
                   json_integer_value(limit) < 1 << 30
               ? most_tokens(prompt) + (int64_t)json_integer_value(limit)
               : 0;
}

typedef struct lengths {
    int64_t n, n_prompt, n_gen, longest;
    int64_t most; /* positions that no request exceeds; 0: not known */
} lengths;

static void add_line(lengths *all, const char *text, size_t n) {
    json_t *line = NULL;
    nib_error why;
    const bool sampled = all->n < SAMPLE;
    if (jsonx_parse(text, n, &line, &why) == NIB_OK && json_is_object(json_object_get(line, "body"))) {
        const json_t *body = json_object_get(line, "body");
        const int64_t prompt = sampled ? prompt_of(body) : 0, answer = sampled ? answer_of(body) : 0;
        const int64_t most = most_positions(body);
        all->most = all->most && most ? NUM_MAX(all->most, most) : 0;
        all->n += sampled;
        all->n_prompt += prompt;
        all->n_gen += answer;
        all->longest = NUM_MAX(all->longest, prompt + answer);
    }
    json_decref(line);
}

bool workload_of_file(int fd, int64_t n_line, nib_workload *out) {
    lengths all = {.most = 1};
    line_reader in = {.fd = fd, .max = LINE_BYTES};
    struct stat of;
    if (n_line < 1 || fstat(fd, &of) || !S_ISREG(of.st_mode))
        return false;
    const off_t at = lseek(fd, 0, SEEK_CUR);
    const char *text;
    size_t n;
    for (line_result got; (all.n < SAMPLE || (all.most && of.st_size < SCANNED)) &&
                          ((got = line_next(&in, &text, &n)) == LINE_WHOLE || got == LINE_CUT);)
        if (got == LINE_WHOLE)
            add_line(&all, text, n);
        else
            all.most = 0;
    if (all.n == SAMPLE && of.st_size >= SCANNED)
        all.most = 0;
    line_reader_clear(&in);
    if (at < 0 || lseek(fd, at, SEEK_SET) < 0 || all.n == 0)
        return false;
    *out = (nib_workload){.n_request = n_line,
                          .n_prompt = (double)all.n_prompt / (double)all.n,
                          .n_gen = (double)all.n_gen / (double)all.n,
                          .n_position = all.longest,
                          .max_n_ctx = all.most};
    return true;
}

static int64_t lines_of(int fd) {
    char block[16384], last = '\n';
    int64_t n = 0;
    ssize_t got;
    while ((got = read(fd, block, sizeof block)) > 0) {
        for (ssize_t i = 0; i < got; i++)
            n += block[i] == '\n';
        last = block[got - 1];
    }
    return got < 0 || lseek(fd, 0, SEEK_SET) < 0 ? 0 : n + (last != '\n');
}

/* The same for the value of --workload: a file, or PxGxN. Returns an exit code. */
static int parse_workload(const char *text, nib_workload *out) {
    long long p, g, n;
    int end = 0;
    *out = (nib_workload){0};
    if (sscanf(text, "%lldx%lldx%lld%n", &p, &g, &n, &end) == 3 && !text[end] && p > 0 && g > 0 && n > 0) {
        *out = (nib_workload){.n_request = n,
                              .n_prompt = (double)p,
                              .n_gen = (double)g,
                              .n_position = p + g,
                              .max_n_ctx = p + g};
        return 0;
    }
    const int fd = open(text, O_RDONLY | O_CLOEXEC);
    const bool read = fd >= 0 && workload_of_file(fd, lines_of(fd), out);
    if (fd >= 0)
        close(fd);
    return read ? 0
                : cli_usage_error("--workload: expected a batch file, or tokens of prompts and answers and a "
                                  "number as 512x32x1000, found '%s'",
                                  text);
}

/* ---- the plan ---- */

static const char *kind_of(const nib_flow *f) {
    static const char *const names[] = {"refill", "block", "row"};
    return names[f->schedule];
}

json_t *workload_schedule(const nib_flow *f) {
    return json_pack("{s:s, s:I, s:I, s:s}", "kind", kind_of(f), "block", (json_int_t)f->n_sequence,
                     "micro_batch", (json_int_t)f->n_cell, "attend",
                     f->host_attends ? "processor" : "device");
}

static json_t *shares_json(const nib_shares *s) {
    return json_pack("{s:f, s:f, s:f}", "vram", s->vram, "ram", s->ram, "disk", s->disk);
}

/* The name of a format of keys and values; NULL: that of the engine. */
static const char *kv_name(const nib_flow_format *x) {
    static const char *const names[] = {[NIB_KV_F16] = "f16", [NIB_KV_8] = "kv8", [NIB_KV_4] = "kv4"};
    return x->kv_type == NIB_KV_AUTO                              ? "by layer"
           : x->kv_type > 0 && x->kv_type < (int)NUM_COUNT(names) ? names[x->kv_type]
                                                                  : NULL;
}

static const char *weights_name(const nib_flow_format *x) {
    return x->weights == NIB_WEIGHTS_FEWEST ? "fewest" : "file";
}

/* What was compared. */
static json_t *formats_json(const nib_flow *f) {
    json_t *all = json_array();
    for (int i = 0; i < f->n_format; i++) {
        const nib_flow_format *x = &f->formats[i];
        json_array_append_new(
            all, json_pack("{s:s?, s:s, s:o, s:o, s:b}", "kv", kv_name(x), "weights", weights_name(x), "loss",
                           x->loss < 0 ? json_null() : json_real(x->loss), "tok_s",
                           x->tok_s > 0 ? json_real(x->tok_s) : json_null(), "chosen", i == f->format));
    }
    return all;
}

static json_t *flow_json(const nib_flow *f) {
    return json_pack("{s:o, s:{s:o, s:o, s:o}, s:{s:f, s:f, s:f}, s:s, s:b, s:{s:f, s:f, s:f}, s:{s:i, s:f}, "
                     "s:o, s:f, s:s}",
                     "schedule", workload_schedule(f), "shares", "weights", shares_json(&f->weights), "kv",
                     shares_json(&f->kv), "stream", shares_json(&f->stream), "predicted", "tok_s", f->tok_s,
                     "seconds", f->seconds, "latency_s", f->latency_s, "binds", f->binds, "guessed",
                     f->guessed, "one_more_gb", "vram", f->one_more_gb[0], "ram", f->one_more_gb[1], "disk",
                     f->one_more_gb[2], "search", "programs", f->n_program, "seconds", f->search_s, "formats",
                     formats_json(f), "max_loss", f->max_loss, "kv_layers", f->kv_layers);
}

/* Adds the model and the workload to a document; NULL stays NULL. */
static json_t *with_question(json_t *all, const char *model, const nib_workload *w) {
    if (!all)
        return NULL;
    json_object_set_new(all, "model", json_string(model));
    json_object_set_new(all, "workload",
                        json_pack("{s:I, s:f, s:f}", "n_request", (json_int_t)w->n_request, "n_prompt",
                                  w->n_prompt, "n_gen", w->n_gen));
    return all;
}

static void print_shares(const terminal *s, const char *what, const nib_shares *of) {
    terminal_line(s, "  %-18s %5.1f %% VRAM  %5.1f %% RAM  %5.1f %% disk", what, 100 * of->vram,
                  100 * of->ram, 100 * of->disk);
}

/* What was compared, and why one was chosen. */
static void print_formats(const terminal *s, const nib_flow *f) {
    for (int i = 0; i < f->n_format && f->n_format > 1; i++) {
        const nib_flow_format *x = &f->formats[i];
        char name[64], loss[64] = "loss not measured (nibble profile --costs)", rate[64] = "";
        snprintf(name, sizeof name, "%s%s%s", kv_name(x) ? kv_name(x) : "",
                 kv_name(x) && x->weights == NIB_WEIGHTS_FEWEST ? ", " : "",
                 x->weights == NIB_WEIGHTS_FEWEST ? "rounded weights"
                 : kv_name(x)                     ? ""
                                                  : "weights of the file");
        if (x->loss >= 0)
            snprintf(loss, sizeof loss, "%.2g nats a token%s", x->loss,
                     x->loss > f->max_loss ? ", more than allowed" : "");
        if (x->tok_s > 0)
            snprintf(rate, sizeof rate, ", %.1f tok/s", x->tok_s);
        terminal_line(s, "  %-18s %s: %s%s%s", i ? "" : "formats", name, loss, rate,
                      i == f->format ? ": chosen" : "");
    }
    if (f->kv_layers[0])
        terminal_line(s, "  %-18s %s", "", f->kv_layers);
}

static void print_flow(const terminal *s, const char *title, const nib_flow *f) {
    terminal_line(s, "%-12s %s: %lld sequences together, %lld through a layer at a time%s", title, kind_of(f),
                  (long long)f->n_sequence, (long long)f->n_cell,
                  f->host_attends ? ", attention on the processor" : "");
    print_shares(s, "weights", &f->weights);
    print_shares(s, "keys and values", &f->kv);
    print_shares(s, "residual stream", &f->stream);
    print_formats(s, f);
    terminal_line(s, "  %-18s %.1f tok/s at most, %.0f s for all, %.1f s for an answer; %s binds%s",
                  "expected", f->tok_s, f->seconds, f->latency_s, f->binds,
                  f->guessed ? " (not measured: nibble hw)" : "");
    terminal_line(s, "  %-18s VRAM %+.1f, RAM %+.1f tok/s", "one more GiB", f->one_more_gb[0],
                  f->one_more_gb[1]);
}

/* The frontier of latency and throughput. */
static int print_frontier(cli_args *args, const char *model, const nib_engine_options *options,
                          const nib_workload *w) {
    enum { MAX_POINT = 48 };
    nib_flow all[MAX_POINT];
    nib_error err;
    size_t n;
    if (nib_plan_flows(model, options, w, NIB_FLOWS_FRONTIER, all, MAX_POINT, &n, &err))
        return cli_fail(&err);
    if (args->json) {
        json_t *list = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(list, flow_json(&all[i]));
        return cli_write_json(with_question(json_pack("{s:o}", "frontier", list), model, w), args);
    }
    const terminal s = terminal_open(args, stdout);
    terminal_line(&s, "%11s %9s %10s %7s %7s  %s", "latency, s", "tok/s", "sequences", "weights", "kv",
                  "binds");
    terminal_line(&s, "%11s %9s %10s %7s %7s", "", "", "together", "on disk", "on disk");
    for (size_t i = 0; i < n; i++)
        terminal_line(&s, "%11.1f %9.1f %10lld %5.0f %% %5.0f %%  %s", all[i].latency_s, all[i].tok_s,
                      (long long)all[i].n_sequence, 100 * all[i].weights.disk, 100 * all[i].kv.disk,
                      all[i].binds);
    return 0;
}

int workload_plan(cli_args *args, const char *model, const nib_engine_options *options) {
    nib_workload w;
    nib_flow plan, bound;
    nib_error err;
    const int code = parse_workload(args->workload, &w);
    if (code)
        return code;
    w.max_latency_s = args->max_latency;
    if (args->frontier)
        return print_frontier(args, model, options, &w);
    if (nib_plan_workload(model, options, &w, &plan, &bound, &err))
        return cli_fail(&err);
    if (args->json) {
        json_t *all = with_question(flow_json(&plan), model, &w);
        if (all)
            json_object_set_new(all, "bound", flow_json(&bound));
        return cli_write_json(all, args);
    }
    const terminal s = terminal_open(args, stdout);
    terminal_line(&s, "workload     %lld requests, %.0f + %.0f tokens on average", (long long)w.n_request,
                  w.n_prompt, w.n_gen);
    print_flow(&s, "plan", &plan);
    print_flow(&s, "bound", &bound);
    return 0;
}

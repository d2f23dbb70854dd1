/* batch.c - see batch.h. All prompts are different, and all are computed before an answer
 * decodes. Generation is timed from the end of the last prompt.
 *
 * One engine, opened for the largest number, times all numbers. Where an engine for many sequences has other
 * kernels than one for few (nib_engine_many_from), smaller numbers are timed in a second engine, so each has
 * the kernels that a run with so many sequences has. */
#include "cli/bench/batch.h"
#include "cli/bench/rate.h"

#include "base/num.h"
#include "base/thread.h"
#include "nib_batch.h"
#include "nib_tools.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WIDTHS = 16, MAX_SEQUENCES = 4096 };

/* Minimum steps between two reads of memory: each read empties the caches, which slows the step after it. */
enum { MIN_PIECE_STEPS = 16 };

typedef struct batch_row {
    int n_seq;
    bool many; /* with the kernels for many sequences */
    int64_t n_repeat;
    double prompt_tok_s; /* of all sequences together, the mean over the repeats */
    double tok_s, min, max;
    double cpu_s;     /* processor seconds of a generated token, the fewest of the repeats */
    double gb_s;      /* weight bytes read a second: every step reads all weights once */
    rate_share share; /* of the read rate, paired; zero: not known */
} batch_row;

typedef struct batch_bench {
    cli_args *args;
    nib_engine *engine;
    int many_from;     /* nib_engine_many_from */
    nib_memory memory; /* of the first engine, after its runs; also as JSON (NULL: not yet) */
    json_t *memory_json;
    int widths[MAX_WIDTHS], n_width;
    batch_row rows[MAX_WIDTHS];
    int32_t *prompt;
    int64_t n_token; /* generated so far, by all sequences of a run */
    int n_thread;
    rate read; /* read rate with as many threads, during the last row; zero: not known */
    bench_rate rate;
} batch_bench;

static int parse_widths(batch_bench *b) {
    for (const char *at = b->args->parallel;; at++) {
        char *end;
        errno = 0;
        const long n = strtol(at, &end, 10);
        if (!isdigit((unsigned char)*at) || errno || n < 1 || n > MAX_SEQUENCES ||
            (*end != ',' && *end != '\0') || b->n_width == MAX_WIDTHS)
            return cli_usage_error(
                "--parallel: expected up to %d numbers of sequences from 1 to %d, like 1,8,32, "
                "found '%s'",
                MAX_WIDTHS, MAX_SEQUENCES, b->args->parallel);
        b->widths[b->n_width++] = (int)n;
        if (*end == '\0')
            return 0;
        at = end;
    }
}

static bool count_token(void *user, int32_t token) {
    batch_bench *b = user;
    (void)token;
    b->n_token++;
    return true;
}

static nib_status add_all(batch_bench *b, nib_batch *batch, int n_seq, uint64_t run, nib_error *err) {
    const uint64_t n_vocab = (uint64_t)nib_engine_info(b->engine)->n_vocab;
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.sampling.temperature = 0;
    o.ignore_eos = true;
    o.n_predict = b->args->n_gen;
    o.prompt = b->prompt;
    o.n_prompt = (size_t)b->args->n_prompt;
    o.on_token = count_token;
    o.user = b;
    for (int i = 0; i < n_seq; i++) {
        int64_t id;
        for (int64_t k = 0; k < b->args->n_prompt;
             k++) /* spread over the vocabulary, without a common prefix */
            b->prompt[k] =
                (int32_t)(((uint64_t)(k + 1) * 2654435761u + (run * 1000 + (uint64_t)i) * 40503u) % n_vocab);
        NIB_TRY(nib_batch_add(batch, &o, &id, err));
    }
    return NIB_OK;
}

/* Seconds until every sequence has its first token, and seconds, tokens and steps after that. */
typedef struct batch_times {
    double prompt_s, gen_s, cpu_s;
    int64_t n_gen, n_step;
} batch_times;

/* Computes the prompts: every sequence has its first token then, and no sequence has a second one. */
static nib_status run_prompts(batch_bench *b, nib_batch *batch, int n_seq, int32_t *n_left, nib_error *err) {
    while (*n_left > 0 && b->n_token < n_seq)
        NIB_TRY(nib_batch_step(batch, n_left, err));
    return NIB_OK;
}

/* Computes the other steps in pieces, without the time of the reads between them. */
static nib_status run_steps(batch_bench *b, nib_batch *batch, int32_t *n_left, batch_times *t,
                            nib_error *err) {
    while (*n_left > 0) {
        const int64_t first = t->n_step;
        const double start = time_now(), cpu = bench_cpu_seconds();
        double seconds;
        do {
            NIB_TRY(nib_batch_step(batch, n_left, err));
            t->n_step++;
            seconds = time_now() - start;
        } while (*n_left > 0 && (seconds < BENCH_PIECE_SECONDS || t->n_step - first < MIN_PIECE_STEPS));
        t->gen_s += seconds;
        t->cpu_s += bench_cpu_seconds() - cpu;
        bench_rate_piece(&b->rate, (double)(t->n_step - first) / seconds);
    }
    return NIB_OK;
}

/* Takes all results. Returns the error of a request that failed. */
static nib_status check_answers(nib_batch *batch, nib_error *err) {
    int64_t id;
    nib_result result;
    nib_error how;
    nib_status status = NIB_OK;
    while (nib_batch_take(batch, &id, &result, &how)) {
        nib_result_clear(&result);
        if (status == NIB_OK && how.status != NIB_OK) {
            status = how.status;
            *err = how;
        }
    }
    return status;
}

static nib_status run_once(batch_bench *b, nib_batch *batch, int n_seq, uint64_t run, batch_times *out,
                           nib_error *err) {
    int32_t n_left = 1;
    *out = (batch_times){0};
    b->n_token = 0;
    NIB_TRY(add_all(b, batch, n_seq, run, err));
    const double start = time_now();
    NIB_TRY(run_prompts(b, batch, n_seq, &n_left, err));
    out->prompt_s = time_now() - start;
    const int64_t at_prompts = b->n_token;
    NIB_TRY(run_steps(b, batch, &n_left, out, err));
    out->n_gen = b->n_token - at_prompts;
    NIB_TRY(check_answers(batch, err));
    if (out->n_gen != n_seq * (b->args->n_gen - 1))
        return nib_fail(err, NIB_E_USAGE,
                        "%d sequences together: expected %lld tokens after the prompts, found %lld", n_seq,
                        (long long)n_seq * (b->args->n_gen - 1), (long long)out->n_gen);
    return NIB_OK;
}

static bool is_many(const batch_bench *b, int n_seq) {
    return b->many_from > 0 && n_seq >= b->many_from;
}

static nib_status run_width(batch_bench *b, int n_seq, batch_row *row, nib_error *err) {
    const nib_batch_options o = {
        .n_sequence = n_seq, .n_ctx = b->args->n_prompt + b->args->n_gen, .prompts_first = true};
    const int64_t n = b->args->repetitions;
    nib_batch *batch;
    const double step_bytes = (double)nib_engine_info(b->engine)->token_bytes;
    NIB_TRY(nib_batch_open(b->engine, &o, &batch, err));
    *row = (batch_row){.n_seq = n_seq, .many = is_many(b, n_seq), .min = 1e300, .cpu_s = 1e300};
    nib_status status = NIB_OK;
    for (int64_t r = -1; r < n && status == NIB_OK; r++) { /* the first repeat is a warm-up */
        batch_times t;
        if (r <= 0)
            bench_rate_begin(&b->rate);
        status = run_once(b, batch, n_seq, (uint64_t)(r + 2), &t, err);
        if (status != NIB_OK || r < 0)
            continue;
        const double tok_s = (double)t.n_gen / t.gen_s;
        const double prompt_tok_s = (double)n_seq * (double)b->args->n_prompt / t.prompt_s;
        row->n_repeat++;
        row->tok_s += (tok_s - row->tok_s) / (double)row->n_repeat;
        row->prompt_tok_s += (prompt_tok_s - row->prompt_tok_s) / (double)row->n_repeat;
        row->min = NUM_MIN(row->min, tok_s);
        row->max = NUM_MAX(row->max, tok_s);
        row->cpu_s = NUM_MIN(row->cpu_s, t.cpu_s / (double)NUM_MAX(t.n_gen, 1));
        row->gb_s += (step_bytes / 1e9 * (double)t.n_step / t.gen_s - row->gb_s) / (double)row->n_repeat;
        cli_progress(b->args, "sequences together", (uint64_t)r + 1, (uint64_t)n);
    }
    bench_rate_share(&b->rate, step_bytes, &row->share, &b->read);
    nib_batch_close(batch);
    return status;
}

static json_t *row_json(const batch_bench *b, const batch_row *r) {
    char test[32];
    snprintf(test, sizeof test, "tg%lld", (long long)b->args->n_gen);
    json_t *o =
        json_pack("{s:s, s:i, s:b, s:f, s:f, s:f, s:f, s:o, s:o, s:f, s:I}", "test", test, "n_seq", r->n_seq,
                  "many_sequences", r->many, "tok_s", r->tok_s, "min", r->min, "max", r->max, "cpu_s",
                  r->cpu_s, "gb_s", bench_rate_json(r->gb_s), "peak_share", bench_rate_json(r->share.median),
                  "prompt_tok_s", r->prompt_tok_s, "repeats", (json_int_t)r->n_repeat);
    if (r->share.median > 0)
        json_object_set_new(o, "peak_share_quarters", json_pack("[ff]", r->share.low, r->share.high));
    return o;
}

static json_t *rows_json(const batch_bench *b) {
    json_t *list = json_array();
    for (int i = 0; i < b->n_width; i++)
        if (b->rows[i].n_repeat)
            json_array_append_new(list, row_json(b, &b->rows[i]));
    return json_pack(
        "{s:o, s:o, s:o, s:i, s:o}", "rows", list, "read_gb_s", bench_rate_json(b->read.best / 1e9),
        "read_gb_s_median", bench_rate_json(b->read.median / 1e9), "threads", b->n_thread, "memory",
        b->memory_json ? json_incref(b->memory_json) : memory_json((memory_use){.engine = b->engine}));
}

static int report(const batch_bench *b) {
    if (b->args->json)
        return cli_write_json(rows_json(b), b->args);
    printf("%10s %12s %10s %10s %10s %12s %8s %8s\n", "sequences", "tok/s in all", "min", "max", "each",
           "prompts", "GB/s", "of reads");
    for (int i = 0; i < b->n_width; i++) {
        const batch_row *r = &b->rows[i];
        if (r->n_repeat == 0)
            continue;
        printf("%10d %12.1f %10.1f %10.1f %10.1f %12.1f %8.2f", r->n_seq, r->tok_s, r->min, r->max,
               r->tok_s / r->n_seq, r->prompt_tok_s, r->gb_s);
        if (r->share.median > 0)
            printf(" %6.0f %%", r->share.median * 100);
        putchar('\n');
    }
    for (int i = 0, said = 0; i < b->n_width && !said; i++)
        if (b->rows[i].many)
            said = printf("%d sequences and more: with the kernels for many sequences\n", b->many_from);
    if (b->memory_json)
        cli_print_used_memory(b->args, &b->memory, 0, stdout);
    return 0;
}

/* The largest number of sequences with or without the kernels for many; 0: there is none. */
static int largest(const batch_bench *b, bool many) {
    int max = 0;
    for (int i = 0; i < b->n_width; i++)
        if (is_many(b, b->widths[i]) == many)
            max = NUM_MAX(max, b->widths[i]);
    return max;
}

static int open_for(batch_bench *b, int n_seq) {
    nib_engine_options options;
    cli_args *args = b->args;
    cli_engine_options(args, &options);
    options.n_ctx = args->n_prompt + args->n_gen;
    options.n_batch = options.n_batch ? options.n_batch : NUM_MAX(512, n_seq);
    options.n_logits = n_seq;
    options.n_session = n_seq;
    const int code = cli_open_engine(args, &options, &b->engine);
    if (!code)
        bench_rate_is_on_gpu(&b->rate, b->engine);
    return code;
}

/* The rows that were finished before an error or a signal are printed too. */
static int failed(const batch_bench *b, const nib_error *err) {
    bool any = false;
    for (int i = 0; i < b->n_width; i++)
        any |= b->rows[i].n_repeat > 0;
    cli_made(rows_json(b));
    if (any && !b->args->json)
        report(b);
    return cli_fail(err);
}

static int measure(batch_bench *b, bool many) {
    nib_error err;
    char line[64];
    for (int i = 0; i < b->n_width; i++) {
        if (is_many(b, b->widths[i]) != many)
            continue;
        snprintf(line, sizeof line, "%d sequences (%d of %d)", b->widths[i], i + 1, b->n_width);
        cli_progress_line(b->args, line);
        if (run_width(b, b->widths[i], &b->rows[i], &err))
            return failed(b, &err);
    }
    cli_progress_line(b->args, "");
    if (!b->memory_json) {
        nib_engine_memory(b->engine, &b->memory);
        b->memory_json = memory_json((memory_use){.engine = b->engine});
    }
    return 0;
}

static int measure_all(batch_bench *b) {
    const int max = largest(b, false);
    int code = open_for(b, max);
    if (code)
        return code;
    b->many_from = nib_engine_many_from(b->engine);
    const bool many = is_many(b, max);
    code = measure(b, many);
    if (code || !many || !largest(b, false))
        return code;
    nib_engine_close(b->engine);
    b->engine = NULL;
    code = open_for(b, largest(b, false));
    return code ? code : measure(b, false);
}

int bench_batch_run(cli_args *args) {
    static batch_bench b; /* large */
    b.args = args;
    b.n_thread = args->threads ? (int)args->threads : thread_physical_cores();
    int code = parse_widths(&b);
    if (code)
        return code;
    if (args->n_prompt < 1 || args->n_gen < 2)
        return cli_usage_error("--parallel: expected -p of 1 or more and -n of 2 or more");
    bench_rate_open(&b.rate, args, b.n_thread);
    b.prompt = malloc((size_t)args->n_prompt * sizeof *b.prompt);
    code = b.prompt ? measure_all(&b) : cli_no_memory();
    if (!code)
        code = report(&b);
    free(b.prompt);
    json_decref(b.memory_json);
    nib_engine_close(b.engine);
    bench_rate_close(&b.rate);
    return code;
}

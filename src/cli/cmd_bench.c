/* cmd_bench.c - nibble bench: prompt and generation speed, with the bytes read and their share of the plain
 * read rate, measured in the same run. */
#include "cli/bench/batch.h"
#include "cli/bench/rate.h"
#include "cli/bench/spans.h"
#include "cli/cli.h"
#include "cli/bench/kernels.h"

#include "base/num.h"
#include "base/status.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TRACE = 64 };

typedef struct bench_job {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    int32_t *
        tokens; /* [n_token], different in each repeat, since keys and values of equal ones would be reused */
    int64_t n_token;
    bench_rate rate;
    double cpu_s; /* processor seconds of the last prompt or generation */
    bool spans;   /* the launches of a GPU are traced */
    rate read;    /* plain read rate with as many threads; zero: not known */
    int n_thread;
} bench_job;

typedef struct bench_row {
    char test[32];
    nib_trace_row trace[MAX_TRACE];
    size_t n_trace;
    double pass_s;
    bench_spans spans; /* on a GPU, with --trace */
    int64_t n_repeat;
    double tok_s, min, max; /* mean and range over the repeats */
    double cpu_s;           /* processor seconds of a token, the fewest of the repeats */
    double gb_s;            /* weight bytes read a second; 0: not counted */
    rate_share share;       /* of the read rate, paired; zero: not known */
} bench_row;

static nib_status one_prompt(bench_job *job, double *seconds, nib_error *err) {
    static const int32_t other = 1; /* so that the session reuses nothing */
    const int64_t depth = job->args->n_depth, n = depth + job->args->n_prompt;
    NIB_TRY(nib_session_sync(job->session, depth ? job->tokens : &other, (size_t)NUM_MAX(depth, 1), err));
    const double start = time_now(), cpu = bench_cpu_seconds();
    nib_status status = nib_session_sync(job->session, job->tokens, (size_t)n, err);
    *seconds = time_now() - start;
    job->cpu_s = bench_cpu_seconds() - cpu;
    return status;
}

/* Sets consecutive tokens, the same in every process: routers of synthetic mixtures choose for them as real
 * ones do for text (nibble synth). Each repeat begins with another token. The tokens of the depth are the
 * same in every repeat, so that they are computed once. */
static void set_tokens(bench_job *job, int64_t repeat) {
    const uint64_t n_vocab = (uint64_t)nib_engine_info(job->engine)->n_vocab;
    for (int64_t i = 0; i < job->n_token; i++) {
        const uint64_t again = i < job->args->n_depth ? 0 : (uint64_t)(repeat + 1);
        job->tokens[i] = (int32_t)((again * 2654435761u + (uint64_t)i + 1) % n_vocab);
    }
}

/* Computes a piece of generation from token *i on. */
static nib_status one_piece(bench_job *job, int64_t *i, double *seconds, nib_error *err) {
    const int64_t first = *i;
    const double start = time_now(), cpu = bench_cpu_seconds();
    int32_t next; /* ignored: the tokens are given */
    do {
        NIB_TRY(nib_session_next(job->session, job->tokens[*i], &next, err));
        ++*i;
        *seconds = time_now() - start;
    } while (*i <= job->args->n_depth + job->args->n_gen && *seconds < BENCH_PIECE_SECONDS);
    job->cpu_s += bench_cpu_seconds() - cpu;
    bench_rate_piece(&job->rate, (double)(*i - first) / *seconds);
    return NIB_OK;
}

static nib_status one_generation(bench_job *job, double *seconds, nib_error *err) {
    const int64_t depth = job->args->n_depth;
    NIB_TRY(nib_session_sync(job->session, job->tokens, (size_t)depth + 1, err));
    *seconds = job->cpu_s = 0;
    for (int64_t i = depth + 1; i <= depth + job->args->n_gen;) {
        double took;
        NIB_TRY(one_piece(job, &i, &took, err));
        *seconds += took;
    }
    return NIB_OK;
}

/* Runs the test once; the first time is a warm-up. */
static nib_status repeat(bench_job *job, bool prompt, bench_row *row, nib_error *err) {
    const int64_t n = prompt ? job->args->n_prompt : job->args->n_gen;
    for (int64_t r = -1; r < job->args->repetitions; r++) {
        double seconds;
        set_tokens(job, r);
        if (r <= 0)
            bench_rate_begin(&job->rate);
        if (r == 0 && job->args->trace && !job->spans)
            NIB_TRY(nib_engine_trace_begin(job->engine, err));
        NIB_TRY(prompt ? one_prompt(job, &seconds, err) : one_generation(job, &seconds, err));
        if (r < 0)
            continue;
        double tok_s = (double)n / seconds;
        row->n_repeat++;
        row->tok_s += (tok_s - row->tok_s) / (double)row->n_repeat;
        row->min = NUM_MIN(row->min, tok_s);
        row->max = NUM_MAX(row->max, tok_s);
        row->cpu_s = NUM_MIN(row->cpu_s, job->cpu_s / (double)n);
        cli_progress(job->args, row->test, (uint64_t)r + 1, (uint64_t)job->args->repetitions);
    }
    return NIB_OK;
}

/* Computes one more prompt or token, traced launch by launch; it does not count in the row's times. */
static nib_status one_traced(bench_job *job, bool prompt, bench_row *row, nib_error *err) {
    static const int32_t other = 1;
    nib_error why;
    const int64_t depth = job->args->n_depth, n = depth + (prompt ? job->args->n_prompt : 2);
    set_tokens(job, job->args->repetitions);
    NIB_TRY(prompt && !depth
                ? nib_session_sync(job->session, &other, 1, err)
                : nib_session_sync(job->session, job->tokens, (size_t)(prompt ? depth : n - 1), err));
    NIB_TRY(bench_spans_begin(&row->spans, job->engine, err));
    int32_t next;
    const nib_status status = prompt ? nib_session_sync(job->session, job->tokens, (size_t)n, err)
                                     : nib_session_next(job->session, job->tokens[n - 1], &next, err);
    const nib_status ended = bench_spans_end(&row->spans, job->engine, status ? &why : err);
    row->spans.untraced_s = (double)(prompt ? job->args->n_prompt : 1) / row->tok_s;
    return status ? status : ended;
}

/* Runs all repeats of a test. After an error the row has those that ended. */
static nib_status run_test(bench_job *job, bool prompt, bench_row *row, nib_error *err) {
    snprintf(row->test, sizeof row->test, "%s%lld", prompt ? "pp" : "tg",
             (long long)(prompt ? job->args->n_prompt : job->args->n_gen));
    if (job->args->n_depth) {
        const size_t n = strlen(row->test);
        snprintf(row->test + n, sizeof row->test - n, " @ d%lld", (long long)job->args->n_depth);
    }
    row->min = row->cpu_s = 1e300;
    nib_status status = repeat(job, prompt, row, err);
    if (status == NIB_OK && job->spans)
        status = one_traced(job, prompt, row, err);
    row->n_trace =
        NUM_MIN(nib_engine_trace_read(job->engine, row->trace, MAX_TRACE, &row->pass_s), MAX_TRACE);
    if (!prompt) {
        const double token_bytes = (double)nib_engine_info(job->engine)->token_bytes;
        row->gb_s = row->tok_s * token_bytes / 1e9;
        bench_rate_share(&job->rate, token_bytes, &row->share, &job->read);
    }
    return status;
}

static json_t *trace_json(const bench_row *row) {
    json_t *list = json_array();
    for (size_t i = 0; i < row->n_trace; i++) {
        const nib_trace_row *t = &row->trace[i];
        json_array_append_new(list, json_pack("{s:s, s:I, s:f, s:f, s:f, s:f}", "op", t->what, "calls",
                                              (json_int_t)t->calls, "busy_s", t->busy_s, "wait_s", t->wait_s,
                                              "weight_bytes", t->weight_bytes, "macs", t->macs));
    }
    return list;
}

static json_t *row_json(const bench_row *row, const cli_args *args) {
    json_t *o =
        json_pack("{s:s, s:f, s:f, s:f, s:f, s:o, s:o, s:I}", "test", row->test, "tok_s", row->tok_s, "min",
                  row->min, "max", row->max, "cpu_s", row->cpu_s, "gb_s", bench_rate_json(row->gb_s),
                  "peak_share", bench_rate_json(row->share.median), "repeats", (json_int_t)row->n_repeat);
    if (row->share.median > 0)
        json_object_set_new(o, "peak_share_quarters", json_pack("[ff]", row->share.low, row->share.high));
    if (args->trace && row->n_trace)
        json_object_set_new(o, "trace", trace_json(row));
    if (row->spans.n)
        json_object_set_new(o, "launches", bench_spans_json(&row->spans));
    return o;
}

/* Shares are of the threads' time: n_thread times the seconds of the passes. */
static void print_trace(const bench_job *job, const bench_row *row) {
    double all = row->pass_s * job->n_thread, busy = 0, wait = 0;
    double passes = (double)job->args->repetitions * (row->gb_s > 0 ? (double)job->args->n_gen : 1);
    printf("\n%s, one pass        %9s %7s %10s %7s %10s %8s %8s\n", row->test, "calls", "us busy", "share",
           "us wait", "share", "GB/s", "GMAC/s");
    for (size_t i = 0; i < row->n_trace; i++) {
        const nib_trace_row *t = &row->trace[i];
        busy += t->busy_s;
        wait += t->wait_s;
        if (t->calls == 0) /* fused with another op */
            continue;
        printf("  %-24s %7.0f %10.1f %6.1f%% %10.1f %6.1f%%", t->what, (double)t->calls / passes,
               t->busy_s / passes * 1e6, t->busy_s / all * 100, t->wait_s / passes * 1e6,
               t->wait_s / all * 100);
        double seconds = t->busy_s / job->n_thread;
        if (t->weight_bytes > 0 && seconds > 0)
            printf(" %8.2f %8.1f", t->weight_bytes / seconds * 1e-9, t->macs / seconds * 1e-9);
        putchar('\n');
    }
    printf("  %-24s %7s %10.1f %6.1f%% %10.1f %6.1f%%\n", "all ops", "", busy / passes * 1e6,
           busy / all * 100, wait / passes * 1e6, wait / all * 100);
    printf("  %-24s %7s %10.1f %6.1f%%\n", "outside them", "", (all - busy - wait) / passes * 1e6,
           (all - busy - wait) / all * 100);
}

static json_t *rows_json(const bench_job *job, const bench_row *rows, int n_row) {
    json_t *list = json_array();
    for (int i = 0; i < n_row; i++)
        if (rows[i].n_repeat)
            json_array_append_new(list, row_json(&rows[i], job->args));
    return json_pack(
        "{s:o, s:o, s:o, s:i, s:o, s:o}", "rows", list, "read_gb_s", bench_rate_json(job->read.best / 1e9),
        "read_gb_s_median", bench_rate_json(job->read.median / 1e9), "threads", job->n_thread, "memory",
        memory_json((memory_use){.engine = job->engine}), "traffic", cli_traffic_json(job->engine));
}

static int report(const bench_job *job, const bench_row *rows, int n_row) {
    if (job->args->json)
        return cli_write_json(rows_json(job, rows, n_row), job->args);
    printf("%-16s %10s %10s %10s %10s %8s\n", "test", "tok/s", "min", "max", "GB/s", "of reads");
    for (int i = 0; i < n_row; i++) {
        printf("%-16s %10.1f %10.1f %10.1f", rows[i].test, rows[i].tok_s, rows[i].min, rows[i].max);
        if (rows[i].gb_s > 0)
            printf(" %10.2f", rows[i].gb_s);
        if (rows[i].share.median > 0)
            printf(" %6.0f %%", rows[i].share.median * 100);
        putchar('\n');
    }
    for (int i = 0; i < n_row && job->args->trace; i++)
        if (job->spans)
            bench_spans_print(&rows[i].spans, rows[i].test, rows[i].test[0] == 't');
        else
            print_trace(job, &rows[i]);
    if (job->read.best > 0)
        printf("memory reads %.2f GB/s with %d threads (median pass %.2f), measured in this run\n",
               job->read.best / 1e9, job->n_thread, job->read.median / 1e9);
    if (nib_engine_kernels(job->engine))
        printf("kernels by the map %s\n", nib_engine_kernels(job->engine));
    cli_print_memory(job->args, (memory_use){.engine = job->engine}, stdout);
    cli_print_traffic(job->args, job->engine, stdout);
    return 0;
}

static int write_spans(const bench_job *job, const bench_row *rows, int n_row) {
    const bench_spans *const list[] = {&rows[0].spans, &rows[1].spans};
    const char *const tests[] = {rows[0].test, rows[1].test};
    return job->args->trace_file ? bench_spans_write(job->args->trace_file, list, tests, n_row) : 0;
}

static int measure(bench_job *job) {
    bench_row rows[2];
    memset(rows, 0, sizeof rows);
    int n_row = 0;
    nib_error err = {NIB_OK, ""};
    nib_status status = NIB_OK;
    if (job->args->n_prompt > 0)
        status = run_test(job, true, &rows[n_row++], &err);
    if (!status && job->args->n_gen > 0)
        status = run_test(job, false, &rows[n_row++], &err);
    if (!status && job->args->n_gen == 0)
        bench_rate_alone(&job->rate, &job->read);
    if (!status && cli_interrupted()) /* during the read pass: the rate is not known */
        status = err.status = NIB_E_CANCELLED;
    int code = status ? 0 : write_spans(job, rows, n_row);
    if (!status)
        code = code ? code : report(job, rows, n_row);
    else
        cli_made(rows_json(job, rows, n_row));
    bench_spans_free(&rows[0].spans);
    bench_spans_free(&rows[1].spans);
    return status ? cli_fail(&err) : code;
}

static int bench_engine(bench_job *job) {
    nib_error err;
    int code = 0;
    job->n_token = job->args->n_depth + job->args->n_prompt + job->args->n_gen + 2;
    job->tokens = malloc((size_t)job->n_token * sizeof *job->tokens);
    if (!job->tokens)
        code = cli_no_memory();
    if (!code && nib_session_open(job->engine, NULL, &job->session, &err))
        code = cli_fail(&err);
    if (!code)
        code = measure(job);
    free(job->tokens);
    nib_session_close(job->session);
    return code;
}

static int run(cli_args *args) {
    static bench_job job; /* large */
    nib_engine_options options;
    if (args->kernels)
        return kernel_bench_run(args);
    if (!args->model)
        return cli_usage_error("which model? usage: nibble bench MODEL, or nibble bench --kernels");
    if (args->parallel && args->n_depth)
        return cli_usage_error("-d works with one sequence only: with -np use a longer -p");
    if (args->parallel)
        return bench_batch_run(args);
    if (args->n_prompt == 0 && args->n_gen == 0)
        return cli_usage_error("nothing to time: -p and -n are both 0");
    args->trace = args->trace || args->trace_file;
    cli_engine_options(args, &options);
    if (!options.n_ctx)
        options.n_ctx = args->n_depth + NUM_MAX(args->n_prompt, args->n_gen) + 2;
    job.args = args;
    job.n_thread = args->threads ? (int)args->threads : thread_physical_cores();
    bench_rate_open(&job.rate, args, job.n_thread);
    int code = cli_open_engine(args, &options, &job.engine);
    const bool on_gpu = !code && bench_rate_is_on_gpu(&job.rate, job.engine);
    job.spans = args->trace && on_gpu;
    if (!code && args->trace_file && !job.spans)
        code = cli_usage_error("--trace-file needs a GPU: add --backend cuda");
    if (!code)
        code = bench_engine(&job);
    nib_engine_close(job.engine);
    bench_rate_close(&job.rate);
    return code;
}

const cli_command cmd_bench = {
    .name = "bench",
    .usage = "MODEL [-p 512] [-n 128] [-d 0] [-r 5] [-np 1,8,32] | --kernels [MODEL]",
    .summary = "prompt and generation speed, and their share of memory bandwidth",
    .details =
        "pp is the speed of a prompt in tokens a second, tg that of generation. tg also has the weight\n"
        "bytes read per second and their share of the plain read rate, which is measured in alternation\n"
        "(medians over pieces of 50 ms). -d N: both start with N tokens in the KV cache. In --json, cpu_s\n"
        "is the processor time of a token, which other programs disturb less than tok/s.\n\n"
        "--trace shows where the time of a pass goes: for each kind of op the processor time of the work\n"
        "and the time that threads wait at barriers, summed over threads. On a GPU it times each launch of\n"
        "one more prompt and token, which makes these slower, and shows the bytes that each kind moves.\n"
        "--trace-file FILE writes the launches for chrome://tracing and Perfetto.\n\n"
        "  nibble bench smollm2 -t 2\n\n"
        "-np 1,8,32 times 1, 8 and 32 sequences that decode together, each with a prompt of -p tokens and "
        "an\n"
        "answer of -n; tok/s is the rate of all together, and GB/s counts the weights once for each step.\n\n"
        "  nibble bench smollm2 -np 1,8,32 -p 64 -n 64\n\n"
        "--kernels times every strategy of each product alone, for 1 to 512 rows, and shows how much slower\n"
        "the kernel map, the rule and fixed choices are than the fastest. --backend cuda times the GPU's.\n\n"
        "  nibble bench --kernels smollm2 [--backend cuda]\n",
    .groups =
        CLI_MODEL | CLI_MODEL_OPTIONAL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_BENCH | CLI_KERNELS,
    .run = run,
};

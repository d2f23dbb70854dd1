/* eval_hellaswag.c - HellaSwag accuracy as llama-perplexity computes it: the ending with the best mean
 * log-probability per token after the four endings' common prefix wins. Six lines a task: context, index of
 * the right ending, four endings. */
#include "cli/eval.h"

#include "base/num.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

enum { ENDINGS = 4, LINES = 6 };

typedef struct swag_job {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    int64_t n_vocab, n_task, n_right, n_token;
    int64_t n_done;        /* tasks */
    const int32_t *tokens; /* of the sequence being scored */
    size_t n;
    double log_prob;
    double seconds;
} swag_job;

static void score_row(void *user, int64_t position, const float *logits) {
    swag_job *job = user;
    if ((size_t)position + 1 < job->n)
        job->log_prob += (double)logits[job->tokens[position + 1]] - eval_log_sum_exp(logits, job->n_vocab);
}

static size_t common_prefix(int32_t *const *tokens, const size_t *n) {
    for (size_t i = 0;; i++)
        for (int e = 0; e < ENDINGS; e++)
            if (i >= n[e] || tokens[e][i] != tokens[0][i])
                return i;
}

static int score_endings(swag_job *job, int32_t *const *tokens, const size_t *n, int *best) {
    size_t prefix = common_prefix(tokens, n);
    double best_mean = 0;
    for (int e = 0; e < ENDINGS; e++) {
        nib_error err;
        if (prefix == 0 || prefix >= n[e])
            return cli_usage_error("a HellaSwag ending adds no token to its context");
        job->tokens = tokens[e];
        job->n = n[e];
        job->log_prob = 0;
        job->n_token += (int64_t)n[e];
        if (nib_session_forward(job->session, tokens[e], n[e], (int64_t)prefix - 1, score_row, job, &err))
            return cli_fail(&err);
        double mean = job->log_prob / (double)(n[e] - prefix);
        if (e == 0 || mean > best_mean) {
            best_mean = mean;
            *best = e;
        }
    }
    return 0;
}

static int one_task(swag_job *job, char *const *lines, int *best) {
    int32_t *tokens[ENDINGS] = {NULL};
    size_t n[ENDINGS];
    int code = 0;
    for (int e = 0; e < ENDINGS && !code; e++) {
        nib_error err;
        size_t size = strlen(lines[0]) + strlen(lines[2 + e]) + 2;
        char *text = malloc(size);
        if (!text)
            return cli_usage_error("out of memory");
        snprintf(text, size, "%s %s", lines[0], lines[2 + e]);
        if (nib_tokenize(job->engine, text, size - 1, NIB_TOKENIZE_BOS, &tokens[e], &n[e], &err))
            code = cli_fail(&err);
        free(text);
    }
    if (!code)
        code = score_endings(job, tokens, n, best);
    for (int e = 0; e < ENDINGS; e++)
        nib_free(tokens[e]);
    return code;
}

static int all_tasks(swag_job *job, char **lines) {
    double start = time_now();
    for (int64_t t = 0; t < job->n_task; t++) {
        char *const *task = lines + t * LINES;
        if (strlen(task[1]) != 1 || task[1][0] < '0' || task[1][0] >= '0' + ENDINGS)
            return cli_usage_error("%s, line %lld: expected the index of an ending (0 to 3), found '%.40s'",
                                   job->args->hellaswag, (long long)(t * LINES + 2), task[1]);
        int best = 0, code = one_task(job, task, &best);
        if (code)
            return code;
        job->n_right += best == task[1][0] - '0';
        job->n_done++;
        job->seconds = time_now() - start;
        if (!cli_progress(job->args, "hellaswag", (uint64_t)t + 1, (uint64_t)job->n_task))
            return nib_status_exit_code(NIB_E_CANCELLED);
    }
    return 0;
}

/* Cuts text into lines in place; blank lines are left out. */
static size_t split_lines(char *text, char **lines) {
    size_t n = 0;
    for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n"))
        lines[n++] = line;
    return n;
}

static double percent_right(const swag_job *job) {
    return 100.0 * (double)job->n_right / (double)job->n_done;
}

/* Of the tasks that are done. */
static json_t *result_json(const swag_job *job) {
    const bool some = job->n_done > 0;
    return json_pack(
        "{s:o, s:I, s:{s:f, s:f}, s:o}", "hellaswag", some ? json_real(percent_right(job)) : json_null(),
        "tasks", (json_int_t)job->n_done, "timings", "seconds", job->seconds, "tok_s",
        job->seconds > 0 ? (double)job->n_token / job->seconds : 0.0, "memory", cli_memory_json(job->engine));
}

static int report(const swag_job *job) {
    if (!job->args->json) {
        printf("HellaSwag %.2f %% of %lld tasks right, %.1f tok/s\n", percent_right(job),
               (long long)job->n_task, (double)job->n_token / job->seconds);
        return 0;
    }
    return cli_write_json(result_json(job), job->args);
}

static int score_text(swag_job *job, char *text, size_t n_byte) {
    char **lines = malloc((n_byte / 2 + 2) * sizeof *lines);
    if (!lines)
        return cli_usage_error("out of memory");
    size_t n_line = split_lines(text, lines);
    int code = 0;
    if (!n_line || n_line % LINES)
        code = cli_usage_error("%s: expected a multiple of %d lines, found %zu", job->args->hellaswag, LINES,
                               n_line);
    job->n_task = NUM_MIN((int64_t)(n_line / LINES), job->args->tasks);
    if (!code && (code = all_tasks(job, lines)) != 0)
        cli_made(result_json(job));
    free(lines);
    return code ? code : report(job);
}

int eval_hellaswag(cli_args *args) {
    swag_job job = {.args = args};
    nib_engine_options options;
    nib_error err;
    cli_args reading = *args;
    reading.file = args->hellaswag;
    char *text;
    size_t n_byte;
    int code = cli_read_text(&reading, NULL, reading.rest.n, &text, &n_byte);
    if (code)
        return code;
    cli_engine_options(args, &options);
    options.n_logits = CLI_LOGITS_ROWS;
    if (!options.n_ctx)
        options.n_ctx = 512;
    code = cli_open_engine(args, &options, &job.engine);
    if (!code && nib_session_open(job.engine, NULL, &job.session, &err))
        code = cli_fail(&err);
    if (!code) {
        job.n_vocab = nib_engine_info(job.engine)->n_vocab;
        code = score_text(&job, text, n_byte);
    }
    free(text);
    nib_session_close(job.session);
    nib_engine_close(job.engine);
    return code;
}

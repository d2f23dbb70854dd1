/* eval_perplexity.c - perplexity as llama-perplexity computes it: the text is cut in chunks of n_ctx tokens,
 * the first token of each is replaced by BOS where the model asks for one, and the second half is scored. */
#include "cli/eval.h"

#include "base/num.h"
#include "base/thread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct ppl_job {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    int32_t *tokens;
    size_t n_token;
    char *text; /* [n_byte], until it is tokens */
    size_t n_byte;
    int64_t n_ctx, n_chunk, n_vocab;
    int64_t n_done;       /* chunks */
    const int32_t *chunk; /* the tokens of the chunk being scored */
    double nll, nll2;     /* sums of -log p and of its square */
    int64_t count;
    kld_file *kld;
    bool saving;
    nib_error err;
    nib_status status; /* of kld_row */
    double seconds;
} ppl_job;

double eval_log_sum_exp(const float *logits, int64_t n) {
    float max = logits[0];
    for (int64_t i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return log(sum) + (double)max;
}

static void score_row(void *user, int64_t position, const float *logits) {
    ppl_job *job = user;
    if (position + 1 >= job->n_ctx || job->status)
        return;
    int32_t target = job->chunk[position + 1];
    double nll = eval_log_sum_exp(logits, job->n_vocab) - (double)logits[target];
    job->nll += nll;
    job->nll2 += nll * nll;
    job->count++;
    if (job->kld)
        job->status = kld_row(job->kld, logits, target, &job->err);
}

static double perplexity(const ppl_job *job) {
    return exp(job->nll / (double)job->count);
}

static double perplexity_stderr(const ppl_job *job) {
    double mean = job->nll / (double)job->count;
    double variance = job->nll2 / (double)job->count - mean * mean;
    return job->count > 1 && variance > 0 ? sqrt(variance / (double)(job->count - 1)) * exp(mean) : 0;
}

static int score_chunks(ppl_job *job) {
    nib_error err;
    const nib_model_info *info = nib_engine_info(job->engine);
    const double start = time_now();
    for (int64_t c = 0; c < job->n_chunk; c++) {
        int32_t *chunk = job->tokens + c * job->n_ctx;
        int32_t first = chunk[0];
        if (info->add_bos)
            chunk[0] = info->bos;
        job->chunk = chunk;
        nib_status status = nib_session_forward(job->session, chunk, (size_t)job->n_ctx, job->n_ctx / 2,
                                                score_row, job, &err);
        chunk[0] = first;
        if (status)
            return cli_fail(&err);
        if (job->status)
            return cli_fail(&job->err);
        job->n_done++;
        job->seconds = time_now() - start;
        if (job->args->verbose)
            cli_note(job->args, "chunk %lld of %lld: perplexity %.4f", (long long)c + 1,
                     (long long)job->n_chunk, perplexity(job));
        else if (!cli_progress(job->args, "perplexity", (uint64_t)c + 1, (uint64_t)job->n_chunk))
            return nib_status_exit_code(NIB_E_CANCELLED);
    }
    return 0;
}

/* Before the engine is open: what the text takes is then what the process has when a cap is counted. */
static int read_text(ppl_job *job) {
    cli_args reading = *job->args;
    reading.file = job->args->ppl;
    return cli_read_text(&reading, NULL, reading.rest.n, &job->text, &job->n_byte);
}

static int tokenize(ppl_job *job) {
    int code = 0;
    nib_error err;
    if (job->n_byte && job->text[job->n_byte - 1] == '\n')
        job->n_byte--;
    if (nib_tokenize(job->engine, job->text, job->n_byte, NIB_TOKENIZE_BOS, &job->tokens, &job->n_token,
                     &err))
        code = cli_fail(&err);
    free(job->text);
    job->text = NULL;
    job->n_chunk = (int64_t)job->n_token / job->n_ctx;
    if (!code && job->n_chunk < 1)
        code = cli_usage_error("%s has %zu tokens; at least %lld are needed (see -c)", job->args->ppl,
                               job->n_token, (long long)job->n_ctx);
    if (job->args->chunks)
        job->n_chunk = NUM_MIN(job->n_chunk, job->args->chunks);
    return code;
}

static json_t *kld_json(const kld_stats *stats) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "kld", stats->mean, "kld_stderr", stats->stderr_mean,
                     "kld_max", stats->max, "same_top", stats->same_top, "base_ppl", stats->base_ppl);
}

/* Of the tokens that are scored; after an interruption those of a part of a chunk are among them. */
static json_t *result_json(const ppl_job *job) {
    const bool some = job->count > 0;
    return json_pack(
        "{s:o, s:o, s:I, s:I, s:{s:f, s:f}, s:o}", "ppl", some ? json_real(perplexity(job)) : json_null(),
        "ppl_stderr", some ? json_real(perplexity_stderr(job)) : json_null(), "chunks",
        (json_int_t)job->n_done, "tokens", (json_int_t)job->count, "timings", "seconds", job->seconds,
        "tok_s", job->seconds > 0 ? (double)(job->n_done * job->n_ctx) / job->seconds : 0.0, "memory",
        cli_memory_json(job->engine));
}

static int report(ppl_job *job, const kld_stats *stats) {
    bool compared = job->args->kld_base && !job->saving;
    if (!job->args->json) {
        printf("perplexity %.4f +/- %.4f over %lld chunks of %lld tokens, %.1f tok/s\n", perplexity(job),
               perplexity_stderr(job), (long long)job->n_chunk, (long long)job->n_ctx,
               (double)(job->n_chunk * job->n_ctx) / job->seconds);
        if (compared)
            printf("KL divergence from the base %.6f +/- %.6f (largest %.4f), same likeliest token %.2f %%, "
                   "perplexity of the base %.4f\n",
                   stats->mean, stats->stderr_mean, stats->max, stats->same_top * 100, stats->base_ppl);
        return 0;
    }
    json_t *document = result_json(job);
    if (compared)
        json_object_set_new(document, "kld", kld_json(stats));
    return cli_write_json(document, job->args);
}

static int score(ppl_job *job) {
    nib_error err;
    if (job->args->kld_base && kld_open(job->args->kld_base, job->tokens, job->n_chunk * job->n_ctx,
                                        job->n_ctx, job->n_vocab, &job->saving, &job->kld, &err))
        return cli_fail(&err);
    int code = score_chunks(job);
    kld_stats stats = {0};
    if (code)
        cli_made(result_json(job));
    if (!job->kld)
        return code ? code : report(job, &stats);
    if (code) {
        kld_abort(job->kld);
        return code;
    }
    if (kld_close(job->kld, &stats, &err))
        return cli_fail(&err);
    if (job->saving)
        cli_note(job->args, "nibble: saved the distributions in %s; run again to compare with them",
                 job->args->kld_base);
    return report(job, &stats);
}

int eval_perplexity(cli_args *args) {
    ppl_job job = {.args = args};
    nib_engine_options options;
    nib_error err;
    if (args->ctx_size > 0 && args->ctx_size < 4)
        return cli_usage_error("-c: perplexity needs a context of at least 4 tokens");
    cli_engine_options(args, &options);
    options.n_logits = CLI_LOGITS_ROWS;
    if (!options.n_ctx)
        options.n_ctx = 512;
    int code = read_text(&job);
    if (!code)
        code = cli_open_engine(args, &options, &job.engine);
    if (code) {
        free(job.text);
        return code;
    }
    job.n_ctx = nib_engine_info(job.engine)->n_ctx;
    job.n_vocab = nib_engine_info(job.engine)->n_vocab;
    code = tokenize(&job);
    if (!code && nib_session_open(job.engine, NULL, &job.session, &err))
        code = cli_fail(&err);
    if (!code)
        code = score(&job);
    nib_free(job.tokens);
    nib_session_close(job.session);
    nib_engine_close(job.engine);
    return code;
}

/* cmd_eval.c - nibble eval: perplexity, KL divergence and HellaSwag, computed by the library (nib_tools.h) as
 * by llama.cpp's tools, so that results are comparable. */
#include "cli/cli.h"
#include "nib_tools.h"

#include <math.h>
#include <stdlib.h>

typedef struct evaluation {
    cli_args *args;
    nib_engine *engine;
    nib_session *session;
    char *text; /* [n_byte] */
    size_t n_byte;
} evaluation;

static json_t *real_or_null(double x) {
    return isfinite(x) ? json_real(x) : json_null();
}

/* ---- perplexity ---- */

static bool on_chunk(void *user, const nib_perplexity *p) {
    const evaluation *e = user;
    if (!e->args->verbose)
        return cli_progress(e->args, "perplexity", (uint64_t)p->n_done, (uint64_t)p->n_chunk);
    cli_note(e->args, "chunk %lld of %lld: perplexity %.4f", (long long)p->n_done, (long long)p->n_chunk,
             p->ppl);
    return true;
}

static double token_rate(double n_token, double seconds) {
    return seconds > 0 ? n_token / seconds : 0;
}

static json_t *perplexity_json(const evaluation *e, const nib_perplexity *p, int64_t n_ctx) {
    json_t *document = json_pack("{s:o, s:o, s:I, s:I, s:{s:f, s:f}, s:o}", "ppl", real_or_null(p->ppl),
                                 "ppl_stderr", real_or_null(p->stderr_ppl), "chunks", (json_int_t)p->n_done,
                                 "tokens", (json_int_t)p->n_scored, "timings", "seconds", p->seconds, "tok_s",
                                 token_rate((double)(p->n_done * n_ctx), p->seconds), "memory",
                                 memory_json((memory_use){.engine = e->engine}));
    if (p->compared)
        json_object_set_new(document, "kld",
                            json_pack("{s:f, s:f, s:f, s:f, s:f}", "kld", p->kld, "kld_stderr", p->stderr_kld,
                                      "kld_max", p->max_kld, "same_top", p->same_top, "base_ppl",
                                      p->base_ppl));
    return document;
}

static int report_perplexity(const evaluation *e, const nib_perplexity *p, int64_t n_ctx) {
    if (p->saved)
        cli_note(e->args, "nibble: saved the distributions in %s; run again to compare with them",
                 e->args->kld_base);
    if (e->args->json)
        return cli_write_json(perplexity_json(e, p, n_ctx), e->args);
    printf("perplexity %.4f +/- %.4f over %lld chunks of %lld tokens, %.1f tok/s\n", p->ppl, p->stderr_ppl,
           (long long)p->n_done, (long long)n_ctx, token_rate((double)(p->n_done * n_ctx), p->seconds));
    if (p->compared)
        printf("KL divergence from the base %.6f +/- %.6f (largest %.4f), same most probable token %.2f %%, "
               "perplexity of the base %.4f\n",
               p->kld, p->stderr_kld, p->max_kld, p->same_top * 100, p->base_ppl);
    return 0;
}

static int perplexity(evaluation *e) {
    const nib_perplexity_options how = {.n_ctx = nib_engine_info(e->engine)->n_ctx,
                                        .max_chunk = e->args->chunks,
                                        .kld_base = e->args->kld_base,
                                        .on_chunk = on_chunk,
                                        .user = e};
    nib_perplexity found;
    nib_error err;
    int32_t *tokens;
    size_t n_token;
    if (e->n_byte && e->text[e->n_byte - 1] == '\n')
        e->n_byte--;
    if (nib_tokenize(e->engine, e->text, e->n_byte, NIB_TOKENIZE_BOS, &tokens, &n_token, &err))
        return cli_fail(&err);
    free(e->text);
    e->text = NULL;
    if ((int64_t)n_token < how.n_ctx) {
        nib_free(tokens);
        return cli_usage_error("%s: expected at least %lld tokens, found %zu (see -c)", e->args->ppl,
                               (long long)how.n_ctx, n_token);
    }
    const nib_status status = nib_session_perplexity(e->session, tokens, n_token, &how, &found, &err);
    nib_free(tokens);
    if (!status)
        return report_perplexity(e, &found, how.n_ctx);
    cli_made(perplexity_json(e, &found, how.n_ctx));
    return cli_fail(&err);
}

/* ---- HellaSwag ---- */

static bool on_task(void *user, const nib_hellaswag *h) {
    const evaluation *e = user;
    return cli_progress(e->args, "hellaswag", (uint64_t)h->n_done, (uint64_t)h->n_task);
}

static double percent_right(const nib_hellaswag *h) {
    return h->n_done ? 100.0 * (double)h->n_right / (double)h->n_done : NAN;
}

static json_t *hellaswag_json(const evaluation *e, const nib_hellaswag *h) {
    return json_pack("{s:o, s:I, s:{s:f, s:f}, s:o}", "hellaswag", real_or_null(percent_right(h)), "tasks",
                     (json_int_t)h->n_done, "timings", "seconds", h->seconds, "tok_s",
                     token_rate((double)h->n_token, h->seconds), "memory",
                     memory_json((memory_use){.engine = e->engine}));
}

static int hellaswag(evaluation *e) {
    const nib_hellaswag_options how = {.max_task = e->args->tasks, .on_task = on_task, .user = e};
    nib_hellaswag found;
    nib_error err;
    if (nib_session_hellaswag(e->session, e->text, e->n_byte, &how, &found, &err)) {
        cli_made(hellaswag_json(e, &found));
        return cli_fail(&err);
    }
    if (e->args->json)
        return cli_write_json(hellaswag_json(e, &found), e->args);
    printf("HellaSwag %.2f %% of %lld tasks right, %.1f tok/s\n", percent_right(&found),
           (long long)found.n_done, token_rate((double)found.n_token, found.seconds));
    return 0;
}

/* Reads the text before it opens the engine, so that the text's memory is counted under the cap. */
static int open_all(evaluation *e) {
    nib_engine_options options;
    nib_error err;
    cli_args reading = *e->args;
    reading.file = e->args->ppl ? e->args->ppl : e->args->hellaswag;
    cli_engine_options(e->args, &options);
    options.n_logits = CLI_LOGITS_ROWS;
    if (!options.n_ctx)
        options.n_ctx = 512;
    int code = cli_read_text(&reading, NULL, reading.rest.n, &e->text, &e->n_byte);
    if (!code)
        code = cli_open_engine(e->args, &options, &e->engine);
    if (!code && nib_session_open(e->engine, NULL, &e->session, &err))
        code = cli_fail(&err);
    return code;
}

static int run(cli_args *args) {
    evaluation e = {.args = args};
    if (!args->ppl == !args->hellaswag)
        return cli_usage_error("eval needs one of --ppl FILE and --hellaswag FILE");
    if (args->kld_base && !args->ppl)
        return cli_usage_error("--kld-base needs --ppl");
    if (args->ppl && args->ctx_size > 0 && args->ctx_size < 4)
        return cli_usage_error("-c: perplexity needs a context of at least 4 tokens");
    int code = open_all(&e);
    if (!code)
        code = args->ppl ? perplexity(&e) : hellaswag(&e);
    free(e.text);
    nib_session_close(e.session);
    nib_engine_close(e.engine);
    return code;
}

const cli_command cmd_eval = {
    .name = "eval",
    .usage = "MODEL --ppl FILE | --hellaswag FILE [options]",
    .summary = "perplexity, KL divergence between distributions, HellaSwag",
    .details =
        "--ppl scores the second half of each chunk of -c tokens (default 512). --kld-base FILE saves the\n"
        "distributions of all scored tokens if FILE does not exist, and compares with FILE if it does.\n"
        "--hellaswag counts the tasks whose right ending has the highest probability per token.\n\n"
        "  nibble eval smollm2 --ppl wikitext2-valid.txt --chunks 20\n"
        "  nibble eval model-f16.gguf --ppl text.txt --kld-base base.kld\n"
        "  nibble eval model-q4.gguf --ppl text.txt --kld-base base.kld\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_EVAL,
    .run = run,
};

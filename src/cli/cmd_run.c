/* cmd_run.c - nibble run: writes the answer to a prompt, or its continuation, as it is generated. */
#include "cli/cli.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/chat/prompt.h"
#include "cli/terminal/wrap.h"

#include <stdlib.h>
#include <string.h>

enum {
    USUAL_TEXT = 256,  /* tokens of a continuation, which seldom ends by itself */
    USUAL_ANSWER = 128 /* tokens of an answer, for predictions */
};

typedef struct run_job {
    cli_args *args;
    nib_engine *engine, *draft;
    nib_session *session;
    prompt prompt;
    char *grammar;        /* NULL: none */
    nib_logit_bias *bias; /* NULL: none */
    nib_result result;
    nib_status status; /* of generating */
    wrap screen;
    bool first_id, wrote;
    nib_prediction expected; /* before the run; tok_s 0: none */
} run_job;

static bool on_text(void *user, const char *text, size_t n_byte) {
    run_job *job = user;
    job->wrote = true;
    return wrap_write(&job->screen, text, n_byte);
}

/* nib_token_fn for a model without a tokenizer: writes the ids. */
static bool on_token(void *user, int32_t token) {
    run_job *job = user;
    char id[16];
    int n = snprintf(id, sizeof id, "%s%d", job->first_id ? "" : " ", token);
    job->first_id = false;
    job->wrote = true;
    return cli_write(id, (size_t)n);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    run_job *job = user;
    return cli_progress(job->args, what, done, total);
}

static int generate(run_job *job) {
    nib_generate_options options;
    nib_generate_options_init(&options);
    options.prompt = job->prompt.tokens;
    options.n_prompt = job->prompt.n_token;
    options.n_predict = job->args->predict;
    options.ignore_eos = job->args->ignore_eos;
    options.stop = job->args->stop.data;
    options.n_stop = job->args->stop.n;
    options.grammar = job->grammar;
    options.bias = job->bias;
    options.n_bias = job->args->logit_bias.n;
    options.on_prompt = on_prompt;
    options.user = job;
    cli_sampling(job->args, &options.sampling);
    if (!job->args->json) {
        const bool has_text = nib_engine_info(job->engine)->has_tokenizer;
        options.on_text = has_text ? on_text : NULL;
        options.on_token = has_text ? NULL : on_token;
    }
    nib_error err;
    wrap_init(&job->screen);
    nib_status status = nib_generate(job->session, &options, &job->result, &err);
    job->status = status;
    if (!job->args->json && (job->wrote || !status))
        cli_write("\n", 1);
    return status ? cli_fail(&err) : 0;
}

void cli_note_cut(const cli_args *args, const nib_engine *engine, size_t n_prompt, int64_t n_predict,
                  const nib_result *result, const char *more) {
    const int64_t n_ctx = nib_engine_info(engine)->n_ctx;
    if (result->finish != NIB_FINISH_LENGTH)
        return;
    if (n_predict >= 0 && (int64_t)result->n_token >= n_predict)
        cli_note(args, "[the answer is cut at %zu token%s; %s]", result->n_token,
                 result->n_token == 1 ? "" : "s", more);
    else
        cli_note(args,
                 "[the answer is cut: with %zu tokens before it, the context of %lld is full; -c makes it "
                 "longer]",
                 n_prompt, (long long)n_ctx);
}

json_t *cli_tokens_json(const int32_t *tokens, size_t n_token) {
    json_t *list = json_array();
    for (size_t i = 0; i < n_token; i++)
        json_array_append_new(list, json_integer(tokens[i]));
    return list;
}

static double per_second(int64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

/* Tokens a second after the first one, which is computed with the prompt. Tokens of one pass have no time of
 * their own. */
static double generation_rate(const nib_result *r) {
    return r->draft_n ? per_second(r->predicted_n - 1, r->predicted_s) : per_second(r->token_n, r->token_s);
}

static json_t *timings_json(const nib_result *r) {
    return json_pack("{s:I, s:f, s:I, s:f, s:I, s:f, s:f, s:f, s:I, s:I}", "prompt_n",
                     (json_int_t)r->prompt_n, "prompt_s", r->prompt_s, "predicted_n",
                     (json_int_t)r->predicted_n, "predicted_s", r->predicted_s, "token_n",
                     (json_int_t)r->token_n, "token_s", r->token_s, "prompt_per_second",
                     per_second(r->prompt_n, r->prompt_s), "predicted_per_second", generation_rate(r),
                     "draft_n", (json_int_t)r->draft_n, "draft_n_accepted", (json_int_t)r->draft_right);
}

/* Predicts the speed of this prompt and answer, before they are computed. */
static void predict(run_job *job) {
    nib_error err;
    const int64_t n = job->args->predict < 0 ? USUAL_ANSWER : job->args->predict;
    if (nib_engine_predict(job->engine, (int64_t)job->prompt.n_token, n, &job->expected, &err)) {
        cli_note(job->args, "nibble: no prediction: %s", err.message);
        memset(&job->expected, 0, sizeof job->expected);
    }
}

static void print_expected(const run_job *job) {
    const nib_result *r = &job->result;
    const nib_prediction *p = &job->expected;
    char planned[32], measured[32];
    nib_memory now;
    if (p->tok_s <= 0)
        return;
    nib_engine_memory(job->engine, &now);
    cli_note(job->args, "expected     %.1f tok/s%s", p->tok_s, p->guessed && !p->n_run ? " (a guess)" : "");
    cli_note(job->args, "  measured   %.1f tok/s", generation_rate(r));
    cli_note(job->args, "  rates from %s", cli_prediction_source(p));
    cli_note(job->args, "  peak       %s", num_format_size(p->ram_peak, planned));
    cli_note(job->args, "  measured   %s", num_format_size(now.rss_peak, measured));
    cli_note(job->args, "  bottleneck %s", p->binds);
}

static const char *finish_reason(const run_job *job) {
    static const char *const names[] = {
        [NIB_FINISH_STOP] = "stop", [NIB_FINISH_LENGTH] = "length", [NIB_FINISH_CANCELLED] = "cancelled"};
    const bool failed = job->status != NIB_OK && job->status != NIB_E_CANCELLED;
    return failed ? "error" : names[job->result.finish];
}

static json_t *result_json(const run_job *job) {
    const nib_result *r = &job->result;
    const memory_use use = {job->engine, job->draft, job->args->beside};
    return json_pack("{s:o, s:o, s:s, s:o, s:o, s:o, s:o, s:o}", "text",
                     jsonx_string(r->text ? r->text : "", r->n_byte), "tokens",
                     cli_tokens_json(r->tokens, r->n_token), "finish_reason", finish_reason(job), "timings",
                     timings_json(r), "memory", memory_json(use), "traffic", cli_traffic_json(job->engine),
                     "placement", cli_placement_json(job->engine), "predicted",
                     job->expected.tok_s > 0 ? cli_prediction_json(&job->expected) : json_null());
}

static int report(run_job *job) {
    const nib_result *r = &job->result;
    if (job->args->json)
        return cli_write_json(result_json(job), job->args);
    /* a continuation that ends at a given -n needs no note */
    if (job->prompt.turn || (job->args->predict >= 0 && (int64_t)r->n_token < job->args->predict))
        cli_note_cut(job->args, job->engine, job->prompt.n_token, job->args->predict, r, "-n allows more");
    if (job->args->verbose) {
        cli_note(job->args,
                 "\nspeed        prompt %lld tokens, %.1f tok/s; generation %lld tokens, %.1f tok/s",
                 (long long)r->prompt_n, per_second(r->prompt_n, r->prompt_s), (long long)r->predicted_n,
                 generation_rate(r));
        print_expected(job);
        if (nib_engine_kernels(job->engine))
            cli_note(job->args, "kernels      by the map %s", nib_engine_kernels(job->engine));
        cli_print_memory(job->args, (memory_use){job->engine, job->draft, job->args->beside}, stderr);
        cli_print_traffic(job->args, job->engine, stderr);
    }
    return 0;
}

static int open_engine(run_job *job, int64_t max_n_ctx) {
    nib_engine_options options;
    cli_engine_options(job->args, &options);
    options.max_n_ctx = max_n_ctx;
    options.n_best = cli_n_best(job->args, NULL);
    cli_grammar_options(job->args, &options);
    const int code = cli_session_draft(job->args, &options, &job->draft);
    return code ? code : cli_open_engine(job->args, &options, &job->engine);
}

/* Opens the engine and reads the prompt. The context is sized for the prompt and the answer; if the rendered
 * template is longer than estimated, the engine is opened again. */
static int open_for_prompt(run_job *job) {
    cli_args *args = job->args;
    const int64_t max = max_prompt(args);
    int code = open_engine(job, max);
    if (!code)
        code = prompt_read(args, job->engine, &job->prompt);
    if (code)
        return code;
    if (args->predict == CLI_PREDICT_UNSET)
        args->predict = job->prompt.turn ? -1 : USUAL_TEXT;
    const int64_t needed = (int64_t)job->prompt.n_token + args->predict;
    if (max && needed > max && args->ctx_size == CLI_CTX_UNSET) {
        nib_engine_close(job->engine);
        job->engine = NULL;
        code = open_engine(job, needed);
    }
    return code;
}

static int run(cli_args *args) {
    run_job job = {.args = args, .first_id = true};
    nib_error err;
    int code = cli_unescape(args);
    if (!code)
        code = prompt_check(args);
    if (!code)
        code = cli_sampling_check(args, &job.bias);
    if (!code)
        code = cli_grammar(args, &job.grammar);
    if (!code)
        code = open_for_prompt(&job);
    const nib_session_options how = {.n_draft_min = (int32_t)args->draft_min, .draft = job.draft};
    if (!code && nib_session_open(job.engine, &how, &job.session, &err))
        code = cli_fail(&err);
    if (!code && args->verbose && !args->json)
        cli_print_placement(args, job.engine);
    if (!code && (args->verbose || args->json))
        predict(&job);
    if (!code && (code = generate(&job)) != 0)
        cli_made(result_json(&job));
    if (!code)
        code = report(&job);
    nib_result_clear(&job.result);
    prompt_clear(&job.prompt);
    nib_session_close(job.session);
    nib_engine_close(job.engine);
    nib_engine_close(job.draft);
    nib_free(job.grammar);
    mem_free(job.bias);
    return code;
}

const cli_command cmd_run = {
    .name = "run",
    .usage = "MODEL [TEXT | -p TEXT | -f FILE | --tokens IDS] [options]",
    .summary = "answer a question, or continue a text",
    .details =
        "The prompt is the text after MODEL, -p, -f FILE, or stdin. A model with a chat template answers "
        "it,\n"
        "and the answer ends by itself. --raw (also -no-cnv) continues the text instead, and so does a "
        "model\n"
        "without a template. Only the answer is written to stdout.\n"
        "-v shows which blocks are in RAM and which are streamed from disk, and planned against measured\n"
        "memory.\n\n"
        "  nibble run smollm2 \"Why is the sky blue?\"\n"
        "  nibble run smollm2 \"Why is the sky blue?\" --temp 0 --ram 72M -c 512 -v\n"
        "  nibble run smollm2 --raw -p \"Once upon a time\" -n 100\n"
        "  nibble run smollm2 \"A colour?\" -j '{\"enum\": [\"red\", \"blue\"]}'\n"
        "  nibble run model.gguf --system \"You sum up texts.\" -f letter.txt --json\n",
    .groups =
        CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_PROMPT | CLI_RUN | CLI_TURN | CLI_SAMPLING,
    .n_rest = 1,
    .run = run,
};

/* generation.c - see generation.h. */
#include "sequence/generation.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "sequence/candidates.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_PER_TOKEN = 8, TEXT_FIRST = 1 << 16 };

/* Checks that the engine computes all logits that this sampling reads. */
static nib_status check_best(const generation_setup *with, const nib_sampling *s, nib_error *err) {
    const int32_t n = nib_sampling_n_best(s);
    if (with->n_best == 0 || (n > 0 && n <= with->n_best))
        return NIB_OK;
    return nib_fail(err, NIB_E_USAGE,
                    "the engine was opened for the best %ld tokens of each step, and this sampling needs %s",
                    (long)with->n_best, n ? "more" : "all");
}

static nib_status check_bias(const generation_setup *with, const nib_generate_options *o, nib_error *err) {
    const int64_t n_vocab = with->n_vocab;
    for (size_t i = 0; i < o->n_bias; i++) {
        const nib_logit_bias *b = &o->bias[i];
        if (b->token < 0 || b->token >= n_vocab || isnan(b->bias) || b->bias == INFINITY)
            return nib_fail(
                err, NIB_E_USAGE,
                "logit bias: expected a finite number for a token from 0 to %lld, found %s for %ld",
                (long long)n_vocab - 1, num_text(b->bias, 6), (long)b->token);
    }
    if (o->n_top < 0 || o->n_top > NIB_MAX_TOP)
        return nib_fail(err, NIB_E_USAGE, "candidates of a token: expected 0 to %d, found %ld", NIB_MAX_TOP,
                        (long)o->n_top);
    if (with->n_best > 0 &&
        (o->n_bias > 0 || o->on_candidates || o->on_prompt_candidates || o->grammar || o->n_min))
        return nib_fail(
            err, NIB_E_USAGE,
            "the engine was opened for the best %ld tokens of each step: a logit bias, a grammar, "
            "a minimum length, and the probabilities of tokens, need all",
            (long)with->n_best);
    return NIB_OK;
}

/* Compiles the grammar. The store keeps it for a while, so it is not compiled again when the answer begins.
 */
static nib_status check_grammar(const generation_setup *with, const nib_generate_options *o, nib_error *err) {
    grammar *g;
    if (!o->grammar)
        return NIB_OK;
    if (!with->grammars)
        return nib_fail(err, NIB_E_USAGE,
                        "expected an engine that was opened for grammars (nib_engine_options.grammar)");
    NIB_TRY(grammar_acquire(with->grammars, o->grammar, strlen(o->grammar), &g, err));
    grammar_release(g);
    return NIB_OK;
}

nib_status generation_check(const generation_setup *with, const nib_generate_options *o, nib_error *err) {
    if (o->n_predict < -1)
        return nib_fail(err, NIB_E_USAGE, "tokens to generate: expected -1 or more, found %lld",
                        (long long)o->n_predict);
    if (o->n_min < 0)
        return nib_fail(err, NIB_E_USAGE, "minimum number of tokens: expected 0 or more, found %lld",
                        (long long)o->n_min);
    for (size_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i])
            return nib_fail(err, NIB_E_USAGE, "stop strings: expected non-empty strings, found an empty one");
    NIB_TRY(sampler_check(&o->sampling, err));
    NIB_TRY(dry_check(&o->sampling, err));
    NIB_TRY(check_bias(with, o, err));
    NIB_TRY(check_best(with, &o->sampling, err));
    return check_grammar(with, o, err);
}

static int by_token(const void *a, const void *b) {
    const nib_logit_bias *x = a, *y = b;
    return (x->token > y->token) - (x->token < y->token);
}

/* Copies the bias, sorted by token. Several entries of one token are added. */
static nib_status take_bias(generation *g, nib_error *err) {
    const nib_generate_options *o = g->options;
    int64_t n = 0;
    if (o->n_bias == 0)
        return NIB_OK;
    g->bias = mem_array(o->n_bias, sizeof *g->bias);
    if (!g->bias)
        return nib_fail_nomem(err, o->n_bias * sizeof *g->bias, "the logit bias");
    memcpy(g->bias, o->bias, o->n_bias * sizeof *g->bias);
    qsort(g->bias, o->n_bias, sizeof *g->bias, by_token);
    for (size_t i = 0; i < o->n_bias; i++)
        if (n > 0 && g->bias[n - 1].token == g->bias[i].token)
            g->bias[n - 1].bias += g->bias[i].bias;
        else
            g->bias[n++] = g->bias[i];
    g->n_bias = n;
    return NIB_OK;
}

static nib_status take_memory(generation *g, int64_t n_ctx, nib_error *err) {
    const nib_sampling *how = &g->options->sampling;
    const int64_t n_vocab = g->with.n_vocab;
    const bool changes = g->options->n_bias || g->options->grammar || g->options->n_min;
    const uint64_t n_changed = changes ? (uint64_t)n_vocab * sizeof(float) : 0;
    const uint64_t bytes = sampler_bytes(how, n_vocab) + dry_bytes(how, n_vocab, n_ctx) + n_changed +
                           g->options->n_bias * sizeof *g->bias;
    NIB_TRY(ledger_charge(g->with.ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, bytes, err));
    g->charged = bytes;
    NIB_TRY(sampler_open(&g->sampler, how, n_vocab, err));
    NIB_TRY(dry_open(&g->dry, how, g->with.tokenizer, n_vocab, n_ctx, err));
    g->sampler.lower = g->dry.lower;
    if (n_changed && !(g->changed = mem_alloc(n_changed)))
        return nib_fail_nomem(err, n_changed, "logits with changes");
    NIB_TRY(take_bias(g, err));
    if (g->options->grammar)
        NIB_TRY(constraint_open(&g->limit, g->with.grammars, g->options->grammar, err));
    g->result->tokens = mem_array((size_t)g->n_max + 1, sizeof *g->result->tokens);
    if (!g->result->tokens)
        return nib_fail_nomem(err, (size_t)g->n_max * sizeof(int32_t), "the answer's tokens");
    if (!g->with.tokenizer)
        return NIB_OK;
    g->text.cap = (size_t)NUM_MIN(g->n_max * TEXT_PER_TOKEN, TEXT_FIRST) + 64;
    g->text.data = mem_alloc(g->text.cap);
    if (!g->text.data)
        return nib_fail_nomem(err, g->text.cap, "the answer's text");
    g->text.data[0] = '\0';
    return NIB_OK;
}

nib_status generation_open(generation *g, const generation_setup *with, const nib_generate_options *o,
                           int64_t n_ctx, nib_result *result, nib_error *err) {
    const int64_t n_free = n_ctx - (int64_t)NUM_MIN(o->n_prompt, (size_t)n_ctx) + 1;
    *g = (generation){.with = *with,
                      .options = o,
                      .result = result,
                      .stop = {o->stop, o->n_stop},
                      .n_max = o->n_predict < 0 ? n_free : NUM_MIN(o->n_predict, n_free)};
    g->decode.started = true; /* the answer continues the prompt: its leading space belongs to it */
    result->finish = NIB_FINISH_LENGTH;
    g->done = g->n_max == 0 && generation_scores_from(g) == INT64_MAX;
    const nib_status status = take_memory(g, n_ctx, err);
    if (status != NIB_OK)
        generation_close(g);
    return status;
}

void generation_close(generation *g) {
    if (!g->with.ledger)
        return;
    sampler_close(&g->sampler);
    dry_close(&g->dry);
    constraint_close(&g->limit);
    mem_free(g->changed);
    mem_free(g->bias);
    ledger_release(g->with.ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    g->result->text = g->text.data;
    g->result->n_byte = g->text.n;
    memset(g, 0, sizeof *g);
}

static void stop_here(generation *g) {
    g->done = true;
    g->result->finish = NIB_FINISH_STOP;
}

static void show(generation *g, size_t until) {
    if (until <= g->shown)
        return;
    const size_t from = g->shown;
    g->shown = until;
    if (g->options->on_text && !g->options->on_text(g->options->user, g->text.data + from, until - from))
        stop_here(g);
}

static bool is_too_short(const generation *g) {
    return (int64_t)g->result->n_token < g->options->n_min;
}

/* Passes the final part of new text to the callback, and ends the answer at a stop string. */
static void look_at_text(generation *g) {
    if (is_too_short(g)) {
        show(g, g->text.n);
        return;
    }
    const size_t at = stop_find(&g->stop, g->text.data, g->shown, g->text.n);
    if (at != SIZE_MAX) {
        g->text.n = at;
        g->text.data[at] = '\0';
        stop_here(g);
        show(g, at);
        return;
    }
    show(g, g->text.n - stop_held(&g->stop, g->text.data, g->shown, g->text.n));
}

static nib_status accept(generation *g, int32_t token, nib_error *err) {
    const tokenizer *t = g->with.tokenizer;
    g->result->tokens[g->result->n_token++] = token;
    if (g->options->on_token && !g->options->on_token(g->options->user, token))
        stop_here(g);
    /* Embeddings are often padded beyond the vocabulary: such a token is an id without text. */
    if (!t || token >= tokenizer_n_vocab(t))
        return NIB_OK;
    NIB_TRY(tokenizer_decode(t, &g->decode, token, g->options->special, &g->text, err));
    look_at_text(g);
    return NIB_OK;
}

/* Flushes text that was held back, unless the caller or a stop string has ended the answer: it can no longer
 * become a stop string. */
static nib_status end_text(generation *g, nib_error *err) {
    if (!g->with.tokenizer)
        return NIB_OK;
    NIB_TRY(tokenizer_decode_end(g->with.tokenizer, &g->decode, &g->text, err));
    look_at_text(g);
    if (!g->done)
        show(g, g->text.n);
    return NIB_OK;
}

static bool is_end(const generation_setup *with, int32_t token) {
    const tokenizer *t = with->tokenizer;
    return t && token >= 0 && token < tokenizer_n_vocab(t) && tokenizer_is_end(t, token);
}

static const float *with_bias(generation *g, const float *logits) {
    if (!g->changed)
        return logits;
    memcpy(g->changed, logits, (size_t)g->sampler.n_vocab * sizeof *logits);
    for (int64_t i = 0; i < g->n_bias; i++)
        g->changed[g->bias[i].token] += g->bias[i].bias;
    return g->changed;
}

/* Draws a token; while the answer is too short, one that does not end the text. */
static int32_t draw_allowed(generation *g, const float *logits, const int32_t *tokens, int64_t n) {
    enum { MAX_ENDS = 64 }; /* tokens that end a text */
    int32_t token = sampler_draw(&g->sampler, logits, tokens, n);
    for (int i = 0; i < MAX_ENDS && is_too_short(g) && is_end(&g->with, token); i++) {
        g->changed[token] = -INFINITY;
        token = sampler_draw(&g->sampler, logits, tokens, n);
    }
    return token;
}

/* Draws one of the tokens that the grammar allows. *drawn: false if none can follow, and the answer ends. */
static nib_status draw(generation *g, const float *logits, const int32_t *tokens, int64_t n, int32_t *token,
                       bool *drawn, nib_error *err) {
    const float *changed = with_bias(g, logits);
    const bool ends = !g->options->ignore_eos && !is_too_short(g);
    constraint_next next = CONSTRAINT_TOKENS;
    if (g->limit.of)
        NIB_TRY(constraint_apply(&g->limit, g->changed, ends, &next, err));
    *drawn = next != CONSTRAINT_END;
    if (!*drawn)
        return NIB_OK;
    dry_apply(&g->dry, tokens, n);
    *token = draw_allowed(g, changed, tokens, n);
    dry_undo(&g->dry, tokens, n);
    if (g->limit.of)
        *token = constraint_allowed(&g->limit, *token, ends);
    return NIB_OK;
}

/* Advances the grammar by the token. *complete: nothing can follow it. */
static nib_status limit_accept(generation *g, int32_t token, bool *complete, nib_error *err) {
    constraint_next next = CONSTRAINT_TOKENS;
    if (g->limit.of) {
        NIB_TRY(constraint_accept(&g->limit, token, err));
        NIB_TRY(constraint_state(&g->limit, &next, err));
    }
    *complete = next == CONSTRAINT_END;
    return NIB_OK;
}

static void report_candidates(const generation *g, nib_candidates_fn report, const float *logits,
                              int32_t token) {
    const nib_generate_options *o = g->options;
    const int32_t n_top = (int32_t)NUM_MIN((int64_t)o->n_top, g->with.n_vocab);
    nib_candidate top[NIB_MAX_TOP], drawn;
    candidates_find(logits, g->with.n_vocab, token, &drawn, top, n_top);
    report(o->user, drawn, top, n_top);
}

int64_t generation_scores_from(const generation *g) {
    const nib_generate_options *o = g->options;
    return o->on_prompt_candidates && g->n_scored + 1 < (int64_t)o->n_prompt ? g->n_scored : INT64_MAX;
}

void generation_score(generation *g, const float *logits) {
    const nib_generate_options *o = g->options;
    report_candidates(g, o->on_prompt_candidates, logits, o->prompt[++g->n_scored]);
    g->done = g->done || (g->n_max == 0 && generation_scores_from(g) == INT64_MAX);
}

static nib_status end_answer(generation *g, nib_error *err) {
    NIB_TRY(end_text(g, err));
    g->done = true;
    return NIB_OK;
}

/* Takes a drawn token. ends: it ends the text. complete: nothing can follow it. */
static nib_status take(generation *g, int32_t token, bool ends, bool complete, nib_error *err) {
    if (!ends)
        NIB_TRY(accept(g, token, err));
    if (!g->done && (ends || complete))
        g->result->finish = NIB_FINISH_STOP;
    if (!g->done && (ends || complete || (int64_t)g->result->n_token == g->n_max))
        return end_answer(g, err);
    return NIB_OK;
}

/* Draws a token and takes it. */
static nib_status feed(generation *g, const float *logits, const int32_t *tokens, int64_t n, int32_t *token,
                       nib_error *err) {
    const double start = time_now();
    bool complete = false, drawn = false;
    const nib_status status = draw(g, logits, tokens, n, token, &drawn, err);
    if (g->result->n_token > 0)
        g->result->token_s += time_now() - start;
    NIB_TRY(status);
    const bool ends = !drawn || (!g->options->ignore_eos && is_end(&g->with, *token));
    if (g->options->on_candidates && drawn && (!ends || g->options->end_candidates))
        report_candidates(g, g->options->on_candidates, logits, *token);
    if (!ends)
        NIB_TRY(limit_accept(g, *token, &complete, err));
    return take(g, *token, ends, complete, err);
}

/* Ends the answer with *why if its status is an error. The sampler, the grammar and the result may have
 * advanced in part, so the token cannot be drawn again. */
static void end_if_failed(generation *g, nib_status status, const nib_error *why) {
    if (status == NIB_OK)
        return;
    g->failed = *why;
    g->done = true;
}

void generation_feed(generation *g, const float *logits, const int32_t *tokens, int64_t n, int32_t *token) {
    nib_error why = {NIB_OK, ""};
    end_if_failed(g, feed(g, logits, tokens, n, token, &why), &why);
}

int32_t generation_n_best(const generation *g, int32_t max, int64_t n_past, int64_t *n_change) {
    *n_change = g->n_bias + sampler_max_changes(&g->sampler, n_past);
    const bool reports = g->options->on_candidates || g->options->on_prompt_candidates;
    return g->limit.of || reports || g->options->n_min ? 0 : sampler_n_best(&g->sampler, max);
}

int64_t generation_changes(generation *g, const int32_t *tokens, int64_t n_past, logit_change *out,
                           logit_row *how) {
    const nib_sampling *s = &g->sampler.how;
    how->repeat = s->repeat_penalty;
    how->frequency = s->frequency_penalty;
    how->presence = s->presence_penalty;
    return sampler_changes(&g->sampler, tokens, n_past, g->bias, g->n_bias, out);
}

void generation_feed_best(generation *g, const int32_t *ids, const float *logits, int32_t *token) {
    const double start = time_now();
    nib_error why = {NIB_OK, ""};
    *token = sampler_draw_best(&g->sampler, ids, logits);
    if (g->result->n_token > 0)
        g->result->token_s += time_now() - start;
    const bool ends = !g->options->ignore_eos && is_end(&g->with, *token);
    end_if_failed(g, take(g, *token, ends, false, &why), &why);
}

/* generate.c - prompt to answer: sample, decode to text, look for a reason to stop, compute the next token.
 */
#include "run/learn.h"
#include "run/sampler.h"
#include "run/session.h"
#include "run/stop.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum { TEXT_PER_TOKEN = 8, TEXT_FIRST = 1 << 16 };

typedef struct generation {
    nib_session *s;
    const nib_generate_options *o;
    nib_result *result;
    sampler sampler;
    uint64_t charged; /* the sampler's bytes on the ledger */
    stop_list stop;
    decode_state decode;
    text_buffer text; /* the whole answer */
    size_t shown;     /* bytes given to on_text */
    int64_t most;     /* tokens that may be generated */
    bool done;
} generation;

void nib_generate_options_init(nib_generate_options *options) {
    memset(options, 0, sizeof *options);
    options->n_predict = -1;
    nib_sampling_init(&options->sampling);
}

void nib_result_clear(nib_result *result) {
    if (!result)
        return;
    mem_free(result->tokens);
    mem_free(result->text);
    memset(result, 0, sizeof *result);
}

/* Every logit that sampling looks at is there. */
static nib_status check_best(const nib_engine *e, const nib_sampling *s, nib_error *err) {
    const int32_t n = nib_sampling_n_best(s);
    if (e->n_best == 0 || (n > 0 && n <= e->n_best))
        return NIB_OK;
    return nib_fail(
        err, NIB_E_USAGE,
        "the engine was opened for the best %ld tokens of each step, and this sampling looks at %s",
        (long)e->n_best, n ? "more" : "all");
}

static nib_status check(const nib_engine *e, const nib_generate_options *o, nib_error *err) {
    if (o->n_predict < -1)
        return nib_fail(err, NIB_E_USAGE, "tokens to generate: expected -1 or more, found %lld",
                        (long long)o->n_predict);
    for (size_t i = 0; i < o->n_stop; i++)
        if (!o->stop[i] || !*o->stop[i])
            return nib_fail(err, NIB_E_USAGE, "a stop string is empty");
    NIB_TRY(sampler_check(&o->sampling, err));
    return check_best(e, &o->sampling, err);
}

/* Everything that generating needs is allocated here. */
static nib_status begin(generation *g, nib_error *err) {
    nib_engine *e = g->s->engine;
    const nib_generate_options *o = g->o;
    int64_t n_vocab = model_hparams(e->m)->n_vocab;
    int64_t room = g->s->n_ctx - (int64_t)NUM_MIN(o->n_prompt, (size_t)g->s->n_ctx) + 1;
    g->most = o->n_predict < 0 ? room : NUM_MIN(o->n_predict, room);
    g->stop = (stop_list){o->stop, o->n_stop};
    g->decode.started = true; /* the answer goes on from the prompt: its leading space belongs to it */
    uint64_t bytes = sampler_bytes(&o->sampling, n_vocab);
    NIB_TRY(ledger_charge(e->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, bytes, err));
    g->charged = bytes;
    NIB_TRY(sampler_open(&g->sampler, &o->sampling, n_vocab, err));
    g->result->tokens = mem_array((size_t)g->most + 1, sizeof *g->result->tokens);
    if (!g->result->tokens)
        return nib_fail_nomem(err, (size_t)g->most * sizeof(int32_t), "the answer's tokens");
    if (e->tokenizer) {
        g->text.cap = (size_t)NUM_MIN(g->most * TEXT_PER_TOKEN, TEXT_FIRST) + 64;
        g->text.data = mem_alloc(g->text.cap);
        if (!g->text.data)
            return nib_fail_nomem(err, g->text.cap, "the answer's text");
        g->text.data[0] = '\0';
    }
    return NIB_OK;
}

static void end(generation *g) {
    sampler_close(&g->sampler);
    ledger_release(g->s->engine->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    g->result->text = g->text.data;
    g->result->n_byte = g->text.n;
}

static void show(generation *g, size_t until) {
    if (until <= g->shown)
        return;
    size_t from = g->shown;
    g->shown = until;
    if (g->o->on_text && !g->o->on_text(g->o->user, g->text.data + from, until - from))
        g->done = true;
}

/* New text stands at text[before..]; shows what is final and ends at a stop string. */
static void look_at_text(generation *g) {
    size_t at = stop_find(&g->stop, g->text.data, g->shown, g->text.n);
    if (at != SIZE_MAX) {
        g->text.n = at;
        g->text.data[at] = '\0';
        g->done = true;
        g->result->finish = NIB_FINISH_STOP;
        show(g, at);
        return;
    }
    show(g, g->text.n - stop_held(&g->stop, g->text.data, g->shown, g->text.n));
    if (g->done)
        g->result->finish = NIB_FINISH_STOP;
}

static nib_status accept(generation *g, int32_t token, nib_error *err) {
    g->result->tokens[g->result->n_token++] = token;
    if (g->o->on_token && !g->o->on_token(g->o->user, token)) {
        g->done = true;
        g->result->finish = NIB_FINISH_STOP;
    }
    /* Embeddings are often padded beyond the vocabulary: such a token is an id without text. */
    if (!g->s->engine->tokenizer || token >= tokenizer_n_vocab(g->s->engine->tokenizer))
        return NIB_OK;
    NIB_TRY(tokenizer_decode(g->s->engine->tokenizer, &g->decode, token, false, &g->text, err));
    look_at_text(g);
    return NIB_OK;
}

/* The next token; after the first one that is a pass too, and what a token takes (nib_result.token_s): not
 * what the caller does with it, who may be a slow terminal. */
static nib_status draw(generation *g, int32_t *token, nib_error *err) {
    nib_session *s = g->s;
    const bool first = g->result->n_token == 0;
    const double begin = time_now();
    if (!first)
        NIB_TRY(session_append(s, g->result->tokens[g->result->n_token - 1], err));
    *token = sampler_draw(&g->sampler, s->logits, s->tokens, s->n);
    if (!first) {
        g->result->token_s += time_now() - begin;
        g->result->token_n++;
    }
    return NIB_OK;
}

static nib_status answer(generation *g, nib_error *err) {
    nib_session *s = g->s;
    g->result->finish = NIB_FINISH_LENGTH;
    while (!g->done && (int64_t)g->result->n_token < g->most) {
        int32_t token;
        NIB_TRY(draw(g, &token, err));
        if (!g->o->ignore_eos && nib_token_is_end(s->engine, token)) {
            g->result->finish = NIB_FINISH_STOP;
            break;
        }
        NIB_TRY(accept(g, token, err));
    }
    if (g->done || !s->engine->tokenizer)
        return NIB_OK;
    /* The end of the text: what was held back can no longer become anything else. */
    NIB_TRY(tokenizer_decode_end(s->engine->tokenizer, &g->decode, &g->text, err));
    look_at_text(g);
    if (!g->done)
        show(g, g->text.n);
    return NIB_OK;
}

static nib_status generate(generation *g, nib_error *err) {
    nib_result *r = g->result;
    const nib_generate_options *o = g->o;
    double start = time_now();
    sync_options how = {
        .first_row = -1, .progress = o->on_prompt, .user = o->user, .n_computed = &r->prompt_n};
    NIB_TRY(begin(g, err));
    NIB_TRY(session_sync(g->s, o->prompt, o->n_prompt, &how, err));
    double first = time_now();
    r->prompt_s = first - start;
    nib_status status = answer(g, err);
    r->predicted_n = (int64_t)r->n_token;
    r->predicted_s = time_now() - first;
    learn_generation(g->s->engine, g->s->n, r);
    return status;
}

nib_status nib_generate(nib_session *s, const nib_generate_options *options, nib_result *result,
                        nib_error *err) {
    generation g = {.s = s, .o = options, .result = result};
    memset(result, 0, sizeof *result);
    NIB_TRY(check(s->engine, options, err));
    atomic_store(&s->cancelled, false);
    learn_begin(s->engine);
    nib_status status = generate(&g, err);
    learn_end(s->engine);
    end(&g);
    return status;
}

/* chat_turn.c - a turn of a conversation: all messages, rendered with the template, go to the session, which
 * computes only the tokens that it does not hold yet; the answer is shown as it is generated. */
#include "cli/chat/chat.h"

#include "base/num.h"
#include "base/status.h"

#include <string.h>

enum { USUAL_ANSWER = 256 }; /* tokens that a full context leaves free for an answer of any length */

typedef struct turn {
    chat *chat;
    conversation trial; /* becomes the conversation when there is an answer */
    char *begun;        /* the answer to continue; NULL: a new one */
    int32_t *tokens;
    size_t n_token;
    nib_result result;
} turn;

int chat_refused(const chat *c, const nib_error *err) {
    const int code = cli_fail(err);
    return c->terminal && !cli_ending() ? 0 : code;
}

static bool on_text(void *user, const char *text, size_t n_byte) {
    chat *c = ((turn *)user)->chat;
    return c->args->json || wrap_write(&c->screen, text, n_byte);
}

static bool on_prompt(void *user, const char *what, uint64_t done, uint64_t total) {
    return cli_progress(((turn *)user)->chat->args, what, done, total);
}

static nib_status prepare(turn *t, nib_error *err) {
    const chat *c = t->chat;
    const int64_t n_ctx = nib_engine_info(c->engine)->n_ctx;
    int n_dropped;
    NIB_TRY(conversation_fit(&t->trial, t->begun, n_ctx, c->n_predict < 0 ? USUAL_ANSWER : c->n_predict,
                             &t->tokens, &t->n_token, &n_dropped, err));
    if (n_dropped)
        cli_note(c->args, "[the context of %lld tokens is full: the oldest %d %s left out]", (long long)n_ctx,
                 n_dropped, n_dropped == 1 ? "turn is" : "turns are");
    return NIB_OK;
}

static nib_status generate(turn *t, nib_error *err) {
    chat *c = t->chat;
    const int64_t n_free = nib_engine_info(c->engine)->n_ctx - (int64_t)t->n_token;
    nib_generate_options options;
    nib_generate_options_init(&options);
    options.prompt = t->tokens;
    options.n_prompt = t->n_token;
    options.n_predict = c->n_predict < 0 ? n_free : NUM_MIN(c->n_predict, n_free);
    options.ignore_eos = c->args->ignore_eos;
    options.stop = c->args->stop.data;
    options.n_stop = c->args->stop.n;
    options.sampling = c->sampling;
    options.grammar = c->grammar;
    options.bias = c->bias;
    options.n_bias = c->args->logit_bias.n;
    options.on_text = on_text;
    options.on_prompt = on_prompt;
    options.user = t;
    wrap_reset(&c->screen);
    const nib_status status = nib_generate(c->session, &options, &t->result, err);
    c->sampling.seed++; /* so that the same question gets another answer */
    return status;
}

/* Adds the answer to the conversation, after the text that it continued. */
static nib_status keep(turn *t, nib_error *err) {
    const char *more = t->result.text ? t->result.text : "";
    const size_t n_begun = t->begun ? strlen(t->begun) : 0, n_more = t->result.n_byte;
    char *whole = malloc(n_begun + n_more + 1);
    if (!whole)
        return nib_fail(err, NIB_E_NOMEM, "out of memory for the answer");
    if (t->begun)
        memcpy(whole, t->begun, n_begun);
    memcpy(whole + n_begun, more, n_more);
    const nib_status status = conversation_add(&t->trial, "assistant", whole, n_begun + n_more, err);
    free(whole);
    if (status == NIB_OK)
        conversation_replace(&t->chat->conversation, &t->trial);
    return status;
}

static void print_end(const turn *t, bool stopped) {
    const chat *c = t->chat;
    const nib_result *r = &t->result;
    const bool silent = r->n_byte == 0;
    if (stopped)
        cli_note(c->args,
                 silent ? "[stopped before the answer began: the conversation is unchanged]" : "[stopped]");
    else if (silent && r->finish == NIB_FINISH_STOP)
        cli_note(c->args, t->begun ? "[the answer is complete]" : "[the model gave no answer]");
    else
        cli_note_cut(c->args, c->engine, t->n_token, c->n_predict, r,
                     c->terminal ? "/continue continues it, /n sets a larger limit" : "-n allows more");
    if (c->args->verbose)
        cli_note(c->args, "[%zu tokens before, %lld of them computed in %.2f s; %lld generated, %.1f tok/s]",
                 t->n_token, (long long)r->prompt_n, r->prompt_s, (long long)r->predicted_n,
                 r->token_s > 0 ? (double)r->token_n / r->token_s : 0);
}

static int answer(turn *t) {
    nib_error err = {NIB_OK, ""};
    chat *c = t->chat;
    nib_status status = prepare(t, &err);
    if (status == NIB_OK)
        status = generate(t, &err);
    const bool stopped = status == NIB_E_CANCELLED && c->terminal && !cli_ending();
    if (stopped)
        cli_interrupt_clear();
    if (status == NIB_OK || (stopped && t->result.n_byte > 0))
        status = keep(t, &err);
    if (status != NIB_OK && !stopped)
        return chat_refused(c, &err);
    if (!c->args->json && (t->result.n_byte || !t->begun) && !cli_write("\n", 1))
        return 1;
    print_end(t, stopped);
    return 0;
}

/* Answers `question`; NULL: the last message. */
static int take_turn(turn *t, const char *question, size_t n_byte) {
    nib_error err = {NIB_OK, ""};
    nib_status status = NIB_OK;
    if (question)
        status = conversation_add(&t->trial, "user", question, n_byte, &err);
    const int code = status ? chat_refused(t->chat, &err) : answer(t);
    nib_free(t->tokens);
    nib_result_clear(&t->result);
    free(t->begun);
    conversation_deinit(&t->trial);
    return code;
}

static bool begin(turn *t, chat *c, int *code) {
    nib_error err = {NIB_OK, ""};
    *t = (turn){.chat = c};
    *code = conversation_copy(&c->conversation, &t->trial, &err) ? chat_refused(c, &err) : 0;
    return t->trial.messages != NULL;
}

int chat_send(chat *c, const char *text, size_t n_byte) {
    turn t;
    int code;
    return begin(&t, c, &code) ? take_turn(&t, text, n_byte) : code;
}

int chat_again(chat *c) {
    turn t;
    int code;
    if (!begin(&t, c, &code))
        return code;
    if (conversation_last(&t.trial, "assistant"))
        conversation_remove_last(&t.trial);
    if (conversation_last(&t.trial, "user"))
        return take_turn(&t, NULL, 0);
    conversation_deinit(&t.trial);
    cli_note(c->args, "there is no message to answer again yet");
    return 0;
}

/* Copies the text without an incomplete character at its end, which the continuation generates again. */
static char *without_cut_character(const char *text) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const size_t wide = sizeof replacement - 1;
    size_t n = strlen(text);
    if (n >= wide && !memcmp(text + n - wide, replacement, wide))
        n -= wide;
    return strndup(text, n);
}

int chat_continue(chat *c) {
    turn t;
    int code;
    if (!begin(&t, c, &code))
        return code;
    const char *last = conversation_last(&t.trial, "assistant");
    t.begun = last ? without_cut_character(last) : NULL;
    if (!t.begun) {
        conversation_deinit(&t.trial);
        cli_note(c->args, "there is no answer to continue yet");
        return 0;
    }
    conversation_remove_last(&t.trial);
    return take_turn(&t, NULL, 0);
}

/* openai.c - writes answers of OpenAI's API: chat completions, and completions. */
#include "server/openai.h"

#include "base/jsonx.h"
#include "base/num.h"
#include "server/logprobs.h"
#include "server/output_items.h"
#include "server/prompts.h"

#include <stdio.h>

typedef struct style {
    const char *prefix, *whole, *chunk; /* prefix of the id; values of "object" */
} style;

static const style styles[] = {[CALL_CHAT] = {"chatcmpl-", "chat.completion", "chat.completion.chunk"},
                               [CALL_COMPLETION] = {"cmpl-", "text_completion", "text_completion"}};

static json_t *finish_reason(const answer *a) {
    if (!a->done)
        return json_null();
    if (a->result.finish == NIB_FINISH_LENGTH)
        return json_string("length");
    return json_string(a->parser && a->parser->n_call ? "tool_calls" : "stop");
}

/* The JSON of a call; piece: with its `index`, as in streams. */
static json_t *tool_call(const answer *a, const answer_part *p, bool piece) {
    char id[16];
    job_call_id(a, p, id);
    json_t *value = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name",
                              p->name, "arguments", jsonx_string(p->text, p->n_byte));
    if (value && piece && json_object_set_new(value, "index", json_integer(p->index))) {
        json_decref(value);
        return NULL;
    }
    return value;
}

static json_t *usage(const job *j) {
    const size_t n = job_predicted(j);
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)j->n_prompt,
                     "completion_tokens", (json_int_t)n, "total_tokens", (json_int_t)(j->n_prompt + n),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)job_cached(j));
}

/* The members of every answer and piece; takes the reference to choices. */
static json_t *envelope(const job *j, bool chunk, json_t *choices) {
    const style *s = &styles[j->call.kind];
    char id[64];
    snprintf(id, sizeof id, "%s%s", s->prefix, j->id);
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", id, "object", chunk ? s->chunk : s->whole,
                     "created", (json_int_t)j->created, "model", j->model->name, "system_fingerprint",
                     "nibble-" NIB_VERSION, "choices", choices);
}

/* ---- streams ---- */

static void event(json_t *value, buffer *out) {
    buffer_text(out, "data: ");
    buffer_json(out, value);
    buffer_text(out, "\n\n");
}

/* Writes a piece. If usage was requested, every piece has that member. */
static void chunk(const job *j, json_t *choices, buffer *out) {
    json_t *value = envelope(j, true, choices);
    if (value && j->call.usage)
        json_object_set_new(value, "usage", json_null());
    event(value, out);
}

/* Log-probabilities of the tokens that no piece has reported yet. */
static json_t *logprobs_left(const answer *a) {
    const bool some = a->of->begun && a->n_likely > a->n_likely_written;
    return some ? tokens_logprobs(a, a->n_likely_written) : json_null();
}

static json_t *delta(const answer *a, json_t *change, json_t *reason) {
    return json_pack("[{s:I, s:o, s:o, s:o}]", "index", (json_int_t)a->index, "delta", change, "logprobs",
                     logprobs_left(a), "finish_reason", reason);
}

static json_t *text_choice(const answer *a, json_t *text, json_t *reason) {
    return json_pack("[{s:I, s:o, s:o, s:o}]", "index", (json_int_t)a->index, "text", text, "logprobs",
                     logprobs_left(a), "finish_reason", reason);
}

static void chat_begin(job *j, buffer *out) {
    for (size_t i = 0; i < j->n_answer; i++)
        chunk(j,
              delta(&j->answers[i], json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null()),
              out);
}

static void emit_part(void *user, const answer_part *p) {
    const emitter *t = user;
    json_t *change = p->kind == PART_CALL
                         ? json_pack("{s:[o]}", "tool_calls", tool_call(t->a, p, true))
                         : json_pack("{s:o}", p->kind == PART_TEXT ? "content" : "reasoning_content",
                                     jsonx_string(p->text, p->n_byte));
    chunk(t->j, delta(t->a, change, json_null()), t->out);
}

static void emit(job *j, const answer *a, const char *text, size_t n_byte, bool last, buffer *out) {
    emitter t = {j, a, out};
    const answer_part all = {.kind = PART_TEXT, .text = text, .n_byte = n_byte};
    if (!a->parser && n_byte)
        emit_part(&t, &all);
    else if (a->parser && !answer_parser_feed(a->parser, text, n_byte, last, emit_part, &t))
        out->no_memory = true;
}

static void chat_piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    emit(j, a, text, n_byte, false, out);
}

static void chat_close(job *j, const answer *a, buffer *out) {
    emit(j, a, "", 0, true, out);
    chunk(j, delta(a, json_object(), finish_reason(a)), out);
}

/* Adds the prompt's text if it is a part of the answer. */
static void add_echo(const answer *a, buffer *out) {
    const json_t *prompt = json_array_get(a->of->call.prompts, a->index / (size_t)a->of->call.n);
    if (!a->of->call.echo)
        return;
    if (json_is_string(prompt))
        buffer_add(out, json_string_value(prompt), json_string_length(prompt));
    else
        out->no_memory = !prompt_ids_text(a->of->model->engine, prompt, out) || out->no_memory;
}

static void completion_begin(job *j, buffer *out) {
    for (size_t i = 0; i < j->n_answer && j->call.echo; i++) {
        buffer text = {0};
        add_echo(&j->answers[i], &text);
        if (text.n > 0)
            chunk(j, text_choice(&j->answers[i], jsonx_string(text.data, text.n), json_null()), out);
        out->no_memory = out->no_memory || text.no_memory;
        buffer_clear(&text);
    }
}

static void completion_piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    chunk(j, text_choice(a, jsonx_string(text, n_byte), json_null()), out);
}

static void completion_close(job *j, const answer *a, buffer *out) {
    chunk(j, text_choice(a, json_string(""), finish_reason(a)), out);
}

static void stream_end(job *j, buffer *out) {
    if (j->call.usage) {
        json_t *value = envelope(j, true, json_array());
        if (value)
            json_object_set_new(value, "usage", usage(j));
        event(value, out);
    }
    buffer_text(out, "data: [DONE]\n\n");
}

static void stream_ping(job *j, buffer *out) {
    (void)j;
    buffer_text(out, ": the answer is being computed\n\n");
}

static void stream_fail(job *j, const fault *why, buffer *out) {
    (void)j;
    event(fault_json(why), out);
}

/* ---- whole answers ---- */

static json_t *whole_call(const answer *a, const answer_part *p) {
    return tool_call(a, p, false);
}

/* The message of a whole answer; NULL: out of memory. */
static json_t *whole_message(const answer *a) {
    message_parts m = {.a = a, .call = whole_call};
    bool good = message_parts_collect(&m);
    json_t *content =
        m.calls && m.said.n == 0 ? json_null() : jsonx_string(m.said.n ? m.said.data : "", m.said.n);
    json_t *value = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    good = message_parts_add(&m, value, "reasoning_content") && good;
    if (good)
        return value;
    json_decref(value);
    return NULL;
}

static json_t *whole_choice(const answer *a) {
    const nib_result *r = &a->result;
    buffer text = {0};
    if (a->of->call.kind == CALL_CHAT) {
        json_t *value = whole_message(a); /* first, because it determines whether a tool was called */
        return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)a->index, "message", value, "logprobs",
                         tokens_logprobs(a, 0), "finish_reason", finish_reason(a));
    }
    add_echo(a, &text);
    buffer_add(&text, r->text ? r->text : "", r->n_byte);
    json_t *choice = json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)a->index, "text",
                               text.no_memory ? NULL : jsonx_string(text.n ? text.data : "", text.n),
                               "logprobs", tokens_logprobs(a, 0), "finish_reason", finish_reason(a));
    buffer_clear(&text);
    return choice;
}

static double per_second(int64_t n, double s) {
    return s > 0 ? (double)n / s : 0;
}

/* The timings that llama-server adds. */
static json_t *timings(const answer *a) {
    const nib_result *r = &a->result;
    return json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:f, s:f}", "draft_n", (json_int_t)r->draft_n,
                     "draft_n_accepted", (json_int_t)r->draft_right, "cache_n",
                     (json_int_t)((int64_t)a->n_prompt - r->prompt_n), "prompt_n", (json_int_t)r->prompt_n,
                     "prompt_ms", 1e3 * r->prompt_s, "prompt_per_second",
                     per_second(r->prompt_n, r->prompt_s), "predicted_n", (json_int_t)r->predicted_n,
                     "predicted_ms", 1e3 * r->predicted_s, "predicted_per_second",
                     per_second(r->predicted_n, r->predicted_s));
}

static void whole(job *j, buffer *out) {
    json_t *choices = json_array();
    for (size_t i = 0; i < j->n_answer; i++) {
        out->no_memory = out->no_memory || j->answers[i].no_memory;
        json_array_append_new(choices, whole_choice(&j->answers[i]));
    }
    json_t *value = envelope(j, false, choices);
    if (!value || json_array_size(choices) != j->n_answer || json_object_set_new(value, "usage", usage(j)) ||
        json_object_set_new(value, "timings", timings(&j->answers[0])))
        out->no_memory = true;
    buffer_json(out, value);
}

const dialect openai_chat = {.stream_type = "text/event-stream",
                             .begin = chat_begin,
                             .piece = chat_piece,
                             .close = chat_close,
                             .end = stream_end,
                             .ping = stream_ping,
                             .fail = stream_fail,
                             .whole = whole,
                             .fault = fault_json};
const dialect openai_completion = {.stream_type = "text/event-stream",
                                   .begin = completion_begin,
                                   .piece = completion_piece,
                                   .close = completion_close,
                                   .end = stream_end,
                                   .ping = stream_ping,
                                   .fail = stream_fail,
                                   .whole = whole,
                                   .fault = fault_json};

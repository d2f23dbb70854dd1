/* anthropic.c - writes answers of Anthropic's API. */
#include "server/anthropic.h"

#include "base/jsonx.h"
#include "server/output_items.h"
#include "server/prompts.h"
#include "server/tools.h"

#include <stdio.h>
#include <string.h>

static json_t *usage(const job *j) {
    const size_t cached = job_cached(j);
    return json_pack("{s:I, s:I, s:I}", "input_tokens", (json_int_t)(j->n_prompt - cached),
                     "cache_read_input_tokens", (json_int_t)cached, "output_tokens",
                     (json_int_t)job_predicted(j));
}

/* The stop string that ended the answer: the first one in the text of all its tokens. */
static const char *stop_sequence(const answer *a) {
    const call *c = &a->of->call;
    const char *found = NULL, *first = NULL;
    char *text = NULL;
    size_t n_byte = 0;
    if (a->result.finish != NIB_FINISH_STOP || c->n_stop == 0 ||
        nib_detokenize(a->of->model->engine, a->result.tokens, a->result.n_token, &text, &n_byte, NULL))
        return NULL;
    for (size_t i = 0; i < c->n_stop; i++) {
        const char *at = memmem(text, n_byte, c->stop[i], strlen(c->stop[i]));
        if (at && (!first || at < first)) {
            first = at;
            found = c->stop[i];
        }
    }
    nib_free(text);
    return found;
}

/* {"stop_reason", "stop_sequence"} */
static json_t *reason(const answer *a) {
    const char *sequence = stop_sequence(a);
    const char *why = a->result.finish == NIB_FINISH_LENGTH ? "max_tokens"
                      : sequence                            ? "stop_sequence"
                      : a->parser && a->parser->n_call      ? "tool_use"
                                                            : "end_turn";
    return json_pack("{s:s, s:s?}", "stop_reason", why, "stop_sequence", sequence);
}

/* Takes the reference to content. */
static json_t *message(const job *j, json_t *content) {
    char id[64];
    snprintf(id, sizeof id, "msg_%s", j->id);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:n, s:n, s:o}", "id", id, "type", "message", "role",
                     "assistant", "model", j->model->name, "content", content, "stop_reason", "stop_sequence",
                     "usage", usage(j));
}

static void begin(job *j, buffer *out) {
    event_write("message_start", json_pack("{s:o}", "message", message(j, json_array())), out);
}

/* ---- blocks: text, thinking, tool use ---- */

/* A block of text or of thinking. */
static json_t *block(int kind, const char *text, size_t n_byte) {
    if (kind == PART_THOUGHT)
        return json_pack("{s:s, s:o, s:s}", "type", "thinking", "thinking", jsonx_string(text, n_byte),
                         "signature", "");
    return json_pack("{s:s, s:o}", "type", "text", "text", jsonx_string(text, n_byte));
}

static json_t *tool_use(const answer *a, const answer_part *p, json_t *input) {
    char id[16];
    job_call_id(a, p, id);
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "tool_use", "id", id, "name", p->name, "input", input);
}

static void start(const emitter *t, json_t *value) {
    if (t->out)
        event_write("content_block_start",
                    json_pack("{s:i, s:o}", "index", items_index(t), "content_block", value), t->out);
    else
        json_decref(value);
}

static void change(const emitter *t, const char *type, const char *name, const char *text, size_t n_byte) {
    if (t->out)
        event_write("content_block_delta",
                    json_pack("{s:i, s:{s:s, s:o}}", "index", items_index(t), "delta", "type", type, name,
                              jsonx_string(text, n_byte)),
                    t->out);
}

/* Ends a complete block; takes the reference. */
static void stop(const emitter *t, json_t *value) {
    if (t->out)
        event_write("content_block_stop", json_pack("{s:i}", "index", items_index(t)), t->out);
    items_add(t, value);
}

static void stop_open(const emitter *t) {
    job *j = t->j;
    if (j->open == NO_ITEM)
        return;
    stop(t, block(j->open, j->said.n ? j->said.data : "", j->said.n));
    j->said.n = 0;
    j->open = NO_ITEM;
}

static void emit_call(const emitter *t, const answer_part *p) {
    start(t, tool_use(t->a, p, json_object()));
    change(t, "input_json_delta", "partial_json", p->text, p->n_byte);
    stop(t, tool_use(t->a, p, arguments_raw(p)));
}

static void emit_part(void *user, const answer_part *p) {
    const emitter *t = user;
    job *j = t->j;
    const int kind = (int)p->kind;
    if (j->open != kind)
        stop_open(t);
    if (kind == PART_CALL) {
        emit_call(t, p);
        return;
    }
    if (j->open == NO_ITEM)
        start(t, block(kind, "", 0));
    j->open = kind;
    buffer_add(&j->said, p->text, p->n_byte);
    if (kind == PART_THOUGHT)
        change(t, "thinking_delta", "thinking", p->text, p->n_byte);
    else
        change(t, "text_delta", "text", p->text, p->n_byte);
}

static const item_calls calls = {emit_part, stop_open};

static void piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    items_emit(&(emitter){j, a, out}, &calls, text, n_byte, false);
}

static void close_one(job *j, const answer *a, buffer *out) {
    items_emit(&(emitter){j, a, out}, &calls, "", 0, true);
    event_write("message_delta", json_pack("{s:o, s:o}", "delta", reason(a), "usage", usage(j)), out);
}

static void end(job *j, buffer *out) {
    (void)j;
    event_write("message_stop", json_object(), out);
}

static void ping(job *j, buffer *out) {
    (void)j;
    event_write("ping", json_object(), out);
}

static json_t *refusal(const fault *why) {
    return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", fault_type(why), "message",
                     why->message);
}

static void fail(job *j, const fault *why, buffer *out) {
    (void)j;
    event_write("error", refusal(why), out);
}

static void whole(job *j, buffer *out) {
    const answer *a = &j->answers[0];
    const nib_result *r = &a->result;
    items_emit(&(emitter){j, a, NULL}, &calls, r->text ? r->text : "", r->n_byte, true);
    json_t *value = message(j, json_incref(j->items)), *one, *raw[ANSWER_MAX_CALLS];
    size_t i, n = 0;
    if (json_object_update_new(value, reason(a)) || j->said.no_memory)
        out->no_memory = true;
    json_array_foreach(j->items, i, one) {
        json_t *input = json_object_get(one, "input");
        if (input && n < ANSWER_MAX_CALLS)
            raw[n++] = input;
    }
    buffer_json_raw(out, value, raw, n);
}

const dialect anthropic = {.stream_type = "text/event-stream",
                           .begin = begin,
                           .piece = piece,
                           .close = close_one,
                           .end = end,
                           .ping = ping,
                           .fail = fail,
                           .whole = whole,
                           .fault = refusal};

void anthropic_ask(exchange *x) {
    call c;
    job_begin_parsed(x, &c,
                     call_parse_anthropic(x->body.data, x->body.n, true, &x->s->defaults, &c, &x->why));
}

void anthropic_count(exchange *x) {
    call c;
    size_t n;
    if (call_parse_anthropic(x->body.data, x->body.n, false, &x->s->defaults, &c, &x->why) &&
        tools_resolve(x->model, &c, &x->why) && prompt_count(x->model, &c, &n, &x->why))
        exchange_json(x, json_pack("{s:I}", "input_tokens", (json_int_t)n));
    call_clear(&c);
}

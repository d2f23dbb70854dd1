/* anthropic.c - answers as Anthropic's API writes them. */
#include "server/parts.h"

#include "base/jsonx.h"

#include <stdio.h>
#include <string.h>

static json_t *usage(const job *j) {
    const size_t cached = job_cached(j);
    return json_pack("{s:I, s:I, s:I}", "input_tokens", (json_int_t)(j->n_prompt - cached),
                     "cache_read_input_tokens", (json_int_t)cached, "output_tokens",
                     (json_int_t)job_predicted(j));
}

/* The stop string that ended the answer: the one that stands first in the text of all its tokens. */
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

static void event(const char *name, json_t *value, buffer *out) {
    if (json_object_set_new(value, "type", json_string(name)))
        out->no_memory = true;
    buffer_text(out, "event: ");
    buffer_text(out, name);
    buffer_text(out, "\ndata: ");
    buffer_json(out, value);
    buffer_text(out, "\n\n");
}

static void begin(job *j, buffer *out) {
    event("message_start", json_pack("{s:o}", "message", message(j, json_array())), out);
    event("content_block_start",
          json_pack("{s:i, s:{s:s, s:s}}", "index", 0, "content_block", "type", "text", "text", ""), out);
}

static void piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    (void)j;
    (void)a;
    event("content_block_delta",
          json_pack("{s:i, s:{s:s, s:o}}", "index", 0, "delta", "type", "text_delta", "text",
                    jsonx_string(text, n_byte)),
          out);
}

static void close_one(job *j, const answer *a, buffer *out) {
    event("content_block_stop", json_pack("{s:i}", "index", 0), out);
    event("message_delta", json_pack("{s:o, s:o}", "delta", reason(a), "usage", usage(j)), out);
}

static void end(job *j, buffer *out) {
    (void)j;
    event("message_stop", json_object(), out);
}

static void ping(job *j, buffer *out) {
    (void)j;
    event("ping", json_object(), out);
}

static json_t *refusal(const fault *why) {
    return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", fault_type(why), "message",
                     why->message);
}

static void fail(job *j, const fault *why, buffer *out) {
    (void)j;
    event("error", refusal(why), out);
}

static void whole(job *j, buffer *out) {
    const answer *a = &j->answers[0];
    const nib_result *r = &a->result;
    json_t *value = message(j, json_pack("[{s:s, s:o}]", "type", "text", "text",
                                         jsonx_string(r->text ? r->text : "", r->n_byte)));
    if (json_object_update_new(value, reason(a)))
        out->no_memory = true;
    buffer_json(out, value);
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
    if (call_parse_anthropic(x->body.data, x->body.n, true, &c, &x->why))
        job_begin(x, &c, x->route->how, &x->why);
    else
        call_clear(&c);
}

void anthropic_count(exchange *x) {
    call c;
    size_t n;
    if (call_parse_anthropic(x->body.data, x->body.n, false, &c, &x->why) &&
        prompt_count(x->model->engine, &c, &n, &x->why))
        exchange_json(x, json_pack("{s:I}", "input_tokens", (json_int_t)n));
    call_clear(&c);
}

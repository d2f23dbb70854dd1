/* responses.c - writes answers of OpenAI's /v1/responses. */
#include "server/responses.h"

#include "base/jsonx.h"
#include "server/output_items.h"

#include <stdio.h>

static bool is_cut(const job *j) {
    return j->answers[0].done && j->answers[0].result.finish == NIB_FINISH_LENGTH;
}

static json_t *usage(const job *j) {
    const size_t n = job_predicted(j);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)j->n_prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)job_cached(j), "output_tokens",
                     (json_int_t)n, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                     (json_int_t)(j->n_prompt + n));
}

/* The value that the request gave, or else `usual`, whose reference it takes. */
static json_t *echoed(const job *j, const char *name, json_t *usual) {
    json_t *v = json_object_get(j->call.body, name);
    if (!v || json_is_null(v))
        return usual;
    json_decref(usual);
    return json_incref(v);
}

static json_t *response(const job *j) {
    char id[64];
    const bool done = j->answers[0].done, cut = is_cut(j);
    const int64_t max = j->call.max_tokens;
    snprintf(id, sizeof id, "resp_%s", j->id);
    return json_pack(
        "{s:s, s:s, s:I, s:s, s:o, s:n, s:o, s:s, s:o, s:b, s:f, s:f, s:o, s:o, s:o}", "id", id, "object",
        "response", "created_at", (json_int_t)j->created, "status",
        !done ? "in_progress"
        : cut ? "incomplete"
              : "completed",
        "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "error",
        "max_output_tokens", max < 0 ? json_null() : json_integer(max), "model", j->model->name, "output",
        done && j->items ? json_incref(j->items) : json_array(), "parallel_tool_calls",
        j->call.tools && !j->call.one_call, "temperature", (double)j->call.sampling.temperature, "top_p",
        (double)j->call.sampling.top_p, "tool_choice", echoed(j, "tool_choice", json_string("auto")), "tools",
        echoed(j, "tools", json_array()), "usage", done ? usage(j) : json_null());
}

/* ---- items: a message, reasoning, and function calls ---- */

/* Makes the id of the open item. */
static void item_id(const emitter *t, int kind, char out[64]) {
    const char *prefix = kind == PART_TEXT ? "msg" : kind == PART_THOUGHT ? "rs" : "fc";
    snprintf(out, 64, "%s_%s%02x", prefix, t->j->id, (unsigned)items_index(t) & 0xff);
}

/* Writes an event with the next sequence number. Takes the reference to value. */
static void event(job *j, const char *name, json_t *value, buffer *out) {
    json_object_set_new(value, "sequence_number", json_integer(j->n_event++));
    event_write(name, value, out);
}

static void emit_event(const emitter *t, const char *name, json_t *value) {
    if (t->out)
        event(t->j, name, value, t->out);
    else
        json_decref(value);
}

static json_t *part(int kind, const char *text, size_t n_byte) {
    if (kind == PART_THOUGHT)
        return json_pack("{s:s, s:o}", "type", "reasoning_text", "text", jsonx_string(text, n_byte));
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", jsonx_string(text, n_byte),
                     "annotations", "logprobs");
}

/* Makes a message or reasoning item. Takes the reference to content. */
static json_t *item(const emitter *t, int kind, const char *status, json_t *content) {
    char id[64];
    item_id(t, kind, id);
    if (kind == PART_THOUGHT)
        return json_pack("{s:s, s:s, s:s, s:[], s:o}", "id", id, "type", "reasoning", "status", status,
                         "summary", "content", content);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role",
                     "assistant", "content", content);
}

static json_t *function_call(const emitter *t, const answer_part *p, const char *status,
                             const char *arguments, size_t n_byte) {
    char id[64], call_id[16];
    item_id(t, PART_CALL, id);
    job_call_id(t->a, p, call_id);
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "function_call", "status", status,
                     "call_id", call_id, "name", p->name, "arguments", jsonx_string(arguments, n_byte));
}

/* Makes the members that identify an item in its events, and one more, `name`. */
static json_t *place(const emitter *t, int kind, const char *name, json_t *value) {
    const bool is_text = kind == PART_TEXT && value && !json_is_object(value);
    char id[64];
    item_id(t, kind, id);
    json_t *at = json_pack("{s:s, s:i, s:o}", "item_id", id, "output_index", items_index(t), name, value);
    if (kind != PART_CALL)
        json_object_set_new(at, "content_index", json_integer(0));
    if (is_text)
        json_object_set_new(at, "logprobs", json_array());
    return at;
}

static void start(const emitter *t, json_t *value) {
    emit_event(t, "response.output_item.added",
               json_pack("{s:i, s:o}", "output_index", items_index(t), "item", value));
}

/* Ends the item, which is complete. Takes the reference to value. */
static void stop(const emitter *t, json_t *value) {
    emit_event(t, "response.output_item.done",
               json_pack("{s:i, s:O}", "output_index", items_index(t), "item", value));
    items_add(t, value);
}

static void start_open(const emitter *t, int kind) {
    start(t, item(t, kind, "in_progress", json_array()));
    emit_event(t, "response.content_part.added", place(t, kind, "part", part(kind, "", 0)));
    t->j->open = kind;
}

static void stop_open(const emitter *t, bool last) {
    job *j = t->j;
    const int kind = j->open;
    const char *said = j->said.n ? j->said.data : "";
    if (kind == NO_ITEM)
        return;
    emit_event(t, kind == PART_TEXT ? "response.output_text.done" : "response.reasoning_text.done",
               place(t, kind, "text", jsonx_string(said, j->said.n)));
    emit_event(t, "response.content_part.done", place(t, kind, "part", part(kind, said, j->said.n)));
    stop(t, item(t, kind, last && is_cut(j) ? "incomplete" : "completed",
                 json_pack("[o]", part(kind, said, j->said.n))));
    j->said.n = 0;
    j->open = NO_ITEM;
}

static void emit_call(const emitter *t, const answer_part *p) {
    start(t, function_call(t, p, "in_progress", "", 0));
    emit_event(t, "response.function_call_arguments.delta",
               place(t, PART_CALL, "delta", jsonx_string(p->text, p->n_byte)));
    json_t *done = place(t, PART_CALL, "arguments", jsonx_string(p->text, p->n_byte));
    json_object_set_new(done, "name", json_string(p->name));
    emit_event(t, "response.function_call_arguments.done", done);
    stop(t, function_call(t, p, "completed", p->text, p->n_byte));
}

static void emit_part(void *user, const answer_part *p) {
    const emitter *t = user;
    job *j = t->j;
    const int kind = (int)p->kind;
    if (j->open != kind)
        stop_open(t, false);
    if (kind == PART_CALL) {
        emit_call(t, p);
        return;
    }
    if (j->open == NO_ITEM)
        start_open(t, kind);
    buffer_add(&j->said, p->text, p->n_byte);
    if (p->n_byte)
        emit_event(t, kind == PART_TEXT ? "response.output_text.delta" : "response.reasoning_text.delta",
                   place(t, kind, "delta", jsonx_string(p->text, p->n_byte)));
}

static void stop_last(const emitter *t) {
    stop_open(t, true);
}

static const item_calls calls = {emit_part, stop_last};

static void begin(job *j, buffer *out) {
    event(j, "response.created", json_pack("{s:o}", "response", response(j)), out);
    event(j, "response.in_progress", json_pack("{s:o}", "response", response(j)), out);
}

static void piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    items_emit(&(emitter){j, a, out}, &calls, text, n_byte, false);
}

static void close_one(job *j, const answer *a, buffer *out) {
    items_emit(&(emitter){j, a, out}, &calls, "", 0, true);
}

static void end(job *j, buffer *out) {
    event(j, is_cut(j) ? "response.incomplete" : "response.completed",
          json_pack("{s:o}", "response", response(j)), out);
}

static void ping(job *j, buffer *out) {
    (void)j;
    buffer_text(out, ": the answer is being computed\n\n");
}

static void fail(job *j, const fault *why, buffer *out) {
    event(j, "error", json_pack("{s:s?, s:s, s:n}", "code", why->code, "message", why->message, "param"),
          out);
}

static void whole(job *j, buffer *out) {
    const nib_result *r = &j->answers[0].result;
    items_emit(&(emitter){j, &j->answers[0], NULL}, &calls, r->text ? r->text : "", r->n_byte, true);
    out->no_memory = out->no_memory || j->said.no_memory;
    buffer_json(out, response(j));
}

const dialect openai_responses = {.stream_type = "text/event-stream",
                                  .begin = begin,
                                  .piece = piece,
                                  .close = close_one,
                                  .end = end,
                                  .ping = ping,
                                  .fail = fail,
                                  .whole = whole,
                                  .fault = fault_json};

void responses_ask(exchange *x) {
    call c;
    job_begin_parsed(x, &c, call_parse_responses(x->body.data, x->body.n, &x->s->defaults, &c, &x->why));
}

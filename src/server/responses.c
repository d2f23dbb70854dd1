/* responses.c - answers as OpenAI's /v1/responses writes them. */
#include "server/parts.h"

#include "base/jsonx.h"

#include <stdio.h>

static json_t *text_part(const char *text, size_t n_byte) {
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text", jsonx_string(text, n_byte),
                     "annotations", "logprobs");
}

/* The answer's message; takes the reference to content. */
static json_t *item(const job *j, const char *status, json_t *content) {
    char id[64];
    snprintf(id, sizeof id, "msg_%s", j->id);
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", id, "type", "message", "status", status, "role",
                     "assistant", "content", content);
}

static bool is_cut(const job *j) {
    return j->answers[0].done && j->answers[0].result.finish == NIB_FINISH_LENGTH;
}

static json_t *whole_part(const job *j) {
    const nib_result *r = &j->answers[0].result;
    return text_part(r->text ? r->text : "", r->n_byte);
}

static json_t *whole_item(const job *j) {
    return item(j, is_cut(j) ? "incomplete" : "completed", json_pack("[o]", whole_part(j)));
}

static json_t *usage(const job *j) {
    const size_t n = job_predicted(j);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)j->n_prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)job_cached(j), "output_tokens",
                     (json_int_t)n, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                     (json_int_t)(j->n_prompt + n));
}

static json_t *response(const job *j) {
    char id[64];
    const bool done = j->answers[0].done, cut = is_cut(j);
    const int64_t max = j->call.max_tokens;
    snprintf(id, sizeof id, "resp_%s", j->id);
    return json_pack(
        "{s:s, s:s, s:I, s:s, s:o, s:n, s:o, s:s, s:o, s:b, s:f, s:f, s:s, s:[], s:o}", "id", id, "object",
        "response", "created_at", (json_int_t)j->created, "status",
        !done ? "in_progress"
        : cut ? "incomplete"
              : "completed",
        "incomplete_details", cut ? json_pack("{s:s}", "reason", "max_output_tokens") : json_null(), "error",
        "max_output_tokens", max < 0 ? json_null() : json_integer(max), "model", j->model->name, "output",
        done ? json_pack("[o]", whole_item(j)) : json_array(), "parallel_tool_calls", 0, "temperature",
        (double)j->call.sampling.temperature, "top_p", (double)j->call.sampling.top_p, "tool_choice", "auto",
        "tools", "usage", done ? usage(j) : json_null());
}

/* ---- in pieces ---- */

/* Takes the reference to value; events are numbered. */
static void event(job *j, const char *name, json_t *value, buffer *out) {
    json_object_set_new(value, "type", json_string(name));
    json_object_set_new(value, "sequence_number", json_integer(j->n_event++));
    buffer_text(out, "event: ");
    buffer_text(out, name);
    buffer_text(out, "\ndata: ");
    buffer_json(out, value);
    buffer_text(out, "\n\n");
}

/* What events about the text say of its place. */
static json_t *place(const job *j, const char *name, json_t *value) {
    char id[64];
    snprintf(id, sizeof id, "msg_%s", j->id);
    return json_pack("{s:s, s:i, s:i, s:o}", "item_id", id, "output_index", 0, "content_index", 0, name,
                     value);
}

static void begin(job *j, buffer *out) {
    event(j, "response.created", json_pack("{s:o}", "response", response(j)), out);
    event(j, "response.in_progress", json_pack("{s:o}", "response", response(j)), out);
    event(j, "response.output_item.added",
          json_pack("{s:i, s:o}", "output_index", 0, "item", item(j, "in_progress", json_array())), out);
    event(j, "response.content_part.added", place(j, "part", text_part("", 0)), out);
}

static void piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    (void)a;
    json_t *value = place(j, "delta", jsonx_string(text, n_byte));
    json_object_set_new(value, "logprobs", json_array());
    event(j, "response.output_text.delta", value, out);
}

static void close_one(job *j, const answer *a, buffer *out) {
    const nib_result *r = &a->result;
    json_t *value = place(j, "text", jsonx_string(r->text ? r->text : "", r->n_byte));
    json_object_set_new(value, "logprobs", json_array());
    event(j, "response.output_text.done", value, out);
    event(j, "response.content_part.done", place(j, "part", whole_part(j)), out);
    event(j, "response.output_item.done", json_pack("{s:i, s:o}", "output_index", 0, "item", whole_item(j)),
          out);
}

static void end(job *j, buffer *out) {
    event(j, is_cut(j) ? "response.incomplete" : "response.completed",
          json_pack("{s:o}", "response", response(j)), out);
}

static void ping(job *j, buffer *out) {
    (void)j;
    buffer_text(out, ": the answer is on its way\n\n");
}

static void fail(job *j, const fault *why, buffer *out) {
    event(j, "error", json_pack("{s:s?, s:s, s:n}", "code", why->code, "message", why->message, "param"),
          out);
}

static void whole(job *j, buffer *out) {
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
    if (call_parse_responses(x->body.data, x->body.n, &c, &x->why))
        job_begin(x, &c, x->route->how, &x->why);
    else
        call_clear(&c);
}

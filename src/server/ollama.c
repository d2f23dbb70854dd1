/* ollama.c - writes answers of Ollama's API (a line of JSON for each piece) and its lists of models. */
#include "server/ollama.h"

#include "base/jsonx.h"
#include "base/num.h"
#include "base/thread.h"
#include "server/call_parts.h"
#include "server/output_items.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- answers ---- */

static void write_time(time_t at, char *out, size_t size) {
    struct tm parts;
    if (!gmtime_r(&at, &parts) || !strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &parts))
        snprintf(out, size, "1970-01-01T00:00:00Z");
}

/* Converts seconds to nanoseconds. */
static json_int_t ns(double seconds) {
    return (json_int_t)(seconds * 1e9);
}

static bool is_chat(const job *j) {
    return j->how == &ollama_chat;
}

static json_t *line(const job *j, const char *text, size_t n_byte, bool done) {
    char now[32];
    write_time(time(NULL), now, sizeof now);
    json_t *content = jsonx_string(text, n_byte);
    json_t *said = is_chat(j) ? json_pack("{s:s, s:o}", "role", "assistant", "content", content) : content;
    return json_pack("{s:s, s:s, s:o, s:b}", "model", j->model->name, "created_at", now,
                     is_chat(j) ? "message" : "response", said, "done", (int)done);
}

static json_t *last_line(const job *j, const char *text, size_t n_byte) {
    const answer *a = &j->answers[0];
    const nib_result *r = &a->result;
    json_t *last = line(j, text, n_byte, true);
    json_t *counts =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "done_reason",
                  r->finish == NIB_FINISH_LENGTH ? "length" : "stop", "total_duration",
                  ns(r->prompt_s + r->predicted_s), "load_duration", (json_int_t)0, "prompt_eval_count",
                  (json_int_t)j->n_prompt, "prompt_eval_duration", ns(r->prompt_s), "eval_count",
                  (json_int_t)r->n_token, "eval_duration", ns(r->predicted_s));
    if (json_object_update_new(last, counts)) {
        json_decref(last);
        return NULL;
    }
    return last;
}

/* Writes an answer, with the arguments of its calls as they were written. */
static void put_answer(json_t *value, buffer *out) {
    const json_t *calls = json_object_get(json_object_get(value, "message"), "tool_calls"), *one;
    json_t *raw[ANSWER_MAX_CALLS];
    size_t i, n = 0;
    json_array_foreach(calls, i, one) {
        if (n < ANSWER_MAX_CALLS)
            raw[n++] = json_object_get(json_object_get(one, "function"), "arguments");
    }
    buffer_json_raw(out, value, raw, n);
}

static void end_line(json_t *value, buffer *out) {
    put_answer(value, out);
    buffer_text(out, "\n");
}

static void begin(job *j, buffer *out) {
    (void)j;
    (void)out;
}

/* The JSON of a call; in Ollama's API arguments are an object. */
static json_t *tool_call(const answer_part *p) {
    return json_pack("{s:{s:s, s:o}}", "function", "name", p->name, "arguments", arguments_raw(p));
}

static void emit_part(void *user, const answer_part *p) {
    const emitter *t = user;
    const bool text = p->kind == PART_TEXT;
    json_t *value = line(t->j, text ? p->text : "", text ? p->n_byte : 0, false);
    json_t *message = json_object_get(value, "message");
    if (p->kind == PART_CALL)
        t->out->no_memory =
            json_object_set_new(message, "tool_calls", json_pack("[o]", tool_call(p))) || t->out->no_memory;
    else if (!text)
        t->out->no_memory =
            json_object_set_new(message, "thinking", jsonx_string(p->text, p->n_byte)) || t->out->no_memory;
    end_line(value, t->out);
}

static void emit(job *j, const answer *a, const char *text, size_t n_byte, bool last, buffer *out) {
    emitter t = {j, a, out};
    if (!a->parser && n_byte)
        end_line(line(j, text, n_byte, false), out);
    else if (a->parser && !answer_parser_feed(a->parser, text, n_byte, last, emit_part, &t))
        out->no_memory = true;
}

static void piece(job *j, const answer *a, const char *text, size_t n_byte, buffer *out) {
    emit(j, a, text, n_byte, false, out);
}

static void close_one(job *j, const answer *a, buffer *out) {
    emit(j, a, "", 0, true, out);
}

static void end(job *j, buffer *out) {
    end_line(last_line(j, "", 0), out);
}

json_t *ollama_refusal(const fault *why) {
    return json_pack("{s:s}", "error", why->message);
}

static void fail(job *j, const fault *why, buffer *out) {
    (void)j;
    end_line(ollama_refusal(why), out);
}

static json_t *whole_call(const answer *a, const answer_part *p) {
    (void)a;
    return tool_call(p);
}

static void whole(job *j, buffer *out) {
    message_parts m = {.a = &j->answers[0], .call = whole_call};
    bool good = message_parts_collect(&m);
    json_t *value = last_line(j, m.said.n ? m.said.data : "", m.said.n);
    good = message_parts_add(&m, json_object_get(value, "message"), "thinking") && good;
    out->no_memory = out->no_memory || !good;
    put_answer(value, out);
}

#define OLLAMA                                                                                               \
    {                                                                                                        \
        .stream_type = "application/x-ndjson", .keep_alive = true, .begin = begin, .piece = piece,           \
        .close = close_one, .end = end, .fail = fail, .whole = whole, .fault = ollama_refusal                \
    }
const dialect ollama_chat = OLLAMA, ollama_generate = OLLAMA;

/* ---- keep_alive ---- */

/* Reads a duration in Ollama's notation: "1h30m", "300ms", "-1". */
static bool read_duration(const char *text, double *seconds) {
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"h", 3600}, {"m", 60}, {"s", 1}};
    const bool negative = *text == '-';
    double sum = 0;
    text += negative;
    do {
        char *end;
        size_t u = 0;
        if (!(*text >= '0' && *text <= '9'))
            return false;
        const double n = strtod(text, &end);
        while (*end && u < NUM_COUNT(units) && strncmp(end, units[u].name, strlen(units[u].name)) != 0)
            u++;
        if (u == NUM_COUNT(units))
            return false;
        sum += n * (*end ? units[u].seconds : 1);
        text = end + (*end ? strlen(units[u].name) : 0);
    } while (*text);
    *seconds = negative ? -sum : sum;
    return true;
}

bool ollama_keep_alive(const json_t *body, double *out, fault *why) {
    const json_t *v = member_get(body, "keep_alive");
    double seconds = json_number_value(v);
    *out = NAN;
    if (!v)
        return true;
    if (!json_is_number(v) && !(json_is_string(v) && read_duration(json_string_value(v), &seconds)))
        return fault_field(why, "keep_alive", "expected seconds, or a duration such as \"5m\"");
    *out = seconds < 0 ? INFINITY : seconds;
    return true;
}

bool ollama_asks_nothing(const json_t *body) {
    return json_array_size(member_get(body, "messages")) == 0 &&
           json_string_length(member_get(body, "prompt")) == 0 && !member_get(body, "input");
}

/* Answers a request without a prompt, which clients send to load or unload a model. */
static void reply_loaded(exchange *x) {
    char now[32];
    const served *m = x->model ? x->model : x->gone;
    write_time(time(NULL), now, sizeof now);
    exchange_json(x, json_pack("{s:s, s:s, s:s, s:b, s:s}", "model", m->name, "created_at", now, "response",
                               "", "done", 1, "done_reason", x->keep_s == 0 ? "unload" : "load"));
}

typedef bool (*parse_fn)(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                         fault *why);

static void ask(exchange *x, parse_fn parse) {
    call c;
    const bool good = parse(x->body.data, x->body.n, &x->s->defaults, &c, &x->why);
    if (good && x->model && (c.messages || c.prompts)) {
        job_begin(x, &c, x->route->how, &x->why);
        return;
    }
    if (good)
        reply_loaded(x);
    call_clear(&c);
}

void ollama_ask_chat(exchange *x) {
    ask(x, call_parse_ollama_chat);
}

void ollama_ask_generate(exchange *x) {
    ask(x, call_parse_ollama_generate);
}

/* ---- the models ---- */

static json_t *details(const served *m) {
    char params[32];
    if (m->n_param >= UINT64_C(1000000000))
        snprintf(params, sizeof params, "%.1fB", (double)m->n_param / 1e9);
    else
        snprintf(params, sizeof params, "%.1fM", (double)m->n_param / 1e6);
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format", m->container, "family",
                     m->arch, "families", m->arch, "parameter_size", params, "quantization_level", m->format);
}

static json_t *model_json(const served *m, const char *when, time_t moment) {
    char at[32];
    write_time(moment, at, sizeof at);
    return json_pack("{s:s, s:s, s:s, s:I, s:s, s:o}", "name", m->name, "model", m->name, when, at, "size",
                     (json_int_t)m->n_byte, "digest", m->digest, "details", details(m));
}

void ollama_tags(exchange *x) {
    json_t *list = json_array();
    for (size_t i = 0; i < x->s->n_model; i++)
        json_array_append_new(list, model_json(&x->s->models[i], "modified_at", x->s->opened));
    exchange_json(x, json_pack("{s:o}", "models", list));
}

/* Lists the loaded models. A model that stays until its memory is needed expires in a hundred years. */
void ollama_ps(exchange *x) {
    const time_t now = time(NULL), far = now + (time_t)100 * 365 * 86400;
    json_t *list = json_array();
    pthread_mutex_lock(&x->s->lock);
    for (size_t i = 0; i < x->s->n_model; i++) {
        const served *m = &x->s->models[i];
        const double left = m->keep_s - (m->n_hold ? 0 : time_now() - m->used);
        nib_memory mem;
        if (!m->engine)
            continue;
        json_t *one = model_json(m, "expires_at", left < (double)(far - now) ? now + (time_t)left : far);
        nib_engine_memory(m->engine, &mem);
        json_object_set_new(one, "size_vram", json_integer((json_int_t)mem.tier[NIB_TIER_VRAM].planned));
        json_object_set_new(one, "context_length",
                            json_integer((json_int_t)nib_engine_info(m->engine)->n_ctx));
        json_array_append_new(list, one);
    }
    pthread_mutex_unlock(&x->s->lock);
    exchange_json(x, json_pack("{s:o}", "models", list));
}

/* The source of the chat template, in the model's own language (Jinja); "" until the model is loaded. */
static json_t *template_json(server *s, const served *m) {
    char *source = NULL;
    pthread_mutex_lock(&s->lock);
    if (m->engine && nib_chat_template(m->engine, &source, NULL))
        source = NULL;
    pthread_mutex_unlock(&s->lock);
    json_t *value = source ? jsonx_string(source, strlen(source)) : json_string("");
    nib_free(source);
    return value;
}

void ollama_show(exchange *x) {
    json_t *body = x->body.n ? body_parse(x->body.data, x->body.n, &x->why) : json_object();
    const served *m = body ? model_named(x->s, body, &x->why) : NULL;
    char context[64];
    json_decref(body);
    if (!m)
        return;
    snprintf(context, sizeof context, "%.40s.context_length", m->arch);
    json_t *source = template_json(x->s, m);
    exchange_json(x, json_pack("{s:s, s:s, s:o, s:o, s:{s:s, s:I, s:I}, s:[s, s]}", "modelfile", "",
                               "license", "", "template", source, "details", details(m), "model_info",
                               "general.architecture", m->arch, "general.parameter_count",
                               (json_int_t)m->n_param, context, (json_int_t)m->n_ctx_train, "capabilities",
                               "completion", "tools"));
}

/* Ollama's clients compare its version with the one that has what they need, so this is the version of
 * Ollama's API whose requests are answered here. */
void ollama_version(exchange *x) {
    exchange_json(x, json_pack("{s:s, s:s}", "version", "0.9.0", "nibble", nib_version()));
}

/* A model that is served need not be pulled; others cannot be. */
void ollama_pull(exchange *x) {
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    const json_t *model = member_get(body, "model"), *name = model ? model : member_get(body, "name");
    const bool whole = json_is_false(member_get(body, "stream"));
    if (body && !json_is_string(name))
        fault_field(&x->why, "model", "expected a string, found %s", json_type_name(name));
    if (!x->why.status && model_by_name(x->s, json_string_value(name), &x->why)) {
        x->type = whole ? "application/json" : "application/x-ndjson";
        if (!whole)
            buffer_text(&x->reply, "{\"status\":\"pulling manifest\"}\n");
        buffer_text(&x->reply, "{\"status\":\"success\"}\n");
    }
    json_decref(body);
}

/* call.c - see call.h. What has a range is a row of a table. */
#include "server/call.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MESSAGES = 4096, MOST_PARTS = 256 };
#define NO_LEAST (-1e300)
#define NO_MOST  1e300

/* ---- values by a table ---- */

static const char *type_name(const json_t *v) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return v ? names[json_typeof(v)] : "nothing";
}

static json_t *get(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static bool wrong_number(const member *m, const json_t *v, fault *why) {
    const char *kind = m->kind == MEMBER_FLOAT ? "a number" : "a whole number";
    char found[40];
    if (json_is_number(v))
        snprintf(found, sizeof found, "%.17g", json_number_value(v));
    else
        snprintf(found, sizeof found, "%s", type_name(v));
    if (m->least > NO_LEAST && m->most < 1e15)
        return fault_field(why, m->name, "expected %s from %s to %s, found %s", kind, num_text(m->least, 15),
                           num_text(m->most, 15), found);
    if (m->least > NO_LEAST)
        return fault_field(why, m->name, "expected %s of at least %s, found %s", kind, num_text(m->least, 15),
                           found);
    return fault_field(why, m->name, "expected %s, found %s", kind, found);
}

static bool read_number(const member *m, const json_t *v, void *at, fault *why) {
    const double value = json_number_value(v);
    const bool whole = json_is_integer(v) || (fabs(value) < 1e15 && value == floor(value));
    if (!json_is_number(v) || !(value >= m->least && value <= m->most) || (m->kind != MEMBER_FLOAT && !whole))
        return wrong_number(m, v, why);
    const int64_t integer = json_is_integer(v) ? json_integer_value(v) : (int64_t)value;
    if (m->kind == MEMBER_FLOAT)
        *(float *)at = (float)value;
    else if (m->kind == MEMBER_I32)
        *(int32_t *)at = (int32_t)integer;
    else
        *(int64_t *)at = integer;
    return true;
}

static bool read_member(const member *m, const json_t *v, void *at, fault *why) {
    switch (m->kind) {
    case MEMBER_BOOL:
        if (!json_is_boolean(v))
            return fault_field(why, m->name, "expected true or false, found %s", type_name(v));
        *(bool *)at = json_is_true(v);
        return true;
    case MEMBER_TEXT:
        if (!json_is_string(v))
            return fault_field(why, m->name, "expected a string, found %s", type_name(v));
        *(const char **)at = json_string_value(v);
        return true;
    case MEMBER_FLOAT:
    case MEMBER_I32:
    case MEMBER_I64: return read_number(m, v, at, why);
    }
    return true;
}

bool members_read(const json_t *object, const member *members, size_t n, void *out, fault *why) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = get(object, members[i].name);
        if (v && !read_member(&members[i], v, (char *)out + members[i].offset, why))
            return false;
    }
    return true;
}

json_t *body_parse(const char *text, size_t n_byte, fault *why) {
    nib_error err;
    json_t *body = NULL;
    const nib_status status = jsonx_parse(text ? text : "", n_byte, &body, &err);
    if (status == NIB_E_NOMEM)
        fault_set(why, 413, NULL, "the body has more values than one request may have");
    else if (status != NIB_OK)
        fault_set(why, 400, NULL, "the body is no JSON: %s", err.message);
    else if (!json_is_object(body))
        fault_set(why, 400, NULL, "the body: expected an object, found %s", type_name(body));
    if (!why->status)
        return body;
    json_decref(body);
    return NULL;
}

/* ---- what both kinds have ---- */

static const member numbers[] = {
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 2},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"top_k", MEMBER_I32, offsetof(call, sampling.top_k), 0, 1 << 24},
    {"min_p", MEMBER_FLOAT, offsetof(call, sampling.min_p), 0, 1},
    {"repeat_penalty", MEMBER_FLOAT, offsetof(call, sampling.repeat_penalty), 0.01, 100},
    {"repetition_penalty", MEMBER_FLOAT, offsetof(call, sampling.repeat_penalty), 0.01, 100},
    {"repeat_last_n", MEMBER_I32, offsetof(call, sampling.penalty_window), -1, 1 << 24},
    {"frequency_penalty", MEMBER_FLOAT, offsetof(call, sampling.frequency_penalty), -2, 2},
    {"presence_penalty", MEMBER_FLOAT, offsetof(call, sampling.presence_penalty), -2, 2},
    {"seed", MEMBER_I64, offsetof(call, seed), NO_LEAST, NO_MOST},
    {"n", MEMBER_I32, offsetof(call, n), 1, CALL_MOST_CHOICES},
    {"max_tokens", MEMBER_I64, offsetof(call, max_tokens), 1, 1 << 30},
    {"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0},
    {"ignore_eos", MEMBER_BOOL, offsetof(call, ignore_eos), 0, 0},
};
static const member chat_members[] = {
    {"logprobs", MEMBER_BOOL, offsetof(call, logprobs), 0, 0},
    {"top_logprobs", MEMBER_I32, offsetof(call, n_top), 0, NIB_MOST_TOP},
    {"max_completion_tokens", MEMBER_I64, offsetof(call, max_tokens), 1, 1 << 30},
};
static const member completion_members[] = {
    {"logprobs", MEMBER_I32, offsetof(call, n_top), 0, 5},
    {"echo", MEMBER_BOOL, offsetof(call, echo), 0, 0},
};
static const member stream_members[] = {
    {"include_usage", MEMBER_BOOL, offsetof(call, usage), 0, 0},
};

static bool read_stream_options(call *c, fault *why) {
    const json_t *options = get(c->body, "stream_options");
    if (options && !json_is_object(options))
        return fault_field(why, "stream_options", "expected an object, found %s", type_name(options));
    return members_read(options, stream_members, NUM_COUNT(stream_members), c, why);
}

static bool add_stop(call *c, const json_t *v, fault *why) {
    if (!json_is_string(v))
        return fault_field(why, "stop", "expected a string or an array of them, found %s", type_name(v));
    if (json_string_length(v) == 0 || strlen(json_string_value(v)) != json_string_length(v))
        return fault_field(why, "stop", "a stop string is empty, or has a NUL in it");
    if (c->n_stop == CALL_MOST_STOPS)
        return fault_field(why, "stop", "expected at most %d strings", CALL_MOST_STOPS);
    c->stop[c->n_stop++] = json_string_value(v);
    return true;
}

static bool read_stop(call *c, fault *why) {
    const json_t *stop = get(c->body, "stop"), *v;
    size_t i;
    if (stop && !json_is_array(stop))
        return add_stop(c, stop, why);
    json_array_foreach(stop, i, v) {
        if (!add_stop(c, v, why))
            return false;
    }
    return true;
}

/* {"50256": -100}; the ends of the range are what OpenAI says: never, and only. */
static bool read_bias(call *c, fault *why) {
    enum { END = 100 };
    json_t *bias = get(c->body, "logit_bias"), *v;
    const char *key;
    if (!bias)
        return true;
    if (!json_is_object(bias) || json_object_size(bias) > CALL_MOST_BIAS)
        return fault_field(why, "logit_bias", "expected an object of at most %d tokens, found %s",
                           CALL_MOST_BIAS, json_is_object(bias) ? "more" : type_name(bias));
    c->bias = mem_array(json_object_size(bias) + 1, sizeof *c->bias);
    if (!c->bias)
        return fault_set(why, 503, NULL, "out of memory");
    json_object_foreach(bias, key, v) {
        char *end;
        errno = 0;
        const long token = strtol(key, &end, 10);
        const double x = json_number_value(v);
        if (*key == '\0' || *end != '\0' || errno || token < 0 || token > INT32_MAX)
            return fault_field(why, "logit_bias", "expected a token's id as name, found '%.40s'", key);
        if (!json_is_number(v) || !(x >= -END && x <= END))
            return fault_field(why, "logit_bias", "expected numbers from %d to %d", -END, END);
        c->bias[c->n_bias++] = (nib_logit_bias){(int32_t)token, x == -END ? -INFINITY : (float)x};
    }
    return true;
}

/* What is asked for and not done is refused by name, unless what it asks for is what is done anyway. */
static bool refuse_unknown_work(const call *c, fault *why) {
    static const struct {
        const char *name;
        double harmless; /* a number that asks for nothing; -1: none */
    } without[] = {{"grammar", -1}, {"json_schema", -1}, {"suffix", -1}, {"best_of", 1}};
    const json_t *format = get(c->body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return fault_field(why, "response_format", "only {\"type\": \"text\"} is supported");
    for (size_t i = 0; i < NUM_COUNT(without); i++) {
        const json_t *v = get(c->body, without[i].name);
        const bool nothing = json_is_false(v) || (json_is_object(v) && json_object_size(v) == 0) ||
                             (json_is_string(v) && json_string_length(v) == 0) ||
                             (json_is_integer(v) && (double)json_integer_value(v) == without[i].harmless);
        if (v && !nothing)
            return fault_field(why, without[i].name, "is not supported");
    }
    return true;
}

/* ---- chat ---- */

/* "messages[3].content" */
static const char *place(char *out, size_t size, size_t message, const char *member_name) {
    snprintf(out, size, "messages[%zu]%s%s", message, *member_name ? "." : "", member_name);
    return out;
}

/* A content of parts is the text of its parts, one after the other. NULL: *why. */
static json_t *join_parts(const json_t *parts, size_t message, fault *why) {
    char at[64], *joined = NULL;
    size_t i, n = 0, cap = 0;
    const json_t *part;
    bool failed = mem_grow((void **)&joined, &cap, 1, 1) != 0;
    json_array_foreach(parts, i, part) {
        const json_t *text = get(part, "text");
        const char *type = json_string_value(get(part, "type"));
        if (!type || !json_is_string(text) || strcmp(type, "text") != 0 || i == MOST_PARTS) {
            fault_field(why, place(at, sizeof at, message, "content"),
                        "expected a string, or at most %d parts {\"type\": \"text\", \"text\": ...}; nothing "
                        "but text is supported",
                        MOST_PARTS);
            break;
        }
        const size_t length = json_string_length(text);
        failed = failed || mem_grow((void **)&joined, &cap, n + length + 1, 1);
        if (!failed)
            memcpy(joined + n, json_string_value(text), length);
        n += length;
    }
    json_t *whole = failed || why->status ? NULL : json_stringn(joined, n);
    mem_free(joined);
    if (!whole)
        fault_set(why, 503, NULL, "out of memory");
    return whole;
}

static bool check_role(const json_t *role, size_t message, fault *why) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    char at[64];
    place(at, sizeof at, message, "role");
    if (!json_is_string(role))
        return fault_field(why, at, "expected a string, found %s", type_name(role));
    for (size_t i = 0; i < NUM_COUNT(roles); i++)
        if (!strcmp(json_string_value(role), roles[i]))
            return true;
    return fault_field(why, at, "expected system, developer, user, assistant or tool, found '%.40s'",
                       json_string_value(role));
}

/* The message for the template: everything that it has, with a text as content. */
static bool add_message(call *c, const json_t *message, size_t index, fault *why) {
    char at[64];
    const json_t *role = get(message, "role"), *content = get(message, "content");
    if (!json_is_object(message))
        return fault_field(why, place(at, sizeof at, index, ""), "expected an object, found %s",
                           type_name(message));
    if (!check_role(role, index, why))
        return false;
    const bool may_lack = get(message, "tool_calls") || get(message, "function_call");
    if (!json_is_string(content) && !json_is_array(content) && (content || !may_lack))
        return fault_field(why, place(at, sizeof at, index, "content"),
                           "expected a string or an array of parts, found %s", type_name(content));
    json_t *text = json_is_array(content) ? join_parts(content, index, why)
                   : content              ? json_incref((json_t *)(uintptr_t)content)
                                          : json_string("");
    json_t *copy = json_copy((json_t *)(uintptr_t)message);
    bool failed = why->status || json_object_set_new(copy, "content", text);
    if (!strcmp(json_string_value(role), "developer"))
        failed = failed || json_object_set_new(copy, "role", json_string("system"));
    if (failed || json_array_append(c->messages, copy))
        fault_set(why, 503, NULL, "out of memory");
    json_decref(copy);
    return !why->status;
}

static bool read_tools(call *c, fault *why) {
    c->tools = get(c->body, "tools");
    const json_t *choice = get(c->body, "tool_choice");
    const char *word = json_string_value(choice);
    if (c->tools && !json_is_array(c->tools))
        return fault_field(why, "tools", "expected an array, found %s", type_name(c->tools));
    if (json_array_size(c->tools) == 0 || (word && !strcmp(word, "none")))
        c->tools = NULL;
    if (c->tools && choice && (!word || strcmp(word, "auto") != 0))
        return fault_field(why, "tool_choice", "only \"auto\" and \"none\" are supported");
    return true;
}

static bool read_chat(call *c, fault *why) {
    const json_t *messages = get(c->body, "messages"), *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return fault_field(why, "messages", "expected an array of at least one message, found %s",
                           json_is_array(messages) ? "an empty one" : type_name(messages));
    if (json_array_size(messages) > MOST_MESSAGES)
        return fault_field(why, "messages", "expected at most %d, found %zu", MOST_MESSAGES,
                           json_array_size(messages));
    c->messages = json_array();
    json_array_foreach(messages, i, message) {
        if (!add_message(c, message, i, why))
            return false;
    }
    if (!members_read(c->body, chat_members, NUM_COUNT(chat_members), c, why) || !read_tools(c, why))
        return false;
    return c->n_top == 0 || c->logprobs || fault_field(why, "top_logprobs", "is given without logprobs");
}

/* ---- completions ---- */

static bool is_ids(const json_t *v) {
    size_t i;
    const json_t *id;
    json_array_foreach(v, i, id) {
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
            return false;
    }
    return json_is_array(v) && json_array_size(v) > 0;
}

static bool read_completion(call *c, fault *why) {
    json_t *prompt = get(c->body, "prompt"), *one;
    size_t i;
    const bool single = json_is_string(prompt) || is_ids(prompt);
    if (!single && (!json_is_array(prompt) || json_array_size(prompt) == 0))
        return fault_field(why, "prompt", "expected a string, token ids, or an array of them, found %s",
                           type_name(prompt));
    c->prompts = single ? json_pack("[O]", prompt) : json_incref(prompt);
    if (!c->prompts)
        return fault_set(why, 503, NULL, "out of memory");
    if (json_array_size(c->prompts) > CALL_MOST_PROMPTS)
        return fault_field(why, "prompt", "expected at most %d prompts, found %zu", CALL_MOST_PROMPTS,
                           json_array_size(c->prompts));
    json_array_foreach(c->prompts, i, one) {
        if (!json_is_string(one) && !is_ids(one))
            return fault_field(why, "prompt", "expected a string or token ids in place %zu, found %s", i,
                               type_name(one));
    }
    const json_t *logprobs = get(c->body, "logprobs");
    c->logprobs = json_is_integer(logprobs);
    return json_is_false(logprobs) ||
           members_read(c->body, completion_members, NUM_COUNT(completion_members), c, why);
}

bool call_parse(call_kind kind, const char *text, size_t n_byte, call *out, fault *why) {
    *out = (call){.kind = kind, .n = 1, .max_tokens = -1};
    nib_sampling_init(&out->sampling);
    out->body = body_parse(text, n_byte, why);
    if (!out->body)
        return false;
    if (!members_read(out->body, numbers, NUM_COUNT(numbers), out, why))
        return false;
    out->has_seed = get(out->body, "seed") != NULL;
    if (out->sampling.top_p == 0) /* the likeliest alone */
        out->sampling.top_p = FLT_MIN;
    return read_stop(out, why) && read_bias(out, why) && read_stream_options(out, why) &&
           (kind == CALL_CHAT ? read_chat(out, why) : read_completion(out, why)) &&
           refuse_unknown_work(out, why);
}

void call_clear(call *c) {
    json_decref(c->messages);
    json_decref(c->prompts);
    json_decref(c->body);
    mem_free(c->bias);
    *c = (call){0};
}

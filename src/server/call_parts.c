/* call_parts.c - see call_parts.h. */
#include "server/call_parts.h"

#include "base/buffer.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_MESSAGES = 4096, MAX_PARTS = 256 };

/* ---- values by a table ---- */

const char *json_type_name(const json_t *v) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return v ? names[json_typeof(v)] : "nothing";
}

json_t *member_get(const json_t *object, const char *name) {
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

int32_t json_id(const json_t *v) {
    const double x = json_is_number(v) ? json_number_value(v) : -1;
    return x >= 0 && x <= INT32_MAX && x == floor(x) ? (int32_t)x : -1;
}

static bool wrong_number(const member *m, const json_t *v, fault *why) {
    const char *kind = m->kind == MEMBER_FLOAT ? "a number" : "a whole number";
    char found[40];
    if (json_is_number(v))
        snprintf(found, sizeof found, "%.17g", json_number_value(v));
    else
        snprintf(found, sizeof found, "%s", json_type_name(v));
    if (m->min > MIN_MEMBER_NO && m->max < 1e15)
        return fault_field(why, m->name, "expected %s from %s to %s, found %s", kind, num_text(m->min, 15),
                           num_text(m->max, 15), found);
    if (m->min > MIN_MEMBER_NO)
        return fault_field(why, m->name, "expected %s of at least %s, found %s", kind, num_text(m->min, 15),
                           found);
    return fault_field(why, m->name, "expected %s, found %s", kind, found);
}

static bool read_number(const member *m, const json_t *v, void *at, fault *why) {
    const double value = json_number_value(v);
    const bool whole = json_is_integer(v) || (fabs(value) < 1e15 && value == floor(value));
    if (!json_is_number(v) || !(value >= m->min && value <= m->max) || (m->kind != MEMBER_FLOAT && !whole))
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
            return fault_field(why, m->name, "expected true or false, found %s", json_type_name(v));
        *(bool *)at = json_is_true(v);
        return true;
    case MEMBER_TEXT:
        if (!json_is_string(v))
            return fault_field(why, m->name, "expected a string, found %s", json_type_name(v));
        *(const char **)at = json_string_value(v);
        return true;
    case MEMBER_FLOAT:
    case MEMBER_I32:
    case MEMBER_I64: return read_number(m, v, at, why);
    }
    return true;
}

bool members_read(const json_t *object, const member_table *table, void *out, fault *why) {
    for (size_t i = 0; i < table->n; i++) {
        const member *m = &table->rows[i];
        const json_t *v = member_get(object, m->name);
        if (v && !read_member(m, v, (char *)out + m->offset, why))
            return false;
    }
    return true;
}

json_t *body_parse(const char *text, size_t n_byte, fault *why) {
    nib_error err;
    json_t *body = NULL;
    const nib_status status = jsonx_parse(text ? text : "", n_byte, &body, &err);
    if (status == NIB_E_NOMEM && !mem_bound_refused())
        fault_set(why, 503, NULL, "out of memory");
    else if (status == NIB_E_NOMEM)
        fault_set(why, 413, NULL, "the body: expected fewer JSON values: they would need too much memory");
    else if (status != NIB_OK)
        fault_set(why, 400, NULL, "the body is not valid JSON: %s", err.message);
    else if (!json_is_object(body))
        fault_set(why, 400, NULL, "the body: expected an object, found %s", json_type_name(body));
    if (!why->status)
        return body;
    json_decref(body);
    return NULL;
}

static bool is_nothing(const json_t *v) {
    return !v || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_harmless(const json_t *v, const char *usual) {
    json_t *same = json_loads(usual, JSON_DECODE_ANY, NULL);
    const bool harmless = json_is_number(v) && json_is_number(same)
                              ? json_number_value(v) == json_number_value(same)
                              : json_equal(v, same);
    json_decref(same);
    return harmless;
}

bool members_refuse(const json_t *object, const refused_member *rows, size_t n, fault *why) {
    for (size_t i = 0; i < n; i++) {
        const json_t *v = member_get(object, rows[i].name);
        if (v && !(rows[i].usual ? is_harmless(v, rows[i].usual) : is_nothing(v)))
            return fault_field(why, rows[i].name, "is not supported");
    }
    return true;
}

/* ---- for every call ---- */

bool call_begin(call_kind kind, const char *text, size_t n_byte, const server_defaults *usual, call *out,
                fault *why) {
    *out = (call){.kind = kind,
                  .text = text,
                  .n_text = n_byte,
                  .n = 1,
                  .sampling = usual->sampling,
                  .max_tokens = usual->max_tokens,
                  .seed = usual->seed,
                  .has_seed = usual->seed >= 0,
                  .ignore_eos = usual->ignore_eos};
    out->body = body_parse(text, n_byte, why);
    return out->body != NULL;
}

void call_resolve(call *c, const json_t *from) {
    c->has_seed = c->has_seed || member_get(from, "seed");
    if (c->sampling.top_p == 0) /* only the likeliest token */
        c->sampling.top_p = FLT_MIN;
    if (c->sampling.top_k < 0) /* off */
        c->sampling.top_k = 0;
}

void call_clear(call *c) {
    json_decref(c->messages);
    json_decref(c->prompts);
    json_decref(c->made);
    json_decref(c->variables);
    json_decref(c->body);
    mem_free(c->bias);
    mem_free(c->breakers);
    nib_free(c->grammar);
    *c = (call){0};
}

void call_reduce(call *c) {
    static const char *const named_again[] = {"tools", "tool_choice", "stop", "stop_sequences", "options"};
    const char *name;
    void *next;
    json_t *v;
    json_decref(c->messages);
    json_decref(c->variables);
    c->messages = c->variables = NULL;
    if (!c->echo) {
        json_decref(c->prompts);
        c->prompts = NULL;
    }
    json_object_foreach_safe(c->body, next, name, v) {
        bool kept = false;
        for (size_t i = 0; i < NUM_COUNT(named_again); i++)
            kept = kept || !strcmp(name, named_again[i]);
        if (!kept)
            json_object_del(c->body, name);
    }
    c->prefill = NULL;
    nib_free(c->grammar);
    c->grammar = NULL;
}

static bool add_stop(call *c, const char *field, const json_t *v, fault *why) {
    if (!json_is_string(v))
        return fault_field(why, field, "expected a string or an array of them, found %s", json_type_name(v));
    if (json_string_length(v) == 0 || strlen(json_string_value(v)) != json_string_length(v))
        return fault_field(why, field, "expected stop strings that are not empty and have no NUL");
    if (c->n_stop == CALL_MAX_STOPS)
        return fault_field(why, field, "expected at most %d strings", CALL_MAX_STOPS);
    c->stop[c->n_stop++] = json_string_value(v);
    return true;
}

bool stop_read(call *c, const char *field, const json_t *stop, fault *why) {
    const json_t *v;
    size_t i;
    if (stop && !json_is_array(stop))
        return add_stop(c, field, stop, why);
    json_array_foreach(stop, i, v) {
        if (!add_stop(c, field, v, why))
            return false;
    }
    return true;
}

/* ---- messages ---- */

/* Writes a path such as "messages[3].content". */
static const char *place(char *out, size_t size, size_t message, const char *member_name) {
    snprintf(out, size, "messages[%zu]%s%s", message, *member_name ? "." : "", member_name);
    return out;
}

/* Joins the texts of a content's parts. NULL: *why is set. */
json_t *parts_join(const json_t *parts, const char *field, fault *why) {
    buffer joined = {0};
    size_t i;
    const json_t *part;
    buffer_text(&joined, "");
    json_array_foreach(parts, i, part) {
        const json_t *text = member_get(part, "text");
        const char *type = json_string_value(member_get(part, "type"));
        if (!type || !json_is_string(text) || strcmp(type, "text") != 0 || i == MAX_PARTS) {
            fault_field(why, field,
                        "expected a string, or at most %d parts {\"type\": \"text\", \"text\": ...}; only "
                        "text is supported",
                        MAX_PARTS);
            break;
        }
        buffer_add(&joined, json_string_value(text), json_string_length(text));
    }
    json_t *whole = joined.no_memory || why->status ? NULL : json_stringn(joined.data, joined.n);
    buffer_clear(&joined);
    if (!whole)
        fault_set(why, 503, NULL, "out of memory");
    return whole;
}

static bool check_role(const json_t *role, size_t message, fault *why) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    char at[64];
    place(at, sizeof at, message, "role");
    if (!json_is_string(role))
        return fault_field(why, at, "expected a string, found %s", json_type_name(role));
    for (size_t i = 0; i < NUM_COUNT(roles); i++)
        if (!strcmp(json_string_value(role), roles[i]))
            return true;
    return fault_field(why, at, "expected system, developer, user, assistant or tool, found '%.40s'",
                       json_string_value(role));
}

/* Converts the arguments of earlier calls, which are texts in OpenAI's API, to the objects that templates
 * expect. */
static bool arguments_as_objects(json_t *message) {
    json_t *calls = member_get(message, "tool_calls"), *one;
    size_t i;
    if (!json_is_array(calls))
        return true;
    calls = json_deep_copy(calls);
    if (!calls || json_object_set_new(message, "tool_calls", calls))
        return false;
    json_array_foreach(calls, i, one) {
        json_t *function = member_get(one, "function"), *value = NULL;
        const json_t *text = member_get(function, "arguments");
        if (json_is_string(text) &&
            jsonx_parse(json_string_value(text), json_string_length(text), &value, NULL) == NIB_OK &&
            json_is_object(value) && json_object_set(function, "arguments", value)) {
            json_decref(value);
            return false;
        }
        json_decref(value);
    }
    return true;
}

/* Adds a message for the template: all its members, with one text as content. */
static bool add_message(call *c, const json_t *message, size_t index, fault *why) {
    char at[64];
    const json_t *role = member_get(message, "role"), *content = member_get(message, "content");
    if (!json_is_object(message))
        return fault_field(why, place(at, sizeof at, index, ""), "expected an object, found %s",
                           json_type_name(message));
    if (!check_role(role, index, why))
        return false;
    const bool may_lack = member_get(message, "tool_calls") || member_get(message, "function_call");
    if (!json_is_string(content) && !json_is_array(content) && (content || !may_lack))
        return fault_field(why, place(at, sizeof at, index, "content"),
                           "expected a string or an array of parts, found %s", json_type_name(content));
    json_t *text = json_is_array(content) ? parts_join(content, place(at, sizeof at, index, "content"), why)
                   : content              ? json_incref(jsonx_counted(content))
                                          : json_string("");
    json_t *copy = json_copy(jsonx_counted(message));
    bool failed = why->status || json_object_set_new(copy, "content", text);
    failed = failed || !arguments_as_objects(copy);
    if (!strcmp(json_string_value(role), "developer"))
        failed = failed || json_object_set_new(copy, "role", json_string("system"));
    if (failed || json_array_append(c->messages, copy))
        fault_set(why, 503, NULL, "out of memory");
    json_decref(copy);
    return !why->status;
}

bool messages_read(call *c, const json_t *messages, fault *why) {
    const json_t *message;
    size_t i;
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return fault_field(why, "messages", "expected an array of at least one message, found %s",
                           json_is_array(messages) ? "an empty one" : json_type_name(messages));
    if (json_array_size(messages) > MAX_MESSAGES)
        return fault_field(why, "messages", "expected at most %d, found %zu", MAX_MESSAGES,
                           json_array_size(messages));
    c->messages = c->messages ? c->messages : json_array();
    json_array_foreach(messages, i, message) {
        if (!add_message(c, message, i, why))
            return false;
    }
    return true;
}

void messages_continue(call *c) {
    const json_t *last = json_array_get(c->messages, json_array_size(c->messages) - 1);
    const char *role = json_string_value(member_get(last, "role"));
    c->continues = c->no_new_turn = role && !strcmp(role, "assistant") && !member_get(last, "tool_calls");
}

bool variable_set(call *c, const char *name, json_t *value, fault *why) {
    c->variables = c->variables ? c->variables : json_object();
    return !json_object_set(c->variables, name, value) || fault_set(why, 503, NULL, "out of memory");
}

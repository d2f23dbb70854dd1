/* call_responses.c - parses bodies of OpenAI's /v1/responses. The server stores no answers, so none can be
 * continued. */
#include "server/call_parts.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const member rows[] = {
    {"max_output_tokens", MEMBER_I64, offsetof(call, max_tokens), 1, 1 << 30},
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 2},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"seed", MEMBER_I64, offsetof(call, seed), MIN_MEMBER_NO, MAX_MEMBER_NO},
    {"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0},
};
const member_table responses_members = {rows, NUM_COUNT(rows)};

/* Converts a part of a content to the form of chats. */
static void as_text(json_t *part) {
    const char *type = json_string_value(member_get(part, "type"));
    if (type && (!strcmp(type, "input_text") || !strcmp(type, "output_text")))
        json_object_set_new(part, "type", json_string("text"));
}

/* Converts a message to the form of chats: {"role", "content"}; all parts of a content are texts. */
static json_t *message_of(const json_t *item, size_t index, fault *why) {
    char at[64];
    json_t *part;
    size_t i;
    const char *type = json_string_value(member_get(item, "type"));
    snprintf(at, sizeof at, "input[%zu]", index);
    if (!json_is_object(item) || (type && strcmp(type, "message") != 0)) {
        fault_field(
            why, at,
            "expected a message, a function_call or a function_call_output: other items are not supported");
        return NULL;
    }
    json_t *copy = json_deep_copy(item), *content = member_get(copy, "content");
    json_object_del(copy, "type");
    json_array_foreach(content, i, part) {
        as_text(part);
    }
    return copy;
}

/* Adds an earlier call, or a call's result. */
static bool add_call(json_t *messages, const json_t *item, const char *at, fault *why) {
    const char *id = json_string_value(member_get(item, "call_id")),
               *name = json_string_value(member_get(item, "name"));
    json_t *arguments = member_get(item, "arguments");
    if (!id || !name || !json_is_string(arguments))
        return fault_field(why, at, "expected a function_call with call_id, name and arguments as a string");
    return tool_call_append(messages, id, name, json_incref(arguments)) ||
           fault_set(why, 503, NULL, "out of memory");
}

static bool add_output(json_t *messages, const json_t *item, const char *at, fault *why) {
    const char *id = json_string_value(member_get(item, "call_id"));
    json_t *part;
    size_t i;
    if (!id)
        return fault_field(why, at, "expected a function_call_output with a call_id");
    json_t *output = json_deep_copy(member_get(item, "output"));
    json_array_foreach(output, i, part) {
        as_text(part);
    }
    const bool good = tool_result_append(messages, id, output, at, why);
    json_decref(output);
    return good;
}

static bool add(json_t *messages, json_t *message) {
    return message && json_array_append_new(messages, message) == 0;
}

static bool add_item(json_t *messages, const json_t *item, size_t index, fault *why) {
    char at[64];
    const char *type = json_string_value(member_get(item, "type"));
    snprintf(at, sizeof at, "input[%zu]", index);
    if (type && !strcmp(type, "function_call"))
        return add_call(messages, item, at, why);
    if (type && !strcmp(type, "function_call_output"))
        return add_output(messages, item, at, why);
    if (type && !strcmp(type, "reasoning")) /* earlier reasoning is not passed to the model again */
        return true;
    return add(messages, message_of(item, index, why));
}

/* Converts instructions and input to messages. */
static bool fill_messages(const call *c, json_t *messages, fault *why) {
    json_t *input = member_get(c->body, "input"), *before = member_get(c->body, "instructions");
    const json_t *item;
    size_t i;
    if (before && !json_is_string(before))
        return fault_field(why, "instructions", "expected a string, found %s", json_type_name(before));
    if (!json_is_string(input) && (!json_is_array(input) || json_array_size(input) == 0))
        return fault_field(why, "input", "expected a string or an array of messages, found %s",
                           json_type_name(input));
    bool good = !before || add(messages, json_pack("{s:s, s:O}", "role", "system", "content", before));
    if (json_is_string(input))
        good = good && add(messages, json_pack("{s:s, s:O}", "role", "user", "content", input));
    json_array_foreach(input, i, item) {
        good = good && add_item(messages, item, i, why);
    }
    return good || fault_set(why, 503, NULL, "out of memory");
}

static bool read_tools(call *c, fault *why) {
    const json_t *choice = member_get(c->body, "tool_choice");
    const char *word = json_string_value(choice), *type = json_string_value(member_get(choice, "type"));
    if (!tools_wrap(c, "function", "parameters", why))
        return false;
    c->one_call = json_is_false(member_get(c->body, "parallel_tool_calls"));
    if (!choice || (word && !strcmp(word, "auto")))
        return true;
    if (word && !strcmp(word, "none")) {
        c->tools = NULL;
        return true;
    }
    if (word && !strcmp(word, "required"))
        return tools_require(c, why);
    if (type && !strcmp(type, "allowed_tools"))
        return tools_allow(c, choice, why);
    if (json_is_object(choice) && (!type || !strcmp(type, "function")))
        return tools_require_one(c, json_string_value(member_get(choice, "name")), why);
    return fault_field(why, "tool_choice",
                       "expected \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\"}");
}

static const refused_member refused[] = {
    {"background", NULL}, {"prompt", NULL}, {"top_logprobs", NULL}, {"max_tool_calls", NULL}};

static bool read_others(call *c, fault *why) {
    const json_t *format = member_get(member_get(c->body, "text"), "format");
    if (!format_typed(c, "text.format", format, why))
        return false;
    if (member_get(c->body, "previous_response_id") || member_get(c->body, "conversation"))
        return fault_field(why, "previous_response_id",
                           "the server stores no conversations: give the whole conversation as input");
    return members_refuse(c->body, refused, NUM_COUNT(refused), why);
}

bool call_parse_responses(const char *text, size_t n_byte, const server_defaults *usual, call *out,
                          fault *why) {
    if (!call_begin(CALL_CHAT, text, n_byte, usual, out, why) ||
        !members_read(out->body, &responses_members, out, why) || !samplers_read(out, out->body, why) ||
        !read_others(out, why))
        return false;
    call_resolve(out, out->body);
    json_t *messages = json_array();
    const bool good = messages && fill_messages(out, messages, why) && messages_read(out, messages, why) &&
                      read_tools(out, why);
    json_decref(messages);
    return good || fault_set(why, 503, NULL, "out of memory");
}

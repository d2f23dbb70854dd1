/* call_anthropic.c - parses bodies of Anthropic's API. */
#include "server/call_parts.h"

#include "base/jsonx.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const member rows[] = {
    {"max_tokens", MEMBER_I64, offsetof(call, max_tokens), 1, 1 << 30},
    {"temperature", MEMBER_FLOAT, offsetof(call, sampling.temperature), 0, 1},
    {"top_p", MEMBER_FLOAT, offsetof(call, sampling.top_p), 0, 1},
    {"top_k", MEMBER_I32, offsetof(call, sampling.top_k), -1, 1 << 24},
    {"seed", MEMBER_I64, offsetof(call, seed), MIN_MEMBER_NO, MAX_MEMBER_NO},
    {"stream", MEMBER_BOOL, offsetof(call, stream), 0, 0},
};
const member_table anthropic_members = {rows, NUM_COUNT(rows)};

/* Reads "system": a text or blocks of text, which come before all messages. */
static bool read_system(call *c, fault *why) {
    json_t *system = member_get(c->body, "system");
    if (!system)
        return true;
    if (!json_is_string(system) && !json_is_array(system))
        return fault_field(why, "system", "expected a string or an array of blocks, found %s",
                           json_type_name(system));
    json_t *text = json_is_array(system) ? parts_join(system, "system", why) : json_incref(system);
    c->messages = text ? json_pack("[{s:s, s:o}]", "role", "system", "content", text) : NULL;
    return c->messages || fault_set(why, 503, NULL, "out of memory");
}

/* ---- messages, whose content may be blocks ---- */

static const char *block_type(const json_t *block) {
    const char *type = json_string_value(member_get(block, "type"));
    return type ? type : "";
}

/* Adds an earlier call, {"id", "name", "input"}. */
static bool add_use(json_t *messages, const json_t *block, const char *at, fault *why) {
    const char *id = json_string_value(member_get(block, "id")),
               *name = json_string_value(member_get(block, "name"));
    json_t *input = member_get(block, "input");
    if (!id || !name || !json_is_object(input))
        return fault_field(why, at, "expected a tool_use with id, name and an object as input");
    return tool_call_append(messages, id, name, json_incref(input)) ||
           fault_set(why, 503, NULL, "out of memory");
}

static bool add_result(json_t *messages, const json_t *block, const char *at, fault *why) {
    const char *id = json_string_value(member_get(block, "tool_use_id"));
    if (!id)
        return fault_field(why, at, "expected a tool_result with a tool_use_id");
    return tool_result_append(messages, id, member_get(block, "content"), at, why);
}

/* Adds a content of blocks. Consecutive text blocks become one message, an assistant's calls are added to its
 * text, and tool results become messages of their own. Earlier thinking blocks are not passed to the model
 * again. */
static bool add_blocks(json_t *messages, const json_t *role, const json_t *blocks, size_t message,
                       fault *why) {
    const bool assistant = !strcmp(json_string_value(role), "assistant");
    const json_t *block;
    size_t i;
    char at[64];
    json_t *texts = json_array(), *own = NULL; /* own: the message that the texts belong to */
    json_array_foreach(blocks, i, block) {
        const char *type = block_type(block);
        snprintf(at, sizeof at, "messages[%zu].content[%zu]", message, i);
        if (assistant && (!strcmp(type, "thinking") || !strcmp(type, "redacted_thinking")))
            continue;
        if (assistant && !strcmp(type, "tool_use")) {
            if (!own)
                own = json_pack("{s:s, s:O}", "role", "assistant", "content", texts);
            if (own && json_array_get(messages, json_array_size(messages) - 1) != own)
                json_array_append(messages, own);
            add_use(messages, block, at, why);
        } else if (!assistant && !strcmp(type, "tool_result")) {
            add_result(messages, block, at, why);
        } else {
            json_array_append(texts, jsonx_counted(block)); /* other kinds of blocks are refused later */
        }
    }
    if (!own && (json_array_size(texts) > 0 || json_array_size(blocks) == 0)) {
        own = json_pack("{s:O, s:O}", "role", role, "content", texts);
        json_array_append(messages, own);
    }
    json_decref(own);
    json_decref(texts);
    return !why->status;
}

static bool add_message(json_t *messages, json_t *message, size_t index, fault *why) {
    const json_t *role = member_get(message, "role"), *content = member_get(message, "content");
    if (json_is_string(role) && json_is_array(content))
        return add_blocks(messages, role, content, index, why);
    return !json_array_append(messages, message) || fault_set(why, 503, NULL, "out of memory");
}

static bool read_messages(call *c, fault *why) {
    const json_t *given = member_get(c->body, "messages");
    json_t *messages = json_array(), *message;
    size_t i;
    json_array_foreach(given, i, message) {
        if (!add_message(messages, message, i, why))
            break;
    }
    if (!why->status)
        messages_read(c, json_array_size(messages) ? messages : given, why);
    json_decref(messages);
    return !why->status;
}

/* ---- tools ---- */

/* Reads "tool_choice": {"type": "auto", "any", "tool" with a name, or "none"}. */
static bool read_tools(call *c, fault *why) {
    const json_t *choice = member_get(c->body, "tool_choice");
    const char *type = json_string_value(member_get(choice, "type"));
    if (!tools_wrap(c, "custom", "input_schema", why))
        return false;
    c->one_call = json_is_true(member_get(choice, "disable_parallel_tool_use"));
    if (!choice || (type && !strcmp(type, "auto")))
        return true;
    if (type && !strcmp(type, "none")) {
        c->tools = NULL;
        return true;
    }
    if (type && !strcmp(type, "any"))
        return tools_require(c, why);
    if (type && !strcmp(type, "tool"))
        return tools_require_one(c, json_string_value(member_get(choice, "name")), why);
    return fault_field(why, "tool_choice", "expected {\"type\": \"auto\", \"any\", \"tool\" or \"none\"}");
}

static const refused_member refused[] = {
    {"mcp_servers", NULL}, {"container", NULL}, {"context_management", NULL}};

/* Reads "output_format", or the newer "output_config": {"format"}. */
static bool read_format(call *c, fault *why) {
    const json_t *newer = member_get(member_get(c->body, "output_config"), "format");
    return format_typed(c, "output_format", member_get(c->body, "output_format"), why) &&
           format_typed(c, "output_config.format", newer, why);
}

/* Reads "thinking": {"type": "enabled", "adaptive" or "disabled"}; templates know it as enable_thinking. */
static bool read_thinking(call *c, fault *why) {
    const json_t *thinking = member_get(c->body, "thinking");
    const char *type = json_string_value(member_get(thinking, "type"));
    if (!thinking)
        return true;
    if (!type)
        return fault_field(why, "thinking", "expected {\"type\": \"enabled\", \"adaptive\" or \"disabled\"}");
    return variable_set(c, "enable_thinking", strcmp(type, "disabled") ? json_true() : json_false(), why);
}

bool call_parse_anthropic(const char *text, size_t n_byte, bool answers, const server_defaults *usual,
                          call *out, fault *why) {
    if (!call_begin(CALL_CHAT, text, n_byte, usual, out, why) ||
        !members_read(out->body, &anthropic_members, out, why) || !samplers_read(out, out->body, why))
        return false;
    call_resolve(out, out->body);
    if (answers && out->max_tokens < 0)
        return fault_field(why, "max_tokens", "expected a whole number of at least 1, found nothing");
    const json_t *stop = member_get(out->body, "stop_sequences");
    if (stop && !json_is_array(stop))
        return fault_field(why, "stop_sequences", "expected an array of strings, found %s",
                           json_type_name(stop));
    if (!stop_read(out, "stop_sequences", stop, why) || !read_system(out, why) || !read_messages(out, why))
        return false;
    messages_continue(out);
    return read_tools(out, why) && read_thinking(out, why) && read_format(out, why) &&
           members_refuse(out->body, refused, NUM_COUNT(refused), why);
}

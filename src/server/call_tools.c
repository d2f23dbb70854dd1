/* call_tools.c - tools and earlier calls, in the different notations of the APIs. All of them are converted
 * to the form of chats, which templates expect. */
#include "server/call_parts.h"

#include "base/jsonx.h"

#include <stdio.h>
#include <string.h>

/* Checks that a function has a name, and that its schema, if any, is an object. at: its path. */
static bool check_function(const json_t *function, const char *at, const char *schema_name, fault *why) {
    char field[96];
    const json_t *name = member_get(function, "name"), *schema = member_get(function, schema_name);
    snprintf(field, sizeof field, "%s.name", at);
    if (!json_is_string(name) || json_string_length(name) == 0)
        return fault_field(why, field, "expected a name, found %s",
                           json_is_string(name) ? "an empty one" : json_type_name(name));
    snprintf(field, sizeof field, "%s.%s", at, schema_name);
    return !schema || json_is_object(schema) ||
           fault_field(why, field, "expected an object, found %s", json_type_name(schema));
}

static bool check_type(const json_t *tool, const char *type, const char *at, fault *why) {
    const json_t *kind = member_get(tool, "type");
    return !kind || (json_is_string(kind) && !strcmp(json_string_value(kind), type)) ||
           fault_field(why, at, "expected \"%s\": other kinds of tools are not supported", type);
}

bool tools_read(call *c, fault *why) {
    json_t *tools = member_get(c->body, "tools");
    const json_t *tool, *function;
    char at[64];
    size_t i;
    if (tools && !json_is_array(tools))
        return fault_field(why, "tools", "expected an array, found %s", json_type_name(tools));
    json_array_foreach(tools, i, tool) {
        if (!json_is_object(tool))
            return fault_field(why, "tools", "expected an object in place %zu, found %s", i,
                               json_type_name(tool));
        function = member_get(tool, "function");
        snprintf(at, sizeof at, "tools[%zu].type", i);
        if (!c->schema_name && !check_type(tool, "function", at, why))
            return false;
        snprintf(at, sizeof at, "tools[%zu].function", i);
        if (function && !check_function(function, at, "parameters", why))
            return false;
    }
    c->tools = json_array_size(tools) ? tools : NULL;
    return true;
}

/* ---- functions without an object "function" around them ---- */

static json_t *wrapped(const json_t *tool, const char *schema_name) {
    json_t *function = json_pack("{s:O}", "name", member_get(tool, "name"));
    const char *const same[] = {"description", "strict"};
    json_t *schema = member_get(tool, schema_name);
    bool good = function && (!schema || !json_object_set(function, "parameters", schema));
    for (size_t i = 0; i < sizeof same / sizeof *same && good; i++) {
        json_t *v = member_get(tool, same[i]);
        good = !v || !json_object_set(function, same[i], v);
    }
    if (good)
        return json_pack("{s:s, s:o}", "type", "function", "function", function);
    json_decref(function);
    return NULL;
}

static bool check_tool(const json_t *tool, const char *type, const char *schema_name, size_t i, fault *why) {
    char at[64];
    snprintf(at, sizeof at, "tools[%zu].type", i);
    if (!check_type(tool, type, at, why))
        return false;
    snprintf(at, sizeof at, "tools[%zu]", i);
    return check_function(tool, at, schema_name, why);
}

bool tools_wrap(call *c, const char *type, const char *schema_name, fault *why) {
    const json_t *tool;
    size_t i;
    c->schema_name = schema_name;
    if (!tools_read(c, why) || !c->tools)
        return !why->status;
    c->made = json_array();
    json_array_foreach(c->tools, i, tool) {
        if (!check_tool(tool, type, schema_name, i, why))
            return false;
        if (json_array_append_new(c->made, wrapped(tool, schema_name)))
            return fault_set(why, 503, NULL, "out of memory");
    }
    c->tools = c->made;
    return c->made || fault_set(why, 503, NULL, "out of memory");
}

/* ---- the choice of a tool ---- */

bool tools_require(call *c, fault *why) {
    c->choice = TOOLS_REQUIRED;
    return c->tools || fault_field(why, "tool_choice", "expected tools to choose from, found none");
}

static const char *name_of(const json_t *tool) {
    const char *name = json_string_value(member_get(member_get(tool, "function"), "name"));
    return name ? name : "";
}

/* The tool with this name (borrowed). NULL: *why is set. */
static json_t *tool_named(const call *c, const char *name, fault *why) {
    json_t *tool;
    size_t i;
    json_array_foreach(c->tools, i, tool) {
        if (name && *name && !strcmp(name_of(tool), name))
            return tool;
    }
    if (name)
        fault_field(why, "tool_choice", "expected the name of one of the tools, found '%.60s'", name);
    else
        fault_field(why, "tool_choice", "expected the name of a function");
    return NULL;
}

bool tools_require_one(call *c, const char *name, fault *why) {
    const json_t *tool = tool_named(c, name, why);
    if (!tool)
        return false;
    c->choice = TOOLS_NAMED;
    c->tool_name = name_of(tool);
    return true;
}

bool tools_allow(call *c, const json_t *allowed, fault *why) {
    const char *mode = json_string_value(member_get(allowed, "mode"));
    const json_t *list = member_get(allowed, "tools"), *one;
    const bool required = mode && !strcmp(mode, "required");
    size_t i;
    if (!required && (!mode || strcmp(mode, "auto") != 0))
        return fault_field(why, "tool_choice",
                           "expected allowed tools with \"auto\" or \"required\" as mode");
    if (json_array_size(list) == 0)
        return fault_field(why, "tool_choice", "expected allowed tools with an array of tools");
    json_t *some = json_array();
    json_array_foreach(list, i, one) {
        const json_t *function = member_get(one, "function");
        json_t *tool = tool_named(c, json_string_value(member_get(function ? function : one, "name")), why);
        if (!tool || json_array_append(some, tool))
            break;
    }
    if (json_array_size(some) < json_array_size(list)) {
        json_decref(some);
        return fault_set(why, 503, NULL, "out of memory");
    }
    json_decref(c->made);
    c->tools = c->made = some;
    return !required || tools_require(c, why);
}

/* ---- earlier calls and results ---- */

/* The last message if it is the assistant's, else a new one. NULL: out of memory. */
static json_t *last_of_assistant(json_t *messages) {
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (role && !strcmp(role, "assistant"))
        return last;
    last = json_pack("{s:s, s:s}", "role", "assistant", "content", "");
    return json_array_append_new(messages, last) ? NULL : last;
}

bool tool_call_append(json_t *messages, const char *id, const char *name, json_t *arguments) {
    json_t *message = last_of_assistant(messages), *calls = json_object_get(message, "tool_calls");
    json_t *made = json_pack("{s:s, s:s, s:{s:s, s:o}}", "id", id, "type", "function", "function", "name",
                             name, "arguments", arguments);
    if (!calls) {
        calls = json_array();
        if (!message || json_object_set_new(message, "tool_calls", calls)) {
            json_decref(made);
            return false;
        }
    }
    return json_array_append_new(calls, made) == 0;
}

bool tool_result_append(json_t *messages, const char *id, const json_t *content, const char *field,
                        fault *why) {
    if (content && !json_is_string(content) && !json_is_array(content))
        return fault_field(why, field, "expected a string or an array of parts, found %s",
                           json_type_name(content));
    json_t *text = json_is_array(content) ? parts_join(content, field, why)
                   : content              ? json_copy(jsonx_counted(content))
                                          : json_string("");
    json_t *message =
        text ? json_pack("{s:s, s:s, s:o}", "role", "tool", "tool_call_id", id, "content", text) : NULL;
    return !json_array_append_new(messages, message) || fault_set(why, 503, NULL, "out of memory");
}

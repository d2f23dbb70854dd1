/* tools.c - tools that a model may call: the form in which its family writes calls, and the grammar that
 * constrains them.
 *
 * The form is detected with the model's own template, by rendering a conversation in which a tool was called.
 * If the template does not support tools, the server describes them in a system message and asks for calls in
 * Hermes' form. A requested call (tool_choice) is begun at the end of the prompt, and a grammar constrains
 * the rest to the tools' schemas. With "auto" only `strict` tools set a grammar: any text that does not begin
 * a call, or a call. */
#include "server/tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/status.h"
#include "server/answer_parser.h"
#include "server/call_parts.h"

#include <string.h>

enum { MAX_TOOLS = 128, MORE_CALLS = 7 /* after the first one, if several are allowed */ };

#define PROBE "probe_of_tools"
static const char PROBE_TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"" PROBE
    "\",\"description\":\"d\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
static const char PROBE_ASKED[] = "[{\"role\":\"user\",\"content\":\"u\"}]";
static const char PROBE_CALLED[] =
    "[{\"role\":\"user\",\"content\":\"u\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":"
    "\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":\"" PROBE "\",\"arguments\":{\"a\":1}}}]}]";

/* Whether the messages render with one of two texts. A template may refuse them; that memory runs out says
 * nothing about it. */
static nib_status renders(const nib_engine *e, const char *messages, const char *what, const char *or_what,
                          bool *out, nib_error *err) {
    char *text = NULL;
    const nib_status status = nib_chat_render(e, messages, PROBE_TOOLS, false, &text, err);
    *out = status == NIB_OK && strstr(text, PROBE) && (strstr(text, what) || strstr(text, or_what));
    nib_free(text);
    return status == NIB_E_NOMEM ? status : NIB_OK;
}

nib_status tools_learn(served *m, const nib_engine *e, nib_error *err) {
    bool listed, tagged, bare, describes;
    m->tools = TOOLS_TAGGED;
    m->describes_tools = false;
    if (!nib_engine_info(e)->has_chat_template)
        return NIB_OK;
    NIB_TRY(renders(e, PROBE_CALLED, "[TOOL_CALLS]", "[TOOL_CALLS]", &listed, err));
    NIB_TRY(renders(e, PROBE_CALLED, "<tool_call>", "<tool_call>", &tagged, err));
    NIB_TRY(renders(e, PROBE_CALLED, "<|python_tag|>", "\"parameters\"", &bare, err));
    NIB_TRY(renders(e, PROBE_ASKED, PROBE, PROBE, &describes, err));
    m->tools = listed ? TOOLS_LISTED : bare && !tagged ? TOOLS_BARE : TOOLS_TAGGED;
    m->describes_tools = !describes;
    return NIB_OK;
}

/* ---- for templates without support for tools ---- */

static bool describe(call *c, fault *why) {
    buffer text = {0};
    json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    const bool has_system = role && !strcmp(role, "system");
    if (has_system) {
        buffer_text(&text, json_string_value(json_object_get(first, "content")));
        buffer_text(&text, "\n\n");
    }
    buffer_text(&text, "You can call functions. Here they are, described in JSON:\n<tools>\n");
    buffer_json(&text, json_incref(c->tools));
    buffer_text(&text,
                "\n</tools>\nTo call one, write its name and arguments in this form, and nothing else:\n"
                "<tool_call>\n{\"name\": \"...\", \"arguments\": {...}}\n</tool_call>");
    json_t *message = text.no_memory ? NULL : json_pack("{s:s, s:s}", "role", "system", "content", text.data);
    buffer_clear(&text);
    const bool failed = !message || (has_system && json_array_remove(c->messages, 0)) ||
                        json_array_insert(c->messages, 0, message);
    json_decref(message);
    return !failed || fault_set(why, 503, NULL, "out of memory");
}

/* ---- grammars ---- */

/* Writes the JSON string of `text` as a GBNF literal. */
static void put_json_literal(buffer *out, const char *text) {
    json_t *value = json_string(text);
    char *json = value ? jsonx_text(value, JSON_ENCODE_ANY) : NULL;
    out->no_memory = out->no_memory || !json;
    for (const char *c = json; c && *c; c++)
        buffer_add(out, *c == '"' || *c == '\\' ? (const char[]){'\\', *c} : c,
                   *c == '"' || *c == '\\' ? 2 : 1);
    mem_free(json);
    json_decref(value);
}

static bool put_parameters(buffer *out, const call *c, const json_t *function, size_t i, fault *why) {
    const json_t *schema = member_get(function, "parameters");
    const bool strict = json_is_true(member_get(function, "strict"));
    size_t n_byte = 2;
    const char *text = json_is_object(schema) ? schema_text(c, schema, &n_byte) : "{}";
    char name[32], field[64], *rules = NULL;
    nib_error err;
    snprintf(name, sizeof name, "tool-%zu", i);
    snprintf(field, sizeof field, "tools[%zu].%.30s", i,
             c->schema_name ? c->schema_name : "function.parameters");
    nib_status status = nib_schema_grammar(text, n_byte, name, &rules, &err);
    if (status == NIB_E_USAGE && !strict) /* the schema is not supported: allow any object */
        status = nib_schema_grammar("{}", 2, name, &rules, &err);
    if (status == NIB_OK)
        buffer_text(out, rules);
    else if (status == NIB_E_USAGE)
        fault_field(why, field, "%s", err.message);
    else
        fault_engine(why, &err);
    nib_free(rules);
    return !why->status;
}

/* Writes the rule `call`: one of the tools, with its arguments. */
static bool put_calls(buffer *out, const call *c, tool_style how, fault *why) {
    const json_t *tool;
    size_t i;
    bool first = true;
    buffer rules = {0};
    buffer_text(out, "call ::= ");
    json_array_foreach(c->tools, i, tool) {
        const json_t *function = member_get(tool, "function");
        const char *name = json_string_value(member_get(function, "name"));
        char rule[64];
        if (!name)
            return buffer_clear(&rules),
                   fault_field(why, "tools", "expected a function with a name at index %zu", i);
        if (c->choice == TOOLS_NAMED && strcmp(name, c->tool_name) != 0)
            continue;
        buffer_text(out, first ? "" : " | ");
        buffer_text(out, "\"{\\\"name\\\": ");
        put_json_literal(out, name);
        buffer_text(out, how == TOOLS_BARE ? ", \\\"parameters\\\": \" " : ", \\\"arguments\\\": \" ");
        snprintf(rule, sizeof rule, "tool-%zu \"}\"", i);
        buffer_text(out, rule);
        first = false;
        if (!put_parameters(&rules, c, function, i, why))
            break;
    }
    buffer_text(out, "\n");
    if (rules.n)
        buffer_add(out, rules.data, rules.n);
    out->no_memory = out->no_memory || rules.no_memory;
    buffer_clear(&rules);
    return !why->status;
}

/* Writes the rules for any text without the tag, or with `calls` after the tag. The tag's first character
 * must not occur again in it. */
static void put_free_text(buffer *out, const char *tag) {
    char line[160];
    snprintf(line, sizeof line, "root ::= [^%s%c] root | \"%c\" tag-1 | \"\"\n", *tag == '[' ? "\\" : "",
             *tag, *tag);
    buffer_text(out, line);
    for (size_t i = 1; tag[i]; i++) {
        snprintf(line, sizeof line, "tag-%zu ::= [^%s%c%s%c] root | \"%c\" tag-1 | \"\" | \"%c\" ", i,
                 *tag == '[' ? "\\" : "", *tag, tag[i] == ']' ? "\\" : "", tag[i], *tag, tag[i]);
        buffer_text(out, line);
        if (tag[i + 1])
            snprintf(line, sizeof line, "tag-%zu\n", i + 1);
        else
            snprintf(line, sizeof line, "\"\\n\" calls\n");
        buffer_text(out, line);
    }
}

static void put_calls_rule(buffer *out, tool_style how, bool one) {
    char line[200];
    const int more = one ? 0 : MORE_CALLS;
    if (how == TOOLS_TAGGED)
        snprintf(
            line, sizeof line,
            "calls ::= call \"\\n</tool_call>\" (\"\\n<tool_call>\\n\" call \"\\n</tool_call>\"){0,%d}\n",
            more);
    else if (how == TOOLS_LISTED)
        snprintf(line, sizeof line, "calls ::= \"[\" call (\", \" call){0,%d} \"]\"\n", more);
    else
        snprintf(line, sizeof line, "calls ::= call (\"; \" call){0,%d}\n", more);
    buffer_text(out, line);
}

static bool is_strict(const call *c) {
    const json_t *tool;
    size_t i;
    json_array_foreach(c->tools, i, tool) {
        if (json_is_true(member_get(member_get(tool, "function"), "strict")))
            return true;
    }
    return false;
}

static bool hold_to_tools(const served *m, call *c, fault *why) {
    const bool forced = c->choice != TOOLS_AUTO;
    buffer text = {0};
    if (!forced && (!is_strict(c) || m->tools == TOOLS_LISTED))
        return true;
    if (c->grammar)
        return !forced ||
               fault_field(why, "tool_choice",
                           "expected no other format of the answer together with a requested call");
    if (forced)
        buffer_text(&text, "root ::= calls\n");
    else if (m->tools == TOOLS_TAGGED)
        put_free_text(&text, "<tool_call>");
    else
        buffer_text(&text, "root ::= calls | ([^{] .*)?\n");
    put_calls_rule(&text, m->tools, c->one_call || c->choice == TOOLS_NAMED);
    const bool good = put_calls(&text, c, m->tools, why);
    if (good && !text.no_memory)
        c->grammar = mem_strdup(text.data);
    buffer_clear(&text);
    if (forced)
        c->prefill = m->tools == TOOLS_TAGGED   ? "<tool_call>\n"
                     : m->tools == TOOLS_LISTED ? "[TOOL_CALLS]"
                                                : NULL;
    return good && (c->grammar || fault_set(why, 503, NULL, "out of memory"));
}

bool tools_resolve(const served *m, call *c, fault *why) {
    if (c->kind != CALL_CHAT || !c->tools)
        return true;
    if (json_array_size(c->tools) > MAX_TOOLS)
        return fault_field(why, "tools", "expected at most %d, found %zu", MAX_TOOLS,
                           json_array_size(c->tools));
    return (!m->describes_tools || describe(c, why)) && hold_to_tools(m, c, why);
}

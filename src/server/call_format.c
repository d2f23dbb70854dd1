/* call_format.c - the requested form of an answer: a JSON schema or a grammar, in the different notations of
 * the APIs. All of them become one grammar (GBNF). */
#include "server/call_parts.h"

#include "base/jsonx.h"
#include "base/mem.h"

#include <string.h>

/* Refuses a second format, because it might contradict the first. */
static bool is_first(const call *c, const char *field, fault *why) {
    return !c->grammar ||
           fault_field(why, field, "expected only one format of the answer, found another one");
}

static bool take_schema(call *c, const char *field, const json_t *schema, fault *why) {
    nib_error err;
    if (!is_first(c, field, why))
        return false;
    if (!json_is_object(schema))
        return fault_field(why, field, "expected a JSON schema, found %s", json_type_name(schema));
    char *text = jsonx_text(schema, JSON_COMPACT);
    if (!text)
        return fault_set(why, 503, NULL, "out of memory");
    const nib_status status = nib_schema_grammar(text, strlen(text), "root", &c->grammar, &err);
    mem_free(text);
    if (status == NIB_E_USAGE)
        return fault_field(why, field, "%s", err.message);
    return status == NIB_OK || fault_engine(why, &err);
}

static bool any_object(call *c, const char *field, fault *why) {
    json_t *schema = json_object();
    const bool good =
        schema ? take_schema(c, field, schema, why) : fault_set(why, 503, NULL, "out of memory");
    json_decref(schema);
    return good;
}

bool format_typed(call *c, const char *field, const json_t *format, fault *why) {
    const char *type = json_string_value(member_get(format, "type"));
    const json_t *inner = member_get(format, "json_schema");
    const json_t *schema = member_get(inner ? inner : format, "schema");
    if (!format || (type && !strcmp(type, "text")))
        return true;
    if (type && !strcmp(type, "json_object")) /* llama-server accepts a schema here too */
        return schema ? take_schema(c, field, schema, why) : any_object(c, field, why);
    if (type && !strcmp(type, "json_schema"))
        return take_schema(c, field, schema, why);
    return fault_field(why, field,
                       "expected {\"type\": \"text\"}, \"json_object\", or \"json_schema\" with a schema");
}

bool format_ollama(call *c, const json_t *format, fault *why) {
    const char *word = json_string_value(format);
    if (!format || (word && !*word))
        return true;
    if (json_is_object(format))
        return take_schema(c, "format", format, why);
    if (word && !strcmp(word, "json"))
        return any_object(c, "format", why);
    return fault_field(why, "format", "expected \"json\" or a JSON schema");
}

static bool read_grammar(call *c, fault *why) {
    const json_t *v = member_get(c->body, "grammar");
    if (!v || (json_is_string(v) && json_string_length(v) == 0))
        return true;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return fault_field(why, "grammar", "expected a grammar as a string without NULs");
    if (!is_first(c, "grammar", why))
        return false;
    c->grammar = mem_strdup(json_string_value(v));
    return c->grammar || fault_set(why, 503, NULL, "out of memory");
}

bool format_read(call *c, fault *why) {
    const json_t *schema = member_get(c->body, "json_schema");
    const bool asked =
        json_is_object(schema) ? json_object_size(schema) > 0 : schema && !json_is_false(schema);
    return format_typed(c, "response_format", member_get(c->body, "response_format"), why) &&
           (!asked || take_schema(c, "json_schema", schema, why)) && read_grammar(c, why);
}

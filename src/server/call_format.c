/* call_format.c - the requested form of an answer: a JSON schema or a grammar, in the different notations of
 * the APIs. All of them become one grammar (GBNF). */
#include "server/call_parts.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/buffer.h"

#include <stdio.h>
#include <string.h>

/* Refuses a second format, because it might contradict the first. */
static bool is_first(const call *c, const char *field, fault *why) {
    return !c->grammar ||
           fault_field(why, field, "expected only one format of the answer, found another one");
}

static bool take_schema_text(call *c, const char *field, const char *text, size_t n_byte, fault *why) {
    nib_error err;
    if (!is_first(c, field, why))
        return false;
    const nib_status status = nib_schema_grammar(text, n_byte, "root", &c->grammar, &err);
    if (status == NIB_E_USAGE)
        return fault_field(why, field, "%s", err.message);
    return status == NIB_OK || fault_engine(why, &err);
}

static bool any_object(call *c, const char *field, fault *why) {
    return take_schema_text(c, field, "{}", 2, why);
}

const char *schema_text(const call *c, const json_t *schema, size_t *n_byte) {
    return jsonx_source(c->text, c->n_text, c->body, schema, n_byte);
}

static bool take_schema(call *c, const char *field, const json_t *schema, fault *why) {
    size_t n_byte = 0;
    const char *text = json_is_object(schema) ? schema_text(c, schema, &n_byte) : NULL;
    if (!text)
        return fault_field(why, field, "expected a JSON schema, found %s", json_type_name(schema));
    return take_schema_text(c, field, text, n_byte, why);
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

static bool read_grammar(call *c, const char *field, const json_t *v, fault *why) {
    if (!v || (json_is_string(v) && json_string_length(v) == 0))
        return true;
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return fault_field(why, field, "expected a grammar as a string without NULs");
    if (!is_first(c, field, why))
        return false;
    c->grammar = mem_strdup(json_string_value(v));
    return c->grammar || fault_set(why, 503, NULL, "out of memory");
}

/* ---- vLLM's forms ---- */

/* The answer is one of some texts. */
static bool take_choice(call *c, const char *field, const json_t *list, fault *why) {
    const json_t *one;
    size_t i;
    buffer text = {0};
    if (!is_first(c, field, why))
        return false;
    buffer_text(&text, "root ::= ");
    json_array_foreach(list, i, one) {
        buffer_text(&text, i ? " | \"" : "\"");
        for (size_t k = 0; k < json_string_length(one); k++) {
            char byte[8];
            const unsigned char b = (unsigned char)json_string_value(one)[k];
            if (b < ' ' || b == '"' || b == '\\')
                snprintf(byte, sizeof byte, "\\x%02x", b);
            else
                snprintf(byte, sizeof byte, "%c", b);
            buffer_text(&text, byte);
        }
        buffer_text(&text, "\"");
        if (json_string_length(one) == 0)
            break;
    }
    buffer_text(&text, "\n");
    if (i == 0 || i < json_array_size(list))
        fault_field(why, field, "expected an array of strings that are not empty");
    else if (!text.no_memory)
        c->grammar = mem_strdup(text.data);
    buffer_clear(&text);
    return c->grammar || fault_set(why, 503, NULL, "out of memory");
}

/* Reads one of vLLM's kinds of constraints. */
static bool read_kind(call *c, const char *field, const char *kind, const json_t *v, fault *why) {
    if (!v || json_is_false(v))
        return true;
    if (!strcmp(kind, "json"))
        return json_is_string(v)
                   ? take_schema_text(c, field, json_string_value(v), json_string_length(v), why)
                   : take_schema(c, field, v, why);
    if (!strcmp(kind, "json_object"))
        return any_object(c, field, why);
    if (!strcmp(kind, "grammar"))
        return read_grammar(c, field, v, why);
    if (!strcmp(kind, "choice"))
        return take_choice(c, field, v, why);
    return fault_field(why, field, "is not supported");
}

/* Reads the members guided_KIND, and those of "structured_outputs". */
static bool read_guided(call *c, fault *why) {
    static const char *const kinds[] = {"json", "json_object", "grammar", "choice", "regex"};
    json_t *forms = member_get(c->body, "structured_outputs"), *v;
    const char *kind;
    char field[64];
    for (size_t i = 0; i < NUM_COUNT(kinds); i++) {
        snprintf(field, sizeof field, "guided_%s", kinds[i]);
        if (!read_kind(c, field, kinds[i], member_get(c->body, field), why))
            return false;
    }
    if (forms && !json_is_object(forms))
        return fault_field(why, "structured_outputs", "expected an object, found %s", json_type_name(forms));
    json_object_foreach(forms, kind, v) {
        snprintf(field, sizeof field, "structured_outputs.%.40s", kind);
        if (!read_kind(c, field, kind, json_is_null(v) ? NULL : v, why))
            return false;
    }
    return true;
}

bool format_read(call *c, fault *why) {
    const json_t *schema = member_get(c->body, "json_schema");
    const bool asked =
        json_is_object(schema) ? json_object_size(schema) > 0 : schema && !json_is_false(schema);
    return format_typed(c, "response_format", member_get(c->body, "response_format"), why) &&
           (!asked || take_schema(c, "json_schema", schema, why)) &&
           read_grammar(c, "grammar", member_get(c->body, "grammar"), why) && read_guided(c, why);
}

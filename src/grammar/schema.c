/* schema.c - see schema.h: finds the kinds of values that a schema describes; handles references, enum, anyOf
 * and allOf. */
#include "grammar/schema.h"
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- writing ---- */

void writer_put(writer *w, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    w->full = w->full || w->n + (size_t)n + 1 > GRAMMAR_MAX_TEXT ||
              mem_grow((void **)&w->data, &w->cap, w->n + (size_t)n + 1, 1);
    if (!w->full) {
        vsnprintf(w->data + w->n, (size_t)n + 1, format, again);
        w->n += (size_t)n;
    }
    va_end(again);
}

void writer_literal(writer *w, const char *text, size_t n_byte) {
    writer_put(w, "\"");
    for (size_t i = 0; i < n_byte; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            writer_put(w, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            writer_put(w, "\\x%02X", c);
        else
            writer_put(w, "%c", c);
    }
    writer_put(w, "\"");
}

void writer_class_char(writer *w, uint32_t c) {
    writer_put(w, "\\U%08lX", (unsigned long)c);
}

void writer_json(writer *w, const json_t *value) {
    char *text = jsonx_text(value, JSON_COMPACT | JSON_ENCODE_ANY);
    w->full = w->full || !text;
    if (text)
        writer_literal(w, text, strlen(text));
    mem_free(text);
}

nib_status schema_refuse(schema_maker *m, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return nib_fail(m->err, NIB_E_USAGE, "schema, at #%s: %s", m->path, text);
}

nib_status schema_emit(schema_maker *m, uint32_t rule, writer *body) {
    writer_put(&m->out, "%s-%lu ::= %s\n", m->root, (unsigned long)rule, body->data ? body->data : "");
    m->out.full = m->out.full || body->full;
    mem_free(body->data);
    *body = (writer){0};
    return m->out.full ? nib_fail(m->err, NIB_E_USAGE,
                                  "expected a schema whose grammar has at most %d bytes, found a larger one",
                                  GRAMMAR_MAX_TEXT)
                       : NIB_OK;
}

nib_status schema_count(schema_maker *m, const json_t *schema, const char *keyword, int64_t *out) {
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return NIB_OK;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > 65535)
        return schema_refuse(m, "'%s': expected a whole number from 0 to 65535", keyword);
    *out = json_integer_value(v);
    return NIB_OK;
}

/* ---- what is refused ---- */

static nib_status check_keywords(schema_maker *m, const json_t *schema) {
    static const char *const none[] = {"patternProperties",
                                       "propertyNames",
                                       "minProperties",
                                       "maxProperties",
                                       "dependentSchemas",
                                       "dependentRequired",
                                       "dependencies",
                                       "if",
                                       "then",
                                       "else",
                                       "not",
                                       "contains",
                                       "minContains",
                                       "maxContains",
                                       "multipleOf",
                                       "additionalItems",
                                       "unevaluatedItems",
                                       "$dynamicRef",
                                       "$recursiveRef",
                                       "unevaluatedProperties"};
    for (size_t i = 0; i < NUM_COUNT(none); i++)
        if (json_object_get(schema, none[i]))
            return schema_refuse(m, "'%s' is not supported", none[i]);
    if (json_is_true(json_object_get(schema, "uniqueItems")))
        return schema_refuse(m, "'uniqueItems' is not supported");
    return NIB_OK;
}

/* Refuses further restrictions beside a keyword that determines the value alone. */
static nib_status check_alone(schema_maker *m, const json_t *schema, const char *what) {
    static const char *const others[] = {"$ref",      "anyOf",      "oneOf",    "allOf",   "enum",
                                         "const",     "properties", "required", "items",   "prefixItems",
                                         "minLength", "maxLength",  "minimum",  "maximum", "pattern"};
    for (size_t i = 0; i < NUM_COUNT(others); i++)
        if (strcmp(others[i], what) != 0 && json_object_get(schema, others[i]))
            return schema_refuse(m, "'%s' beside '%s' is not supported", others[i], what);
    return NIB_OK;
}

/* ---- references ---- */

/* Resolves "#/$defs/name" within the schema; NULL: it does not exist. */
static const json_t *resolve(const json_t *whole, const char *pointer) {
    if (*pointer++ != '#')
        return NULL;
    while (whole && *pointer == '/') {
        char name[256];
        size_t n = 0;
        for (pointer++; *pointer && *pointer != '/' && n < sizeof name - 1; pointer++) {
            char c = *pointer;
            if (c == '~' && (pointer[1] == '0' || pointer[1] == '1'))
                c = *++pointer == '0' ? '~' : '/';
            name[n++] = c;
        }
        name[n] = 0;
        if (json_is_array(whole)) {
            size_t index = 0;
            for (size_t i = 0; i < n; i++)
                index = name[i] >= '0' && name[i] <= '9' && index < 100000
                            ? index * 10 + (size_t)(name[i] - '0')
                            : SIZE_MAX / 20;
            whole = json_array_get(whole, index);
        } else {
            whole = json_object_get(whole, name);
        }
    }
    return *pointer ? NULL : whole;
}

const json_t *schema_resolve(const schema_maker *m, const json_t *ref) {
    const char *pointer = json_string_value(ref);
    return pointer ? resolve(m->whole, pointer) : NULL;
}

/* Writes a call of the target's rule. The rule itself is written later, so schemas may refer to themselves.
 */
static nib_status refer(schema_maker *m, const json_t *ref, writer *body) {
    const char *pointer = json_string_value(ref);
    const json_t *to = schema_resolve(m, ref);
    size_t i = 0;
    if (!to)
        return schema_refuse(m, "'$ref': expected a target within the schema, found '%.80s'",
                             pointer ? pointer : "a value");
    while (i < m->n_ref && m->refs[i].to != to)
        i++;
    if (i == m->n_ref) {
        if (mem_grow((void **)&m->refs, &m->cap_ref, m->n_ref + 1, sizeof *m->refs))
            return nib_fail_nomem(m->err, sizeof *m->refs, "a schema");
        m->refs[m->n_ref++] = (reference){to, ++m->n_rule, mem_strdup(pointer + 1)};
    }
    writer_put(body, "%s-%lu", m->root, (unsigned long)m->refs[i].rule);
    return NIB_OK;
}

/* ---- kinds ---- */

static nib_status any_of(schema_maker *m, const json_t *list, const char *keyword, writer *body) {
    const json_t *one;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return schema_refuse(m, "'%s': expected an array of schemas", keyword);
    json_array_foreach(list, i, one) {
        uint32_t rule;
        char member[48];
        snprintf(member, sizeof member, "%s/%zu", keyword, i);
        NIB_TRY(schema_rule(m, one, member, &rule));
        writer_put(body, "%s%s-%lu", i ? " | " : "", m->root, (unsigned long)rule);
    }
    return NIB_OK;
}

static nib_status one_of_values(schema_maker *m, const json_t *list, writer *body) {
    const json_t *one;
    size_t i;
    if (!json_is_array(list) || json_array_size(list) == 0)
        return schema_refuse(m, "'enum': expected an array of values");
    json_array_foreach(list, i, one) {
        writer_put(body, i ? " | " : "");
        writer_json(body, one);
    }
    return NIB_OK;
}

static const char *implied_type(const json_t *s) {
    static const struct {
        const char *keyword, *type;
    } rows[] = {{"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
                {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
                {"maxItems", "array"},    {"minLength", "string"},        {"maxLength", "string"},
                {"pattern", "string"},    {"format", "string"},           {"minimum", "number"},
                {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        if (json_object_get(s, rows[i].keyword))
            return rows[i].type;
    return "value";
}

static nib_status of_type(schema_maker *m, const json_t *schema, const char *type, writer *body) {
    if (!strcmp(type, "object"))
        return schema_object(m, schema, body);
    if (!strcmp(type, "array"))
        return schema_array(m, schema, body);
    if (!strcmp(type, "string"))
        return schema_string(m, schema, body);
    if (!strcmp(type, "number") || !strcmp(type, "integer"))
        return schema_number(m, schema, *type == 'i', body);
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0 && strcmp(type, "value") != 0)
        return schema_refuse(
            m,
            "'type': expected object, array, string, number, integer, boolean or null, found "
            "'%.40s'",
            type);
    writer_put(body, "%s-%s", m->root, type);
    return NIB_OK;
}

static nib_status of_types(schema_maker *m, const json_t *schema, const json_t *types, writer *body) {
    const json_t *type;
    size_t i;
    if (json_array_size(types) == 0)
        return schema_refuse(m, "'type': expected a name, or an array of names");
    json_array_foreach(types, i, type) {
        if (!json_is_string(type))
            return schema_refuse(m, "'type': expected a name, or an array of names");
        writer_put(body, i ? " | " : "");
        NIB_TRY(of_type(m, schema, json_string_value(type), body));
    }
    return NIB_OK;
}

static nib_status describe(schema_maker *m, const json_t *schema, writer *body);

/* Whether a schema has only annotations besides this keyword. */
static bool is_alone(const json_t *schema, const char *keyword) {
    static const char *const notes[] = {"title", "description", "default", "examples", "$comment", "$defs"};
    size_t n = json_object_size(schema) - 1;
    for (size_t i = 0; i < NUM_COUNT(notes); i++)
        n -= strcmp(notes[i], keyword) != 0 && json_object_get(schema, notes[i]);
    return n == 0;
}

/* A single schema becomes a rule, which may be recursive; several are merged into one. */
static nib_status all_of(schema_maker *m, const json_t *schema, writer *body) {
    const json_t *list = json_object_get(schema, "allOf"), *merged = NULL;
    if (json_array_size(list) == 1 && is_alone(schema, "allOf"))
        return any_of(m, list, "allOf", body);
    NIB_TRY(schema_merge(m, schema, &merged));
    return describe(m, merged, body);
}

static nib_status describe(schema_maker *m, const json_t *schema, writer *body) {
    static const char *const deciding[] = {"$ref", "const", "enum", "anyOf", "oneOf"};
    const json_t *type = json_object_get(schema, "type");
    const char *by = NULL;
    if (json_is_true(schema)) {
        writer_put(body, "%s-value", m->root);
        return NIB_OK;
    }
    if (!json_is_object(schema))
        return schema_refuse(m, "expected a schema, found %s",
                             json_is_false(schema) ? "false" : "another value");
    NIB_TRY(check_keywords(m, schema));
    if (json_object_get(schema, "allOf"))
        return all_of(m, schema, body);
    for (size_t i = 0; i < NUM_COUNT(deciding) && !by; i++)
        by = json_object_get(schema, deciding[i]) ? deciding[i] : NULL;
    if (!by)
        return json_is_string(type) ? of_type(m, schema, json_string_value(type), body)
               : type               ? of_types(m, schema, type, body)
                                    : of_type(m, schema, implied_type(schema), body);
    const json_t *value = json_object_get(schema, by);
    NIB_TRY(check_alone(m, schema, by));
    if (*by == '$')
        return refer(m, value, body);
    if (!strcmp(by, "enum"))
        return one_of_values(m, value, body);
    if (strcmp(by, "const") != 0)
        return any_of(m, value, by, body);
    writer_json(body, value);
    return NIB_OK;
}

static nib_status write_rule(schema_maker *m, const json_t *schema, uint32_t rule) {
    writer body = {0};
    const nib_status status = describe(m, schema, &body);
    if (status == NIB_OK)
        return schema_emit(m, rule, &body);
    mem_free(body.data);
    return status;
}

nib_status schema_rule(schema_maker *m, const json_t *schema, const char *member, uint32_t *rule) {
    const size_t n = strlen(m->path);
    *rule = ++m->n_rule;
    snprintf(m->path + n, sizeof m->path - n, "/%s", member);
    const nib_status status = write_rule(m, schema, *rule);
    m->path[n] = 0;
    return status;
}

/* ---- the whole ---- */

/* Writes the rules that all schemas use. White space is bounded, so that a model cannot write it endlessly.
 */
static void write_common(schema_maker *m) {
    static const char *const rules[] = {
        "ws ::= \" \"? | \"\\n\" [ \\t]{0,20}",
        "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" %s-code)",
        /* a surrogate comes with its other half */
        ("code ::= [0-9a-cA-CefEF] %s-hex{3} | [dD] [0-7] %s-hex{2} | [dD] [89abAB] %s-hex{2} \"\\\\u\" [dD] "
         "[c-fC-F] %s-hex{2}"),
        "hex ::= [0-9a-fA-F]",
        "string ::= \"\\\"\" %s-char* \"\\\"\"",
        "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,15})",
        "number ::= %s-integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?",
        "boolean ::= \"true\" | \"false\"",
        "null ::= \"null\"",
        "member ::= %s-string %s-ws \":\" %s-ws %s-value %s-ws",
        "object ::= \"{\" %s-ws (%s-member (\",\" %s-ws %s-member)*)? \"}\"",
        "array ::= \"[\" %s-ws (%s-value %s-ws (\",\" %s-ws %s-value %s-ws)*)? \"]\"",
        "value ::= %s-object | %s-array | %s-string | %s-number | %s-boolean | %s-null",
    };
    for (size_t i = 0; i < NUM_COUNT(rules); i++) {
        writer_put(&m->out, "%s-", m->root);
        for (const char *c = rules[i]; *c; c++) {
            if (c[0] == '%' && c[1] == 's')
                writer_put(&m->out, "%s", m->root), c++;
            else
                writer_put(&m->out, "%c", *c);
        }
        writer_put(&m->out, "\n");
    }
}

static nib_status write_all(schema_maker *m) {
    uint32_t rule;
    write_common(m);
    if (json_is_object(m->whole) && json_object_size(m->whole) == 0) {
        writer_put(&m->out, "%s ::= %s-object\n", m->root, m->root);
        return NIB_OK;
    }
    rule = ++m->n_rule;
    writer_put(&m->out, "%s ::= %s-%lu\n", m->root, m->root, (unsigned long)rule);
    NIB_TRY(write_rule(m, m->whole, rule));
    for (; m->n_ref_done < m->n_ref; m->n_ref_done++) {
        const reference r = m->refs[m->n_ref_done];
        snprintf(m->path, sizeof m->path, "%s", r.path ? r.path : "");
        NIB_TRY(write_rule(m, r.to, r.rule));
    }
    return NIB_OK;
}

nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err) {
    json_t *whole = NULL;
    schema_maker m = {.root = root, .err = err};
    nib_status status = jsonx_parse(json, n_byte, &whole, err);
    if (status == NIB_E_MODEL) {
        if (err)
            err->status = NIB_E_USAGE;
        return nib_fail_prefix(err, NIB_E_USAGE, "the schema is not valid JSON");
    }
    if (status != NIB_OK)
        return status;
    m.whole = whole;
    status = write_all(&m);
    if (status == NIB_OK && m.out.full)
        status = nib_fail_nomem(err, m.out.n, "a schema's grammar");
    if (status == NIB_OK)
        *out = m.out.data;
    else
        mem_free(m.out.data);
    for (size_t i = 0; i < m.n_ref; i++)
        mem_free(m.refs[i].path);
    mem_free(m.refs);
    json_decref(m.made);
    json_decref(whole);
    return status;
}

/* schema.c - see schema.h: finds the kinds of values that a schema describes, and writes a rule for each. */
#include "grammar/schema.h"
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_DEPTH = 200 /* schemas within schemas; the text has at most 64, references within merges add some */
};

/* ---- writing ---- */

void writer_put(writer *w, const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (w->n + (size_t)n + 1 > GRAMMAR_MAX_TEXT)
        writer_lose(w, NIB_E_USAGE);
    else if (!w->lost && mem_grow((void **)&w->data, &w->cap, w->n + (size_t)n + 1, 1))
        writer_lose(w, NIB_E_NOMEM);
    if (!w->lost) {
        vsnprintf(w->data + w->n, (size_t)n + 1, format, again);
        w->n += (size_t)n;
    }
    va_end(again);
}

void writer_lose(writer *w, nib_status why) {
    w->lost = w->lost ? w->lost : why;
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

void writer_json(writer *w, const json_t *value) {
    char *text = jsonx_text(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (text)
        writer_literal(w, text, strlen(text));
    else
        writer_lose(w, NIB_E_NOMEM);
    mem_free(text);
}

void writer_class_char(writer *w, uint32_t c) {
    writer_put(w, "\\U%08lX", (unsigned long)c);
}

/* ---- errors ---- */

nib_status schema_refuse_as(schema_maker *m, bool impossible, const char *format, ...) {
    va_list args;
    char text[256];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    m->impossible = impossible;
    return nib_fail(m->err, NIB_E_USAGE, "schema, at #%s: %s", m->path, text);
}

nib_status schema_no_memory(schema_maker *m) {
    return nib_fail_nomem(m->err, 0, "a schema");
}

json_t *schema_own(schema_maker *m, json_t *value) {
    if (!m->made)
        m->made = json_array();
    return value && m->made && !json_array_append_new(m->made, value) ? value : NULL;
}

/* ---- rules ---- */

nib_status schema_whole(schema_maker *m, const writer *w) {
    if (w->lost == NIB_E_USAGE)
        return nib_fail(m->err, NIB_E_USAGE,
                        "expected a schema whose grammar has at most %d bytes, found a larger one",
                        GRAMMAR_MAX_TEXT);
    return w->lost ? schema_no_memory(m) : NIB_OK;
}

nib_status schema_emit(schema_maker *m, uint32_t rule, writer *body) {
    writer_put(&m->out, "%s-%lu ::= %s\n", m->root, (unsigned long)rule, body->data ? body->data : "");
    writer_lose(&m->out, body->lost);
    mem_free(body->data);
    *body = (writer){0};
    m->impossible = false;
    return schema_whole(m, &m->out);
}

void schema_put_rules(schema_maker *m, const char *const *rules, size_t n) {
    for (size_t i = 0; i < n; i++) {
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

/* The rules that all schemas use. White space is bounded, so that a model cannot write it endlessly. */
void schema_put_common(schema_maker *m) {
    static const char *const rules[] = {
        "ws ::= \" \"? | \"\\n\" [ \\t]{0,20}",
        "char ::= [^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" %s-code)",
        /* a surrogate comes with its other half */
        ("code ::= [0-9a-cA-CefEF] %s-hex{3} | [dD] [0-7] %s-hex{2} | [dD] [89abAB] %s-hex{2} \"\\\\u\" [dD] "
         "[c-fC-F] %s-hex{2}"),
        "hex ::= [0-9a-fA-F]",
        "string ::= \"\\\"\" %s-char* \"\\\"\"",
        /* names of members, each character spelled in one way only */
        "key ::= \"\\\"\" ([^\"\\\\\\x00-\\x1F\\x7F] | \"\\\\\" [\"\\\\bfnrt])* \"\\\"\"",
        "integer ::= \"-\"? (\"0\" | [1-9] [0-9]{0,19})",
        "number ::= %s-integer (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?",
        "boolean ::= \"true\" | \"false\"",
        "null ::= \"null\"",
        "member ::= %s-string %s-ws \":\" %s-ws %s-value %s-ws",
        "object ::= \"{\" %s-ws (%s-member (\",\" %s-ws %s-member)*)? \"}\"",
        "array ::= \"[\" %s-ws (%s-value %s-ws (\",\" %s-ws %s-value %s-ws)*)? \"]\"",
        "value ::= %s-object | %s-array | %s-string | %s-number | %s-boolean | %s-null",
    };
    schema_put_rules(m, rules, NUM_COUNT(rules));
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
            return schema_no_memory(m);
        m->refs[m->n_ref++] = (reference){to, ++m->n_rule, mem_strdup(pointer + 1)};
    }
    writer_put(body, "%s-%lu", m->root, (unsigned long)m->refs[i].rule);
    return NIB_OK;
}

/* ---- types ---- */

static const char *implied_type(const json_t *s) {
    static const struct {
        const char *keyword, *type;
    } rows[] = {{"properties", "object"},
                {"required", "object"},
                {"additionalProperties", "object"},
                {"patternProperties", "object"},
                {"propertyNames", "object"},
                {"minProperties", "object"},
                {"maxProperties", "object"},
                {"items", "array"},
                {"prefixItems", "array"},
                {"minItems", "array"},
                {"maxItems", "array"},
                {"uniqueItems", "array"},
                {"minLength", "string"},
                {"maxLength", "string"},
                {"pattern", "string"},
                {"format", "string"},
                {"minimum", "number"},
                {"maximum", "number"},
                {"exclusiveMinimum", "number"},
                {"exclusiveMaximum", "number"},
                {"multipleOf", "number"}};
    for (size_t i = 0; i < NUM_COUNT(rows); i++)
        if (json_object_get(s, rows[i].keyword))
            return rows[i].type;
    return "value";
}

/* Writes one expression for a type by its name. */
static nib_status put_type(schema_maker *m, const json_t *schema, const char *type, writer *body) {
    const size_t before = body->n;
    if (!strcmp(type, "object"))
        return schema_object(m, schema, body);
    if (!strcmp(type, "array"))
        return schema_array(m, schema, body);
    if (!strcmp(type, "string") || !strcmp(type, "number") || !strcmp(type, "integer")) {
        NIB_TRY(*type == 's' ? schema_string(m, schema, body) : schema_number(m, schema, *type == 'i', body));
        const bool several = body->data && strchr(body->data + before, '&');
        return several ? schema_check_some(m, schema, type) : NIB_OK;
    }
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0 && strcmp(type, "value") != 0)
        return schema_refuse(
            m,
            "'type': expected object, array, string, number, integer, boolean or null, found "
            "'%.40s'",
            type);
    writer_put(body, "%s-%s", m->root, type);
    return NIB_OK;
}

/* Writes the alternatives for several types, without those that nothing matches. */
static nib_status of_types(schema_maker *m, const json_t *schema, const json_t *types, writer *body) {
    const json_t *type;
    bool some = false;
    size_t i;
    json_array_foreach(types, i, type) {
        writer one = {0};
        const nib_status status = put_type(m, schema, json_string_value(type), &one);
        if (status == NIB_OK) {
            writer_put(body, "%s%s", some ? " | " : "", one.data ? one.data : "");
            writer_lose(body, one.lost);
            some = true;
        }
        mem_free(one.data);
        if (status != NIB_OK && !(m->impossible && i + 1 < json_array_size(types)) &&
            !(m->impossible && some))
            return status;
        m->impossible = false;
    }
    return NIB_OK;
}

/* ---- one schema ---- */

static nib_status describe_object(schema_maker *m, const json_t *schema, writer *body) {
    NIB_TRY(schema_expand(m, schema, &schema));
    const json_t *all = json_object_get(schema, "allOf"), *type = json_object_get(schema, "type");
    const bool closed = json_is_false(json_object_get(schema, "unevaluatedProperties")) ||
                        json_is_false(json_object_get(schema, "unevaluatedItems"));
    if (!closed)
        NIB_TRY(schema_check(m, schema));
    if (!closed && (json_object_get(schema, "enum") || json_object_get(schema, "const")))
        return schema_values(m, schema, body);
    if (json_array_size(all) == 1 && schema_is_alone(schema, "allOf") && !closed)
        return schema_any_of(m, schema, "allOf", body);
    if (all || closed || (json_object_get(schema, "$ref") && !schema_is_alone(schema, "$ref"))) {
        const json_t *merged = NULL;
        NIB_TRY(schema_merge(m, schema, &merged));
        return describe_object(m, merged, body);
    }
    if (json_object_get(schema, "$ref"))
        return refer(m, json_object_get(schema, "$ref"), body);
    if (json_object_get(schema, "oneOf"))
        return schema_any_of(m, schema, "oneOf", body);
    if (json_object_get(schema, "anyOf"))
        return schema_any_of(m, schema, "anyOf", body);
    return type && !json_is_string(type)
               ? of_types(m, schema, type, body)
               : put_type(m, schema, type ? json_string_value(type) : implied_type(schema), body);
}

nib_status schema_describe(schema_maker *m, const json_t *schema, writer *body) {
    if (json_is_true(schema)) {
        writer_put(body, "%s-value", m->root);
        return NIB_OK;
    }
    if (json_is_false(schema))
        return schema_impossible(m, "expected a schema that some value matches, found false");
    if (!json_is_object(schema))
        return schema_refuse(m, "expected a schema, found another value");
    if (++m->depth > MAX_DEPTH)
        return schema_refuse(m, "expected schemas that nest less deep than %d, found more", MAX_DEPTH);
    const nib_status status = describe_object(m, schema, body);
    m->depth--;
    return status;
}

static nib_status write_rule(schema_maker *m, const json_t *schema, uint32_t rule) {
    writer body = {0};
    const nib_status status = schema_describe(m, schema, &body);
    if (status == NIB_OK)
        return schema_emit(m, rule, &body);
    mem_free(body.data);
    return status;
}

nib_status schema_rule(schema_maker *m, const json_t *schema, const char *member, uint32_t *rule) {
    const size_t n = strlen(m->path);
    const int depth = m->depth;
    *rule = ++m->n_rule;
    snprintf(m->path + n, sizeof m->path - n, "/%s", member);
    const nib_status status = write_rule(m, schema, *rule);
    m->path[n] = 0;
    m->depth = depth;
    return status;
}

/* ---- the whole ---- */

static nib_status schema_write(schema_maker *m) {
    uint32_t rule;
    schema_put_common(m);
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

void schema_clear(schema_maker *m) {
    mem_free(m->out.data);
    for (size_t i = 0; i < m->n_ref; i++)
        mem_free(m->refs[i].path);
    mem_free(m->refs);
    schema_matcher_free(m->matcher);
    json_decref(m->made);
}

/* ---- reading ---- */

/* Adds a spelling to the list, unless it is there; returns its place, below 0: no memory. */
static json_int_t place_of(json_t *places, json_t *list, const char *text, size_t n) {
    const json_t *known = json_object_getn(places, text, n);
    const json_int_t at = (json_int_t)json_array_size(list);
    if (known)
        return json_integer_value(known);
    return json_array_append_new(list, json_stringn(text, n)) ||
                   json_object_setn_new(places, text, n, json_integer(at))
               ? -1
               : at;
}

/* Copies the text of a schema with the place of each number in `numbers` instead of the number. */
static bool take_numbers(const char *json, size_t n_byte, json_t *numbers, writer *out) {
    json_t *places = json_object();
    bool in_string = false, good = places && numbers;
    for (size_t i = 0; i < n_byte && good; i++) {
        size_t n = in_string ? 0 : decimal_length(json + i, n_byte - i);
        good = !mem_grow((void **)&out->data, &out->cap, out->n + 24, 1);
        if (!good)
            break;
        if (n > 0) {
            const json_int_t at = place_of(places, numbers, json + i, n);
            good = at >= 0;
            out->n += (size_t)snprintf(out->data + out->n, 24, "%lld", (long long)at);
            i += n - 1;
            continue;
        }
        if (in_string && json[i] == '\\' && i + 1 < n_byte)
            out->data[out->n++] = json[i++];
        else if (json[i] == '"')
            in_string = !in_string;
        out->data[out->n++] = json[i];
    }
    json_decref(places);
    return good;
}

static nib_status parse(schema_maker *m, const char *json, size_t n_byte, json_t *numbers, json_t **whole) {
    writer text = {0};
    nib_status status = take_numbers(json, n_byte, numbers, &text)
                            ? jsonx_parse(text.data ? text.data : "", text.n, whole, m->err)
                            : schema_no_memory(m);
    mem_free(text.data);
    if (status == NIB_E_MODEL) {
        if (m->err)
            m->err->status = NIB_E_USAGE;
        return nib_fail_prefix(m->err, NIB_E_USAGE, "the schema is not valid JSON");
    }
    return status;
}

nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err) {
    json_t *whole = NULL, *numbers = json_array();
    schema_maker m = {.root = root, .numbers = numbers, .err = err};
    nib_status status = parse(&m, json, n_byte, numbers, &whole);
    m.whole = whole;
    if (status == NIB_OK)
        status = schema_write(&m);
    if (status == NIB_OK)
        status = schema_whole(&m, &m.out);
    if (status == NIB_OK) {
        *out = m.out.data;
        m.out.data = NULL;
    }
    schema_clear(&m);
    json_decref(whole);
    json_decref(numbers);
    return status;
}

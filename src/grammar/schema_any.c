/* schema_any.c - alternatives of a schema: values (enum, const) and schemas
 * (anyOf, oneOf). Keywords beside them hold for each alternative: a value must
 * match them, and a schema is merged with them. Alternatives that nothing
 * matches are left out.
 *
 * The schemas of `oneOf` must have no value in common, else they are refused:
 * what only one of them matches is not what a grammar of both allows. A schema
 * without `additionalProperties` counts as closed here, because its grammar
 * writes no other members. */
#include "grammar/schema_parts.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { MAX_ONE_OF = 128 /* schemas that are compared with each other */ };

/* A copy without a keyword; NULL: no memory. */
static json_t *without(schema_maker *m, const json_t *schema, const char *keyword) {
    json_t *rest = schema_own(m, json_copy(jsonx_counted(schema)));
    if (rest)
        json_object_del(rest, keyword);
    return rest;
}

/* ---- values ---- */

/* Writes the JSON of a value: numbers as they were given, and white space where
 * it may be. */
static void put_value(const schema_maker *m, const json_t *value, writer *w) {
    const char *number = schema_number_text(m, value), *key, *r = m->root;
    json_t *one;
    size_t i, n = 0;
    if (number) {
        writer_literal(w, number, strlen(number));
    } else if (json_is_array(value) || json_is_object(value)) {
        writer_put(w, json_is_array(value) ? "\"[\" %s-ws" : "\"{\" %s-ws", r);
        json_array_foreach(value, i, one) {
            writer_put(w, i ? " \",\" %s-ws " : " ", r);
            put_value(m, one, w);
            writer_put(w, " %s-ws", r);
        }
        json_object_foreach(jsonx_counted(value), key, one) {
            json_t *name = json_string(key);
            writer_put(w, n++ ? " \",\" %s-ws " : " ", r);
            writer_json(w, name);
            json_decref(name);
            writer_put(w, " %s-ws \":\" %s-ws ", r, r);
            put_value(m, one, w);
            writer_put(w, " %s-ws", r);
        }
        writer_put(w, json_is_array(value) ? " \"]\"" : " \"}\"");
    } else {
        writer_json(w, value);
    }
}

/* Writes the value, if it matches the other keywords. */
static nib_status put_if_valid(schema_maker *m, const json_t *rest, const json_t *value, bool *some,
                               writer *body) {
    bool good = true;
    if (rest)
        NIB_TRY(schema_valid(m, rest, value, &good));
    if (!good)
        return NIB_OK;
    writer_put(body, *some ? " | " : "");
    put_value(m, value, body);
    *some = true;
    return NIB_OK;
}

nib_status schema_values(schema_maker *m, const json_t *schema, writer *body) {
    const char *keyword = json_object_get(schema, "enum") ? "enum" : "const";
    const json_t *list = json_object_get(schema, keyword), *rest = NULL, *one;
    bool some = false;
    size_t i;
    if (!schema_is_alone(schema, keyword) && !(rest = without(m, schema, keyword)))
        return schema_no_memory(m);
    if (*keyword == 'c')
        NIB_TRY(put_if_valid(m, rest, list, &some, body));
    for (i = 0; *keyword == 'e' && i < json_array_size(list); i++) {
        one = json_array_get(list, i);
        NIB_TRY(put_if_valid(m, rest, one, &some, body));
    }
    return some ? NIB_OK
                : schema_impossible(m,
                                    "'%s': expected a value that matches the "
                                    "other keywords, found none",
                                    keyword);
}

/* ---- whether two schemas have a value in common ---- */

/* Writes a schema only to see whether something matches it. */
static nib_status try_schema(schema_maker *m, const json_t *schema) {
    const size_t n = m->out.n;
    const unsigned formats = m->formats;
    const int depth = m->depth;
    writer body = {0};
    const nib_status status = schema_describe(m, schema, &body);
    mem_free(body.data);
    m->out.n = n;
    m->out.data[n] = 0;
    m->formats = formats;
    m->depth = depth;
    return status;
}

/* Whether each required member of a merged schema can have a value: enough for
 * schemas that a member's value tells apart. NIB_E_USAGE and m->impossible: one
 * cannot. */
static nib_status try_required(schema_maker *m, const json_t *schema) {
    const json_t *names = json_object_get(schema, "required"), *name, *merged;
    size_t i;
    json_array_foreach(names, i, name) {
        const json_t *of = json_object_get(json_object_get(schema, "properties"), json_string_value(name));
        if (!of)
            of = json_object_get(schema, "additionalProperties");
        if (json_is_false(of))
            return schema_impossible(m, "expected no member '%.60s'", json_string_value(name));
        if (json_object_get(of, "allOf"))
            NIB_TRY(schema_merge(m, of, &merged));
    }
    return NIB_OK;
}

/* The schema as its grammar reads it: without members that it does not name. */
static nib_status close_schema(schema_maker *m, const json_t *schema, const json_t **out) {
    static const char *const open[] = {"additionalProperties", "patternProperties", "anyOf", "oneOf"};
    const json_t *flat = NULL;
    bool is_open = false;
    NIB_TRY(schema_merge(m, schema, &flat));
    for (size_t i = 0; i < sizeof open / sizeof *open; i++)
        is_open = is_open || json_object_get(flat, open[i]);
    *out = flat;
    if (is_open || (!json_object_get(flat, "properties") && !json_object_get(flat, "required")))
        return NIB_OK;
    json_t *closed = schema_own(m, json_copy(jsonx_counted(flat)));
    /* names that are only required are written too */
    json_t *properties = json_object(), *name;
    bool good = closed && properties;
    size_t i;
    json_array_foreach(json_object_get(flat, "required"), i, name) {
        good = good && !json_object_set_new(properties, json_string_value(name), json_true());
    }
    const json_t *own = json_object_get(flat, "properties");
    good = good && (!own || !json_object_update(properties, jsonx_counted(own)));
    if (good)
        good = jsonx_put(closed, "properties", properties) &&
               jsonx_put(closed, "additionalProperties", json_false());
    else
        json_decref(properties);
    *out = closed;
    return good ? NIB_OK : schema_no_memory(m);
}

/* NIB_E_USAGE: the grammar of the first schema, as close_schema gives it, has
 * values that match the second, or this cannot be found out. */
static nib_status check_apart(schema_maker *m, const json_t *closed, const json_t *other, size_t i,
                              size_t k) {
    const json_t *both = NULL;
    nib_status status = schema_both(m, closed, other, &both);
    if (status == NIB_OK)
        status = try_required(m, both);
    if (status == NIB_OK)
        status = try_schema(m, both);
    if (status == NIB_E_USAGE && m->impossible) {
        m->impossible = false;
        return NIB_OK;
    }
    return status == NIB_OK ? schema_refuse(m,
                                            "'oneOf': expected schemas without "
                                            "common values (or 'anyOf'), found "
                                            "that %zu and %zu have some",
                                            i, k)
                            : status;
}

/* ---- schemas ---- */

/* A text that equal scalar values share; freed by mem_free. NULL: no memory, or
 * no scalar. */
static char *scalar_text(const schema_maker *m, const json_t *value) {
    const char *number = schema_number_text(m, value);
    writer w = {0};
    decimal d;
    if (!number)
        return json_is_array(value) || json_is_object(value) ? NULL : jsonx_text(value, JSON_ENCODE_ANY);
    if (decimal_read(number, &d))
        writer_put(&w, "%s%s e%lld", d.negative ? "-" : "", d.digits, (long long)d.point);
    return w.data;
}

/* Whether many schemas are values only, each of them in one schema. */
static bool are_values_apart(const schema_maker *m, const json_t *list) {
    json_t *seen = json_object(), *one;
    bool good = seen != NULL;
    size_t i, k;
    json_array_foreach(list, i, one) {
        const char *keyword = json_object_get(one, "enum") ? "enum" : "const";
        const json_t *values = json_object_get(one, keyword);
        good = good && values && schema_is_alone(one, keyword);
        for (k = 0; good && k < (*keyword == 'e' ? json_array_size(values) : 1); k++) {
            char *text = scalar_text(m, *keyword == 'e' ? json_array_get(values, k) : values);
            const json_t *by = text ? json_object_get(seen, text) : NULL;
            good = text && (!by || by == one) && !json_object_set(seen, text, one);
            mem_free(text);
        }
    }
    json_decref(seen);
    return good;
}

static nib_status check_one_of(schema_maker *m, const json_t *list) {
    const size_t n = json_array_size(list);
    if (are_values_apart(m, list))
        return NIB_OK;
    if (n > MAX_ONE_OF)
        return schema_refuse(m, "'oneOf': expected at most %d schemas (or 'anyOf'), found %zu", MAX_ONE_OF,
                             n);
    for (size_t i = 0; i < n; i++) {
        const json_t *closed = NULL;
        const nib_status status = close_schema(m, json_array_get(list, i), &closed);
        if (status == NIB_E_USAGE && m->impossible)
            continue; /* nothing matches it */
        NIB_TRY(status);
        for (size_t k = 0; k < n; k++)
            if (i != k)
                NIB_TRY(check_apart(m, closed, json_array_get(list, k), i, k));
    }
    return NIB_OK;
}

/* The alternatives, merged with the other keywords of the schema, without those
 * that nothing matches. */
static nib_status list_alternatives(schema_maker *m, const json_t *schema, const char *keyword,
                                    json_t **out) {
    const json_t *list = json_object_get(schema, keyword), *one, *merged;
    const json_t *rest = schema_is_alone(schema, keyword) ? NULL : without(m, schema, keyword);
    json_t *found = schema_own(m, json_array());
    size_t i;
    if (!found || (!rest && !schema_is_alone(schema, keyword)))
        return schema_no_memory(m);
    json_array_foreach(list, i, one) {
        nib_status status = NIB_OK;
        merged = one;
        if (rest)
            status = schema_both(m, rest, one, &merged);
        if (status == NIB_E_USAGE && m->impossible)
            continue;
        NIB_TRY(status);
        if (!jsonx_add(found, json_incref(jsonx_counted(merged))))
            return schema_no_memory(m);
    }
    *out = found;
    return NIB_OK;
}

nib_status schema_any_of(schema_maker *m, const json_t *schema, const char *keyword, writer *body) {
    json_t *list = NULL, *one;
    bool some = false;
    size_t i;
    NIB_TRY(list_alternatives(m, schema, keyword, &list));
    if (!strcmp(keyword, "oneOf"))
        NIB_TRY(check_one_of(m, list));
    json_array_foreach(list, i, one) {
        uint32_t rule;
        char member[48];
        snprintf(member, sizeof member, "%s/%zu", keyword, i);
        const nib_status status = schema_rule(m, one, member, &rule);
        if (status == NIB_E_USAGE && m->impossible)
            continue;
        NIB_TRY(status);
        writer_put(body, "%s%s-%lu", some ? " | " : "", m->root, (unsigned long)rule);
        some = true;
    }
    m->impossible = !some;
    return some ? NIB_OK
                : schema_impossible(m,
                                    "'%s': expected a schema that some value "
                                    "matches, found none",
                                    keyword);
}

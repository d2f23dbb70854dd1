/* schema_object.c - objects and arrays of a schema.
 *
 * Members are in the order of the schema. Each member has two rules for itself and the following ones: as the
 * first member, and after others (with a comma). So the grammar grows linearly with the number of members. */
#include "grammar/schema_class.h"

#include "base/mem.h"
#include "text/unicode.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct object_member {
    const char *key;
    const json_t *schema; /* NULL: any value */
    bool required;
    uint32_t value;    /* rule of its value */
    uint32_t after[2]; /* rules for it and all following members: [0] after others, [1] as the first */
} object_member;

typedef struct object {
    object_member *members;
    size_t n;
    const json_t *more;  /* the schema of additional members; NULL: they are not allowed */
    uint32_t key, value; /* rules of additional members */
} object;

static bool is_required(const json_t *schema, const char *key) {
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, one) {
        if (json_is_string(one) && !strcmp(json_string_value(one), key))
            return true;
    }
    return false;
}

static nib_status check_object(schema_maker *m, const json_t *schema) {
    const json_t *properties = json_object_get(schema, "properties"), *one;
    const json_t *required = json_object_get(schema, "required");
    const json_t *more = json_object_get(schema, "additionalProperties");
    size_t i;
    if (properties && !json_is_object(properties))
        return schema_refuse(m, "'properties': expected an object");
    if (required && !json_is_array(required))
        return schema_refuse(m, "'required': expected an array of names");
    if (more && !json_is_boolean(more) && !json_is_object(more))
        return schema_refuse(m, "'additionalProperties': expected true, false or a schema");
    json_array_foreach(required, i, one) {
        if (!json_is_string(one))
            return schema_refuse(m, "'required': expected an array of names");
        if (json_is_false(more) && !json_object_get(properties, json_string_value(one)))
            return schema_refuse(
                m,
                "'required': expected a name of 'properties' without 'additionalProperties', found '%.60s'",
                json_string_value(one));
    }
    return NIB_OK;
}

static nib_status list_members(const json_t *schema, object *o, nib_error *err) {
    json_t *properties = json_object_get(schema, "properties"), *value;
    const json_t *required = json_object_get(schema, "required"), *more, *one;
    const char *key;
    size_t i;
    more = json_object_get(schema, "additionalProperties");
    o->more = json_is_true(more) || json_is_object(more) ? more : NULL;
    o->members = mem_calloc(json_object_size(properties) + json_array_size(required) + 1, sizeof *o->members);
    if (!o->members)
        return nib_fail_nomem(err, json_object_size(properties), "a schema");
    json_object_foreach(properties, key, value) {
        o->members[o->n++] =
            (object_member){.key = key, .schema = value, .required = is_required(schema, key)};
    }
    json_array_foreach(required, i, one) {
        const char *name = json_string_value(one);
        bool there = json_object_get(properties, name) != NULL;
        for (size_t k = 0; k < o->n && !there; k++)
            there = !strcmp(o->members[k].key, name);
        if (!there)
            o->members[o->n++] =
                (object_member){.key = name, .schema = json_is_object(more) ? more : NULL, .required = true};
    }
    return NIB_OK;
}

/* ---- keys of additional members: any string except the names of properties ---- */

typedef struct key_list {
    const char **keys; /* sorted, without their common prefix */
    size_t n;
} key_list;

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

uint32_t schema_char_at(const char *s, size_t *n_byte) {
    const char *at = s;
    const uint32_t c = utf8_next(&at); /* valid UTF-8: jansson has checked it */
    *n_byte = (size_t)(at - s);
    return c;
}

enum { MAX_KEY = 200 /* maximum characters of a name: bounds the recursion */ };

/* Writes a rule for the rest of a key, up to its closing quote, that excludes the keys of the list.
 * Characters shared with one of them are not escaped. */
static nib_status other_keys(schema_maker *m, const key_list *keys, int depth, uint32_t *rule) {
    writer body = {0}, class = {0};
    nib_status status = NIB_OK;
    size_t i = 0;
    const bool is_one = keys->n > 0 && !*keys->keys[0];
    *rule = ++m->n_rule;
    for (; i < keys->n && !*keys->keys[i]; i++) {
    }
    for (size_t end; i < keys->n && status == NIB_OK; i = end) {
        size_t n_byte, other;
        uint32_t inner;
        const uint32_t c = schema_char_at(keys->keys[i], &n_byte);
        for (end = i; end < keys->n && schema_char_at(keys->keys[end], &other) == c; end++)
            keys->keys[end] += n_byte;
        if (depth == MAX_KEY)
            status = schema_refuse(m, "expected a property name of at most %d characters, found a longer one",
                                   MAX_KEY);
        if (!char_is_plain(c) || status != NIB_OK)
            continue;
        status = other_keys(m, &(key_list){keys->keys + i, end - i}, depth + 1, &inner);
        writer_class_char(&class, c);
        writer_put(&body, "[");
        writer_class_char(&body, c);
        writer_put(&body, "] %s-%lu | ", m->root, (unsigned long)inner);
    }
    writer_put(&body, "[^\"\\\\\\x00-\\x1F\\x7F%s] %s-char* \"\\\"\"%s", class.data ? class.data : "",
               m->root, is_one ? "" : " | \"\\\"\"");
    body.full = body.full || class.full;
    mem_free(class.data);
    if (status == NIB_OK)
        return schema_emit(m, *rule, &body);
    mem_free(body.data);
    return status;
}

static nib_status write_more(schema_maker *m, object *o) {
    const char **names = mem_array(o->n + 1, sizeof *names);
    if (!names)
        return nib_fail_nomem(m->err, o->n, "a schema");
    for (size_t i = 0; i < o->n; i++)
        names[i] = o->members[i].key;
    qsort(names, o->n, sizeof *names, by_text);
    nib_status status = other_keys(m, &(key_list){names, o->n}, 0, &o->key);
    mem_free(names);
    return status == NIB_OK ? schema_rule(m, o->more, "additionalProperties", &o->value) : status;
}

/* ---- the object ---- */

/* Writes the additional members at the end of an object (first: no member comes before them). */
static void put_end(const schema_maker *m, const object *o, int first, writer *body) {
    char one[512];
    const char *r = m->root;
    snprintf(one, sizeof one, "\"\\\"\" %s-%lu %s-ws \":\" %s-ws %s-%lu %s-ws", r, (unsigned long)o->key, r,
             r, r, (unsigned long)o->value, r);
    if (first)
        writer_put(body, "(%s (\",\" %s-ws %s)*)?", one, r, one);
    else
        writer_put(body, "(\",\" %s-ws %s)*", r, one);
}

/* Writes the rule for the members from i on. */
static void put_from(const schema_maker *m, const object *o, size_t i, int first, writer *body) {
    if (i < o->n)
        writer_put(body, "%s-%lu", m->root, (unsigned long)o->members[i].after[first]);
    else if (o->more)
        put_end(m, o, first, body);
    else
        writer_put(body, "\"\"");
}

static nib_status write_member(schema_maker *m, const object *o, size_t i, int first) {
    const object_member *x = &o->members[i];
    writer body = {0};
    json_t *key = json_string(x->key);
    if (!first)
        writer_put(&body, "\",\" %s-ws ", m->root);
    writer_json(&body, key);
    json_decref(key);
    writer_put(&body, " %s-ws \":\" %s-ws ", m->root, m->root);
    if (x->schema)
        writer_put(&body, "%s-%lu", m->root, (unsigned long)x->value);
    else
        writer_put(&body, "%s-value", m->root);
    writer_put(&body, " %s-ws ", m->root);
    put_from(m, o, i + 1, 0, &body);
    if (!x->required) {
        writer_put(&body, " | ");
        put_from(m, o, i + 1, first, &body);
    }
    return schema_emit(m, x->after[first], &body);
}

static nib_status write_object(schema_maker *m, object *o, writer *body) {
    if (o->more)
        NIB_TRY(write_more(m, o));
    for (size_t i = 0; i < o->n; i++) {
        object_member *x = &o->members[i];
        char member[96];
        snprintf(member, sizeof member, "properties/%.80s", x->key);
        if (x->schema)
            NIB_TRY(schema_rule(m, x->schema, member, &x->value));
        x->after[0] = ++m->n_rule;
        x->after[1] = ++m->n_rule;
    }
    bool first = true; /* no member before it is required */
    for (size_t i = 0; i < o->n; i++) {
        if (first)
            NIB_TRY(write_member(m, o, i, 1));
        if (i > 0)
            NIB_TRY(write_member(m, o, i, 0));
        first = first && !o->members[i].required;
    }
    writer_put(body, "\"{\" %s-ws ", m->root);
    put_from(m, o, 0, 1, body);
    writer_put(body, " \"}\"");
    return NIB_OK;
}

nib_status schema_object(schema_maker *m, const json_t *schema, writer *body) {
    object o = {0};
    NIB_TRY(check_object(m, schema));
    if (!json_object_get(schema, "properties") && !json_object_get(schema, "required") &&
        !json_is_object(json_object_get(schema, "additionalProperties"))) {
        if (json_is_false(json_object_get(schema, "additionalProperties")))
            writer_put(body, "\"{\" %s-ws \"}\"", m->root);
        else
            writer_put(body, "%s-object", m->root);
        return NIB_OK;
    }
    nib_status status = list_members(schema, &o, m->err);
    if (status == NIB_OK)
        status = write_object(m, &o, body);
    mem_free(o.members);
    return status;
}

/* ---- arrays ---- */

/* Writes an array's remaining items: min to max more of the same. */
static void put_items(const schema_maker *m, const char *item, int64_t min, int64_t max, bool first,
                      writer *body) {
    const char *r = m->root;
    char max_text[24] = "";
    if (max == 0)
        return;
    if (first) {
        writer_put(body, "%s%s %s-ws ", min == 0 ? "(" : "", item, r);
        put_items(m, item, min > 0 ? min - 1 : 0, max < 0 ? max : max - 1, false, body);
        writer_put(body, "%s ", min == 0 ? ")?" : "");
        return;
    }
    if (max > 0)
        snprintf(max_text, sizeof max_text, "%lld", (long long)max);
    writer_put(body, "(\",\" %s-ws %s %s-ws){%lld,%s} ", r, item, r, (long long)min, max_text);
}

nib_status schema_array(schema_maker *m, const json_t *schema, writer *body) {
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    const json_t *one;
    const int64_t n = (int64_t)json_array_size(prefix);
    int64_t min = 0, max = -1;
    uint32_t rule;
    size_t i;
    char item[160], member[48];
    NIB_TRY(schema_count(m, schema, "minItems", &min));
    NIB_TRY(schema_count(m, schema, "maxItems", &max));
    if ((max >= 0 && max < min) || json_is_array(items) || (prefix && !json_is_array(prefix)))
        return schema_refuse(m, max >= 0 && max < min
                                    ? "expected 'maxItems' of at least 'minItems', found less"
                                    : "'items': expected a schema; 'prefixItems': an array");
    const bool more = prefix ? items && !json_is_false(items) : !json_is_false(items);
    if (n > 0 && ((max >= 0 && max < n) || (!more && min > n)))
        return schema_refuse(m, "expected 'prefixItems' that agree with 'minItems' and 'maxItems'");
    writer_put(body, "\"[\" %s-ws ", m->root);
    json_array_foreach(prefix, i, one) {
        snprintf(member, sizeof member, "prefixItems/%zu", i);
        NIB_TRY(schema_rule(m, one, member, &rule));
        if (i)
            writer_put(body, "\",\" %s-ws ", m->root);
        writer_put(body, "%s-%lu %s-ws ", m->root, (unsigned long)rule, m->root);
    }
    snprintf(item, sizeof item, "%.120s-value", m->root);
    if (more && items && max != 0) {
        NIB_TRY(schema_rule(m, items, "items", &rule));
        snprintf(item, sizeof item, "%.120s-%lu", m->root, (unsigned long)rule);
    }
    if (more)
        put_items(m, item, min > n ? min - n : 0, max < 0 ? -1 : max - n, n == 0, body);
    writer_put(body, "\"]\"");
    return NIB_OK;
}

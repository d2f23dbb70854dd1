/* schema_object.c - objects of a schema.
 *
 * Members are in the order of the schema. The rule of a member stands for it or, if it is optional, the
 * members after it, so the grammar grows linearly with their number. Between two members of a long list of
 * optional ones, any later one may come next. So that these are not thousands of alternatives, each block of
 * BLOCK members has a further rule: all of them at once, as a prefix tree, or a later block. */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "tokenizer/unicode.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 64, MAX_PATTERNS = 4 };

typedef struct object_member {
    const char *key;
    bool required;
    uint32_t value; /* rule of its value */
    uint32_t from;  /* rule of this or a later member, and all members after it */
} object_member;

typedef struct object {
    object_member *members;
    size_t n, n_required;
    writer more;                /* alternatives for an additional member: name, colon, value */
    uint32_t end;               /* rule of additional members, at least one */
    int64_t min_more, max_more; /* number of additional members */
} object;

uint32_t schema_char_at(const char *s, size_t *n_byte) {
    const char *at = s;
    const uint32_t c = utf8_next(&at); /* valid UTF-8: jansson has checked it */
    *n_byte = (size_t)(at - s);
    return c;
}

static void put_name(writer *w, const char *name) {
    json_t *value = json_string(name);
    writer_json(w, value);
    json_decref(value);
}

/* ---- members with a name ---- */

static nib_status name_matches(schema_maker *m, const json_t *schema, const char *name, bool *out) {
    const json_t *value = schema_own(m, json_string(name));
    return value ? schema_valid(m, schema, value, out) : schema_no_memory(m);
}

/* Adds the schemas of the patterns that a name matches to its own schema. */
static nib_status with_patterns(schema_maker *m, const json_t *patterns, const char *name,
                                const json_t **schema) {
    const char *pattern;
    json_t *of;
    json_object_foreach(jsonx_counted(patterns), pattern, of) {
        const json_t *test = schema_own(m, json_pack("{s:s}", "pattern", pattern));
        bool matches = false;
        if (!test)
            return schema_no_memory(m);
        NIB_TRY(name_matches(m, test, name, &matches));
        if (matches)
            *schema = *schema ? schema_own(m, json_pack("{s:[O, O]}", "allOf", *schema, of)) : of;
        if (!*schema && matches)
            return schema_no_memory(m);
    }
    return NIB_OK;
}

/* Adds a member, unless it is optional and nothing matches it. */
static nib_status add_member(schema_maker *m, object *o, const json_t *schema, const char *key,
                             const json_t *of, bool required) {
    const json_t *names = json_object_get(schema, "propertyNames");
    object_member *x = &o->members[o->n];
    char member[96];
    bool good = true;
    nib_status status = names ? name_matches(m, names, key, &good) : NIB_OK;
    *x = (object_member){.key = key, .required = required};
    if (status == NIB_OK)
        status = with_patterns(m, json_object_get(schema, "patternProperties"), key, &of);
    if (status == NIB_OK && !good)
        status = schema_impossible(m, "the member '%.60s' does not match 'propertyNames'", key);
    snprintf(member, sizeof member, "properties/%.80s", key);
    if (status == NIB_OK && !of && json_object_get(schema, "additionalProperties"))
        of = json_object_get(schema, "additionalProperties");
    if (status == NIB_OK && json_is_false(of))
        status = schema_impossible(
            m, "'required': expected a name that another keyword allows, found '%.60s'", key);
    if (status == NIB_OK && of)
        status = schema_rule(m, of, member, &x->value);
    if (status == NIB_E_USAGE && m->impossible && !required) {
        m->impossible = false;
        return NIB_OK;
    }
    o->n += status == NIB_OK;
    o->n_required += status == NIB_OK && required;
    return status;
}

static nib_status list_members(schema_maker *m, const json_t *schema, object *o) {
    json_t *properties = json_object_get(schema, "properties"), *value, *required = json_object();
    const json_t *names = json_object_get(schema, "required"), *one;
    nib_status status = required ? NIB_OK : schema_no_memory(m);
    const char *key;
    size_t i;
    json_array_foreach(names, i, one) {
        if (status == NIB_OK && !jsonx_put(required, json_string_value(one), json_incref(jsonx_counted(one))))
            status = schema_no_memory(m);
    }
    json_object_foreach(properties, key, value) {
        if (status == NIB_OK)
            status = add_member(m, o, schema, key, value, json_object_get(required, key) != NULL);
    }
    json_object_foreach(required, key, value) { /* its values, the names, live as long as the schema */
        if (status == NIB_OK && !json_object_get(properties, key))
            status = add_member(m, o, schema, json_string_value(value), NULL, true);
    }
    json_decref(required);
    return status;
}

/* ---- additional members ---- */

/* Writes what a name is: any but those of `properties`, and of propertyNames. */
static nib_status put_key(schema_maker *m, const json_t *schema, writer *body) {
    const json_t *names = json_object_get(schema, "propertyNames"), *both;
    json_t *value, *string;
    const char *key;
    size_t n = 0;
    uint32_t rule;
    writer_put(body, "%s-key", m->root);
    if (names && !json_is_true(names)) {
        string = schema_own(m, json_pack("{s:s}", "type", "string"));
        if (!string)
            return schema_no_memory(m);
        NIB_TRY(schema_both(m, string, names, &both));
        NIB_TRY(schema_rule(m, both, "propertyNames", &rule));
        writer_put(body, " & %s-%lu", m->root, (unsigned long)rule);
    }
    json_object_foreach(json_object_get(schema, "properties"), key, value) {
        writer_put(body, n++ ? " | " : " & ! (");
        put_name(body, key);
    }
    writer_put(body, n ? ")" : "");
    return NIB_OK;
}

/* Adds the members whose names match `key`, and their values `of`. */
static nib_status add_more(schema_maker *m, object *o, writer *key, const json_t *of) {
    uint32_t name = ++m->n_rule, value;
    const char *r = m->root;
    nib_status status = schema_rule(m, of, "additionalProperties", &value);
    if (status != NIB_OK) {
        mem_free(key->data);
        if (status != NIB_E_USAGE || !m->impossible)
            return status;
        m->impossible = false;
        return NIB_OK;
    }
    NIB_TRY(schema_emit(m, name, key));
    writer_put(&o->more, "%s%s-%lu %s-ws \":\" %s-ws %s-%lu %s-ws", o->more.n ? " | " : "", r,
               (unsigned long)name, r, r, r, (unsigned long)value, r);
    return NIB_OK;
}

/* Members of patternProperties: for each set of patterns, the names that match these and no others. */
static nib_status list_patterns(schema_maker *m, const json_t *schema, const json_t *patterns, object *o,
                                const uint32_t *rules) {
    const size_t n = json_object_size(patterns);
    const json_t *more = json_object_get(schema, "additionalProperties");
    for (unsigned set = 0; set < 1u << n; set++) {
        writer key = {0};
        json_t *all = schema_own(m, json_array()), *of;
        const char *pattern;
        size_t i = 0;
        nib_status status = all ? put_key(m, schema, &key) : schema_no_memory(m);
        json_object_foreach(jsonx_counted(patterns), pattern, of) {
            writer_put(&key, set >> i & 1 ? " & %s-%lu" : " & ! %s-%lu", m->root, (unsigned long)rules[i]);
            if (set >> i++ & 1 && !jsonx_add(all, json_incref(of)))
                status = schema_no_memory(m);
        }
        const json_t *value = set ? schema_own(m, json_pack("{s:O}", "allOf", all)) : more;
        if (status == NIB_OK && !value && set)
            status = schema_no_memory(m);
        if (status == NIB_OK && value)
            status = add_more(m, o, &key, value);
        else
            mem_free(key.data);
        NIB_TRY(status);
    }
    return NIB_OK;
}

static nib_status list_more(schema_maker *m, const json_t *schema, object *o) {
    const json_t *patterns = json_object_get(schema, "patternProperties"),
                 *more = json_object_get(schema, "additionalProperties");
    uint32_t rules[MAX_PATTERNS];
    const char *pattern;
    json_t *of;
    size_t i = 0;
    writer key = {0};
    if (json_object_size(patterns) > MAX_PATTERNS)
        return schema_refuse(m, "'patternProperties': expected at most %d patterns, found more",
                             MAX_PATTERNS);
    json_object_foreach(jsonx_counted(patterns), pattern, of) {
        json_t *test = schema_own(m, json_pack("{s:s, s:s}", "type", "string", "pattern", pattern));
        (void)of;
        if (!test)
            return schema_no_memory(m);
        NIB_TRY(schema_rule(m, test, "patternProperties", &rules[i++]));
    }
    if (i > 0)
        return list_patterns(m, schema, patterns, o, rules);
    if (!more || json_is_false(more))
        return NIB_OK;
    const nib_status status = put_key(m, schema, &key);
    if (status == NIB_OK)
        return add_more(m, o, &key, more);
    mem_free(key.data);
    return status;
}

/* ---- numbers of members ---- */

static bool has_more(const object *o) {
    return o->more.n > 0 || o->more.lost;
}

static nib_status read_counts(schema_maker *m, const json_t *schema, object *o) {
    int64_t min = 0, max = INT64_MAX;
    const int64_t needed = (int64_t)o->n_required;
    NIB_TRY(schema_count(m, schema, "minProperties", &min));
    NIB_TRY(schema_count(m, schema, "maxProperties", &max));
    if (max < NUM_MAX(min, needed))
        return schema_impossible(m,
                                 "'maxProperties': expected at least as many as are required, found fewer");
    if (max == needed) { /* only those */
        size_t n = 0;
        for (size_t i = 0; i < o->n; i++)
            if (o->members[i].required)
                o->members[n++] = o->members[i];
        o->n = n;
        o->more.n = 0;
    }
    const bool optional = o->n > o->n_required;
    if (!has_more(o) && min > (int64_t)o->n)
        return schema_impossible(
            m, "'minProperties': expected at most as many as there are properties, found more");
    if (optional && (min > needed || (max != INT64_MAX && (has_more(o) || max < (int64_t)o->n))))
        return schema_refuse(m, "'%s' beside optional properties is not supported",
                             min > needed ? "minProperties" : "maxProperties");
    if (min > (int64_t)GRAMMAR_MAX_REPEAT)
        return schema_refuse(m, "'minProperties': expected at most %lu, found more",
                             (unsigned long)GRAMMAR_MAX_REPEAT);
    o->min_more = NUM_MAX(min - needed, 0);
    o->max_more = max > (int64_t)GRAMMAR_MAX_REPEAT ? INT64_MAX : max - needed;
    return NIB_OK;
}

/* ---- the object ---- */

static void put_count(writer *w, int64_t min, int64_t max) {
    if (max == INT64_MAX)
        writer_put(w, "{%lld,}", (long long)min);
    else
        writer_put(w, "{%lld,%lld}", (long long)min, (long long)max);
}

/* The rule of additional members. */
static nib_status write_end(schema_maker *m, object *o) {
    writer body = {0};
    const int64_t rest = o->max_more == INT64_MAX ? INT64_MAX : o->max_more - 1;
    if (!has_more(o))
        return NIB_OK;
    o->end = ++m->n_rule;
    const uint32_t one = ++m->n_rule;
    writer_put(&body, "%s-%lu (\",\" %s-ws %s-%lu)", m->root, (unsigned long)one, m->root, m->root,
               (unsigned long)one);
    put_count(&body, o->min_more > 0 ? o->min_more - 1 : 0, rest);
    NIB_TRY(schema_emit(m, o->end, &body));
    return schema_emit(m, one, &o->more);
}

static uint32_t rule_from(const object *o, size_t i) {
    return i < o->n ? o->members[i].from : o->end;
}

/* Whether a member must come at i or later: optional ones come before required ones only. */
static bool must_follow(const object *o, size_t i) {
    for (; i < o->n; i++)
        if (o->members[i].required)
            return true;
    return o->end && o->min_more > 0;
}

/* Writes one member and all that comes after it. */
static void put_member(const schema_maker *m, const object *o, size_t i, bool must, writer *body) {
    const object_member *x = &o->members[i];
    const char *r = m->root;
    put_name(body, x->key);
    writer_put(body, " %s-ws \":\" %s-ws ", r, r);
    if (x->value)
        writer_put(body, "%s-%lu", r, (unsigned long)x->value);
    else
        writer_put(body, "%s-value", r);
    writer_put(body, " %s-ws", r);
    if (rule_from(o, i + 1))
        writer_put(body, must ? " \",\" %s-ws %s-%lu" : " (\",\" %s-ws %s-%lu)?", r, r,
                   (unsigned long)rule_from(o, i + 1));
}

static nib_status write_members(schema_maker *m, object *o) {
    bool must = must_follow(o, o->n);
    size_t n_optional = 0; /* optional members from i on, without a required one between */
    for (size_t i = o->n; i-- > 0;) {
        const object_member *x = &o->members[i];
        writer body = {0};
        n_optional = x->required ? 0 : n_optional + 1;
        const size_t n = i % BLOCK == 0 && n_optional >= BLOCK ? BLOCK : 1;
        for (size_t k = i; k < i + n; k++) {
            writer_put(&body, k > i ? " | " : "");
            put_member(m, o, k, must, &body);
        }
        if (!x->required && rule_from(o, i + n))
            writer_put(&body, " | %s-%lu", m->root, (unsigned long)rule_from(o, i + n));
        NIB_TRY(schema_emit(m, x->from, &body));
        must = must || x->required;
    }
    return NIB_OK;
}

static nib_status write_object(schema_maker *m, object *o, writer *body) {
    const char *r = m->root;
    NIB_TRY(write_end(m, o));
    for (size_t i = 0; i < o->n; i++)
        o->members[i].from = ++m->n_rule;
    NIB_TRY(write_members(m, o));
    writer_put(body, "\"{\" %s-ws ", r);
    if (rule_from(o, 0))
        writer_put(body, must_follow(o, 0) ? "%s-%lu " : "(%s-%lu)? ", r, (unsigned long)rule_from(o, 0));
    writer_put(body, "\"}\"");
    return NIB_OK;
}

nib_status schema_object(schema_maker *m, const json_t *schema, writer *body) {
    static const char *const keywords[] = {"properties",    "required",      "patternProperties",
                                           "propertyNames", "minProperties", "maxProperties"};
    const json_t *more = json_object_get(schema, "additionalProperties");
    bool some = json_is_object(more) || json_is_false(more);
    object o = {0};
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        some = some || json_object_get(schema, keywords[i]);
    if (!some) {
        writer_put(body, "%s-object", m->root);
        return NIB_OK;
    }
    o.members = mem_calloc(json_object_size(json_object_get(schema, "properties")) +
                               json_array_size(json_object_get(schema, "required")) + 1,
                           sizeof *o.members);
    nib_status status = o.members ? list_members(m, schema, &o) : schema_no_memory(m);
    if (status == NIB_OK)
        status = list_more(m, schema, &o);
    if (status == NIB_OK)
        status = read_counts(m, schema, &o);
    if (status == NIB_OK)
        status = write_object(m, &o, body);
    mem_free(o.members);
    mem_free(o.more.data);
    return status;
}

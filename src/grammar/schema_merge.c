/* schema_merge.c - `allOf`: merges several schemas of one value into one schema. Each keyword has a rule for
 * merging two values: the stricter bound, the values that both allow, the members of both. A keyword without
 * a rule (such as two patterns) is refused by name. References are followed. A schema that contains itself
 * would never end, so merges are counted. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <string.h>

enum { MAX_MERGES = 1024, MAX_DEPTH = 32 };

typedef enum merge_kind {
    MERGE_SAME,  /* both must be equal */
    MERGE_FIRST, /* annotations, which restrict nothing */
    MERGE_LARGER,
    MERGE_SMALLER,
    MERGE_TYPES,
    MERGE_VALUES,     /* enum: the values that both have */
    MERGE_NAMES,      /* required: the names of both */
    MERGE_PROPERTIES, /* the properties of both; one that both have must match both schemas */
    MERGE_SCHEMAS     /* the value must match both */
} merge_kind;

static const struct {
    const char *name;
    merge_kind kind;
} keywords[] = {{"title", MERGE_FIRST},
                {"description", MERGE_FIRST},
                {"default", MERGE_FIRST},
                {"examples", MERGE_FIRST},
                {"deprecated", MERGE_FIRST},
                {"readOnly", MERGE_FIRST},
                {"writeOnly", MERGE_FIRST},
                {"$comment", MERGE_FIRST},
                {"$id", MERGE_FIRST},
                {"$schema", MERGE_FIRST},
                {"$anchor", MERGE_FIRST},
                {"$defs", MERGE_FIRST},
                {"definitions", MERGE_FIRST},
                {"minimum", MERGE_LARGER},
                {"exclusiveMinimum", MERGE_LARGER},
                {"minLength", MERGE_LARGER},
                {"minItems", MERGE_LARGER},
                {"maximum", MERGE_SMALLER},
                {"exclusiveMaximum", MERGE_SMALLER},
                {"maxLength", MERGE_SMALLER},
                {"maxItems", MERGE_SMALLER},
                {"type", MERGE_TYPES},
                {"enum", MERGE_VALUES},
                {"required", MERGE_NAMES},
                {"properties", MERGE_PROPERTIES},
                {"items", MERGE_SCHEMAS},
                {"additionalProperties", MERGE_SAME}};

static merge_kind kind_of(const char *name) {
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        if (!strcmp(keywords[i].name, name))
            return keywords[i].kind;
    return MERGE_SAME;
}

static bool holds(const json_t *list, const json_t *value) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (json_equal(one, value))
            return true;
    }
    return false;
}

/* ---- merging two values of one keyword: a new reference; NULL: they contradict each other ---- */

static json_t *values_of_both(const json_t *a, const json_t *b) {
    json_t *out = json_array(), *one;
    size_t i;
    json_array_foreach(a, i, one) {
        if (holds(b, one))
            json_array_append(out, one);
    }
    if (json_array_size(out) > 0)
        return out;
    json_decref(out);
    return NULL;
}

static json_t *names_of_all(const json_t *a, const json_t *b) {
    json_t *out = json_copy(jsonx_counted(a)), *one;
    size_t i;
    json_array_foreach(b, i, one) {
        if (!holds(out, one))
            json_array_append(out, one);
    }
    return out;
}

/* The types that both allow; "number" includes "integer". */
static json_t *types_of_both(const json_t *a, const json_t *b) {
    json_t *left = json_is_array(a) ? json_incref(jsonx_counted(a)) : json_pack("[O]", a),
           *right = json_is_array(b) ? json_incref(jsonx_counted(b)) : json_pack("[O]", b);
    json_t *out = json_array(), *one, *number = json_string("number"), *integer = json_string("integer");
    size_t i;
    json_array_foreach(left, i, one) {
        if (holds(right, one) || (json_equal(one, integer) && holds(right, number)))
            json_array_append(out, one);
        else if (json_equal(one, number) && holds(right, integer))
            json_array_append(out, integer);
    }
    json_decref(left);
    json_decref(right);
    json_decref(number);
    json_decref(integer);
    json_t *only = json_array_size(out) == 1 ? json_incref(json_array_get(out, 0)) : NULL;
    if (!only && json_array_size(out) > 0)
        return out;
    json_decref(out);
    return only;
}

static json_t *schemas_of_both(const json_t *a, const json_t *b) {
    return json_equal(a, b) ? json_incref(jsonx_counted(a)) : json_pack("{s:[O, O]}", "allOf", a, b);
}

static json_t *properties_of_both(const json_t *a, const json_t *b) {
    json_t *out = json_copy(jsonx_counted(a)), *value;
    const char *key;
    json_object_foreach(jsonx_counted(b), key, value) {
        const json_t *have = json_object_get(a, key);
        json_object_set_new(out, key, have ? schemas_of_both(have, value) : json_incref(value));
    }
    return out;
}

static json_t *stricter(const json_t *a, const json_t *b, bool larger) {
    if (!json_is_number(a) || !json_is_number(b))
        return NULL;
    const bool first =
        larger ? json_number_value(a) >= json_number_value(b) : json_number_value(a) <= json_number_value(b);
    return json_incref(jsonx_counted(first ? a : b));
}

static json_t *merge_values(merge_kind kind, const json_t *a, const json_t *b) {
    const bool objects = json_is_object(a) && json_is_object(b),
               arrays = json_is_array(a) && json_is_array(b);
    switch (kind) {
    case MERGE_FIRST: return json_incref(jsonx_counted(a));
    case MERGE_LARGER: return stricter(a, b, true);
    case MERGE_SMALLER: return stricter(a, b, false);
    case MERGE_TYPES: return types_of_both(a, b);
    case MERGE_VALUES: return arrays ? values_of_both(a, b) : NULL;
    case MERGE_NAMES: return arrays ? names_of_all(a, b) : NULL;
    case MERGE_PROPERTIES: return objects ? properties_of_both(a, b) : NULL;
    case MERGE_SCHEMAS: return schemas_of_both(a, b);
    case MERGE_SAME: break;
    }
    return json_equal(a, b) ? json_incref(jsonx_counted(a)) : NULL;
}

/* ---- two schemas ---- */

/* `additionalProperties: false` refers to the schema's own properties, so the other schema must not have
 * further ones. */
static nib_status check_closed(schema_maker *m, const json_t *closed, const json_t *other) {
    const json_t *more = json_object_get(closed, "additionalProperties"),
                 *own = json_object_get(closed, "properties");
    const char *key;
    json_t *value;
    if (!more || json_is_true(more))
        return NIB_OK;
    json_object_foreach(json_object_get(other, "properties"), key, value) {
        (void)value;
        if (!json_object_get(own, key))
            return schema_refuse(
                m,
                "'allOf': 'additionalProperties' of one schema beside the property '%.60s' of "
                "another is not supported",
                key);
    }
    return NIB_OK;
}

/* Merges `from` into `into`. */
static nib_status merge_two(schema_maker *m, json_t *into, const json_t *from) {
    const char *key;
    json_t *value;
    NIB_TRY(check_closed(m, into, from));
    NIB_TRY(check_closed(m, from, into));
    json_object_foreach(jsonx_counted(from), key, value) {
        const json_t *have = json_object_get(into, key);
        json_t *both = have ? merge_values(kind_of(key), have, value) : json_incref(value);
        if (!both)
            return schema_refuse(
                m, "'allOf': expected values of '%.40s' that can be combined, found contradictory ones", key);
        if (json_object_set_new(into, key, both))
            return nib_fail_nomem(m->err, 0, "a schema");
    }
    return NIB_OK;
}

static nib_status add_part(schema_maker *m, json_t *into, const json_t *part, int depth);

/* Merges a schema, with its own `allOf` and `$ref` expanded, into `into`. */
static nib_status add_flat(schema_maker *m, json_t *into, const json_t *part, int depth) {
    const json_t *all = json_object_get(part, "allOf"), *ref = json_object_get(part, "$ref"), *one;
    json_t *rest = json_copy(jsonx_counted(part));
    size_t i;
    nib_status status = rest ? NIB_OK : nib_fail_nomem(m->err, 0, "a schema");
    json_object_del(rest, "allOf");
    json_object_del(rest, "$ref");
    if (status == NIB_OK)
        status = merge_two(m, into, rest);
    json_decref(rest);
    if (status == NIB_OK && all && (!json_is_array(all) || json_array_size(all) == 0))
        status = schema_refuse(m, "'allOf': expected an array of schemas");
    json_array_foreach(all, i, one) {
        if (status == NIB_OK)
            status = add_part(m, into, one, depth + 1);
    }
    if (status != NIB_OK || !ref)
        return status;
    const json_t *to = schema_resolve(m, ref);
    return to ? add_part(m, into, to, depth + 1)
              : schema_refuse(m, "'$ref': '%.80s' is not in the schema",
                              json_is_string(ref) ? json_string_value(ref) : "a value");
}

static nib_status add_part(schema_maker *m, json_t *into, const json_t *part, int depth) {
    if (depth > MAX_DEPTH || ++m->n_merge > MAX_MERGES)
        return schema_refuse(m, "'allOf': expected fewer schemas, and none that contains itself");
    if (json_is_true(part))
        return NIB_OK;
    if (!json_is_object(part))
        return schema_refuse(m, "'allOf': expected schemas");
    return add_flat(m, into, part, depth);
}

nib_status schema_merge(schema_maker *m, const json_t *schema, const json_t **out) {
    json_t *merged = json_object();
    if (!m->made)
        m->made = json_array();
    if (!merged || !m->made || json_array_append_new(m->made, merged))
        return nib_fail_nomem(m->err, 0, "a schema");
    *out = merged;
    return add_part(m, merged, schema, 0);
}

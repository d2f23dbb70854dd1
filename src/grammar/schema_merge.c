/* schema_merge.c - the schema of the values that match several schemas: of `allOf`, or of a keyword beside
 * `$ref`, `anyOf` or `oneOf`. Each keyword has a rule for merging two values: the stricter bound, the values
 * that both allow, the members of both. What cannot be one value (two patterns) is kept side by side: the
 * second one and further ones are in an array under the same name with a blank before it. References are
 * followed. A schema that contains itself would never end, so the work is bounded. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum { MAX_WORK = 1 << 18, MAX_DEPTH = 32, MAX_ALTERNATIVES = 1 << 14 };

typedef enum merge_kind {
    MERGE_FIRST, /* annotations, which restrict nothing */
    MERGE_LARGER,
    MERGE_SMALLER,
    MERGE_EITHER, /* true if one is true */
    MERGE_BESIDE, /* both must hold */
    MERGE_TYPES,
    MERGE_VALUES,       /* enum: the values that both have */
    MERGE_NAMES,        /* required: the names of both */
    MERGE_SCHEMAS,      /* the value must match both */
    MERGE_ALTERNATIVES, /* one of the first and one of the second */
    MERGE_MEMBERS,      /* merged together: an object's members */
    MERGE_ITEMS         /* an array's items */
} merge_kind;

static const struct {
    const char *name;
    merge_kind kind;
} keywords[] = {{"minimum", MERGE_LARGER},
                {"exclusiveMinimum", MERGE_LARGER},
                {"minLength", MERGE_LARGER},
                {"minItems", MERGE_LARGER},
                {"minProperties", MERGE_LARGER},
                {"maximum", MERGE_SMALLER},
                {"exclusiveMaximum", MERGE_SMALLER},
                {"maxLength", MERGE_SMALLER},
                {"maxItems", MERGE_SMALLER},
                {"maxProperties", MERGE_SMALLER},
                {"uniqueItems", MERGE_EITHER},
                {"pattern", MERGE_BESIDE},
                {" pattern", MERGE_BESIDE},
                {"format", MERGE_BESIDE},
                {" format", MERGE_BESIDE},
                {"multipleOf", MERGE_BESIDE},
                {" multipleOf", MERGE_BESIDE},
                {"type", MERGE_TYPES},
                {"enum", MERGE_VALUES},
                {"required", MERGE_NAMES},
                {"propertyNames", MERGE_SCHEMAS},
                {"anyOf", MERGE_ALTERNATIVES},
                {"oneOf", MERGE_ALTERNATIVES},
                {"properties", MERGE_MEMBERS},
                {"patternProperties", MERGE_MEMBERS},
                {"additionalProperties", MERGE_MEMBERS},
                {"items", MERGE_ITEMS},
                {"prefixItems", MERGE_ITEMS}};

static merge_kind kind_of(const char *name) {
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        if (!strcmp(keywords[i].name, name))
            return keywords[i].kind;
    return MERGE_FIRST;
}

static bool holds(const schema_maker *m, const json_t *list, const json_t *value) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (schema_equal(m, one, value))
            return true;
    }
    return false;
}

static json_t *counted(const json_t *value) {
    return json_incref(jsonx_counted(value));
}

/* ---- two values of one keyword: a new reference; NULL: no memory, unless m->impossible is set ---- */

static json_t *if_some(schema_maker *m, json_t *list, bool all_there) {
    m->impossible = all_there && json_array_size(list) == 0;
    return jsonx_whole(list, all_there && !m->impossible);
}

static json_t *values_of_both(schema_maker *m, const json_t *a, const json_t *b) {
    json_t *out = json_array(), *one;
    bool good = out != NULL;
    size_t i;
    json_array_foreach(a, i, one) {
        if (holds(m, b, one))
            good = good && jsonx_add(out, counted(one));
    }
    return if_some(m, out, good);
}

/* The values of both lists, or values, each once. */
static json_t *list_of_both(const schema_maker *m, const json_t *a, const json_t *b) {
    json_t *out = json_array();
    bool good = out != NULL;
    const json_t *const both[] = {a, b};
    for (int k = 0; k < 2; k++) {
        const size_t n = json_is_array(both[k]) ? json_array_size(both[k]) : both[k] != NULL;
        for (size_t i = 0; i < n; i++) {
            const json_t *one = json_is_array(both[k]) ? json_array_get(both[k], i) : both[k];
            if (!holds(m, out, one))
                good = good && jsonx_add(out, counted(one));
        }
    }
    return jsonx_whole(out, good);
}

static bool has_type(const json_t *types, const char *name) {
    const json_t *one;
    size_t i;
    if (json_is_string(types))
        return !strcmp(json_string_value(types), name);
    json_array_foreach(types, i, one) {
        if (!strcmp(json_string_value(one), name))
            return true;
    }
    return false;
}

/* The types that both allow; "number" includes "integer". */
static json_t *types_of_both(schema_maker *m, const json_t *a, const json_t *b) {
    static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    json_t *out = json_array();
    bool good = out != NULL, number = false;
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        const bool integer = !strcmp(names[i], "integer");
        bool in = (has_type(a, names[i]) || (integer && has_type(a, "number"))) &&
                  (has_type(b, names[i]) || (integer && has_type(b, "number")));
        number = number || (in && !strcmp(names[i], "number"));
        if (in && !(integer && number))
            good = good && jsonx_add(out, json_string(names[i]));
    }
    return if_some(m, out, good);
}

static json_t *schemas_of_both(const json_t *a, const json_t *b) {
    if (json_is_false(a) || json_is_true(b) || json_equal(a, b))
        return counted(a);
    return json_is_false(b) || json_is_true(a) ? counted(b) : json_pack("{s:[O, O]}", "allOf", a, b);
}

static json_t *stricter(const schema_maker *m, const json_t *a, const json_t *b, bool larger) {
    decimal x, y;
    if (!decimal_read(schema_number_text(m, a), &x) || !decimal_read(schema_number_text(m, b), &y))
        return NULL;
    const int order = decimal_compare(&x, &y);
    return counted((larger ? order >= 0 : order <= 0) ? a : b);
}

static json_t *alternatives_of_both(const json_t *a, const json_t *b) {
    json_t *out = json_array(), *x, *y;
    bool good = out && json_array_size(a) * json_array_size(b) <= MAX_ALTERNATIVES;
    size_t i, k;
    if (json_equal(a, b)) {
        json_decref(out);
        return counted(a);
    }
    json_array_foreach(a, i, x) {
        json_array_foreach(b, k, y) {
            good = good && jsonx_add(out, schemas_of_both(x, y));
        }
    }
    return jsonx_whole(out, good);
}

static json_t *merge_values(schema_maker *m, merge_kind kind, const json_t *a, const json_t *b) {
    switch (kind) {
    case MERGE_LARGER: return stricter(m, a, b, true);
    case MERGE_SMALLER: return stricter(m, a, b, false);
    case MERGE_EITHER: return json_boolean(json_is_true(a) || json_is_true(b));
    case MERGE_TYPES: return types_of_both(m, a, b);
    case MERGE_VALUES: return values_of_both(m, a, b);
    case MERGE_NAMES: return list_of_both(m, a, b);
    case MERGE_SCHEMAS: return schemas_of_both(a, b);
    case MERGE_ALTERNATIVES: return alternatives_of_both(a, b);
    case MERGE_FIRST:
    case MERGE_BESIDE:
    case MERGE_MEMBERS:
    case MERGE_ITEMS: break;
    }
    return counted(a);
}

/* ---- members and items ---- */

/* Adds to `out` the members of `from`; each must also match what `other` says of it. */
static bool add_members(json_t *out, const json_t *from, const json_t *other) {
    const json_t *more = json_object_get(other, "additionalProperties");
    json_t *properties = json_object_get(other, "properties"), *value;
    const char *key;
    bool good = true;
    json_object_foreach(json_object_get(from, "properties"), key, value) {
        const json_t *same = json_object_get(properties, key), *second = same ? same : more;
        if (!json_object_get(out, key))
            good = good && jsonx_put(out, key, second ? schemas_of_both(value, second) : counted(value));
    }
    return good;
}

/* Merges what `from` says of members into `into`: a property must match both schemas, also as an additional
 * one of the other. */
static nib_status merge_members(schema_maker *m, json_t *into, const json_t *from) {
    const json_t *a = json_object_get(into, "additionalProperties"),
                 *b = json_object_get(from, "additionalProperties");
    const json_t *patterns = json_object_get(into, "patternProperties"),
                 *other = json_object_get(from, "patternProperties");
    const bool has_a = a || patterns || json_object_get(into, "properties"),
               has_b = b || other || json_object_get(from, "properties");
    if (has_a && has_b && (patterns || other))
        return schema_refuse(m,
                             "'patternProperties' beside the properties of another schema is not supported");
    if (!has_b)
        return NIB_OK;
    json_t *both = json_object();
    bool good = both && add_members(both, into, from) && add_members(both, from, into);
    if (a || b)
        good = good &&
               jsonx_put(into, "additionalProperties", a && b ? schemas_of_both(a, b) : counted(a ? a : b));
    if (other)
        good = good && jsonx_put(into, "patternProperties", counted(other));
    if (good && json_object_size(both) > 0)
        good = jsonx_put(into, "properties", both);
    else
        json_decref(both);
    return good ? NIB_OK : schema_no_memory(m);
}

static const json_t *item_at(const json_t *schema, size_t i) {
    const json_t *prefix = json_array_get(json_object_get(schema, "prefixItems"), i);
    return prefix ? prefix : json_object_get(schema, "items");
}

static nib_status merge_items(schema_maker *m, json_t *into, const json_t *from) {
    const size_t n = NUM_MAX(json_array_size(json_object_get(into, "prefixItems")),
                             json_array_size(json_object_get(from, "prefixItems")));
    const json_t *a = json_object_get(into, "items"), *b = json_object_get(from, "items");
    json_t *prefix = json_array();
    bool good = prefix != NULL;
    for (size_t i = 0; i < n; i++) {
        const json_t *x = item_at(into, i), *y = item_at(from, i);
        good = good && jsonx_add(prefix, x && y ? schemas_of_both(x, y) : counted(x ? x : y));
    }
    if (a || b)
        good = good && jsonx_put(into, "items", a && b ? schemas_of_both(a, b) : counted(a ? a : b));
    if (n > 0)
        good = good && jsonx_put(into, "prefixItems", counted(prefix));
    json_decref(prefix);
    return good ? NIB_OK : schema_no_memory(m);
}

/* ---- two schemas ---- */

/* Keeps a further value beside one that cannot be merged with it. */
static nib_status put_beside(schema_maker *m, json_t *into, const char *key, const json_t *value) {
    char name[32];
    snprintf(name, sizeof name, "%s%s", *key == ' ' ? "" : " ", key);
    const json_t *have = json_object_get(into, key), *list = json_object_get(into, name);
    if (!have || schema_equal(m, have, value))
        return jsonx_put(into, key, counted(value)) ? NIB_OK : schema_no_memory(m);
    return jsonx_put(into, name, list_of_both(m, list, value)) ? NIB_OK : schema_no_memory(m);
}

/* Merges one keyword of another schema into `into`. */
static nib_status merge_keyword(schema_maker *m, json_t *into, const char *key, const json_t *value) {
    const json_t *have = json_object_get(into, key);
    const merge_kind kind = kind_of(key);
    if (kind == MERGE_MEMBERS || kind == MERGE_ITEMS)
        return NIB_OK;
    if (kind == MERGE_BESIDE)
        return put_beside(m, into, key, value);
    if (kind == MERGE_ALTERNATIVES && have &&
        json_array_size(have) * json_array_size(value) > MAX_ALTERNATIVES)
        return schema_refuse(m, "'%s': expected at most %d combinations of alternatives, found more", key,
                             MAX_ALTERNATIVES);
    m->impossible = false;
    json_t *both = have ? merge_values(m, kind, have, value) : counted(value);
    if (!both && m->impossible)
        return schema_impossible(
            m, "expected values of '%.40s' that can be combined, found contradictory ones", key);
    return jsonx_put(into, key, both) ? NIB_OK : schema_no_memory(m);
}

/* Merges `from` into `into`. */
static nib_status merge_two(schema_maker *m, json_t *into, const json_t *from) {
    const char *key;
    json_t *value;
    m->n_merge +=
        1 + (int64_t)(json_object_size(from) + json_object_size(json_object_get(from, "properties")) +
                      json_object_size(json_object_get(into, "properties")));
    NIB_TRY(merge_members(m, into, from));
    NIB_TRY(merge_items(m, into, from));
    json_object_foreach(jsonx_counted(from), key, value) {
        NIB_TRY(merge_keyword(m, into, key, value));
    }
    return NIB_OK;
}

static nib_status add_part(schema_maker *m, json_t *into, const json_t *part, int depth);

/* The schema without the keywords that are followed, and `const` as `enum`. */
static nib_status flat_copy(schema_maker *m, const json_t *part, bool whole, json_t **out) {
    static const char *const unevaluated[] = {"unevaluatedProperties", "unevaluatedItems"},
                             *const followed[] = {"allOf", "$ref", "const"};
    const json_t *value = json_object_get(part, "const");
    json_t *rest = json_copy(jsonx_counted(part)), *one = value ? json_pack("[O]", value) : NULL;
    nib_status status = rest && (!value || one) ? NIB_OK : schema_no_memory(m);
    for (size_t i = 0; i < NUM_COUNT(unevaluated) && whole; i++)
        json_object_del(rest, unevaluated[i]);
    if (status == NIB_OK)
        status = schema_check(m, rest);
    for (size_t i = 0; i < NUM_COUNT(followed); i++)
        json_object_del(rest, followed[i]);
    if (status == NIB_OK && one && json_object_get(rest, "enum") &&
        !holds(m, json_object_get(rest, "enum"), value))
        status = schema_impossible(m, "expected values of 'enum' and 'const' that can be combined");
    if (status == NIB_OK && one && json_object_set(rest, "enum", one))
        status = schema_no_memory(m);
    json_decref(one);
    *out = jsonx_whole(rest, status == NIB_OK);
    return status;
}

/* Merges a schema, with its own `allOf` and `$ref` expanded, into `into`. */
static nib_status add_flat(schema_maker *m, json_t *into, const json_t *part, int depth) {
    const json_t *ref = json_object_get(part, "$ref"), *one;
    json_t *rest = NULL;
    size_t i;
    NIB_TRY(flat_copy(m, part, depth == 0, &rest));
    nib_status status = merge_two(m, into, rest);
    json_decref(rest);
    json_array_foreach(json_object_get(part, "allOf"), i, one) {
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
    if (depth > MAX_DEPTH || m->n_merge > MAX_WORK)
        return schema_refuse(m, "expected fewer schemas that must all match, and none that contains itself");
    if (json_is_true(part))
        return NIB_OK;
    if (json_is_false(part))
        return schema_impossible(m, "expected a schema that some value matches, found false");
    if (!json_is_object(part))
        return schema_refuse(m, "expected a schema, found another value");
    NIB_TRY(schema_expand(m, part, &part));
    return add_flat(m, into, part, depth);
}

/* What no part of a merged schema describes is refused by `unevaluated...: false` beside the parts. */
static nib_status close_merged(schema_maker *m, json_t *merged, const json_t *schema, const char *unevaluated,
                               const char *rest) {
    if (!json_is_false(json_object_get(schema, unevaluated)) || json_object_get(merged, rest))
        return NIB_OK;
    if (json_object_get(merged, "anyOf") || json_object_get(merged, "oneOf"))
        return schema_refuse(m, "'%s' beside 'anyOf' or 'oneOf' is not supported", unevaluated);
    return jsonx_put(merged, rest, json_false()) ? NIB_OK : schema_no_memory(m);
}

nib_status schema_merge(schema_maker *m, const json_t *schema, const json_t **out) {
    json_t *merged = schema_own(m, json_object());
    if (!merged)
        return schema_no_memory(m);
    *out = merged;
    NIB_TRY(add_part(m, merged, schema, 0));
    NIB_TRY(close_merged(m, merged, schema, "unevaluatedProperties", "additionalProperties"));
    return close_merged(m, merged, schema, "unevaluatedItems", "items");
}

nib_status schema_both(schema_maker *m, const json_t *a, const json_t *b, const json_t **out) {
    json_t *both = schema_own(m, json_pack("{s:[O, O]}", "allOf", a, b));
    return both ? schema_merge(m, both, out) : schema_no_memory(m);
}

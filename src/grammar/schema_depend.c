/* schema_depend.c - members that ask for more: `dependentRequired`, `dependentSchemas`, the `dependencies` of
 * older drafts, and `if` where it compares one member with values. Each is a choice, which is merged with the
 * other keywords: the member is absent, or it is there and more must hold; the condition holds, or the member
 * has another of its values. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <string.h>

static const struct {
    const char *name;
    bool names, schemas; /* what its values may be */
} keywords[] = {
    {"dependentRequired", true, false}, {"dependentSchemas", false, true}, {"dependencies", true, true}};

static bool are_names(const json_t *list) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (!json_is_string(one))
            return false;
    }
    return json_is_array(list);
}

/* NULL: no memory. */
static json_t *choice(const char *name, const json_t *more) {
    json_t *holds =
        json_is_array(more) ? json_pack("{s:O}", "required", more) : json_incref(jsonx_counted(more));
    return json_pack("{s:[{s:{s:b}}, {s:[{s:[s]}, o]}]}", "anyOf", "properties", name, 0, "allOf", "required",
                     name, holds);
}

static nib_status add_choices(schema_maker *m, const json_t *schema, size_t keyword, json_t *all) {
    json_t *members = json_object_get(schema, keywords[keyword].name), *more;
    const bool names = keywords[keyword].names, schemas = keywords[keyword].schemas;
    const char *name;
    bool good = !members || json_is_object(members);
    json_object_foreach(members, name, more) {
        good = good &&
               ((names && are_names(more)) || (schemas && (json_is_object(more) || json_is_boolean(more))));
        if (good && !jsonx_add(all, choice(name, more)))
            return schema_no_memory(m);
    }
    return good ? NIB_OK
                : schema_refuse(m, "'%s': expected an object of %s", keywords[keyword].name,
                                !schemas ? "arrays of names"
                                : names  ? "arrays of names, or schemas"
                                         : "schemas");
}

/* ---- if ---- */

/* What a property may be other than the values that match `is`; NULL: it does not list its values. */
static json_t *other_values(const schema_maker *m, const json_t *own, const json_t *is) {
    const char *type = json_string_value(json_object_get(own, "type"));
    const json_t *only = json_object_get(is, "const"), *list = json_object_get(is, "enum"), *all, *one;
    json_t *out;
    size_t i;
    if (!schema_is_alone(is, only ? "const" : "enum") || (!only && !json_is_array(list)))
        return NULL;
    all = json_object_get(own, "enum");
    out = json_is_array(all)                 ? json_copy(jsonx_counted(all))
          : type && !strcmp(type, "boolean") ? json_pack("[b, b]", 1, 0)
                                             : NULL;
    for (size_t k = json_array_size(out); k-- > 0;) {
        bool in = only && schema_equal(m, json_array_get(out, k), only);
        json_array_foreach(list, i, one) {
            in = in || (!only && schema_equal(m, json_array_get(out, k), one));
        }
        if (in)
            json_array_remove(out, k);
    }
    return out;
}

/* The member that a condition compares, alone; it matches too if it is absent, unless it is required. */
static const char *compared(const json_t *condition, bool *required) {
    json_t *members = json_object_get(condition, "properties"),
           *names = json_object_get(condition, "required");
    const char *name = json_object_iter_key(json_object_iter(members));
    json_t *rest = json_copy(jsonx_counted(condition));
    json_object_del(rest, "required");
    const bool alone = json_object_size(members) == 1 && rest && schema_is_alone(rest, "properties");
    json_decref(rest);
    *required = names != NULL;
    if (names && (json_array_size(names) != 1 || !are_names(names) ||
                  strcmp(json_string_value(json_array_get(names, 0)), name ? name : "") != 0))
        return NULL;
    return alone ? name : NULL;
}

/* The schema of what does not match the condition; *none: nothing does. NULL: no memory. */
static json_t *negated(const char *name, json_t *others, bool required, bool *none) {
    json_t *list = json_array();
    bool good = list != NULL;
    if (json_array_size(others) > 0)
        good = good && jsonx_add(list, json_pack("{s:{s:{s:O}}, s:[s]}", "properties", name, "enum", others,
                                                 "required", name));
    if (required)
        good = good && jsonx_add(list, json_pack("{s:{s:b}}", "properties", name, 0));
    *none = good && json_array_size(list) == 0;
    return good && !*none ? json_pack("{s:o}", "anyOf", list) : (json_decref(list), NULL);
}

/* Adds the choice between `then` and `else` to `all`, and removes them from the schema. A condition whose
 * opposite cannot be described stays, and is refused. */
static nib_status add_condition(schema_maker *m, json_t *schema, json_t *all) {
    static const char *const names[] = {"if", "then", "else"};
    json_t *part[3];
    bool required, none, good;
    for (size_t i = 0; i < NUM_COUNT(names); i++)
        part[i] = json_object_get(schema, names[i]);
    const char *name = part[1] || part[2] ? compared(part[0], &required) : NULL;
    json_t *others = name ? other_values(m, json_object_get(json_object_get(schema, "properties"), name),
                                         json_object_get(json_object_get(part[0], "properties"), name))
                          : NULL;
    if (!others)
        return NIB_OK;
    json_t *holds = json_pack("{s:[O, O*]}", "allOf", part[0], part[1]),
           *opposite = negated(name, others, required, &none);
    if (none)
        good = jsonx_add(all, json_incref(holds));
    else
        good = jsonx_add(all, json_pack("{s:[O, {s:[O, O*]}]}", "anyOf", holds, "allOf", opposite, part[2]));
    json_decref(holds);
    json_decref(opposite);
    json_decref(others);
    for (size_t i = 0; i < NUM_COUNT(names); i++)
        json_object_del(schema, names[i]);
    return good ? NIB_OK : schema_no_memory(m);
}

/* ---- all ---- */

nib_status schema_expand(schema_maker *m, const json_t *schema, const json_t **out) {
    const json_t *own = json_object_get(schema, "allOf");
    bool some = json_object_get(schema, "if") != NULL;
    *out = schema;
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        some = some || json_object_get(schema, keywords[i].name);
    if (!some)
        return NIB_OK;
    if (own && !json_is_array(own))
        return schema_refuse(m, "'allOf': expected an array of schemas");
    json_t *whole = schema_own(m, json_copy(jsonx_counted(schema))), *all = json_array();
    nib_status status =
        whole && all && (!own || !json_array_extend(all, jsonx_counted(own))) ? NIB_OK : schema_no_memory(m);
    for (size_t i = 0; i < NUM_COUNT(keywords) && status == NIB_OK; i++) {
        status = add_choices(m, schema, i, all);
        json_object_del(whole, keywords[i].name);
    }
    if (status == NIB_OK)
        status = add_condition(m, whole, all);
    if (status == NIB_OK && json_array_size(all) > 0 && json_object_set(whole, "allOf", all))
        status = schema_no_memory(m);
    json_decref(all);
    *out = whole;
    return status;
}

/* schema_depend.c - members that ask for more: `dependentRequired`, `dependentSchemas`, and the
 * `dependencies` of older drafts. Each is a choice, which is merged with the other keywords: the member is
 * absent, or it is there and more must hold. */
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

nib_status schema_expand(schema_maker *m, const json_t *schema, const json_t **out) {
    const json_t *own = json_object_get(schema, "allOf");
    bool some = false;
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
    if (status == NIB_OK && json_array_size(all) > 0 && json_object_set(whole, "allOf", all))
        status = schema_no_memory(m);
    json_decref(all);
    *out = whole;
    return status;
}

/* schema_array.c - arrays of a schema: the first items may have schemas of their own, each in a rule with all
 * that comes after it; further ones are counted. */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>

typedef struct array {
    const json_t *prefix;
    int64_t n, min, max; /* items of the prefix; of all */
    bool more;           /* further items are allowed */
} array;

/* Writes the items from i on, at least one; those after it are in the rule `next`. */
static void put_from(const schema_maker *m, const array *a, int64_t i, uint32_t item, uint32_t next,
                     writer *body) {
    const char *r = m->root;
    if (item)
        writer_put(body, "%s-%lu %s-ws", r, (unsigned long)item, r);
    else
        writer_put(body, "%s-value %s-ws", r, r);
    if (i < a->n) {
        if (next)
            writer_put(body, i + 1 < a->min ? " \",\" %s-ws %s-%lu" : " (\",\" %s-ws %s-%lu)?", r, r,
                       (unsigned long)next);
        return;
    }
    const int64_t least = NUM_MAX(a->min - i - 1, 0), most = a->max - i - 1;
    writer_put(body, " (\",\" %s-ws ", r);
    if (item)
        writer_put(body, "%s-%lu", r, (unsigned long)item);
    else
        writer_put(body, "%s-value", r);
    if (a->max > (int64_t)GRAMMAR_MAX_REPEAT) /* no answer is longer */
        writer_put(body, " %s-ws){%lld,}", r, (long long)least);
    else
        writer_put(body, " %s-ws){%lld,%lld}", r, (long long)least, (long long)most);
}

/* The rules of the items' values. Where nothing matches, the array ends. */
static nib_status list_items(schema_maker *m, const json_t *schema, array *a, uint32_t *rules) {
    const json_t *items = json_object_get(schema, "items");
    for (int64_t i = 0; i <= a->n; i++) {
        const json_t *of = i < a->n ? json_array_get(a->prefix, (size_t)i) : items;
        char member[48];
        if (i == a->n && (!a->more || !items || a->max <= i))
            continue;
        snprintf(member, sizeof member, i < a->n ? "prefixItems/%lld" : "items", (long long)i);
        const nib_status status = schema_rule(m, of, member, &rules[i]);
        if (status == NIB_E_USAGE && m->impossible) {
            m->impossible = false;
            a->max = NUM_MIN(a->max, i);
            a->more = false;
            break;
        }
        NIB_TRY(status);
    }
    return NIB_OK;
}

static nib_status write_array(schema_maker *m, const json_t *schema, array *a, uint32_t *rules,
                              writer *body) {
    uint32_t next = 0;
    NIB_TRY(list_items(m, schema, a, rules));
    if (!a->more)
        a->max = NUM_MIN(a->max, a->n);
    if (a->max < a->min)
        return schema_impossible(
            m, "expected 'maxItems', and items that can be, of at least 'minItems', found less");
    if (json_is_true(json_object_get(schema, "uniqueItems")) && a->max > 1)
        return schema_refuse(m, "'uniqueItems' is not supported");
    for (int64_t i = NUM_MIN(a->n, a->max - 1); i >= 0; i--) {
        writer one = {0};
        put_from(m, a, i, rules[i], next, &one);
        next = ++m->n_rule;
        NIB_TRY(schema_emit(m, next, &one));
    }
    writer_put(body, "\"[\" %s-ws ", m->root);
    if (next)
        writer_put(body, a->min > 0 ? "%s-%lu " : "(%s-%lu)? ", m->root, (unsigned long)next);
    writer_put(body, "\"]\"");
    return NIB_OK;
}

nib_status schema_array(schema_maker *m, const json_t *schema, writer *body) {
    const json_t *items = json_object_get(schema, "items");
    array a = {.prefix = json_object_get(schema, "prefixItems"), .max = INT64_MAX};
    a.n = (int64_t)json_array_size(a.prefix);
    /* as members, items that the schema does not describe are not written after those that it does */
    a.more = a.n > 0 ? items && !json_is_false(items) : !json_is_false(items);
    NIB_TRY(schema_count(m, schema, "minItems", &a.min));
    NIB_TRY(schema_count(m, schema, "maxItems", &a.max));
    if (a.min > (int64_t)GRAMMAR_MAX_REPEAT)
        return schema_refuse(m, "'minItems': expected at most %lu, found more",
                             (unsigned long)GRAMMAR_MAX_REPEAT);
    uint32_t *rules = mem_calloc((size_t)a.n + 1, sizeof *rules);
    const nib_status status = rules ? write_array(m, schema, &a, rules, body) : schema_no_memory(m);
    mem_free(rules);
    return status;
}

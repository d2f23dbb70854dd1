/* schema_string.c - strings of a schema: each restriction is an expression for the characters between the
 * quotation marks, and all of them must match. */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

/* Adds an expression, which is freed, to those that must match. */
static void restrict_by(writer *all, writer *one) {
    writer_put(all, "%s(%s)", all->n ? " & " : "", one->data ? one->data : "\"\"");
    writer_lose(all, one->lost);
    mem_free(one->data);
    *one = (writer){0};
}

/* The values of a keyword, which are several after a merge. */
static nib_status restrict_by_each(schema_maker *m, const json_t *values, bool pattern, writer *all) {
    const json_t *one = values;
    for (size_t i = 0; i < (json_is_array(values) ? json_array_size(values) : values != NULL); i++) {
        writer body = {0};
        nib_status status = NIB_OK;
        if (json_is_array(values))
            one = json_array_get(values, i);
        if (pattern)
            status = schema_pattern(m, one, &body);
        if (status == NIB_OK &&
            (pattern || (json_is_string(one) && schema_format(m, json_string_value(one), &body))))
            restrict_by(all, &body);
        mem_free(body.data);
        NIB_TRY(status);
    }
    return NIB_OK;
}

nib_status schema_string(schema_maker *m, const json_t *schema, writer *body) {
    int64_t min = 0, max = INT64_MAX;
    writer all = {0}, length = {0};
    NIB_TRY(schema_count(m, schema, "minLength", &min));
    NIB_TRY(schema_count(m, schema, "maxLength", &max));
    if (max < min)
        return schema_impossible(m, "expected 'maxLength' of at least 'minLength', found less");
    if (min > (int64_t)GRAMMAR_MAX_REPEAT)
        return schema_refuse(m, "'minLength': expected at most %lu, found more",
                             (unsigned long)GRAMMAR_MAX_REPEAT);
    static const char *const keywords[] = {"pattern", " pattern", "format", " format"}; /* schema_merge.c */
    nib_status status = NIB_OK;
    for (size_t i = 0; i < NUM_COUNT(keywords) && status == NIB_OK; i++)
        status = restrict_by_each(m, json_object_get(schema, keywords[i]), i < 2, &all);
    if (max <= (int64_t)GRAMMAR_MAX_REPEAT)
        writer_put(&length, "%s-char{%lld,%lld}", m->root, (long long)min, (long long)max);
    else if (min > 0) /* no answer is longer */
        writer_put(&length, "%s-char{%lld,}", m->root, (long long)min);
    if (length.n || length.lost)
        restrict_by(&all, &length);
    if (all.n || all.lost)
        writer_put(body, "\"\\\"\" (%s) \"\\\"\"", all.data ? all.data : "");
    else
        writer_put(body, "%s-string", m->root);
    writer_lose(body, all.lost);
    mem_free(all.data);
    return status;
}

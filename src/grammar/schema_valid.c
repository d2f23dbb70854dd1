/* schema_valid.c - whether a value matches a schema: for the values of `enum` and `const` beside other
 * keywords. Strings are read by the grammar of their restrictions, so that patterns and formats mean the same
 * here and there. */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "grammar/automaton.h"

#include <string.h>

enum { MAX_DEPTH = 128 };

struct schema_matcher {
    const json_t *of;
    pda p;
    automaton m;
    bool none; /* nothing matches */
};

/* ---- equality ---- */

bool schema_equal(const schema_maker *m, const json_t *a, const json_t *b) {
    const char *x = schema_number_text(m, a), *y = schema_number_text(m, b), *key;
    decimal left, right;
    json_t *one;
    size_t i;
    bool same = json_typeof(a) == json_typeof(b);
    if (x && y && decimal_read(x, &left) && decimal_read(y, &right))
        return decimal_compare(&left, &right) == 0;
    if (!same || !(json_is_array(a) || json_is_object(a)))
        return same && json_equal(a, b);
    same = json_is_array(a) ? json_array_size(a) == json_array_size(b)
                            : json_object_size(a) == json_object_size(b);
    json_array_foreach(a, i, one) {
        same = same && schema_equal(m, one, json_array_get(b, i));
    }
    json_object_foreach(jsonx_counted(a), key, one) {
        const json_t *other = json_object_get(b, key);
        same = same && other && schema_equal(m, one, other);
    }
    return same;
}

/* ---- the grammar of a schema's strings or numbers ---- */

void schema_matcher_free(struct schema_matcher *x) {
    if (!x)
        return;
    automaton_close(&x->m);
    pda_clear(&x->p);
    mem_free(x);
}

static nib_status write_grammar(schema_maker *m, const json_t *schema, const char *type, writer *out) {
    schema_maker inner = {.whole = m->whole, .numbers = m->numbers, .root = "root", .err = m->err};
    writer body = {0};
    memcpy(inner.path, m->path, sizeof inner.path);
    schema_put_common(&inner);
    const nib_status status = !strcmp(type, "string") ? schema_string(&inner, schema, &body)
                                                      : schema_number(&inner, schema, *type == 'i', &body);
    writer_put(&inner.out, "root ::= %s\n", body.data ? body.data : "");
    writer_lose(&inner.out, body.lost);
    mem_free(body.data);
    m->impossible = inner.impossible;
    *out = inner.out;
    inner.out = (writer){0};
    schema_clear(&inner);
    return status == NIB_OK ? schema_whole(m, out) : status;
}

static nib_status make_matcher(schema_maker *m, const json_t *schema, const char *type,
                               struct schema_matcher **out) {
    enum { BYTES = 8 << 20 };
    writer text = {0};
    struct schema_matcher *x = mem_calloc(1, sizeof *x);
    if (!x)
        return schema_no_memory(m);
    nib_status status = write_grammar(m, schema, type, &text);
    if (status == NIB_OK)
        status = pda_parse(text.data, text.n, &x->p, m->err);
    if (status == NIB_OK) {
        x->of = schema;
        status = automaton_open(&x->m, &x->p, BYTES, m->err);
        x->none = x->m.start == AUTOMATON_DEAD || (status == NIB_OK && *type == 's' &&
                                                   automaton_step(&x->m, x->m.start, '"') == AUTOMATON_DEAD);
        status = x->none ? NIB_OK : status;
    }
    mem_free(text.data);
    if (status == NIB_OK)
        *out = x;
    else
        schema_matcher_free(x);
    return status;
}

nib_status schema_check_some(schema_maker *m, const json_t *schema, const char *type) {
    struct schema_matcher *x = NULL;
    NIB_TRY(make_matcher(m, schema, type, &x));
    const bool none = x && x->none;
    schema_matcher_free(x);
    return none ? schema_impossible(m, "expected restrictions that some %s matches, found contradictory ones",
                                    type)
                : NIB_OK;
}

/* The JSON of a string as the grammars of patterns write it. */
static nib_status read_string(schema_maker *m, struct schema_matcher *x, const json_t *value, bool *out) {
    char *text = jsonx_text(value, JSON_ENCODE_ANY);
    uint32_t s = x->m.start;
    if (!text)
        return schema_no_memory(m);
    for (const char *c = text; *c && s != AUTOMATON_DEAD && s != AUTOMATON_FAILED; c++) {
        const char *bytes = *c == 0x7f ? "\\u007f" : (char[]){*c, 0};
        for (; *bytes && s != AUTOMATON_DEAD && s != AUTOMATON_FAILED; bytes++) {
            x->m.work_left = AUTOMATON_WORK;
            s = automaton_step(&x->m, s, (uint8_t)*bytes);
        }
    }
    mem_free(text);
    if (s == AUTOMATON_FAILED)
        return schema_refuse(m, "a value's comparison with 'pattern' %s", automaton_why(x->m.failure));
    *out = x->m.states[s].ends;
    return NIB_OK;
}

static nib_status valid_string(schema_maker *m, const json_t *schema, const json_t *value, bool *out) {
    static const char *const keywords[] = {"minLength", "maxLength", "pattern", "format"};
    bool some = false;
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        some = some || json_object_get(schema, keywords[i]);
    if (!some)
        return NIB_OK;
    if (!m->matcher || m->matcher->of != schema) {
        schema_matcher_free(m->matcher);
        m->matcher = NULL;
        const nib_status status = make_matcher(m, schema, "string", &m->matcher);
        if (status == NIB_E_USAGE && m->impossible) {
            m->impossible = *out = false;
            return NIB_OK;
        }
        NIB_TRY(status);
    }
    *out = false;
    return m->matcher->none ? NIB_OK : read_string(m, m->matcher, value, out);
}

/* ---- the other types ---- */

static nib_status valid(schema_maker *m, const json_t *schema, const json_t *value, int depth, bool *out);

static bool has_type(const schema_maker *m, const char *type, const json_t *value) {
    const char *number = schema_number_text(m, value);
    decimal d;
    return !strcmp(type, "number")    ? number != NULL
           : !strcmp(type, "integer") ? number && decimal_read(number, &d) && decimal_is_whole(&d)
           : !strcmp(type, "string")  ? json_is_string(value)
           : !strcmp(type, "object")  ? json_is_object(value)
           : !strcmp(type, "array")   ? json_is_array(value)
           : !strcmp(type, "boolean") ? json_is_boolean(value)
                                      : !strcmp(type, "null") && json_is_null(value);
}

static bool valid_type(const schema_maker *m, const json_t *types, const json_t *value) {
    const json_t *one;
    size_t i;
    if (json_is_string(types))
        return has_type(m, json_string_value(types), value);
    json_array_foreach(types, i, one) {
        if (has_type(m, json_string_value(one), value))
            return true;
    }
    return !types;
}

static nib_status valid_number(schema_maker *m, const json_t *schema, const decimal *x, bool *out) {
    static const struct {
        const char *name;
        int sign;
        bool equal;
    } bounds[] = {{"minimum", 1, true},
                  {"exclusiveMinimum", 1, false},
                  {"maximum", -1, true},
                  {"exclusiveMaximum", -1, false}};
    for (size_t i = 0; i < NUM_COUNT(bounds); i++)
        if (json_object_get(schema, bounds[i].name)) {
            decimal d;
            NIB_TRY(schema_decimal(m, schema, bounds[i].name, &d));
            const int order = decimal_compare(x, &d) * bounds[i].sign;
            *out = *out && (order > 0 || (order == 0 && bounds[i].equal));
        }
    return json_object_get(schema, "multipleOf")
               ? schema_refuse(m, "'multipleOf' beside 'enum' or 'const' is not supported")
               : NIB_OK;
}

static nib_status valid_size(schema_maker *m, const json_t *schema, const char *least, const char *most,
                             size_t n, bool *out) {
    int64_t min = 0, max = INT64_MAX;
    NIB_TRY(schema_count(m, schema, least, &min));
    NIB_TRY(schema_count(m, schema, most, &max));
    *out = *out && (int64_t)n >= min && (int64_t)n <= max;
    return NIB_OK;
}

static nib_status valid_array(schema_maker *m, const json_t *schema, const json_t *value, int depth,
                              bool *out) {
    const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items"),
                 *one;
    const bool unique = json_is_true(json_object_get(schema, "uniqueItems"));
    size_t i;
    NIB_TRY(valid_size(m, schema, "minItems", "maxItems", json_array_size(value), out));
    json_array_foreach(value, i, one) {
        const json_t *of = i < json_array_size(prefix) ? json_array_get(prefix, i) : items;
        if (of && *out)
            NIB_TRY(valid(m, of, one, depth, out));
        for (size_t k = 0; k < i && unique; k++)
            *out = *out && !schema_equal(m, one, json_array_get(value, k));
    }
    return NIB_OK;
}

static nib_status valid_member(schema_maker *m, const json_t *schema, const char *key, const json_t *value,
                               int depth, bool *out) {
    const json_t *own = json_object_get(json_object_get(schema, "properties"), key),
                 *more = json_object_get(schema, "additionalProperties"),
                 *names = json_object_get(schema, "propertyNames");
    if (json_object_size(json_object_get(schema, "patternProperties")) > 0)
        return schema_refuse(m, "'patternProperties' beside 'enum' or 'const' is not supported");
    if (own || more)
        NIB_TRY(valid(m, own ? own : more, value, depth, out));
    if (names && *out) {
        json_t *name = schema_own(m, json_string(key));
        return name ? valid(m, names, name, depth, out) : schema_no_memory(m);
    }
    return NIB_OK;
}

static nib_status valid_object(schema_maker *m, const json_t *schema, const json_t *value, int depth,
                               bool *out) {
    const json_t *name;
    const char *key;
    json_t *one;
    size_t i;
    NIB_TRY(valid_size(m, schema, "minProperties", "maxProperties", json_object_size(value), out));
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        *out = *out && json_object_get(value, json_string_value(name));
    }
    json_object_foreach(jsonx_counted(value), key, one) {
        if (*out)
            NIB_TRY(valid_member(m, schema, key, one, depth, out));
    }
    return NIB_OK;
}

/* ---- schemas of schemas ---- */

/* The number of schemas in a list that match. */
static nib_status count_valid(schema_maker *m, const json_t *list, const json_t *value, int depth,
                              size_t *n) {
    const json_t *one;
    size_t i;
    *n = 0;
    json_array_foreach(list, i, one) {
        bool good = true;
        NIB_TRY(valid(m, one, value, depth, &good));
        *n += good;
    }
    return NIB_OK;
}

static nib_status valid_lists(schema_maker *m, const json_t *schema, const json_t *value, int depth,
                              bool *out) {
    static const char *const names[] = {"allOf", "anyOf", "oneOf"};
    for (size_t i = 0; i < NUM_COUNT(names) && *out; i++) {
        const json_t *list = json_object_get(schema, names[i]);
        size_t n;
        NIB_TRY(count_valid(m, list, value, depth, &n));
        *out = !list || (i == 0 ? n == json_array_size(list) : i == 1 ? n > 0 : n == 1);
    }
    return NIB_OK;
}

static nib_status valid_value(schema_maker *m, const json_t *schema, const json_t *value, bool *out) {
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum"), *one;
    bool listed = !list;
    size_t i;
    json_array_foreach(list, i, one) {
        listed = listed || one == value || schema_equal(m, one, value);
    }
    *out = *out && listed && (!only || schema_equal(m, only, value)) &&
           valid_type(m, json_object_get(schema, "type"), value);
    return NIB_OK;
}

/* Sets *out to false if the value does not match; leaves it otherwise. */
static nib_status valid(schema_maker *m, const json_t *schema, const json_t *value, int depth, bool *out) {
    NIB_TRY(schema_expand(m, schema, &schema));
    const json_t *ref = json_object_get(schema, "$ref"), *to = ref ? schema_resolve(m, ref) : NULL;
    const char *number = schema_number_text(m, value);
    decimal x;
    if (json_is_boolean(schema)) {
        *out = *out && json_is_true(schema);
        return NIB_OK;
    }
    if (depth > MAX_DEPTH || (ref && !to))
        return schema_refuse(m, "'$ref': expected a target within the schema that does not contain itself");
    NIB_TRY(schema_check(m, schema));
    NIB_TRY(valid_value(m, schema, value, out));
    if (*out && to)
        NIB_TRY(valid(m, to, value, depth + 1, out));
    if (*out)
        NIB_TRY(valid_lists(m, schema, value, depth + 1, out));
    if (!*out)
        return NIB_OK;
    if (number)
        return decimal_read(number, &x)
                   ? valid_number(m, schema, &x, out)
                   : schema_refuse(m, "expected a number of at most %d digits, found more", DECIMAL_DIGITS);
    return json_is_string(value)   ? valid_string(m, schema, value, out)
           : json_is_array(value)  ? valid_array(m, schema, value, depth + 1, out)
           : json_is_object(value) ? valid_object(m, schema, value, depth + 1, out)
                                   : NIB_OK;
}

nib_status schema_valid(schema_maker *m, const json_t *schema, const json_t *value, bool *out) {
    *out = true;
    return valid(m, schema, value, 0, out);
}

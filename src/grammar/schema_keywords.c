/* schema_keywords.c - the keywords of a schema: which of them restrict values, which are refused, and how
 * numbers and references are read. All other members are annotations. */
#include "grammar/schema_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

typedef enum shape {
    ANY,
    OBJECT,
    NAMES,
    SCHEMA,
    SCHEMAS,
    SCHEMA_MAP,
    TEXT,
    NUMBER,
    COUNT,
    VALUES,
    BOOLEAN,
    TYPES
} shape;

static const char *const shapes[] = {[OBJECT] = "an object",
                                     [NAMES] = "an array of names",
                                     [SCHEMA] = "a schema",
                                     [SCHEMAS] = "an array of schemas",
                                     [SCHEMA_MAP] = "an object of schemas",
                                     [TEXT] = "a text",
                                     [NUMBER] = "a number",
                                     [COUNT] = "a whole number",
                                     [VALUES] = "an array of values",
                                     [BOOLEAN] = "true or false",
                                     [TYPES] = "a name, or an array of names"};

/* The keywords that restrict values. */
static const struct {
    const char *name;
    shape is;
} keywords[] = {{"$ref", TEXT},
                {"type", TYPES},
                {"enum", VALUES},
                {"const", ANY},
                {"allOf", SCHEMAS},
                {"anyOf", SCHEMAS},
                {"oneOf", SCHEMAS},
                {"properties", SCHEMA_MAP},
                {"patternProperties", SCHEMA_MAP},
                {"additionalProperties", SCHEMA},
                {"propertyNames", SCHEMA},
                {"required", NAMES},
                {"minProperties", COUNT},
                {"maxProperties", COUNT},
                {"items", SCHEMA},
                {"prefixItems", SCHEMAS},
                {"minItems", COUNT},
                {"maxItems", COUNT},
                {"uniqueItems", BOOLEAN},
                {"minLength", COUNT},
                {"maxLength", COUNT},
                {"pattern", TEXT},
                {"format", TEXT},
                {"minimum", NUMBER},
                {"maximum", NUMBER},
                {"exclusiveMinimum", NUMBER},
                {"exclusiveMaximum", NUMBER},
                {"multipleOf", NUMBER}};

/* Keywords that are refused, unless they restrict nothing. */
static const char *const refused[] = {
    "not", "if", "contains", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$recursiveRef"};

static bool is_schema(const json_t *v) {
    return json_is_boolean(v) || json_is_object(v);
}

static bool are(const json_t *list, bool names) {
    const json_t *one;
    size_t i;
    json_array_foreach(list, i, one) {
        if (names ? !json_is_string(one) : !is_schema(one))
            return false;
    }
    return json_is_array(list);
}

static bool has_shape(const schema_maker *m, const json_t *v, shape is) {
    const char *number = schema_number_text(m, v), *key;
    decimal d;
    int64_t n;
    json_t *one;
    switch (is) {
    case ANY: return true;
    case OBJECT: return json_is_object(v);
    case NAMES: return are(v, true);
    case SCHEMA: return is_schema(v);
    case SCHEMAS: return are(v, false) && json_array_size(v) > 0;
    case SCHEMA_MAP:
        json_object_foreach(jsonx_counted(v), key, one) {
            if (!is_schema(one))
                return false;
        }
        return json_is_object(v);
    case TEXT: return json_is_string(v);
    case NUMBER: return number != NULL;
    case COUNT: return number && decimal_read(number, &d) && decimal_count(&d, &n);
    case VALUES: return json_is_array(v) && json_array_size(v) > 0;
    case BOOLEAN: return json_is_boolean(v);
    case TYPES: return json_is_string(v) || (are(v, true) && json_array_size(v) > 0);
    }
    return false;
}

/* Whether one of these keywords restricts nothing here. */
static bool says_nothing(const json_t *schema, const char *name, const json_t *v) {
    if (!strcmp(name, "if"))
        return !json_object_get(schema, "then") && !json_object_get(schema, "else");
    if (!strcmp(name, "not"))
        return json_is_false(v);
    return json_is_true(v) && strcmp(name, "contains") != 0;
}

nib_status schema_check(schema_maker *m, const json_t *schema) {
    for (size_t i = 0; i < NUM_COUNT(refused); i++) {
        const json_t *v = json_object_get(schema, refused[i]);
        if (v && !says_nothing(schema, refused[i], v))
            return schema_refuse(m, "'%s' is not supported", refused[i]);
    }
    for (size_t i = 0; i < NUM_COUNT(keywords); i++) {
        const json_t *v = json_object_get(schema, keywords[i].name);
        if (v && !has_shape(m, v, keywords[i].is))
            return schema_refuse(m, "'%s': expected %s", keywords[i].name, shapes[keywords[i].is]);
    }
    return NIB_OK;
}

bool schema_is_alone(const json_t *schema, const char *keyword) {
    for (size_t i = 0; i < NUM_COUNT(keywords); i++)
        if (strcmp(keywords[i].name, keyword) != 0 && json_object_get(schema, keywords[i].name))
            return false;
    return true;
}

/* ---- numbers ---- */

const char *schema_number_text(const schema_maker *m, const json_t *value) {
    return json_is_integer(value)
               ? json_string_value(json_array_get(m->numbers, (size_t)json_integer_value(value)))
               : NULL;
}

nib_status schema_decimal(schema_maker *m, const json_t *schema, const char *keyword, decimal *out) {
    const char *text = schema_number_text(m, json_object_get(schema, keyword));
    if (!text)
        return schema_refuse(m, "'%s': expected a number", keyword);
    if (!decimal_read(text, out))
        return schema_refuse(m, "'%s': expected a number of at most %d digits, found more", keyword,
                             DECIMAL_DIGITS);
    return NIB_OK;
}

nib_status schema_count(schema_maker *m, const json_t *schema, const char *keyword, int64_t *out) {
    decimal d;
    if (!json_object_get(schema, keyword))
        return NIB_OK;
    NIB_TRY(schema_decimal(m, schema, keyword, &d));
    return decimal_count(&d, out) ? NIB_OK : schema_refuse(m, "'%s': expected a whole number", keyword);
}

/* ---- references ---- */

/* Decodes %HH in place; false: not a valid fragment. */
static bool percent_decode(char *text) {
    char *to = text;
    for (const char *at = text; *at; at++) {
        if (*at != '%') {
            *to++ = *at;
            continue;
        }
        const int64_t byte = num_hex(at + 1, 2);
        if (byte <= 0)
            return false;
        *to++ = (char)byte;
        at += 2;
    }
    *to = 0;
    return true;
}

/* Cuts the next part off a JSON pointer, and decodes ~0 and ~1 in it. */
static char *next_part(char **pointer) {
    char *part = *pointer, *to = part, *at = part;
    for (; *at && *at != '/'; at++) {
        *to = *at;
        if (*at == '~' && (at[1] == '0' || at[1] == '1'))
            *to = *++at == '0' ? '~' : '/';
        to++;
    }
    *pointer = *at ? at + 1 : NULL;
    *to = 0;
    return part;
}

static const json_t *element(const json_t *list, const char *index) {
    size_t i = 0;
    const size_t n = strspn(index, "0123456789");
    if (n == 0 || n > 9 || index[n] || (n > 1 && *index == '0'))
        return NULL;
    for (; *index; index++)
        i = i * 10 + (size_t)(*index - '0');
    return json_array_get(list, i);
}

const json_t *schema_resolve(const schema_maker *m, const json_t *ref) {
    const char *text = json_string_value(ref);
    const json_t *at = m->whole;
    if (!text || *text != '#' || (text[1] && text[1] != '/'))
        return NULL;
    char *copy = mem_strdup(text + 1), *pointer = copy;
    if (!copy || !percent_decode(copy))
        at = NULL;
    pointer = copy && *copy ? copy + 1 : NULL;
    while (at && pointer) {
        const char *part = next_part(&pointer);
        at = json_is_array(at) ? element(at, part) : json_object_get(at, part);
    }
    mem_free(copy);
    return at;
}

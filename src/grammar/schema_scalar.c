/* schema_scalar.c - strings and numbers of a schema. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- strings ---- */

#define DATE                                                                                                 \
    "[1-9] [0-9]{3} \"-\" ((\"0\" [13578] | \"1\" [02]) \"-\" (\"0\" [1-9] | [12] [0-9] | \"3\" [01]) | "    \
    "(\"0\" "                                                                                                \
    "[469] | \"11\") \"-\" (\"0\" [1-9] | [12] [0-9] | \"30\") | \"02-\" (\"0\" [1-9] | \"1\" [0-9] | "      \
    "\"2\" "                                                                                                 \
    "[0-8]))"
#define CLOCK "([01] [0-9] | \"2\" [0-3]) \":\" [0-5] [0-9]"
#define TIME  CLOCK " \":\" [0-5] [0-9] (\".\" [0-9]{1,6})? (\"Z\" | [-+] " CLOCK ")"
#define OCTET "(\"25\" [0-5] | \"2\" [0-4] [0-9] | \"1\" [0-9] [0-9] | [1-9]? [0-9])"
#define LABEL "[a-z0-9] ([a-z0-9-]{0,20} [a-z0-9])?"

static const struct {
    const char *name, *body;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE " \"T\" " TIME},
    {"uuid", "[0-9a-f]{8} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{4} \"-\" [0-9a-f]{12}"},
    {"ipv4", OCTET " \".\" " OCTET " \".\" " OCTET " \".\" " OCTET},
    {"email", "[a-z0-9] ([a-z0-9._-]{0,30} [a-z0-9])? \"@\" (" LABEL " \".\"){1,3} [a-z]{2,10}"},
};

nib_status schema_string(schema_maker *m, const json_t *schema, writer *body) {
    const json_t *format = json_object_get(schema, "format");
    int64_t min = 0, max = -1;
    NIB_TRY(schema_count(m, schema, "minLength", &min));
    NIB_TRY(schema_count(m, schema, "maxLength", &max));
    if (max >= 0 && max < min)
        return schema_refuse(m, "expected 'maxLength' of at least 'minLength', found less");
    const bool counted = min > 0 || max >= 0;
    const json_t *pattern = json_object_get(schema, "pattern");
    if (pattern && (format || counted))
        return schema_refuse(m, "'pattern' beside '%s' is not supported", format ? "format" : "a length");
    if (pattern)
        return schema_pattern(m, pattern, body);
    if (format && counted)
        return schema_refuse(m, "'format' beside a length is not supported");
    for (size_t i = 0; json_is_string(format) && i < NUM_COUNT(formats); i++)
        if (!strcmp(json_string_value(format), formats[i].name)) {
            writer_put(body, "\"\\\"\" %s \"\\\"\"", formats[i].body);
            return NIB_OK;
        }
    if (format)
        return schema_refuse(m,
                             "'format': expected date, time, date-time, uuid, ipv4 or email, found '%.40s'",
                             json_is_string(format) ? json_string_value(format) : "a value");
    if (!counted)
        writer_put(body, "%s-string", m->root);
    else if (max < 0)
        writer_put(body, "\"\\\"\" %s-char{%lld,} \"\\\"\"", m->root, (long long)min);
    else
        writer_put(body, "\"\\\"\" %s-char{%lld,%lld} \"\\\"\"", m->root, (long long)min, (long long)max);
    return NIB_OK;
}

/* ---- numbers ---- */

enum { DIGITS = 16 };
static const int64_t MAX_WHOLE = INT64_C(9999999999999999); /* DIGITS nines */

static void put_digits(writer *body, int lo, int hi, size_t n) {
    if (n > 0)
        writer_put(body, lo == hi ? "\"%d\"" : "[%d-%d]", lo, hi);
    if (n > 1)
        writer_put(body, " [0-9]{%zu}", n - 1);
}

static bool all(const char *digits, char c) {
    return strspn(digits, (char[]){c, 0}) == strlen(digits);
}

/* Writes the integers from a to b, which have the same number of digits. */
static void put_same_length(writer *body, const char *a, const char *b) {
    const size_t n = strlen(a);
    if (n == 0)
        return;
    if (*a == *b) {
        writer_put(body, "\"%c\"", *a);
        if (n > 1) {
            writer_put(body, " (");
            put_same_length(body, a + 1, b + 1);
            writer_put(body, ")");
        }
        return;
    }
    char lo = *a, hi = *b;
    bool some = false;
    if (!all(a + 1, '0')) {
        char nines[DIGITS + 1] = "9999999999999999";
        nines[n - 1] = 0;
        writer_put(body, "\"%c\" (", lo++);
        put_same_length(body, a + 1, nines);
        writer_put(body, ")");
        some = true;
    }
    const bool cut = !all(b + 1, '9');
    hi -= cut;
    if (lo <= hi) {
        writer_put(body, some ? " | " : "");
        put_digits(body, lo - '0', hi - '0', n);
        some = true;
    }
    if (!cut)
        return;
    char zeros[DIGITS + 1] = "0000000000000000";
    zeros[n - 1] = 0;
    writer_put(body, "%s\"%c\" (", some ? " | " : "", *b);
    put_same_length(body, zeros, b + 1);
    writer_put(body, ")");
}

/* Writes the integers lo..hi, 0 <= lo. */
void schema_put_range(writer *body, int64_t lo, int64_t hi) {
    for (bool first = true; lo <= hi; first = false) {
        char a[24], b[24];
        int64_t end = 9;
        while (end < lo)
            end = end * 10 + 9;
        end = NUM_MIN(end, hi);
        snprintf(a, sizeof a, "%lld", (long long)lo);
        snprintf(b, sizeof b, "%lld", (long long)end);
        writer_put(body, first ? "" : " | ");
        put_same_length(body, a, b);
        lo = end + 1;
    }
}

/* Reads a bound as an integer: rounded inwards, and moved inwards if it is excluded. */
static nib_status read_bound(schema_maker *m, const json_t *schema, const char *keyword, bool lowest,
                             bool excluded, int64_t *bound) {
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return NIB_OK;
    if (!json_is_number(v))
        return schema_refuse(m, "'%s': expected a number", keyword);
    const double x = json_number_value(v), whole = lowest ? ceil(x) : floor(x);
    int64_t n = !(fabs(x) < (double)MAX_WHOLE) ? (x < 0 ? -MAX_WHOLE : MAX_WHOLE)
                : json_is_integer(v)           ? json_integer_value(v)
                                               : (int64_t)whole;
    if (excluded && whole == x)
        n += lowest ? 1 : -1;
    *bound = lowest ? NUM_MAX(*bound, n) : NUM_MIN(*bound, n);
    return NIB_OK;
}

static nib_status put_integer(schema_maker *m, const json_t *schema, writer *body) {
    int64_t lo = -MAX_WHOLE, hi = MAX_WHOLE;
    NIB_TRY(read_bound(m, schema, "minimum", true, false, &lo));
    NIB_TRY(read_bound(m, schema, "exclusiveMinimum", true, true, &lo));
    NIB_TRY(read_bound(m, schema, "maximum", false, false, &hi));
    NIB_TRY(read_bound(m, schema, "exclusiveMaximum", false, true, &hi));
    if (lo > hi)
        return schema_refuse(m, "expected bounds with an integer between them, found none");
    if (lo < 0) {
        writer_put(body, "\"-\" (");
        schema_put_range(body, hi < 0 ? -hi : 1, -lo);
        writer_put(body, ")%s", hi < 0 ? "" : " | ");
    }
    if (hi >= 0)
        schema_put_range(body, NUM_MAX(lo, 0), hi);
    return NIB_OK;
}

nib_status schema_number(schema_maker *m, const json_t *schema, bool integer, writer *body) {
    static const char *const bounds[] = {"maximum", "exclusiveMinimum", "exclusiveMaximum"};
    const json_t *min = json_object_get(schema, "minimum");
    const bool from_zero = json_is_number(min) && json_number_value(min) == 0;
    bool above = false; /* a bound other than a minimum exists */
    for (size_t i = 0; i < NUM_COUNT(bounds); i++)
        above = above || json_object_get(schema, bounds[i]);
    if (integer && (min || above))
        return put_integer(m, schema, body);
    if (above || (min && !from_zero))
        return schema_decimal(m, schema, body);
    if (min)
        writer_put(body, "(\"0\" | [1-9] [0-9]{0,15}) (\".\" [0-9]{1,16})? ([eE] [-+]? [0-9]{1,2})?");
    else
        writer_put(body, "%s-%s", m->root, integer ? "integer" : "number");
    return NIB_OK;
}

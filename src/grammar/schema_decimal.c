/* schema_decimal.c - numbers between two bounds with fractions, as decimals without an exponent. A bound is
 * split at its decimal point. A number with the bound's integer part is above the bound if its fraction is
 * larger when compared digit by digit: an equal digit and a larger rest, or a larger digit and any rest. */
#include "grammar/schema_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIGITS = 16 };
static const double MAX_WHOLE = 9999999999999999.0;

/* A bound without its sign. The fraction has no trailing zeros. */
typedef struct bound {
    int64_t whole;
    char rest[DIGITS + 1];
    bool excluded;
} bound;

static const char ANY[] = "[0-9]{0,15}";

static void put_digits(writer *body, int lo, int hi) {
    if (lo == hi)
        writer_put(body, "\"%d\"", lo);
    else
        writer_put(body, "[%d-%d]", lo, hi);
}

/* Writes the fractions that are at least f (excluded: above f). */
static void put_above(writer *body, const char *f, bool excluded) {
    if (!*f && excluded)
        writer_put(body, "\"0\"{0,14} [1-9] %s", ANY);
    else if (!*f)
        writer_put(body, "%s", ANY);
    if (!*f)
        return;
    const int d = *f - '0';
    writer_put(body, "(\"%d\" (", d);
    put_above(body, f + 1, excluded);
    writer_put(body, ")");
    if (d < 9) {
        writer_put(body, " | ");
        put_digits(body, d + 1, 9);
        writer_put(body, " %s", ANY);
    }
    writer_put(body, ")");
}

/* Writes the fractions that are at most f (excluded: below f); f is not empty. first: at least one digit. */
static void put_below(writer *body, const char *f, bool excluded, bool first) {
    const int d = *f - '0';
    bool some = false;
    writer_put(body, "(");
    if (d > 0) {
        put_digits(body, 0, d - 1);
        writer_put(body, " %s", ANY);
        some = true;
    }
    if (f[1] || !excluded) {
        writer_put(body, "%s\"%d\" ", some ? " | " : "", d);
        if (f[1])
            put_below(body, f + 1, excluded, false);
        else
            writer_put(body, "\"0\"{0,14}");
    }
    writer_put(body, first ? ")" : ")?");
}

/* Writes the fractions from a to b, with a below b; neither has trailing zeros. */
static void put_between(writer *body, const char *a, const char *b, bool a_out, bool b_out) {
    const int lo = *a ? *a - '0' : 0, hi = *b - '0';
    if (lo == hi) {
        const char *left = *a ? a + 1 : a;
        writer_put(body, "\"%d\" (", lo);
        put_between(body, left, b + 1, a_out, b_out);
        writer_put(body, *left || a_out ? ")" : ")?"); /* a number that ends here equals a */
        return;
    }
    writer_put(body, "(\"%d\" (", lo);
    put_above(body, *a ? a + 1 : a, a_out);
    writer_put(body, ")");
    if (lo + 1 < hi) {
        writer_put(body, " | ");
        put_digits(body, lo + 1, hi - 1);
        writer_put(body, " %s", ANY);
    }
    if (b[1] || !b_out) {
        writer_put(body, " | \"%d\" ", hi);
        if (b[1])
            put_below(body, b + 1, b_out, false);
        else
            writer_put(body, "\"0\"{0,14}");
    }
    writer_put(body, ")");
}

/* Writes the numbers from lo on that have lo's integer part. */
static void put_from(writer *body, const bound *lo) {
    writer_put(body, "\"%lld\" ", (long long)lo->whole);
    if (!*lo->rest && !lo->excluded) {
        writer_put(body, "(\".\" [0-9]{1,16})?");
        return;
    }
    writer_put(body, "\".\" (");
    put_above(body, lo->rest, lo->excluded);
    writer_put(body, ")");
}

/* Writes the numbers up to hi that have hi's integer part. */
static void put_up_to(writer *body, const bound *hi) {
    writer_put(body, "\"%lld\" ", (long long)hi->whole);
    if (!*hi->rest) {
        writer_put(body, "(\".\" \"0\"{1,16})?");
        return;
    }
    writer_put(body, "(\".\" ");
    put_below(body, hi->rest, hi->excluded, true);
    writer_put(body, ")?");
}

static int compare(const bound *a, const bound *b) {
    return a->whole < b->whole ? -1 : a->whole > b->whole ? 1 : strcmp(a->rest, b->rest);
}

/* Writes the numbers between two bounds without signs; false: there are none. */
static bool put_range(writer *body, const bound *lo, const bound *hi) {
    const int order = compare(lo, hi);
    if (order > 0 || (order == 0 && (lo->excluded || hi->excluded)))
        return false;
    if (order == 0) {
        writer_put(body, "\"%lld\" ", (long long)lo->whole);
        writer_put(body, *lo->rest ? "\".%s\" \"0\"{0,%d}" : "(\".%s\" \"0\"{1,%d})?", lo->rest,
                   DIGITS - (int)strlen(lo->rest));
        return true;
    }
    if (lo->whole == hi->whole) {
        const bool itself = !*lo->rest && !lo->excluded;
        writer_put(body, "\"%lld\" %s\".\" (", (long long)lo->whole, itself ? "(" : "");
        put_between(body, lo->rest, hi->rest, lo->excluded, hi->excluded);
        writer_put(body, itself ? "))?" : ")");
        return true;
    }
    put_from(body, lo);
    if (hi->whole - lo->whole > 1) {
        writer_put(body, " | (");
        schema_put_range(body, lo->whole + 1, hi->whole - 1);
        writer_put(body, ") (\".\" [0-9]{1,16})?");
    }
    if (*hi->rest || !hi->excluded) {
        writer_put(body, " | ");
        put_up_to(body, hi);
    }
    return true;
}

/* ---- reading ---- */

/* Splits the shortest decimal that equals x. */
static bool split(double x, bound *out) {
    char text[64];
    for (int digits = 0; digits <= DIGITS; digits++) {
        snprintf(text, sizeof text, "%.*f", digits, x);
        if (strtod(text, NULL) == x)
            break;
        if (digits == DIGITS)
            return false;
    }
    char *point = strchr(text, '.');
    out->whole = (int64_t)strtoll(text, NULL, 10);
    snprintf(out->rest, sizeof out->rest, "%s", point ? point + 1 : "");
    return true;
}

typedef struct limit {
    double x;
    bool excluded;
} limit;

static nib_status read_limit(schema_maker *m, const json_t *schema, const char *keyword, bool lowest,
                             bool excluded, limit *l) {
    const json_t *v = json_object_get(schema, keyword);
    if (!v)
        return NIB_OK;
    if (!json_is_number(v))
        return schema_refuse(m, "'%s': expected a number", keyword);
    const double x = json_number_value(v);
    if (x == l->x)
        l->excluded = l->excluded || excluded;
    else if (lowest ? x > l->x : x < l->x)
        *l = (limit){x, excluded};
    return NIB_OK;
}

/* Writes the numbers between two limits of the same sign. */
static nib_status put_side(schema_maker *m, limit lo, limit hi, const char *sign, bool *some, writer *body) {
    bound a = {.excluded = lo.excluded}, b = {.excluded = hi.excluded};
    const size_t before = body->n;
    if (!split(lo.x, &a) || !split(hi.x, &b))
        return schema_refuse(
            m, "bounds of numbers with more than %d digits after the point are not supported", DIGITS);
    writer_put(body, "%s%s(", *some ? " | " : "", sign);
    if (put_range(body, &a, &b)) {
        writer_put(body, ")");
        *some = true;
    } else if (body->data) {
        body->n = before;
        body->data[before] = '\0';
    }
    return NIB_OK;
}

nib_status schema_decimal(schema_maker *m, const json_t *schema, writer *body) {
    limit lo = {-MAX_WHOLE, false}, hi = {MAX_WHOLE, false};
    bool some = false;
    NIB_TRY(read_limit(m, schema, "minimum", true, false, &lo));
    NIB_TRY(read_limit(m, schema, "exclusiveMinimum", true, true, &lo));
    NIB_TRY(read_limit(m, schema, "maximum", false, false, &hi));
    NIB_TRY(read_limit(m, schema, "exclusiveMaximum", false, true, &hi));
    writer_put(body, "(");
    if (lo.x < 0 && hi.x >= -MAX_WHOLE) {
        const limit zero = {0, false}, near = hi.x < 0 ? (limit){-hi.x, hi.excluded} : zero;
        const bool no_zero = hi.x == 0 && hi.excluded;
        NIB_TRY(put_side(m, no_zero ? (limit){0, true} : near, (limit){-lo.x, lo.excluded}, "\"-\" ", &some,
                         body));
    }
    if (hi.x >= 0 && lo.x <= MAX_WHOLE)
        NIB_TRY(put_side(m, lo.x < 0 ? (limit){0, false} : lo, hi, "", &some, body));
    writer_put(body, ")");
    return some ? NIB_OK : schema_refuse(m, "expected bounds with a number between them, found none");
}

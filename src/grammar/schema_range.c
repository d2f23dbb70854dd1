/* schema_range.c - numbers of a schema: with bounds, and multiples. A bound becomes alternatives for the
 * place at which a number first differs from it: more digits before the point, or a larger digit after the
 * bound's first ones. Bounds are compared as decimal digits, so they are exact at any size. A lower and an
 * upper bound are two expressions that both must match. */
#include "grammar/schema_parts.h"

#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum {
    WHOLE = 20,    /* digits before the point: all integers of 64 bits */
    FRACTION = 16, /* and after it, unless a bound has more */
    MOST = 400     /* of a bound; the largest double has 309 */
};

/* A bound without its sign. */
typedef struct bound {
    char whole[MOST + 1], rest[MOST + 1];
    bool excluded;
} bound;

typedef struct limits {
    bool has[2]; /* lower, upper */
    decimal at[2];
    bool excluded[2];
} limits;

typedef struct number_form {
    bool integer;
    int whole, fraction; /* maximum digits */
    bool some;           /* an alternative was written */
    writer *body;
} number_form;

static void begin(number_form *f) {
    writer_put(f->body, f->some ? " | " : "");
    f->some = true;
}

static void put_fraction(const number_form *f) {
    if (!f->integer)
        writer_put(f->body, " (\".\" [0-9]{1,%d})?", f->fraction);
}

static void put_any(const number_form *f) {
    writer_put(f->body, "(\"0\" | [1-9] [0-9]{0,%d})", f->whole - 1);
    put_fraction(f);
}

/* Writes the alternative: n digits of `text`, one from lo to hi, and then `more`. */
static void put_step(number_form *f, const char *before, const char *text, size_t n, char lo, char hi) {
    begin(f);
    writer_put(f->body, "\"%s%.*s\" [%c-%c]", before, (int)n, text, lo, hi);
}

static void put_positive_rest(const number_form *f) {
    writer_put(f->body, " \"0\"{0,%d} [1-9] [0-9]{0,%d}", f->fraction - 1, f->fraction - 1);
}

/* Writes the numbers from b on. */
static void put_at_least(number_form *f, const bound *b) {
    const size_t n = strlen(b->whole), n_rest = strlen(b->rest);
    const bool itself = !b->excluded && !(f->integer && n_rest);
    char before[MOST + 2];
    if ((int)n < f->whole) {
        begin(f);
        writer_put(f->body, "[1-9] [0-9]{%zu,%d}", n, f->whole - 1);
        put_fraction(f);
    }
    for (size_t i = 0; i < n; i++)
        if (b->whole[i] < '9') {
            put_step(f, "", b->whole, i, (char)(b->whole[i] + 1), '9');
            writer_put(f->body, " [0-9]{%zu}", n - i - 1);
            put_fraction(f);
        }
    snprintf(before, sizeof before, "%s.", b->whole);
    for (size_t i = 0; i < n_rest && !f->integer; i++)
        if (b->rest[i] < '9') {
            put_step(f, before, b->rest, i, (char)(b->rest[i] + 1), '9');
            writer_put(f->body, " [0-9]{0,%d}", f->fraction);
        }
    if (f->integer && !itself)
        return;
    begin(f);
    writer_put(f->body, "\"%s%s%s\"", b->whole, n_rest && !f->integer ? "." : "", f->integer ? "" : b->rest);
    if (!itself && n_rest)
        put_positive_rest(f);
    else if (!itself) {
        writer_put(f->body, " \".\"");
        put_positive_rest(f);
    } else if (n_rest && !f->integer)
        writer_put(f->body, " [0-9]{0,%d}", f->fraction);
    else
        put_fraction(f);
}

/* Writes the numbers up to b. */
static void put_at_most(number_form *f, const bound *b) {
    const size_t n = strlen(b->whole), n_rest = strlen(b->rest);
    char before[MOST + 2];
    if (n > 1) {
        begin(f);
        writer_put(f->body, "(\"0\" | [1-9] [0-9]{0,%zu})", n - 2);
        put_fraction(f);
    }
    for (size_t i = 0; i < n; i++) {
        const char least = i == 0 && n > 1 ? '1' : '0';
        if (b->whole[i] > least) {
            put_step(f, "", b->whole, i, least, (char)(b->whole[i] - 1));
            writer_put(f->body, " [0-9]{%zu}", n - i - 1);
            put_fraction(f);
        }
    }
    if (!b->excluded || n_rest) {
        begin(f);
        writer_put(f->body, "\"%s\"", b->whole);
        if (!f->integer)
            writer_put(f->body, " (\".\" \"0\"{1,%d})?", f->fraction);
    }
    snprintf(before, sizeof before, "%s.", b->whole);
    for (size_t i = 0; i < n_rest && !f->integer; i++) {
        if (b->rest[i] > '0') {
            put_step(f, before, b->rest, i, '0', (char)(b->rest[i] - 1));
            writer_put(f->body, " [0-9]{0,%d}", f->fraction);
        }
        if (i + 1 == n_rest && b->excluded)
            continue;
        begin(f);
        writer_put(f->body, "\"%s%.*s\"", before, (int)i + 1, b->rest);
        if (i + 1 == n_rest)
            writer_put(f->body, " \"0\"{0,%d}", f->fraction);
    }
}

/* ---- reading ---- */

static int64_t whole_digits(const decimal *d) {
    return d->point > 1 ? d->point : 1;
}

static int64_t rest_digits(const decimal *d) {
    return decimal_is_whole(d) ? 0 : (int64_t)d->n - d->point;
}

static void split(const decimal *d, bool excluded, bound *out) {
    size_t w = 0, r = 0;
    for (int64_t i = 0; i < d->point; i++)
        out->whole[w++] = (size_t)i < d->n ? d->digits[i] : '0';
    if (w == 0)
        out->whole[w++] = '0';
    for (int64_t i = NUM_MIN(d->point, 0); i < (int64_t)d->n; i++)
        if (i >= d->point)
            out->rest[r++] = i < 0 ? '0' : d->digits[i];
    out->whole[w] = out->rest[r] = 0;
    out->excluded = excluded;
}

static nib_status read_limit(schema_maker *m, const json_t *schema, const char *keyword, int side,
                             bool excluded, limits *l) {
    decimal d;
    if (!json_object_get(schema, keyword))
        return NIB_OK;
    NIB_TRY(schema_decimal(m, schema, keyword, &d));
    if (rest_digits(&d) > MOST)
        return schema_refuse(m, "'%s': expected a bound of at most %d digits after the point, found more",
                             keyword, MOST);
    if (whole_digits(&d) > MOST) {
        if (d.negative == (side == 0))
            return NIB_OK; /* beyond all numbers that are written */
        return schema_refuse(m, "'%s': expected a bound of at most %d digits before the point, found more",
                             keyword, MOST);
    }
    const int order = l->has[side] ? decimal_compare(&d, &l->at[side]) : 0;
    if (!l->has[side] || (side == 0 ? order > 0 : order < 0)) {
        l->has[side] = true;
        l->at[side] = d;
        l->excluded[side] = excluded;
    } else if (order == 0) {
        l->excluded[side] = l->excluded[side] || excluded;
    }
    return NIB_OK;
}

static nib_status read_limits(schema_maker *m, const json_t *schema, limits *l) {
    NIB_TRY(read_limit(m, schema, "minimum", 0, false, l));
    NIB_TRY(read_limit(m, schema, "exclusiveMinimum", 0, true, l));
    NIB_TRY(read_limit(m, schema, "maximum", 1, false, l));
    return read_limit(m, schema, "exclusiveMaximum", 1, true, l);
}

/* Writes the numbers on one side of a limit: 0 from it on, 1 up to it. */
static void put_side(number_form *f, const limits *l, int side) {
    const decimal *d = &l->at[side];
    const bool below_zero = d->negative || (side == 1 && d->n == 0 && l->excluded[1]);
    bound b = {.excluded = false};
    split(d, l->excluded[side], &b);
    f->some = false;
    writer_put(f->body, "(");
    if (side == 0 && !below_zero) {
        put_at_least(f, &b);
    } else if (side == 0) {
        put_any(f);
        writer_put(f->body, " | \"-\" (");
        put_at_most(f, &b);
        writer_put(f->body, ")");
    } else if (below_zero) {
        writer_put(f->body, "\"-\" (");
        put_at_least(f, &b);
        writer_put(f->body, ")");
    } else {
        put_at_most(f, &b);
        writer_put(f->body, " | \"-\" ");
        put_any(f);
    }
    writer_put(f->body, ")");
}

nib_status schema_number(schema_maker *m, const json_t *schema, bool integer, writer *body) {
    limits l = {0};
    number_form f = {.integer = integer, .whole = WHOLE, .fraction = FRACTION, .body = body};
    const json_t *multiple = json_object_get(schema, "multipleOf"), *one;
    size_t i;
    NIB_TRY(read_limits(m, schema, &l));
    for (int side = 0; side < 2; side++)
        if (l.has[side]) {
            /* numbers beyond the bound exist, so one without the other allows a digit more */
            f.whole = (int)NUM_MAX(f.whole, whole_digits(&l.at[side]) + !l.has[!side]);
            f.fraction = (int)NUM_MAX(f.fraction, rest_digits(&l.at[side]));
        }
    const bool from_zero = l.has[0] && l.at[0].n == 0 && !l.excluded[0] && !l.has[1];
    if (!multiple && !integer && from_zero) {
        put_any(&f);
        writer_put(body, " ([eE] [-+]? [0-9]{1,2})?");
        return NIB_OK;
    }
    if (!multiple && !l.has[0] && !l.has[1]) {
        writer_put(body, "%s-%s", m->root, integer ? "integer" : "number");
        return NIB_OK;
    }
    writer_put(body, "(");
    for (int side = 0; side < 2; side++)
        if (l.has[side]) {
            writer_put(body, side == 1 && l.has[0] ? " & " : "");
            put_side(&f, &l, side);
        }
    if (!l.has[0] && !l.has[1]) {
        writer_put(body, "\"-\"? ");
        put_any(&f);
    }
    if (multiple) {
        writer_put(body, " & ");
        NIB_TRY(schema_multiple(m, multiple, integer, body));
    }
    json_array_foreach(json_object_get(schema, " multipleOf"), i, one) { /* schema_merge.c */
        writer_put(body, " & ");
        NIB_TRY(schema_multiple(m, one, integer, body));
    }
    writer_put(body, ")");
    return NIB_OK;
}

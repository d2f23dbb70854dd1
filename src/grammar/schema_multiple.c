/* schema_multiple.c - `multipleOf`: numbers are read digit by digit, and a rule stands for the remainder of
 * the digits so far. With a divisor of f digits after the point, the number that is divided has f digits
 * there too, of which a text may omit trailing zeros. */
#include "grammar/schema_parts.h"

#include <string.h>

enum { MOST_RULES = 1024 };

typedef struct divisor {
    uint32_t n;     /* all its digits */
    int fraction;   /* digits after the point */
    uint32_t first; /* rule of remainder 0 before the point; then the others, and those after the point */
    bool integer;
} divisor;

static uint32_t rule_of(const divisor *d, int place, uint32_t remainder) {
    return d->first + (uint32_t)place * d->n + remainder;
}

static void put_digits(const schema_maker *m, const divisor *d, int place, uint32_t remainder, writer *body) {
    for (uint32_t digit = 0; digit < 10; digit++)
        writer_put(body, "\"%lu\" %s-%lu | ", (unsigned long)digit, m->root,
                   (unsigned long)rule_of(d, place, (remainder * 10 + digit) % d->n));
}

/* Writes the rule for the text after `place` digits behind the point (0: before it). */
static nib_status write_remainder(schema_maker *m, const divisor *d, int place, uint32_t remainder) {
    writer body = {0};
    uint64_t scaled = remainder;
    for (int i = place; i < d->fraction; i++)
        scaled = scaled * 10 % d->n;
    if (place == 0)
        put_digits(m, d, 0, remainder, &body);
    if (d->fraction > 0 && place < d->fraction) {
        writer_put(&body, place == 0 ? "\".\" (" : "");
        put_digits(m, d, place + 1, remainder, &body);
        writer_put(&body, place == 0 ? "[]) | " : "");
    }
    if (scaled == 0 && place == d->fraction && !d->integer)
        writer_put(&body, place == 0 ? "(\".\" \"0\"+)?" : "\"0\"*");
    else
        writer_put(&body, scaled == 0 ? "\"\"" : "[]");
    return schema_emit(m, rule_of(d, place, remainder), &body);
}

nib_status schema_multiple(schema_maker *m, const json_t *value, bool integer, writer *body) {
    const char *text = schema_number_text(m, value);
    divisor d = {.n = 0, .integer = integer};
    decimal x;
    int64_t whole = 0;
    if (!text || !decimal_read(text, &x) || x.negative || x.n == 0)
        return schema_refuse(m, "'multipleOf': expected a number above 0");
    const int64_t fraction = decimal_is_whole(&x) ? 0 : (int64_t)x.n - x.point;
    x.point += fraction;
    decimal_count(&x, &whole);
    if (fraction >= MOST_RULES || whole > MOST_RULES / (fraction + 1))
        return schema_refuse(m,
                             "'multipleOf': expected at most %d for the number's digits, multiplied by its "
                             "digits after the point + 1, found more (%.40s)",
                             MOST_RULES, text);
    d.n = (uint32_t)whole;
    d.fraction = (int)fraction;
    d.first = m->n_rule + 1;
    m->n_rule += d.n * (uint32_t)(d.fraction + 1);
    for (int place = 0; place <= d.fraction; place++)
        for (uint32_t r = 0; r < d.n; r++)
            NIB_TRY(write_remainder(m, &d, place, r));
    writer_put(body, "\"-\"? %s-%lu", m->root, (unsigned long)d.first);
    return NIB_OK;
}

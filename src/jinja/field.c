/* field.c - see field.h. */
#include "jinja/field.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const tpl_str tpl_blank = {.data = " ", .n = 1, .n_char = 1}, tpl_zero = {.data = "0", .n = 1, .n_char = 1};

int64_t tpl_field_number(const char **at, const char *end) {
    int64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++)
        value = value < 100000000 ? value * 10 + (**at - '0') : value;
    return value;
}

/* Writes the first n bytes of s, a number (n_sign bytes of sign, then its body) or a text (n_sign 0), padded
 * to the field's width. */
static void put_padded(tpl_builder *b, const tpl_field *f, const tpl_str *s, size_t n, size_t n_sign,
                       bool number) {
    int64_t padding = f->width - (int64_t)tpl_utf8_count(s->data, n);
    char align = f->align ? f->align : number ? '>' : '<';
    int64_t left = padding <= 0 || align == '<' ? 0 : align == '^' ? padding / 2 : padding;
    size_t before = align == '=' ? n_sign : 0;
    tpl_put_part(b, s, s->data, before);
    for (int64_t i = 0; i < left && !b->failed; i++)
        tpl_put_all(b, &f->fill);
    tpl_put_part(b, s, s->data + before, n - before);
    for (int64_t i = left; i < padding && !b->failed; i++)
        tpl_put_all(b, &f->fill);
}

static void put_number(tpl_builder *b, const tpl_field *f, const char *text, size_t n, size_t n_sign) {
    const tpl_str s = {.data = text, .n = n, .n_char = n};
    put_padded(b, f, &s, n, n_sign, true);
}

/* Separates thousands by commas in the leading digits of `text` (after n_sign bytes). */
static size_t add_commas(char *text, size_t n, size_t n_sign) {
    size_t digits = n_sign;
    while (digits < n && text[digits] >= '0' && text[digits] <= '9')
        digits++;
    for (size_t at = digits; at > n_sign + 3;) {
        at -= 3;
        memmove(text + at + 1, text + at, n - at);
        text[at] = ',';
        n++;
    }
    return n;
}

static size_t put_sign(char *text, bool negative, char sign) {
    if (!negative && !sign)
        return 0;
    text[0] = negative ? '-' : sign;
    return 1;
}

void tpl_field_int(tpl_builder *b, const tpl_field *f, int64_t value) {
    char text[200], digits[72];
    bool negative = value < 0;
    uint64_t left = negative ? 0 - (uint64_t)value : (uint64_t)value;
    unsigned base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    size_t n = put_sign(text, negative, f->sign), m = 0;
    if (f->alternate && base != 10) {
        text[n++] = '0';
        text[n++] = f->type;
    }
    size_t n_sign = n;
    do {
        digits[m++] = (f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[left % base];
        left /= base;
    } while (left);
    for (int64_t i = (int64_t)m; i < f->precision && i < 70; i++) /* %.5d: at least 5 digits */
        digits[m++] = '0';
    while (m)
        text[n++] = digits[--m];
    if (f->comma)
        n = add_commas(text, n, n_sign);
    put_number(b, f, text, n, n_sign);
}

static void plain_point(char *text) {
    for (; *text; text++) { /* replaces the locale's decimal point */
        if (*text == ',')
            *text = '.';
    }
}

bool tpl_field_float(tpl_builder *b, const tpl_field *f, double value) {
    char text[500], format[8] = "%.*f";
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    size_t n = put_sign(text, signbit(value) && !isnan(value), f->sign), n_sign = n;
    if (precision > 100)
        return tpl_fail(b->r, "a precision of %d", precision);
    value = fabs(value);
    if (isnan(value) || isinf(value)) {
        n += (size_t)snprintf(text + n, sizeof text - n, isnan(value) ? "nan" : "inf");
    } else if (!f->type && f->precision < 0) {
        tpl_builder digits = {.r = b->r};
        tpl_put_float(&digits, value);
        if (digits.failed)
            return false;
        memcpy(text + n, digits.data, digits.n);
        n += digits.n;
    } else {
        format[3] = f->type == '%' ? 'f' : f->type ? f->type : 'g';
        n += (size_t)snprintf(text + n, sizeof text - n, format, precision,
                              f->type == '%' ? value * 100 : value);
        plain_point(text);
        if (f->type == '%')
            text[n++] = '%';
    }
    if (f->comma)
        n = add_commas(text, n, n_sign);
    put_number(b, f, text, n, n_sign);
    return true;
}

void tpl_field_text(tpl_builder *b, const tpl_field *f, const tpl_str *s) {
    size_t n = s->n;
    if (f->precision >= 0 && (uint64_t)f->precision < s->n_char)
        n = tpl_utf8_offset(s, (size_t)f->precision);
    put_padded(b, f, s, n, 0, false);
}

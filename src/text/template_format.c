/* template_format.c - Python's two ways of putting values into text: "%s %d" % values, and "{}
 * {x:>5}".format(). Both come down to one field: fill, alignment, sign, width, precision and a conversion
 * letter. */
#include "text/template_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct field {
    tpl_str fill;
    char align; /* '<' '>' '=' '^', 0: by type */
    char sign;  /* '+', ' ' or 0 */
    bool alternate, comma;
    int64_t width, precision; /* -1: none */
    char type;                /* 0: by value */
} field;

static const tpl_str blank = {.data = " ", .n = 1, .n_char = 1}, zero = {.data = "0", .n = 1, .n_char = 1};

/* sign and body of a number, or a text (n_sign 0), padded to the field's width. */
static void put_padded(tpl_builder *b, const field *f, const char *text, size_t n, size_t n_sign,
                       bool number) {
    int64_t padding = f->width - (int64_t)tpl_utf8_count(text, n);
    char align = f->align ? f->align : number ? '>' : '<';
    int64_t left = padding <= 0 || align == '<' ? 0 : align == '^' ? padding / 2 : padding;
    if (align == '=')
        tpl_put(b, text, n_sign);
    for (int64_t i = 0; i < left && !b->failed; i++)
        tpl_put(b, f->fill.data, f->fill.n);
    if (align == '=')
        tpl_put(b, text + n_sign, n - n_sign);
    else
        tpl_put(b, text, n);
    for (int64_t i = left; i < padding && !b->failed; i++)
        tpl_put(b, f->fill.data, f->fill.n);
}

/* Thousands separated by commas in the digits that `text` starts with (after n_sign). */
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

static void put_int(tpl_builder *b, const field *f, int64_t value) {
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
    for (int64_t i = (int64_t)m; i < f->precision && i < 70; i++) /* %.5d: at least so many digits */
        digits[m++] = '0';
    while (m)
        text[n++] = digits[--m];
    if (f->comma)
        n = add_commas(text, n, n_sign);
    put_padded(b, f, text, n, n_sign, true);
}

static void plain_point(char *text) {
    for (; *text; text++) { /* whatever the locale's decimal point is */
        if (*text == ',')
            *text = '.';
    }
}

static bool put_double(tpl_builder *b, const field *f, double value) {
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
    put_padded(b, f, text, n, n_sign, true);
    return true;
}

static void put_text(tpl_builder *b, const field *f, const tpl_str *s) {
    size_t n = s->n;
    if (f->precision >= 0 && (uint64_t)f->precision < s->n_char)
        n = tpl_utf8_offset(s, (size_t)f->precision);
    put_padded(b, f, s->data ? s->data : "", n, 0, false);
}

/* --- the % operator --- */

typedef struct percent {
    tpl_run *r;
    const tpl_value *args;
    size_t next;
    bool used_names;
} percent;

static bool next_arg(percent *p, tpl_value *out) {
    bool tuple = p->args->type == TPL_TUPLE;
    if (p->next >= (tuple ? p->args->u.list->n : 1))
        return tpl_fail(p->r, "not enough values for the format");
    *out = tuple ? p->args->u.list->v[p->next] : *p->args;
    p->next++;
    return true;
}

static bool named_arg(percent *p, const char **at, const char *end, tpl_value *out) {
    const char *close = memchr(*at, ')', (size_t)(end - *at));
    tpl_value key, *val;
    if (!close)
        return tpl_fail(p->r, "a format's name is not closed");
    if (p->args->type != TPL_DICT)
        return tpl_fail(p->r, "a format with names needs a dict");
    if (!tpl_str_ref(p->r, *at, (size_t)(close - *at), &key) ||
        !tpl_dict_get(p->r, p->args->u.dict, &key, &val))
        return false;
    if (!val)
        return tpl_fail(p->r, "the format's name is not there");
    *out = *val;
    *at = close + 1;
    p->used_names = true;
    return true;
}

static bool read_number(percent *p, const char **at, const char *end, int64_t *out) {
    tpl_value v = tpl_none();
    if (*at < end && **at == '*') {
        (*at)++;
        if (!p || !next_arg(p, &v))
            return false;
        if (!tpl_is_whole(&v))
            return tpl_fail(p->r, "a format's width is '%s'", tpl_type_name(v.type));
        *out = tpl_as_int(&v);
        return true;
    }
    int64_t value = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++)
        value = value < 100000000 ? value * 10 + (**at - '0') : value;
    *out = value;
    return true;
}

static bool percent_value(tpl_run *r, tpl_builder *b, field *f, char letter, const tpl_value *v) {
    double as_float;
    switch (letter) {
    case 's':
    case 'r':
    case 'a': {
        tpl_builder text = {.r = r};
        tpl_value s;
        if (letter == 's')
            tpl_put_str(&text, v);
        else
            tpl_put_repr(&text, v, 0);
        if (!tpl_built(&text, &s))
            return false;
        f->fill = blank;
        f->align = f->align == '<' ? '<' : '>';
        put_text(b, f, s.u.s);
        return true;
    }
    case 'c':
        if (v->type == TPL_STR && v->u.s->n_char == 1) {
            f->align = f->align == '<' ? '<' : '>';
            put_text(b, f, v->u.s);
            return true;
        }
        return tpl_fail(r, "%%c needs one character");
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o':
        if (!tpl_is_number(v) || (v->type == TPL_FLOAT && (letter == 'x' || letter == 'X' || letter == 'o')))
            return tpl_need_defined(r, v) &&
                   tpl_fail(r, "%%%c needs a number, found '%s'", letter, tpl_type_name(v->type));
        as_float = tpl_as_float(v);
        if (v->type == TPL_FLOAT && !(fabs(as_float) < 9.2e18))
            return tpl_fail(r, "an integer does not fit 64 bits");
        f->type = letter == 'i' || letter == 'u' ? 'd' : letter;
        put_int(b, f, v->type == TPL_FLOAT ? (int64_t)as_float : tpl_as_int(v));
        return true;
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        if (!tpl_is_number(v))
            return tpl_need_defined(r, v) &&
                   tpl_fail(r, "%%%c needs a number, found '%s'", letter, tpl_type_name(v->type));
        f->type = letter;
        return put_double(b, f, tpl_as_float(v));
    default: return tpl_fail(r, "the format '%%%c' is not known", letter);
    }
}

/* One conversion, from after its '%'. */
static bool percent_one(percent *p, tpl_builder *b, const char **at, const char *end) {
    field f = {.fill = blank, .precision = -1};
    tpl_value v = tpl_none();
    bool named = *at < end && **at == '(';
    if (named) {
        (*at)++;
        if (!named_arg(p, at, end, &v))
            return false;
    }
    for (; *at < end && strchr("-+ #0", **at) && **at; (*at)++) {
        if (**at == '-')
            f.align = '<';
        else if (**at == '+' || (**at == ' ' && !f.sign))
            f.sign = **at;
        else if (**at == '#')
            f.alternate = true;
        else if (**at == '0' && f.align != '<') {
            f.fill = zero;
            f.align = '=';
        }
    }
    if (f.align == '<')
        f.fill = blank;
    if (!read_number(p, at, end, &f.width))
        return false;
    if (f.width < 0) {
        f.align = '<';
        f.width = -f.width;
    }
    if (*at < end && **at == '.') {
        (*at)++;
        if (!read_number(p, at, end, &f.precision))
            return false;
    }
    while (*at < end && (**at == 'l' || **at == 'h' || **at == 'L'))
        (*at)++;
    if (*at == end)
        return tpl_fail(p->r, "an incomplete format");
    if (f.width > (int64_t)p->r->limits.output)
        return tpl_fail(p->r, "more than %zu bytes of output", p->r->limits.output);
    char letter = *(*at)++;
    if (letter == '%') {
        tpl_puts(b, "%");
        return true;
    }
    return (named || next_arg(p, &v)) && percent_value(p->r, b, &f, letter, &v);
}

bool tpl_percent(tpl_run *r, const tpl_str *format, const tpl_value *args, tpl_value *out) {
    percent p = {.r = r, .args = args};
    tpl_builder b = {.r = r};
    const char *at = format->data, *end = at + format->n;
    if (!tpl_charge(r, format->n / 16))
        return false;
    while (at < end && !b.failed) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        tpl_put(&b, at, (size_t)((sign ? sign : end) - at));
        if (!sign)
            break;
        at = sign + 1;
        if (!percent_one(&p, &b, &at, end))
            return false;
    }
    size_t n = args->type == TPL_TUPLE ? args->u.list->n : 1;
    /* what can be indexed by name might have been a dict, for Python: then nothing need be used */
    bool mapping =
        args->type != TPL_TUPLE && args->type != TPL_STR && !tpl_is_number(args) && args->type != TPL_NONE;
    if (p.next < n && !mapping)
        return tpl_fail(r, "not all values are used by the format");
    return tpl_built(&b, out);
}

/* --- str.format --- */

typedef struct brace {
    tpl_run *r;
    const tpl_args *args;
    size_t next;
    bool by_hand, by_order; /* {0} or {} was seen */
} brace;

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static bool read_spec(tpl_run *r, const char *p, const char *end, field *f) {
    *f = (field){.fill = blank, .precision = -1};
    const char *next = p;
    if (p < end)
        tpl_utf8_next(&next, end);
    if (next < end && strchr("<>=^", *next) && *next) {
        f->fill = (tpl_str){.data = p, .n = (size_t)(next - p), .n_char = 1};
        f->align = *next;
        p = next + 1;
    } else if (p < end && strchr("<>=^", *p) && *p) {
        f->align = *p++;
    }
    if (p < end && (*p == '+' || *p == '-' || *p == ' ')) {
        f->sign = *p == '-' ? 0 : *p;
        p++;
    }
    if (p < end && *p == '#') {
        f->alternate = true;
        p++;
    }
    if (p < end && *p == '0' && !f->align) {
        f->fill = zero;
        f->align = '=';
        p++;
    }
    if (p < end && *p != '*' && !read_number(NULL, &p, end, &f->width))
        return false;
    if (p < end && (*p == ',' || *p == '_')) {
        if (*p == '_')
            return tpl_fail(r, "format: '_' as separator is not supported");
        f->comma = true;
        p++;
    }
    if (p + 1 < end && *p == '.' && p[1] != '*') {
        p++;
        if (!read_number(NULL, &p, end, &f->precision))
            return false;
    }
    if (p < end)
        f->type = *p++;
    if (p < end)
        return tpl_fail(r, "format: a bad specification");
    return f->width <= (int64_t)r->limits.output ||
           tpl_fail(r, "more than %zu bytes of output", r->limits.output);
}

static bool put_formatted(tpl_run *r, tpl_builder *b, const tpl_value *v, const char *spec, const char *end) {
    field f;
    if (spec == end) {
        tpl_put_str(b, v);
        return true;
    }
    if (!read_spec(r, spec, end, &f))
        return false;
    bool whole = tpl_is_whole(v) && !(v->type == TPL_BOOL && !f.type);
    if (whole && (!f.type || strchr("dxXob", f.type))) {
        f.precision = -1;
        put_int(b, &f, tpl_as_int(v));
        return true;
    }
    if (tpl_is_number(v) && v->type != TPL_BOOL && (!f.type || strchr("fFeEgG%", f.type)))
        return put_double(b, &f, tpl_as_float(v));
    if (v->type != TPL_STR || (f.type && f.type != 's'))
        return tpl_fail(r, "format: '%c' of '%s'", f.type ? f.type : 's', tpl_type_name(v->type));
    if (f.align == '=')
        f.align = '<';
    put_text(b, &f, v->u.s);
    return true;
}

static bool brace_base(brace *s, const char *from, const char *to, tpl_value *out) {
    size_t index = 0;
    bool digits = from < to;
    for (const char *p = from; p < to; p++) {
        digits = digits && *p >= '0' && *p <= '9' && p - from < 9;
        index = digits ? index * 10 + (size_t)(*p - '0') : 0;
    }
    if (from == to || digits) {
        s->by_order = s->by_order || from == to;
        s->by_hand = s->by_hand || digits;
        if (s->by_order && s->by_hand)
            return tpl_fail(s->r, "format: {} and {0} in one text");
        index = digits ? index : s->next++;
        if (index >= s->args->n_pos)
            return tpl_fail(s->r, "format: there is no argument %zu", index);
        *out = s->args->pos[index];
        return true;
    }
    tpl_value key, *val = NULL;
    if (!tpl_str_ref(s->r, from, (size_t)(to - from), &key) ||
        (s->args->named && !tpl_dict_get(s->r, s->args->named, &key, &val)))
        return false;
    if (!val)
        return tpl_fail(s->r, "format: there is no argument '%.*s'", (int)(to - from > 60 ? 60 : to - from),
                        from);
    *out = *val;
    return true;
}

/* {name!r:spec}, from after the brace to before its end. */
static bool brace_one(brace *s, tpl_builder *b, const char *from, const char *to) {
    const char *colon = memchr(from, ':', (size_t)(to - from));
    const char *name_end = colon ? colon : to;
    const char *bang = memchr(from, '!', (size_t)(name_end - from));
    const char *base_end = bang ? bang : name_end;
    tpl_value v, text;
    for (const char *p = from; p < base_end; p++) {
        if (*p == '.' || *p == '[')
            return tpl_fail(s->r, "format: attributes and items in {} are not supported");
    }
    if (!brace_base(s, from, base_end, &v))
        return false;
    if (bang) {
        if (name_end - bang != 2 || (bang[1] != 's' && bang[1] != 'r'))
            return tpl_fail(s->r, "format: a bad conversion");
        tpl_builder converted = {.r = s->r};
        if (bang[1] == 'r')
            tpl_put_repr(&converted, &v, 0);
        else
            tpl_put_str(&converted, &v);
        if (!tpl_built(&converted, &text))
            return false;
        v = text;
    }
    return put_formatted(s->r, b, &v, colon ? colon + 1 : to, to);
}

bool tpl_str_format(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    brace s = {.r = r, .args = c->args};
    tpl_builder b = {.r = r};
    const char *p = self->u.s->data, *end = p + self->u.s->n;
    if (!tpl_charge(r, self->u.s->n / 16))
        return false;
    while (p < end && !b.failed) {
        if (*p != '{' && *p != '}') {
            tpl_put(&b, p++, 1);
            continue;
        }
        if (p + 1 < end && p[1] == *p) {
            tpl_put(&b, p, 1);
            p += 2;
            continue;
        }
        const char *close = *p == '{' ? memchr(p, '}', (size_t)(end - p)) : NULL;
        if (!close || memchr(p + 1, '{', (size_t)(close - p - 1)))
            return tpl_fail(r, "format: a single or nested brace");
        if (!brace_one(&s, &b, p + 1, close))
            return false;
        p = close + 1;
    }
    return tpl_built(&b, out);
}

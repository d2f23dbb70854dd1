/* percent.c - Python's % operator for texts: "%s %d" % values. */
#include "jinja/field.h"

#include <math.h>
#include <string.h>

typedef struct percent {
    tpl_run *r;
    const tpl_str *format;
    const tpl_value *args;
    size_t next;
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
    return true;
}

/* Reads a width or a precision: digits, or '*' for the next value. */
static bool read_number(percent *p, const char **at, const char *end, int64_t *out) {
    tpl_value v = tpl_none();
    if (*at == end || **at != '*') {
        *out = tpl_field_number(at, end);
        return true;
    }
    (*at)++;
    if (!next_arg(p, &v))
        return false;
    if (!tpl_is_whole(&v))
        return tpl_fail(p->r, "a format's width is '%s'", tpl_type_name(v.type));
    *out = tpl_as_int(&v);
    return true;
}

static bool is_markup(const tpl_value *v) {
    return v->type == TPL_STR && v->u.s->safe;
}

static bool percent_value(tpl_run *r, tpl_builder *b, tpl_field *f, char letter, const tpl_value *v) {
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
        if (!tpl_built(&text, &s) || (b->safe && !is_markup(v) && !tpl_escape(r, s.u.s, &s)))
            return false;
        f->fill = tpl_blank;
        f->align = f->align == '<' ? '<' : '>';
        tpl_field_text(b, f, s.u.s);
        return true;
    }
    case 'c':
        if (v->type == TPL_STR && v->u.s->n_char == 1) {
            f->align = f->align == '<' ? '<' : '>';
            tpl_field_text(b, f, v->u.s);
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
        tpl_field_int(b, f, v->type == TPL_FLOAT ? (int64_t)as_float : tpl_as_int(v));
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
        return tpl_field_float(b, f, tpl_as_float(v));
    default: return tpl_fail(r, "the format '%%%c' is not known", letter);
    }
}

/* Formats one conversion, from after its '%'. */
static bool percent_one(percent *p, tpl_builder *b, const char **at, const char *end) {
    tpl_field f = {.fill = tpl_blank, .precision = -1};
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
            f.fill = tpl_zero;
            f.align = '=';
        }
    }
    if (f.align == '<')
        f.fill = tpl_blank;
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
    const char *sign = (*at)++, letter = *sign;
    if (letter == '%') {
        tpl_put_part(b, p->format, sign, 1);
        return true;
    }
    return (named || next_arg(p, &v)) && percent_value(p->r, b, &f, letter, &v);
}

bool tpl_percent(tpl_run *r, const tpl_str *format, const tpl_value *args, tpl_value *out) {
    percent p = {.r = r, .format = format, .args = args};
    tpl_builder b = {.r = r, .safe = format->safe};
    const char *at = format->data, *end = at + format->n;
    if (!tpl_charge(r, format->n / 16))
        return false;
    while (at < end && !b.failed) {
        const char *sign = memchr(at, '%', (size_t)(end - at));
        tpl_put_part(&b, format, at, (size_t)((sign ? sign : end) - at));
        if (!sign)
            break;
        at = sign + 1;
        if (!percent_one(&p, &b, &at, end))
            return false;
    }
    size_t n = args->type == TPL_TUPLE ? args->u.list->n : 1;
    /* as in Python, a value that can be indexed by name need not be used up, because it may be a mapping */
    bool mapping =
        args->type != TPL_TUPLE && args->type != TPL_STR && !tpl_is_number(args) && args->type != TPL_NONE;
    if (p.next < n && !mapping)
        return tpl_fail(r, "not all values are used by the format");
    return tpl_built(&b, out);
}

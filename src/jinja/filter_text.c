/* filter_text.c - filters over text and numbers. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* X(filter, expression that converts the input's text s) */
#define TEXT_FILTERS(X)                                                                                      \
    X(upper, tpl_recase(r, s, TPL_UPPER, out))                                                               \
    X(lower, tpl_recase(r, s, TPL_LOWER, out))                                                               \
    X(capitalize, tpl_recase(r, s, TPL_CAPITAL, out))                                                        \
    X(title, tpl_title(r, s, false, out))                                                                    \
    X(string, (*out = text, true))                                                                           \
    X(safe, as_markup(r, s, true, out))                                                                      \
    X(escape, tpl_escape(r, s, out))                                                                         \
    X(forceescape, as_markup(r, s, false, &text) && tpl_escape(r, text.u.s, out))

/* The same text as Markup, or as plain text. */
static bool as_markup(tpl_run *r, const tpl_str *s, bool safe, tpl_value *out) {
    tpl_str copy = *s;
    copy.safe = safe;
    return tpl_str_part(r, &copy, s->data, s->n, out);
}

bool tpl_escape(tpl_run *r, const tpl_str *s, tpl_value *out) {
    static const char special[] = "&<>'\"";
    static const char *const names[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    tpl_builder b = {.r = r, .safe = true};
    if (s->safe) {
        *out = tpl_of_str(s);
        return true;
    }
    for (size_t i = 0; i < s->n && !b.failed; i++) {
        const char *hit = s->data[i] ? strchr(special, s->data[i]) : NULL;
        b.marked = tpl_is_marked(s, s->data + i);
        if (hit)
            tpl_puts(&b, names[hit - special]);
        else
            tpl_put(&b, s->data + i, 1);
    }
    return tpl_built(&b, out);
}

#define TEXT_X(name, expression)                                                                             \
    static bool f_##name(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {                   \
        tpl_value text;                                                                                      \
        (void)c;                                                                                             \
        if (!tpl_to_str(r, self, &text))                                                                     \
            return false;                                                                                    \
        const tpl_str *s = text.u.s;                                                                         \
        (void)s;                                                                                             \
        return expression;                                                                                   \
    }
TEXT_FILTERS(TEXT_X)
#undef TEXT_X

static bool f_trim(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_str *chars = NULL;
    tpl_value text;
    return tpl_to_str(r, self, &text) && tpl_arg_str(r, c, 0, &chars) &&
           tpl_strip(r, text.u.s, chars, true, true, out);
}

static bool f_replace(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value text, from, to;
    int64_t max = -1;
    return tpl_to_str(r, self, &text) && as_markup(r, text.u.s, false, &text) &&
           tpl_to_str(r, &c->arg[0], &from) && tpl_to_str(r, &c->arg[1], &to) && tpl_arg_int(r, c, 2, &max) &&
           tpl_replace(r, text.u.s, from.u.s, to.u.s, max, out);
}

static bool f_default(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    bool falsy = c->given[1] && tpl_truth(&c->arg[1]) && !tpl_truth(self);
    if (self->type != TPL_UNDEF && !falsy) {
        *out = *self;
        return true;
    }
    *out = c->arg[0];
    return c->given[0] || tpl_str_ref(r, "", 0, out);
}

/* int("  -1_000 ", base) as Python reads it; false: no integer. */
static bool parse_int(const tpl_str *s, int base, int64_t *out) {
    const char *p = s->data, *end = p + s->n;
    while (p < end && tpl_is_space((unsigned char)*p))
        p++;
    while (end > p && tpl_is_space((unsigned char)end[-1]))
        end--;
    bool negative = p < end && *p == '-';
    p += p < end && (*p == '-' || *p == '+');
    if (end - p > 2 && p[0] == '0' &&
        ((base == 16 && (p[1] | 32) == 'x') || (base == 8 && (p[1] | 32) == 'o') ||
         (base == 2 && (p[1] | 32) == 'b')))
        p += 2;
    int64_t value = 0;
    if (p >= end || end[-1] == '_' || *p == '_')
        return false;
    for (; p < end; p++) {
        if (*p == '_' && p[-1] != '_')
            continue;
        int lower = *p | 32;
        int digit = *p >= '0' && *p <= '9' ? *p - '0' : lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
        if (digit >= base || __builtin_mul_overflow(value, base, &value) ||
            __builtin_sub_overflow(value, digit,
                                   &value)) /* counts downwards, because -INT64_MIN does not fit */
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = negative ? value : -value;
    return true;
}

static bool parse_float(const tpl_str *s, double *out) {
    const char *p = s->data, *end = p + s->n;
    while (p < end && tpl_is_space((unsigned char)*p))
        p++;
    while (end > p && tpl_is_space((unsigned char)end[-1]))
        end--;
    for (const char *q = p; q < end; q++) {
        if ((*q | 32) == 'x' || *q == '(') /* strtod accepts more than Python */
            return false;
    }
    return p < end && tpl_read_float(p, (size_t)(end - p), out);
}

/* Charges the cost of parsing a number from a text of any length. */
static bool charge_text(tpl_run *r, const tpl_value *v) {
    return v->type != TPL_STR || tpl_charge(r, v->u.s->n / 16);
}

static bool float_to_int(double f, int64_t *out) {
    if (!(f > -9.2e18 && f < 9.2e18))
        return false;
    *out = (int64_t)f;
    return true;
}

static bool f_int(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    int64_t base = 10, value;
    double f;
    if (!tpl_arg_int(r, c, 1, &base) || !tpl_need_defined(r, self) || !charge_text(r, self))
        return false;
    if (base < 2 || base > 36)
        return tpl_fail(r, "int: base %d", (int)base);
    bool ok = false;
    if (tpl_is_whole(self)) {
        value = tpl_as_int(self);
        ok = true;
    } else if (self->type == TPL_FLOAT) {
        ok = float_to_int(self->u.f, &value);
    } else if (self->type == TPL_STR) {
        ok = parse_int(self->u.s, (int)base, &value) ||
             (parse_float(self->u.s, &f) && float_to_int(f, &value));
    }
    *out = ok ? tpl_int(value) : c->given[0] ? c->arg[0] : tpl_int(0);
    return true;
}

static bool f_float(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    double f = 0;
    if (!tpl_need_defined(r, self) || !charge_text(r, self))
        return false;
    if (tpl_is_number(self))
        *out = tpl_float(tpl_as_float(self));
    else if (self->type == TPL_STR && parse_float(self->u.s, &f))
        *out = tpl_float(f);
    else
        *out = c->given[0] ? c->arg[0] : tpl_float(0);
    return true;
}

static bool need_number(tpl_run *r, const tpl_value *v) {
    return tpl_need_defined(r, v) &&
           (tpl_is_number(v) || tpl_fail(r, "expected a number, found '%s'", tpl_type_name(v->type)));
}

static bool f_abs(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value zero = tpl_int(0);
    (void)c;
    if (!need_number(r, self))
        return false;
    if (self->type == TPL_FLOAT)
        *out = tpl_float(fabs(self->u.f));
    else if (tpl_as_int(self) >= 0)
        *out = tpl_int(tpl_as_int(self));
    else
        return tpl_binary(r, T_SUB, &zero, self, out);
    return true;
}

/* Python rounds the exact binary value, halves to even: printf does the same. */
static double round_to(double f, int digits) {
    char text[400];
    double out;
    if (digits < 0) {
        double scale = pow(10, -digits);
        return rint(f / scale) * scale;
    }
    if (!isfinite(f) || fabs(f) > 1e15)
        return f;
    int n = snprintf(text, sizeof text, "%.*f", digits > 300 ? 300 : digits, f);
    for (int i = 0; i < n; i++) { /* replaces the locale's decimal point */
        if (text[i] == ',')
            text[i] = '.';
    }
    return tpl_read_float(text, (size_t)n, &out) ? out : f;
}

static bool f_round(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    int64_t digits = 0;
    const tpl_str *method = NULL;
    if (!need_number(r, self) || !tpl_arg_int(r, c, 0, &digits) || !tpl_arg_str(r, c, 1, &method))
        return false;
    if (digits < -300 || digits > 300)
        return tpl_fail(r, "round: %d digits", (int)digits);
    bool ceiling = method && tpl_str_is(method, "ceil"), floored = method && tpl_str_is(method, "floor");
    if (method && !ceiling && !floored && !tpl_str_is(method, "common"))
        return tpl_fail(r, "round: the method is common, ceil or floor");
    if (ceiling || floored) {
        double scale = pow(10, (double)digits), scaled = tpl_as_float(self) * scale;
        *out = tpl_float((ceiling ? ceil(scaled) : floor(scaled)) / scale);
    } else if (tpl_is_whole(self)) {
        *out =
            tpl_int(digits < 0 ? (int64_t)round_to((double)tpl_as_int(self), (int)digits) : tpl_as_int(self));
    } else {
        *out = tpl_float(round_to(self->u.f, (int)digits));
    }
    return true;
}

static bool lines_of(tpl_run *r, const tpl_value *text, const tpl_list **out) {
    static const tpl_str name = {.data = "splitlines", .n = 10, .n_char = 10};
    static const tpl_str newline = {.data = "\n", .n = 1, .n_char = 1};
    tpl_value whole, lines;
    tpl_args none = {0};
    if (!tpl_concat(r, text->u.s, &newline, &whole) ||
        !tpl_call_row(r, tpl_find(tpl_str_methods, &name), &whole, &none, &lines))
        return false;
    *out = lines.u.list;
    return true;
}

static bool f_indent(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value text, pad;
    const tpl_list *lines;
    bool first = c->given[1] && tpl_truth(&c->arg[1]), blank = c->given[2] && tpl_truth(&c->arg[2]);
    tpl_value width = c->given[0] ? c->arg[0] : tpl_int(4), one;
    tpl_builder b = {.r = r, .safe = self->type == TPL_STR && self->u.s->safe};
    if (self->type != TPL_STR)
        return tpl_need_defined(r, self) &&
               tpl_fail(r, "indent: expected a string, found '%s'", tpl_type_name(self->type));
    text = *self;
    if (!tpl_str_ref(r, " ", 1, &one))
        return false;
    if (width.type == TPL_STR)
        pad = width;
    else if (!tpl_is_whole(&width) || !tpl_binary(r, T_MUL, &one, &width, &pad))
        return tpl_fail(r, "indent: the width is '%s'", tpl_type_name(width.type));
    if (!lines_of(r, &text, &lines))
        return false;
    for (size_t i = 0; i < lines->n && !b.failed; i++) {
        if (i)
            tpl_puts(&b, "\n");
        if (i ? blank || lines->v[i].u.s->n : first)
            tpl_put_all(&b, pad.u.s);
        tpl_put_all(&b, lines->v[i].u.s);
    }
    return tpl_built(&b, out);
}

static bool f_format(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value text, args;
    if (!tpl_to_str(r, self, &text))
        return false;
    if (c->args->named && c->args->n_pos)
        return tpl_fail(r, "format: arguments by position and by name");
    if (c->args->named)
        args = (tpl_value){.type = TPL_DICT, .u = {.dict = c->args->named}};
    else if (!tpl_list_of(r, c->args->pos, c->args->n_pos, TPL_TUPLE, &args))
        return false;
    return tpl_percent(r, text.u.s, &args, out);
}

static bool f_center(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const tpl_str name = {.data = "center", .n = 6, .n_char = 6};
    tpl_value text, width = c->given[0] ? c->arg[0] : tpl_int(80);
    tpl_args args = {.pos = &width, .n_pos = 1};
    return tpl_to_str(r, self, &text) && tpl_call_row(r, tpl_find(tpl_str_more, &name), &text, &args, out);
}

static bool f_truncate(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const tpl_str dots = {.data = "...", .n = 3, .n_char = 3};
    const tpl_str *end = &dots;
    int64_t length = 255, leeway = 5;
    tpl_value text;
    if (!tpl_to_str(r, self, &text) || !tpl_arg_int(r, c, 0, &length) || !tpl_arg_str(r, c, 2, &end) ||
        !tpl_arg_int(r, c, 3, &leeway))
        return false;
    if (length < (int64_t)end->n_char || leeway < 0)
        return tpl_fail(r, "truncate: a length below the end's, or a negative leeway");
    const tpl_str *s = text.u.s;
    size_t n;
    if (!tpl_length(r, self, &n))
        return false;
    if ((int64_t)n - leeway <= length) {
        *out = *self;
        return true;
    }
    if (self->type != TPL_STR)
        return tpl_fail(r, "truncate: expected a string, found '%s'", tpl_type_name(self->type));
    size_t keep = tpl_utf8_offset(s, (size_t)length - end->n_char);
    if (!tpl_charge(r, keep / 16))
        return false;
    if (!(c->given[1] && tpl_truth(&c->arg[1]))) {
        size_t word = keep;
        while (word > 0 && s->data[word - 1] != ' ')
            word--;
        keep = word ? word - 1 : keep;
    }
    tpl_builder b = {.r = r, .safe = s->safe};
    tpl_value last = tpl_of_str(end);
    if (s->safe && !tpl_escape(r, end, &last))
        return false;
    tpl_put_part(&b, s, s->data, keep);
    tpl_put_all(&b, last.u.s);
    return tpl_built(&b, out);
}

const tpl_func tpl_text_filters[] = {
#define TEXT_X(name, expression) {#name, "", 0, f_##name},
    TEXT_FILTERS(TEXT_X)
#undef TEXT_X
        {"e", "", 0, f_escape},
    {"trim", "chars", 0, f_trim},
    {"replace", "old,new,count", 2, f_replace},
    {"default", "default_value,boolean", 0, f_default},
    {"d", "default_value,boolean", 0, f_default},
    {"int", "default,base", 0, f_int},
    {"float", "default", 0, f_float},
    {"abs", "", 0, f_abs},
    {"round", "precision,method", 0, f_round},
    {"indent", "width,first,blank", 0, f_indent},
    {"format", "*", 0, f_format},
    {"center", "width", 0, f_center},
    {"truncate", "length,killwords,end,leeway", 0, f_truncate},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, tpl_tojson},
    {NULL, NULL, 0, NULL},
};

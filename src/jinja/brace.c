/* brace.c - Python's str.format: "{} {x:>5}".format(...). */
#include "jinja/field.h"

#include <string.h>

typedef struct brace {
    tpl_run *r;
    const tpl_str *format;
    const tpl_args *args;
    size_t next;
    bool by_hand, by_order; /* {0} was used; {} was used */
} brace;

/* Parses [[fill]align][sign][#][0][width][,][.precision][type]. */
static bool read_spec(const brace *s, const char *p, const char *end, tpl_field *f) {
    tpl_run *r = s->r;
    *f = (tpl_field){.fill = tpl_blank, .precision = -1};
    const char *next = p;
    if (p < end)
        tpl_utf8_next(&next, end);
    if (next < end && strchr("<>=^", *next) && *next) {
        f->fill = (tpl_str){.data = p,
                            .n = (size_t)(next - p),
                            .n_char = 1,
                            .mark = s->format->mark ? s->format->mark + (p - s->format->data) : NULL};
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
        f->fill = tpl_zero;
        f->align = '=';
        p++;
    }
    f->width = tpl_field_number(&p, end);
    if (p < end && (*p == ',' || *p == '_')) {
        if (*p == '_')
            return tpl_fail(r, "format: '_' as separator is not supported");
        f->comma = true;
        p++;
    }
    if (p + 1 < end && *p == '.' && p[1] != '*') {
        p++;
        f->precision = tpl_field_number(&p, end);
    }
    if (p < end)
        f->type = *p++;
    if (p < end)
        return tpl_fail(r, "format: a bad specification");
    return f->width <= (int64_t)r->limits.output ||
           tpl_fail(r, "more than %zu bytes of output", r->limits.output);
}

static bool put_formatted(const brace *s, tpl_builder *b, const tpl_value *v, const char *spec,
                          const char *end) {
    tpl_run *r = s->r;
    tpl_field f;
    if (spec == end) {
        tpl_put_str(b, v);
        return true;
    }
    if (!read_spec(s, spec, end, &f))
        return false;
    bool whole = tpl_is_whole(v) && !(v->type == TPL_BOOL && !f.type);
    if (whole && (!f.type || strchr("dxXob", f.type))) {
        f.precision = -1;
        tpl_field_int(b, &f, tpl_as_int(v));
        return true;
    }
    if (tpl_is_number(v) && v->type != TPL_BOOL && (!f.type || strchr("fFeEgG%", f.type)))
        return tpl_field_float(b, &f, tpl_as_float(v));
    if (v->type != TPL_STR || (f.type && f.type != 's'))
        return tpl_fail(r, "format: '%c' of '%s'", f.type ? f.type : 's', tpl_type_name(v->type));
    if (f.align == '=')
        f.align = '<';
    tpl_field_text(b, &f, v->u.s);
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

/* Formats {name!r:spec}, from after the opening brace to before the closing one. */
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
    const char *spec = colon ? colon + 1 : to;
    if (!b->safe || (v.type == TPL_STR && v.u.s->safe))
        return put_formatted(s, b, &v, spec, to);
    tpl_builder plain = {.r = s->r}; /* Markup escapes what it formats */
    if (!put_formatted(s, &plain, &v, spec, to) || !tpl_built(&plain, &text) ||
        !tpl_escape(s->r, text.u.s, &text))
        return false;
    tpl_put_all(b, text.u.s);
    return true;
}

bool tpl_str_format(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    brace s = {.r = r, .format = self->u.s, .args = c->args};
    tpl_builder b = {.r = r, .safe = self->u.s->safe};
    const char *p = self->u.s->data, *end = p + self->u.s->n;
    if (!tpl_charge(r, self->u.s->n / 16))
        return false;
    while (p < end && !b.failed) {
        if (*p != '{' && *p != '}') {
            tpl_put_part(&b, self->u.s, p++, 1);
            continue;
        }
        if (p + 1 < end && p[1] == *p) {
            tpl_put_part(&b, self->u.s, p, 1);
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

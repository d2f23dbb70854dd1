/* str_more.c - the other half of str's methods: positions, prefixes, padding, partition. */
#include "jinja/run.h"

#include <string.h>

/* The optional start and end of find(), count(), startswith(), as bytes [*from, *to) of s. *valid is false if
 * the start is after the end; then nothing is found. */
static bool window(tpl_run *r, const tpl_str *s, const tpl_call *c, size_t *from, size_t *to, size_t *first,
                   bool *valid) {
    int64_t n = (int64_t)s->n_char, start = 0, end = n;
    if (!tpl_arg_int(r, c, 1, &start) || !tpl_arg_int(r, c, 2, &end))
        return false;
    if (start < 0)
        start = start < -n ? 0 : start + n;
    if (end < 0)
        end = end < -n ? 0 : end + n;
    if (end > n)
        end = n;
    *valid = start <= end;
    if (!*valid)
        start = end;
    *first = (size_t)start;
    *from = tpl_utf8_offset(s, (size_t)start);
    *to = tpl_utf8_offset(s, (size_t)end);
    return tpl_charge(r, s->n / 16);
}

static bool need_str(tpl_run *r, const tpl_call *c, const tpl_str **out) {
    *out = NULL;
    if (!tpl_arg_str(r, c, 0, out))
        return false;
    return *out || tpl_fail(r, "expected a string, found 'NoneType'");
}

/* Position of the argument in self; -1: not found. */
static bool position(tpl_run *r, const tpl_value *self, tpl_call *c, bool last, int64_t *out) {
    const tpl_str *s = self->u.s, *what;
    size_t from, to, first;
    bool valid;
    if (!need_str(r, c, &what) || !window(r, s, c, &from, &to, &first, &valid))
        return false;
    *out = -1;
    if (!valid)
        return true;
    const char *base = s->data + from, *hit = base;
    if (last && !tpl_find_last(r, base, to - from, what, &hit))
        return false;
    if (!last && what->n)
        hit = tpl_find_in(base, to - from, what->data, what->n);
    if (hit)
        *out = (int64_t)(first + tpl_utf8_count(base, (size_t)(hit - base)));
    return true;
}

static bool m_find(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    int64_t at;
    if (!position(r, self, c, false, &at))
        return false;
    *out = tpl_int(at);
    return true;
}
static bool m_rfind(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    int64_t at;
    if (!position(r, self, c, true, &at))
        return false;
    *out = tpl_int(at);
    return true;
}
static bool m_index(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return m_find(r, self, c, out) && (out->u.i >= 0 || tpl_fail(r, "substring not found"));
}
static bool m_rindex(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return m_rfind(r, self, c, out) && (out->u.i >= 0 || tpl_fail(r, "substring not found"));
}

static bool m_count(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_str *s = self->u.s, *what;
    size_t from, to, first;
    bool valid;
    int64_t n = 0;
    if (!need_str(r, c, &what) || !window(r, s, c, &from, &to, &first, &valid))
        return false;
    const char *p = s->data + from, *end = s->data + to;
    if (valid && !what->n)
        n = (int64_t)tpl_utf8_count(p, (size_t)(end - p)) + 1;
    for (; valid && what->n && (p = tpl_find_in(p, (size_t)(end - p), what->data, what->n)); p += what->n)
        n++;
    *out = tpl_int(n);
    return tpl_charge(r, (uint64_t)n);
}

static bool has_edge(const char *s, size_t n, const tpl_str *what, bool end) {
    return what->n <= n && (!what->n || memcmp(end ? s + n - what->n : s, what->data, what->n) == 0);
}

static bool edge(tpl_run *r, const tpl_value *self, tpl_call *c, bool end, tpl_value *out) {
    size_t from, to, first;
    bool valid, hit = false;
    if (!window(r, self->u.s, c, &from, &to, &first, &valid))
        return false;
    const char *s = self->u.s->data + from;
    if (c->arg[0].type == TPL_TUPLE) {
        const tpl_list *l = c->arg[0].u.list;
        for (size_t i = 0; i < l->n && !hit; i++) {
            if (l->v[i].type != TPL_STR)
                return tpl_fail(r, "expected a tuple of strings");
            hit = valid && has_edge(s, to - from, l->v[i].u.s, end);
            if (!tpl_charge(r, 1 + l->v[i].u.s->n / 64))
                return false;
        }
    } else {
        const tpl_str *what;
        if (!need_str(r, c, &what))
            return false;
        hit = valid && has_edge(s, to - from, what, end);
    }
    *out = tpl_bool(hit);
    return true;
}
static bool m_startswith(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return edge(r, self, c, false, out);
}
static bool m_endswith(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return edge(r, self, c, true, out);
}

static bool without(tpl_run *r, const tpl_value *self, tpl_call *c, bool end, tpl_value *out) {
    const tpl_str *s = self->u.s, *what;
    if (!need_str(r, c, &what) || !tpl_arg_for(r, self, c, 0, &what))
        return false;
    bool hit = has_edge(s->data, s->n, what, end);
    size_t n = hit ? s->n - what->n : s->n;
    return tpl_str_part(r, s, s->data + (hit && !end ? what->n : 0), n, out);
}
static bool m_removeprefix(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return without(r, self, c, false, out);
}
static bool m_removesuffix(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return without(r, self, c, true, out);
}

static bool part(tpl_run *r, const tpl_value *self, tpl_call *c, bool last, tpl_value *out) {
    const tpl_str *s = self->u.s, *sep;
    if (!need_str(r, c, &sep))
        return false;
    if (!sep->n)
        return tpl_fail(r, "partition() with an empty separator");
    const char *hit = NULL;
    if (last ? !tpl_find_last(r, s->data, s->n, sep, &hit) : !tpl_charge(r, s->n / 16))
        return false;
    if (!last)
        hit = tpl_find_in(s->data, s->n, sep->data, sep->n);
    tpl_items parts = {.r = r};
    tpl_value v[3];
    size_t before = hit ? (size_t)(hit - s->data) : last ? 0 : s->n;
    size_t middle = hit ? sep->n : 0;
    if (!tpl_str_part(r, s, s->data, before, &v[0]) || !tpl_str_part(r, s, s->data + before, middle, &v[1]) ||
        !tpl_str_part(r, s, s->data + before + middle, s->n - before - middle, &v[2]))
        return false;
    return tpl_push(&parts, v[0]) && tpl_push(&parts, v[1]) && tpl_push(&parts, v[2]) &&
           tpl_pushed(&parts, TPL_TUPLE, out);
}
static bool m_partition(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return part(r, self, c, false, out);
}
static bool m_rpartition(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return part(r, self, c, true, out);
}

static bool pad(tpl_run *r, const tpl_value *self, tpl_call *c, int where, tpl_value *out) {
    const tpl_str *s = self->u.s, *fill = NULL;
    static const tpl_str blank = {.data = " ", .n = 1, .n_char = 1};
    int64_t width = 0;
    tpl_builder b = {.r = r, .safe = s->safe};
    if (!tpl_arg_int(r, c, 0, &width) || !tpl_arg_for(r, self, c, 1, &fill))
        return false;
    if (fill && fill->n_char != 1)
        return tpl_fail(r, "the fill must be one character");
    if (width > (int64_t)r->limits.output)
        return tpl_fail(r, "more than %zu bytes of output", r->limits.output);
    int64_t padding = width - (int64_t)s->n_char;
    /* as in Python, the odd blank goes to the left if both padding and width are odd */
    int64_t left = padding <= 0 || where < 0 ? 0 : where > 0 ? padding : padding / 2 + (padding & width & 1);
    for (int64_t i = 0; i < left && !b.failed; i++)
        tpl_put_all(&b, fill ? fill : &blank);
    tpl_put_all(&b, s);
    for (int64_t i = left; i < padding && !b.failed; i++)
        tpl_put_all(&b, fill ? fill : &blank);
    return tpl_built(&b, out);
}
static bool m_ljust(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pad(r, self, c, -1, out);
}
static bool m_rjust(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pad(r, self, c, 1, out);
}
static bool m_center(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pad(r, self, c, 0, out);
}

static bool m_zfill(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_str *s = self->u.s;
    int64_t width = 0;
    tpl_builder b = {.r = r, .safe = s->safe};
    if (!tpl_arg_int(r, c, 0, &width))
        return false;
    if (width > (int64_t)r->limits.output)
        return tpl_fail(r, "more than %zu bytes of output", r->limits.output);
    size_t sign = s->n && (s->data[0] == '-' || s->data[0] == '+');
    tpl_put_part(&b, s, s->data, sign);
    for (int64_t i = (int64_t)s->n_char; i < width && !b.failed; i++)
        tpl_puts(&b, "0");
    tpl_put_part(&b, s, s->data + sign, s->n - sign);
    return tpl_built(&b, out);
}

const tpl_func tpl_str_more[] = {
    {"find", "sub,start,end", 1, m_find},
    {"rfind", "sub,start,end", 1, m_rfind},
    {"index", "sub,start,end", 1, m_index},
    {"rindex", "sub,start,end", 1, m_rindex},
    {"count", "sub,start,end", 1, m_count},
    {"startswith", "prefix,start,end", 1, m_startswith},
    {"endswith", "suffix,start,end", 1, m_endswith},
    {"removeprefix", "prefix", 1, m_removeprefix},
    {"removesuffix", "suffix", 1, m_removesuffix},
    {"partition", "sep", 1, m_partition},
    {"rpartition", "sep", 1, m_rpartition},
    {"ljust", "width,fillchar", 1, m_ljust},
    {"rjust", "width,fillchar", 1, m_rjust},
    {"center", "width,fillchar", 1, m_center},
    {"zfill", "width", 1, m_zfill},
    {"format", "*", 0, tpl_str_format},
    {NULL, NULL, 0, NULL},
};

/* str.c - strings: case, stripping, searching and splitting; half of the methods of str. */
#include "jinja/run.h"

#include <string.h>

#include <utf8proc.h>

const char *tpl_find_in(const char *s, size_t n, const char *what, size_t n_what) {
    if (!n_what)
        return s ? s : "";
    return n_what <= n ? memmem(s, n, what, n_what) : NULL;
}

static bool is_upper(uint32_t c) {
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    return cat == UTF8PROC_CATEGORY_LU;
}

static bool is_lower(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL || c == 0xaa || c == 0xba;
}

static bool is_letter(uint32_t c) {
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    return cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO;
}

static bool is_cased(uint32_t c) {
    return is_upper(c) || is_lower(c) || utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LT;
}

/* Writes one character's upper or lower case; the sharp s is the only common letter whose upper case is
 * longer. */
static void put_cased(tpl_builder *b, uint32_t c, bool upper, bool marked) {
    b->marked = marked;
    if (upper && c == 0xdf)
        tpl_puts(b, "SS");
    else
        tpl_put_code(b, (uint32_t)(upper ? utf8proc_toupper((utf8proc_int32_t)c)
                                         : utf8proc_tolower((utf8proc_int32_t)c)));
}

bool tpl_recase(tpl_run *r, const tpl_str *s, tpl_case how, tpl_value *out) {
    tpl_builder b = {.r = r, .safe = s->safe};
    bool first = true;
    for (const char *p = s->data, *end = s->data + s->n; p < end && !b.failed; first = false) {
        const char *from = p;
        uint32_t c = tpl_utf8_next(&p, end);
        bool upper = how == TPL_UPPER || (how == TPL_CAPITAL && first) || (how == TPL_SWAP && is_lower(c));
        if (c == 0xfffd)
            tpl_put_part(&b, s, from, (size_t)(p - from));
        else
            put_cased(&b, c, upper, tpl_is_marked(s, from));
    }
    return tpl_built(&b, out);
}

/* python: str.title (capitals after non-letters); otherwise jinja2's filter (capitals after blanks and
 * brackets). */
bool tpl_title(tpl_run *r, const tpl_str *s, bool python, tpl_value *out) {
    tpl_builder b = {.r = r, .safe = python && s->safe};
    bool start = true;
    for (const char *p = s->data, *end = s->data + s->n; p < end && !b.failed;) {
        const char *from = p;
        uint32_t c = tpl_utf8_next(&p, end);
        put_cased(&b, c, start, tpl_is_marked(s, from));
        start = python ? !is_cased(c)
                       : tpl_is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
    }
    return tpl_built(&b, out);
}

bool tpl_all_case(tpl_run *r, const tpl_str *s, bool upper, tpl_value *out) {
    bool any = false, all = true;
    for (const char *p = s->data, *end = s->data + s->n; all && p < end;) {
        uint32_t c = tpl_utf8_next(&p, end);
        bool wanted = upper ? is_upper(c) : is_lower(c);
        any = any || wanted;
        all = wanted || !is_cased(c);
    }
    *out = tpl_bool(any && all);
    return tpl_charge(r, s->n / 16);
}

static bool strips(const tpl_str *chars, uint32_t c) {
    if (!chars)
        return tpl_is_space(c);
    for (const char *p = chars->data, *end = p + chars->n; p < end;) {
        if (tpl_utf8_next(&p, end) == c)
            return true;
    }
    return false;
}

bool tpl_strip(tpl_run *r, const tpl_str *s, const tpl_str *chars, bool left, bool right, tpl_value *out) {
    const char *p = s->data, *end = s->data + s->n, *next = p;
    if (!tpl_charge(r, (uint64_t)s->n * (chars ? chars->n + 1 : 1) / 16))
        return false;
    while (left && p < end && strips(chars, tpl_utf8_next(&next, end)))
        p = next;
    while (right && end > p) {
        const char *last = end - 1;
        while (last > p && ((unsigned char)*last & 0xc0) == 0x80)
            last--;
        next = last;
        if (!strips(chars, tpl_utf8_next(&next, end)) || next != end)
            break;
        end = last;
    }
    return tpl_str_part(r, s, p, (size_t)(end - p), out);
}

bool tpl_replace(tpl_run *r, const tpl_str *s, const tpl_str *from, const tpl_str *to, int64_t max,
                 tpl_value *out) {
    tpl_builder b = {.r = r, .safe = s->safe};
    const char *p = s->data, *end = s->data + s->n;
    int64_t left = max < 0 ? INT64_MAX : max;
    if (!tpl_charge(r, s->n / 16))
        return false;
    if (!from->n) { /* an empty pattern matches between all characters and at both ends */
        while (left-- > 0 && !b.failed) {
            tpl_put_all(&b, to);
            if (p >= end)
                return tpl_built(&b, out);
            const char *begin = p;
            tpl_utf8_next(&p, end);
            tpl_put_part(&b, s, begin, (size_t)(p - begin));
        }
    }
    while (from->n && left-- > 0 && !b.failed) {
        const char *hit = tpl_find_in(p, (size_t)(end - p), from->data, from->n);
        if (!hit)
            break;
        if (!tpl_charge(r, 1))
            return false;
        tpl_put_part(&b, s, p, (size_t)(hit - p));
        tpl_put_all(&b, to);
        p = hit + from->n;
    }
    tpl_put_part(&b, s, p, (size_t)(end - p));
    return tpl_built(&b, out);
}

static bool self_recase(tpl_run *r, const tpl_value *self, tpl_case how, tpl_value *out) {
    return tpl_recase(r, self->u.s, how, out);
}
static bool m_upper(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return self_recase(r, self, TPL_UPPER, out);
}
static bool m_lower(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return self_recase(r, self, TPL_LOWER, out);
}
static bool m_capitalize(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return self_recase(r, self, TPL_CAPITAL, out);
}
static bool m_swapcase(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return self_recase(r, self, TPL_SWAP, out);
}
static bool m_title(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return tpl_title(r, self->u.s, true, out);
}

static bool strip_by(tpl_run *r, const tpl_value *self, tpl_call *c, bool left, bool right, tpl_value *out) {
    const tpl_str *chars = NULL;
    return tpl_arg_for(r, self, c, 0, &chars) && tpl_strip(r, self->u.s, chars, left, right, out);
}
static bool m_strip(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return strip_by(r, self, c, true, true, out);
}
static bool m_lstrip(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return strip_by(r, self, c, true, false, out);
}
static bool m_rstrip(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return strip_by(r, self, c, false, true, out);
}

static bool m_replace(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_str *from = NULL, *to = NULL;
    int64_t max = -1;
    if (!tpl_arg_for(r, self, c, 0, &from) || !tpl_arg_for(r, self, c, 1, &to) || !tpl_arg_int(r, c, 2, &max))
        return false;
    return from && to ? tpl_replace(r, self->u.s, from, to, max, out)
                      : tpl_fail(r, "replace() expects strings");
}

static bool push_part(tpl_items *parts, const tpl_str *s, const char *from, const char *to) {
    tpl_value v;
    return tpl_str_part(parts->r, s, from, (size_t)(to - from), &v) && tpl_push(parts, v);
}

/* Splits at runs of white space, from the left. */
static bool split_blank(tpl_items *parts, const tpl_str *s, int64_t max) {
    const char *p = s->data, *end = p + s->n;
    for (;;) {
        const char *next = p;
        while (p < end && tpl_is_space(tpl_utf8_next(&next, end)))
            p = next;
        if (p >= end)
            return true;
        const char *from = p, *stop = p;
        if (max-- == 0) /* the rest, including trailing blanks */
            return push_part(parts, s, from, end);
        for (next = p; p < end && !tpl_is_space(tpl_utf8_next(&next, end)); p = next)
            stop = next;
        if (!push_part(parts, s, from, stop))
            return false;
    }
}

static bool split_sep(tpl_items *parts, const tpl_str *s, const tpl_str *sep, int64_t max) {
    const char *p = s->data, *end = p + s->n;
    while (max-- != 0) {
        const char *hit = tpl_find_in(p, (size_t)(end - p), sep->data, sep->n);
        if (!hit)
            break;
        if (!push_part(parts, s, p, hit))
            return false;
        p = hit + sep->n;
    }
    return push_part(parts, s, p, end);
}

bool tpl_find_last(tpl_run *r, const char *s, size_t n, const tpl_str *what, const char **out) {
    *out = NULL;
    size_t places = what->n > n ? 0 : n - what->n + 1, i = places;
    while (i > 0 && !*out) {
        i--;
        if (what->n && s[i] != what->data[0])
            continue;
        if (!tpl_charge(r, what->n / 64))
            return false;
        if (!what->n || memcmp(s + i, what->data, what->n) == 0)
            *out = s + i;
    }
    return tpl_charge(r, (places - i) / 16);
}

static void reverse(tpl_items *parts) {
    for (size_t i = 0, j = parts->n; i + 1 < j; i++) {
        tpl_value v = parts->v[i];
        parts->v[i] = parts->v[--j];
        parts->v[j] = v;
    }
}

static bool rsplit_sep(tpl_items *parts, const tpl_str *s, const tpl_str *sep, int64_t max) {
    const char *begin = s->data, *end = begin + s->n;
    while (max-- != 0) {
        const char *hit;
        if (!tpl_find_last(parts->r, begin, (size_t)(end - begin), sep, &hit))
            return false;
        if (!hit)
            break;
        if (!push_part(parts, s, hit + sep->n, end))
            return false;
        end = hit;
    }
    if (!push_part(parts, s, begin, end))
        return false;
    reverse(parts);
    return true;
}

/* The start of the character that ends at `end`. */
static const char *char_before(const char *begin, const char *end) {
    end--;
    while (end > begin && ((unsigned char)*end & 0xc0) == 0x80)
        end--;
    return end;
}

static bool space_before(const char *begin, const char *end) {
    const char *p = char_before(begin, end);
    return tpl_is_space(tpl_utf8_next(&p, end)) && p == end;
}

static bool rsplit_blank(tpl_items *parts, const tpl_str *s, int64_t max) {
    const char *begin = s->data, *end = begin + s->n;
    for (;;) {
        while (end > begin && space_before(begin, end))
            end = char_before(begin, end);
        if (end == begin)
            break;
        const char *from = begin;
        if (max-- != 0) {
            from = end;
            while (from > begin && !space_before(begin, from))
                from = char_before(begin, from);
        }
        if (!push_part(parts, s, from, end))
            return false;
        end = from;
    }
    reverse(parts);
    return true;
}

static bool split_by(tpl_run *r, const tpl_value *self, tpl_call *c, bool right, tpl_value *out) {
    const tpl_str *sep = NULL;
    int64_t max = -1;
    tpl_items parts = {.r = r};
    if (!tpl_arg_str(r, c, 0, &sep) || !tpl_arg_int(r, c, 1, &max) || !tpl_charge(r, self->u.s->n / 16))
        return false;
    if (max < 0)
        max = -1;
    if (sep && !sep->n)
        return tpl_fail(r, "split() with an empty separator");
    bool ok = sep ? (right ? rsplit_sep : split_sep)(&parts, self->u.s, sep, max)
                  : (right ? rsplit_blank : split_blank)(&parts, self->u.s, max);
    return ok && tpl_pushed(&parts, TPL_LIST, out);
}
static bool m_split(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return split_by(r, self, c, false, out);
}
static bool m_rsplit(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return split_by(r, self, c, true, out);
}

static bool is_line_end(uint32_t c) {
    return (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

static bool m_splitlines(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_items parts = {.r = r};
    bool keep = c->given[0] && tpl_truth(&c->arg[0]);
    const char *p = self->u.s->data, *end = p + self->u.s->n;
    if (!tpl_charge(r, self->u.s->n / 16))
        return false;
    while (p < end) {
        const char *from = p, *stop = p;
        while (p < end) {
            stop = p;
            uint32_t code = tpl_utf8_next(&p, end);
            if (is_line_end(code)) {
                if (code == '\r' && p < end && *p == '\n')
                    p++;
                break;
            }
            stop = p;
        }
        if (!push_part(&parts, self->u.s, from, keep ? p : stop))
            return false;
    }
    return tpl_pushed(&parts, TPL_LIST, out);
}

static bool m_join(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    const bool safe = self->u.s->safe; /* Markup escapes the items, which may then be of any type */
    tpl_builder b = {.r = r, .safe = safe};
    if (!tpl_list_from(r, &c->arg[0], &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        tpl_value item = l->v[i];
        if (safe && (!tpl_to_str(r, &l->v[i], &item) || !tpl_escape(r, item.u.s, &item)))
            return false;
        if (item.type != TPL_STR)
            return tpl_fail(r, "join() expects strings, item %zu is '%s'", i, tpl_type_name(item.type));
        if (i)
            tpl_put_all(&b, self->u.s);
        tpl_put_all(&b, item.u.s);
    }
    return tpl_built(&b, out);
}

static bool is_alpha(uint32_t c) {
    return is_letter(c);
}
static bool is_decimal(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}
static bool is_digit(uint32_t c) { /* superscripts count, as in Python */
    return is_decimal(c) || c == 0xb2 || c == 0xb3 || c == 0xb9 || c == 0x2070 ||
           (c >= 0x2074 && c <= 0x2079) || (c >= 0x2080 && c <= 0x2089);
}
static bool is_numeric(uint32_t c) {
    utf8proc_category_t cat = utf8proc_category((utf8proc_int32_t)c);
    return is_digit(c) || cat == UTF8PROC_CATEGORY_NL || cat == UTF8PROC_CATEGORY_NO;
}
bool tpl_is_alnum(uint32_t c) {
    return is_letter(c) || is_numeric(c);
}
static bool is_ascii(uint32_t c) {
    return c < 0x80;
}

static bool all_are(const tpl_value *self, bool (*is)(uint32_t), bool empty, tpl_value *out) {
    const tpl_str *s = self->u.s;
    bool all = s->n ? true : empty;
    for (const char *p = s->data, *end = p + s->n; all && p < end;)
        all = is(tpl_utf8_next(&p, end));
    *out = tpl_bool(all);
    return true;
}

#define CLASS_METHODS(X)                                                                                     \
    X(isalpha, is_alpha, false)                                                                              \
    X(isdigit, is_digit, false)                                                                              \
    X(isdecimal, is_decimal, false)                                                                          \
    X(isnumeric, is_numeric, false)                                                                          \
    X(isalnum, tpl_is_alnum, false)                                                                          \
    X(isspace, tpl_is_space, false)                                                                          \
    X(isascii, is_ascii, true)                                                                               \
    X(isprintable, tpl_is_printable, true)

#define CLASS_X(name, is, empty)                                                                             \
    static bool m_##name(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {                   \
        (void)c;                                                                                             \
        return tpl_charge(r, self->u.s->n / 16) && all_are(self, is, empty, out);                            \
    }
CLASS_METHODS(CLASS_X)
#undef CLASS_X

static bool m_isupper(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return tpl_all_case(r, self->u.s, true, out);
}
static bool m_islower(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return tpl_all_case(r, self->u.s, false, out);
}

const tpl_func tpl_str_methods[] = {
    {"strip", "chars", 0, m_strip},
    {"lstrip", "chars", 0, m_lstrip},
    {"rstrip", "chars", 0, m_rstrip},
    {"split", "sep,maxsplit", 0, m_split},
    {"rsplit", "sep,maxsplit", 0, m_rsplit},
    {"splitlines", "keepends", 0, m_splitlines},
    {"replace", "old,new,count", 2, m_replace},
    {"join", "iterable", 1, m_join},
    {"upper", "", 0, m_upper},
    {"lower", "", 0, m_lower},
    {"capitalize", "", 0, m_capitalize},
    {"swapcase", "", 0, m_swapcase},
    {"title", "", 0, m_title},
    {"isupper", "", 0, m_isupper},
    {"islower", "", 0, m_islower},
#define CLASS_X(name, is, empty) {#name, "", 0, m_##name},
    CLASS_METHODS(CLASS_X)
#undef CLASS_X
        {NULL, NULL, 0, NULL},
};

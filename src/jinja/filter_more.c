/* filter_more.c - filters that templates use seldom: groupby, slice, wordcount, filesizeformat,
 * urlencode, xmlattr. Not here, and refused by name: pprint, random, striptags, urlize, wordwrap. */
#include "jinja/run.h"

#include <stdio.h>
#include <string.h>

/* One group is a pair with names: group.grouper and group.list. */
static bool push_group(tpl_items *groups, const tpl_value *key, tpl_items *of) {
    tpl_run *r = groups->r;
    tpl_value *pair = tpl_alloc(r, 2, sizeof *pair);
    tpl_list *l = pair ? tpl_alloc(r, 1, sizeof *l) : NULL;
    if (!l || !tpl_pushed(of, TPL_LIST, &pair[1]))
        return false;
    pair[0] = *key;
    *l = (tpl_list){.v = pair, .n = 2, .group = true};
    return tpl_push(groups, tpl_of_list(l, TPL_TUPLE));
}

static bool group_key(tpl_run *r, const tpl_value *item, const tpl_call *c, bool case_sensitive,
                      tpl_value *out) {
    if (!tpl_attribute_of(r, item, &c->arg[0], out))
        return false;
    if (out->type == TPL_UNDEF && c->given[1] && c->arg[1].type != TPL_NONE)
        *out = c->arg[1];
    return case_sensitive || out->type != TPL_STR || tpl_recase(r, out->u.s, TPL_LOWER, out);
}

/* Sorts by the attribute, and joins items with the same one; a group's name is that of its first item. */
static bool f_groupby(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const bool case_sensitive = c->given[2] && tpl_truth(&c->arg[2]);
    tpl_items groups = {.r = r};
    const tpl_list *l, *order;
    tpl_value sorted, name = tpl_none();
    if (!tpl_list_from(r, self, &l))
        return false;
    tpl_value *keys = tpl_alloc(r, l->n, sizeof *keys);
    if (!keys)
        return false;
    for (size_t i = 0; i < l->n; i++)
        if (!group_key(r, &l->v[i], c, case_sensitive, &keys[i]))
            return false;
    if (!tpl_sort(r, l, keys, false, &sorted))
        return false;
    order = sorted.u.list;
    for (size_t i = 0; i < order->n;) {
        tpl_items group = {.r = r};
        tpl_value first, key;
        bool same = true;
        if (!group_key(r, &order->v[i], c, case_sensitive, &first) ||
            !group_key(r, &order->v[i], c, true, &name))
            return false;
        for (; i < order->n && same; i++) {
            if (!group_key(r, &order->v[i], c, case_sensitive, &key) || !tpl_equal(r, &first, &key, 0, &same))
                return false;
            if (!same)
                break;
            if (!tpl_push(&group, order->v[i]))
                return false;
        }
        if (!push_group(&groups, &name, &group))
            return false;
    }
    return tpl_pushed(&groups, TPL_LIST, out);
}

/* Splits into a number of lists whose lengths differ by at most one; fill_with makes them equal. */
static bool f_slice(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    int64_t n = 0;
    tpl_items slices = {.r = r};
    const bool fill = c->given[1] && c->arg[1].type != TPL_NONE;
    if (!tpl_arg_int(r, c, 0, &n) || !tpl_list_from(r, self, &l))
        return false;
    if (n == 0)
        return tpl_fail(r, "slice: into 0 lists");
    for (int64_t i = 0, at = 0; i < n; i++) {
        tpl_items slice = {.r = r};
        tpl_value v;
        const bool longer = (uint64_t)i < l->n % (uint64_t)n;
        const int64_t end = at + (int64_t)(l->n / (uint64_t)n) + longer;
        for (; at < end; at++)
            if (!tpl_push(&slice, l->v[at]))
                return false;
        if ((fill && !longer && !tpl_push(&slice, c->arg[1])) || !tpl_pushed(&slice, TPL_LIST, &v) ||
            !tpl_push(&slices, v))
            return false;
    }
    return tpl_pushed(&slices, TPL_GEN, out);
}

static bool f_wordcount(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value text;
    int64_t n = 0;
    (void)c;
    if (!tpl_to_str(r, self, &text) || !tpl_charge(r, text.u.s->n / 16))
        return false;
    bool inside = false;
    for (const char *p = text.u.s->data, *end = p + text.u.s->n; p < end;) {
        const uint32_t code = tpl_utf8_next(&p, end);
        const bool word = code == '_' || tpl_is_alnum(code);
        n += word && !inside;
        inside = word;
    }
    *out = tpl_int(n);
    return true;
}

static bool f_filesizeformat(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const char letters[] = "kMGTPEZY";
    const bool binary = c->given[0] && tpl_truth(&c->arg[0]);
    const double base = binary ? 1024 : 1000;
    tpl_builder b = {.r = r};
    char text[400];
    double bytes, unit = base;
    size_t i = 0;
    tpl_value number;
    if (!tpl_filter(r, &(tpl_str){.data = "float", .n = 5, .n_char = 5}, self, &(tpl_args){0}, &number))
        return false;
    bytes = tpl_as_float(&number);
    for (; letters[i + 1] && bytes >= unit * base; i++)
        unit *= base;
    if (bytes == 1)
        snprintf(text, sizeof text, "1 Byte");
    else if (bytes < base)
        snprintf(text, sizeof text, "%.0f Bytes",
                 bytes < 0 ? -(double)(int64_t)-bytes : (double)(int64_t)bytes);
    else
        snprintf(text, sizeof text, "%.1f %c%sB", bytes / unit, binary && !i ? 'K' : letters[i],
                 binary ? "i" : "");
    for (char *p = text; *p; p++)
        *p = *p == ',' ? '.' : *p; /* the locale's decimal point */
    tpl_puts(&b, text);
    return tpl_built(&b, out);
}

/* query: a part of a query, in which blanks become '+'. */
static bool put_quoted(tpl_builder *b, const tpl_value *v, bool query) {
    static const char plain[] = "_.-~";
    tpl_value text;
    if (!tpl_to_str(b->r, v, &text))
        return false;
    const tpl_str *s = text.u.s;
    for (size_t i = 0; i < s->n && !b->failed; i++) {
        const char c = s->data[i];
        const bool kept = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                          (c && strchr(plain, c)) || (c == '/' && !query);
        char hex[4];
        snprintf(hex, sizeof hex, "%%%02X", (unsigned char)c);
        b->marked = tpl_is_marked(s, s->data + i);
        if (kept)
            tpl_put(b, &c, 1);
        else
            tpl_puts(b, query && c == ' ' ? "+" : hex);
    }
    b->marked = false;
    return true;
}

static bool f_urlencode(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_builder b = {.r = r};
    tpl_value pairs = *self;
    const tpl_list *l, *pair;
    (void)c;
    if (self->type == TPL_STR || tpl_is_number(self) || self->type == TPL_NONE)
        return put_quoted(&b, self, false) && tpl_built(&b, out);
    if (self->type == TPL_DICT &&
        !tpl_filter(r, &(tpl_str){.data = "items", .n = 5, .n_char = 5}, self, &(tpl_args){0}, &pairs))
        return false;
    if (!tpl_list_from(r, &pairs, &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        if (!tpl_list_from(r, &l->v[i], &pair))
            return false;
        if (pair->n != 2)
            return tpl_fail(r, "urlencode: expected pairs");
        tpl_puts(&b, i ? "&" : "");
        if (!put_quoted(&b, &pair->v[0], true))
            return false;
        tpl_puts(&b, "=");
        if (!put_quoted(&b, &pair->v[1], true))
            return false;
    }
    return tpl_built(&b, out);
}

static bool put_escaped(tpl_builder *b, const tpl_value *v) {
    tpl_value text;
    if (!tpl_to_str(b->r, v, &text) || !tpl_escape(b->r, text.u.s, &text))
        return false;
    tpl_put_all(b, text.u.s);
    return true;
}

static bool is_attribute_name(const tpl_value *key) {
    if (key->type != TPL_STR)
        return false;
    for (const char *p = key->u.s->data, *end = p + key->u.s->n; p < end;) {
        const uint32_t c = tpl_utf8_next(&p, end);
        if (tpl_is_space(c) || c == '/' || c == '>' || c == '=')
            return false;
    }
    return true;
}

static bool f_xmlattr(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_builder b = {.r = r};
    const bool space = !c->given[0] || tpl_truth(&c->arg[0]);
    if (self->type != TPL_DICT)
        return tpl_fail(r, "xmlattr: expected a mapping, found '%s'", tpl_type_name(self->type));
    for (size_t i = 0; i < self->u.dict->n; i++) {
        const tpl_value *key = &self->u.dict->key[i], *value = &self->u.dict->val[i];
        if (value->type == TPL_NONE || value->type == TPL_UNDEF)
            continue;
        if (!is_attribute_name(key))
            return tpl_fail(r, "xmlattr: a key that is no attribute's name");
        tpl_puts(&b, b.n || space ? " " : "");
        if (!put_escaped(&b, key))
            return false;
        tpl_puts(&b, "=\"");
        if (!put_escaped(&b, value))
            return false;
        tpl_puts(&b, "\"");
    }
    return tpl_built(&b, out);
}

const tpl_func tpl_more_filters[] = {
    {"groupby", "attribute,default,case_sensitive", 1, f_groupby},
    {"slice", "slices,fill_with", 1, f_slice},
    {"wordcount", "", 0, f_wordcount},
    {"filesizeformat", "binary", 0, f_filesizeformat},
    {"urlencode", "", 0, f_urlencode},
    {"xmlattr", "autospace", 0, f_xmlattr},
    {NULL, NULL, 0, NULL},
};

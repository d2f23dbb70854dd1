/* tojson.c - the filter tojson as transformers defines it: Python's json.dumps with ensure_ascii,
 * indent, separators and sort_keys. */
#include "jinja/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct writer {
    tpl_builder b;
    bool ascii, sorted, lines;
    tpl_str indent, item, colon; /* one level's indent; the separators after an item and after a key */
} writer;

static void put_unit(tpl_builder *b, uint32_t unit) {
    char text[16];
    snprintf(text, sizeof text, "\\u%04x", unit);
    tpl_puts(b, text);
}

static void put_json_str(writer *w, const tpl_str *s) {
    static const char plain[] = "\"\\\n\r\t\f\b", escape[] = "\"\\nrtfb";
    tpl_puts(&w->b, "\"");
    for (const char *p = s->data, *end = p + s->n; p < end && !w->b.failed;) {
        const char *from = p;
        uint32_t c = tpl_utf8_next(&p, end);
        const char *hit = c && c < 0x80 ? strchr(plain, (int)c) : NULL;
        w->b.marked = tpl_is_marked(s, from);
        if (hit) {
            char text[2] = {'\\', escape[hit - plain]};
            tpl_put(&w->b, text, 2);
        } else if (c < 0x20 || (w->ascii && c >= 0x7f && c < 0x10000)) {
            put_unit(&w->b, c);
        } else if (w->ascii && c >= 0x10000) {
            put_unit(&w->b, 0xd800 + ((c - 0x10000) >> 10));
            put_unit(&w->b, 0xdc00 + ((c - 0x10000) & 0x3ff));
        } else {
            tpl_put(&w->b, from, (size_t)(p - from));
        }
    }
    w->b.marked = false;
    tpl_puts(&w->b, "\"");
}

static bool put_value(writer *w, const tpl_value *v, int depth);

static void put_line(writer *w, int depth) {
    if (!w->lines)
        return;
    tpl_puts(&w->b, "\n");
    for (int i = 0; i < depth; i++)
        tpl_put_all(&w->b, &w->indent);
}

static bool put_list(writer *w, const tpl_list *l, int depth) {
    tpl_puts(&w->b, "[");
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            tpl_put_all(&w->b, &w->item);
        put_line(w, depth + 1);
        if (!put_value(w, &l->v[i], depth + 1))
            return false;
    }
    if (l->n)
        put_line(w, depth);
    tpl_puts(&w->b, "]");
    return true;
}

static void put_number(writer *w, const tpl_value *v) {
    char text[32];
    if (v->type == TPL_FLOAT) {
        if (isnan(v->u.f) || isinf(v->u.f))
            tpl_puts(&w->b, isnan(v->u.f) ? "NaN" : v->u.f < 0 ? "-Infinity" : "Infinity");
        else
            tpl_put_float(&w->b, v->u.f);
        return;
    }
    snprintf(text, sizeof text, "%" PRId64, v->u.i);
    tpl_puts(&w->b, text);
}

static bool put_key(writer *w, const tpl_value *key) {
    if (key->type == TPL_STR) {
        put_json_str(w, key->u.s);
        return true;
    }
    if (key->type == TPL_TUPLE || key->type == TPL_UNDEF)
        return tpl_fail(w->b.r, "tojson: a key is a '%s'", tpl_type_name(key->type));
    tpl_puts(&w->b, "\"");
    bool ok = put_value(w, key, 0);
    tpl_puts(&w->b, "\"");
    return ok;
}

/* The indices of a dict's items in the order of writing. */
static size_t *key_order(writer *w, const tpl_dict *d) {
    size_t *order = tpl_alloc(w->b.r, d->n, sizeof *order);
    for (size_t i = 0; order && i < d->n; i++) {
        size_t at = i;
        while (w->sorted && at > 0) { /* insertion sort: dicts are small, and steps are charged */
            int sign;
            if (!tpl_order(w->b.r, &d->key[i], &d->key[order[at - 1]], 0, &sign))
                return NULL;
            if (sign >= 0)
                break;
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    return order;
}

static bool put_dict(writer *w, const tpl_dict *d, int depth) {
    size_t *order = key_order(w, d);
    if (!order)
        return false;
    tpl_puts(&w->b, "{");
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            tpl_put_all(&w->b, &w->item);
        put_line(w, depth + 1);
        if (!put_key(w, &d->key[order[i]]))
            return false;
        tpl_put_all(&w->b, &w->colon);
        if (!put_value(w, &d->val[order[i]], depth + 1))
            return false;
    }
    if (d->n)
        put_line(w, depth);
    tpl_puts(&w->b, "}");
    return true;
}

static bool put_value(writer *w, const tpl_value *v, int depth) {
    if (depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(w->b.r, "tojson: nested more than %d deep", TPL_MAX_VALUE_DEPTH);
    if (!tpl_charge(w->b.r, 1) || w->b.failed)
        return false;
    switch (v->type) {
    case TPL_NONE: tpl_puts(&w->b, "null"); return true;
    case TPL_BOOL: tpl_puts(&w->b, v->u.b ? "true" : "false"); return true;
    case TPL_INT:
    case TPL_FLOAT: put_number(w, v); return true;
    case TPL_STR: put_json_str(w, v->u.s); return true;
    case TPL_LIST:
    case TPL_TUPLE: return put_list(w, v->u.list, depth);
    case TPL_DICT: return put_dict(w, v->u.dict, depth);
    default: return tpl_fail(w->b.r, "tojson: a value is '%s'", tpl_type_name(v->type));
    }
}

static tpl_str text_of(const char *s) {
    return (tpl_str){.data = s, .n = strlen(s), .n_char = strlen(s)};
}

static bool read_indent(tpl_run *r, writer *w, const tpl_value *v) {
    if (v->type == TPL_NONE)
        return true;
    w->lines = true;
    if (v->type == TPL_STR) {
        w->indent = *v->u.s;
        return true;
    }
    if (!tpl_is_whole(v))
        return tpl_fail(r, "tojson: indent is '%s'", tpl_type_name(v->type));
    int64_t n = tpl_as_int(v);
    n = n < 0 ? 0 : n;
    if (n > 1000)
        return tpl_fail(r, "tojson: an indent of %" PRId64, n);
    char *blanks = tpl_alloc(r, (size_t)n, 1);
    if (!blanks)
        return false;
    memset(blanks, ' ', (size_t)n);
    w->indent = (tpl_str){.data = blanks, .n = (size_t)n, .n_char = (size_t)n};
    return true;
}

static bool read_separators(tpl_run *r, writer *w, const tpl_value *v) {
    if (v->type == TPL_NONE)
        return true;
    const tpl_list *l;
    if (!tpl_list_from(r, v, &l))
        return false;
    if (l->n != 2 || l->v[0].type != TPL_STR || l->v[1].type != TPL_STR)
        return tpl_fail(r, "tojson: separators are two strings");
    w->item = *l->v[0].u.s;
    w->colon = *l->v[1].u.s;
    return true;
}

bool tpl_tojson(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    writer w = {.b = {.r = r}, .colon = text_of(": ")};
    w.ascii = c->given[0] && tpl_truth(&c->arg[0]);
    w.sorted = c->given[3] && tpl_truth(&c->arg[3]);
    if (c->given[1] && !read_indent(r, &w, &c->arg[1]))
        return false;
    w.item = text_of(w.lines ? "," : ", ");
    if (c->given[2] && !read_separators(r, &w, &c->arg[2]))
        return false;
    return put_value(&w, self, 0) && tpl_built(&w.b, out);
}

/* filter_list.c - filters that turn a sequence into a value or another sequence. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <string.h>

static bool f_length(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    size_t n;
    (void)c;
    if (!tpl_length(r, self, &n))
        return false;
    *out = tpl_int((int64_t)n);
    return true;
}

static bool f_list(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    (void)c;
    return tpl_list_from(r, self, &l) && tpl_list_of(r, l->v, l->n, TPL_LIST, out);
}

static bool end_of(tpl_run *r, const tpl_value *self, bool last, tpl_value *out) {
    const tpl_list *l;
    if (!tpl_list_from(r, self, &l))
        return false;
    *out = l->n ? l->v[last ? l->n - 1 : 0] : tpl_undef(NULL);
    return true;
}
static bool f_first(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    if (self->type == TPL_GEN) { /* consumes only one item */
        tpl_gen *g = self->u.gen;
        *out = g->pos < g->list->n ? g->list->v[g->pos++] : tpl_undef(NULL);
        return true;
    }
    return end_of(r, self, false, out);
}
static bool f_last(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return end_of(r, self, true, out);
}

static bool f_reverse(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    (void)c;
    if (!tpl_list_from(r, self, &l))
        return false;
    if (self->type == TPL_STR) {
        tpl_builder b = {.r = r, .safe = self->u.s->safe};
        for (size_t i = l->n; i-- > 0 && !b.failed;)
            tpl_put_all(&b, l->v[i].u.s);
        return tpl_built(&b, out);
    }
    tpl_value *v = tpl_alloc(r, l->n, sizeof *v);
    for (size_t i = 0; v && i < l->n; i++)
        v[i] = l->v[l->n - 1 - i];
    return v && tpl_list_of(r, v, l->n, TPL_GEN, out);
}

static bool f_items(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const tpl_str name = {.data = "items", .n = 5, .n_char = 5};
    tpl_value view;
    tpl_args none = {0};
    (void)c;
    if (self->type == TPL_UNDEF)
        return tpl_list_of(r, NULL, 0, TPL_GEN, out);
    if (self->type != TPL_DICT)
        return tpl_fail(r, "items: expected a mapping, found '%s'", tpl_type_name(self->type));
    return tpl_call_row(r, tpl_find_method(self, &name), self, &none, &view) &&
           tpl_list_of(r, view.u.list->v, view.u.list->n, TPL_GEN, out);
}

static bool f_batch(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    int64_t size = 0;
    tpl_items groups = {.r = r};
    if (!tpl_arg_int(r, c, 0, &size) || !tpl_list_from(r, self, &l))
        return false;
    if (size < 1)
        return tpl_fail(r, "batch: a size of %d", (int)size);
    bool fill = c->given[1] && c->arg[1].type != TPL_NONE;
    for (size_t i = 0; i < l->n;) {
        tpl_items group = {.r = r};
        tpl_value v;
        size_t n = l->n - i < (uint64_t)size ? l->n - i : (size_t)size;
        for (size_t k = 0; k < n; k++) {
            if (!tpl_push(&group, l->v[i + k]))
                return false;
        }
        while (fill && group.n < (uint64_t)size) {
            if (!tpl_push(&group, c->arg[1]))
                return false;
        }
        i += n;
        if (!tpl_pushed(&group, TPL_LIST, &v) || !tpl_push(&groups, v))
            return false;
    }
    return tpl_pushed(&groups, TPL_GEN, out);
}

const tpl_func tpl_list_filters[] = {
    {"length", "", 0, f_length}, {"count", "", 0, f_length},
    {"list", "", 0, f_list},     {"first", "", 0, f_first},
    {"last", "", 0, f_last},     {"reverse", "", 0, f_reverse},
    {"items", "", 0, f_items},   {"batch", "linecount,fill_with", 1, f_batch},
    {NULL, NULL, 0, NULL},
};

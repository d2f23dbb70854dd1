/* method.c - methods of dicts, lists, loops and cyclers, and which methods the sandbox refuses. */
#include "jinja/run.h"

#include <math.h>

static bool m_get(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value *val;
    if (!tpl_dict_get(r, self->u.dict, &c->arg[0], &val))
        return false;
    *out = val ? *val : c->given[1] ? c->arg[1] : tpl_none();
    return true;
}

static bool view(tpl_run *r, const tpl_value *v, size_t n, const char *name, tpl_value *out) {
    tpl_list *l = tpl_alloc(r, 1, sizeof *l);
    if (!l)
        return false;
    *l = (tpl_list){.v = v, .n = n, .view = name};
    *out = tpl_of_list(l, TPL_VIEW);
    return true;
}

static bool m_items(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_dict *d = self->u.dict;
    tpl_value *v = tpl_alloc(r, d->n, sizeof *v);
    (void)c;
    if (!v)
        return false;
    for (size_t i = 0; i < d->n; i++) {
        tpl_value *pair = tpl_alloc(r, 2, sizeof *pair);
        if (!pair)
            return false;
        pair[0] = d->key[i];
        pair[1] = d->val[i];
        if (!tpl_list_of(r, pair, 2, TPL_TUPLE, &v[i]))
            return false;
    }
    return view(r, v, d->n, "dict_items", out);
}
static bool m_keys(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return view(r, self->u.dict->key, self->u.dict->n, "dict_keys", out);
}
static bool m_values(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)c;
    return view(r, self->u.dict->val, self->u.dict->n, "dict_values", out);
}
static bool m_copy(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)r;
    (void)c;
    *out = *self; /* values are immutable, so a copy is the value itself */
    return true;
}

static bool m_list_index(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l = self->u.list;
    for (size_t i = 0; i < l->n; i++) {
        bool same;
        if (!tpl_equal(r, &l->v[i], &c->arg[0], 0, &same))
            return false;
        if (same) {
            *out = tpl_int((int64_t)i);
            return true;
        }
    }
    return tpl_fail(r, "index(): the value is not in the list");
}

static bool m_list_count(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l = self->u.list;
    int64_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        bool same;
        if (!tpl_equal(r, &l->v[i], &c->arg[0], 0, &same))
            return false;
        n += same;
    }
    *out = tpl_int(n);
    return true;
}

static bool m_loop_cycle(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    if (!c->args->n_pos)
        return tpl_fail(r, "loop.cycle() without values");
    *out = c->args->pos[self->u.loop->i % c->args->n_pos];
    return true;
}

static bool m_loop_changed(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_loop *l = self->u.loop;
    tpl_value now;
    bool same = false;
    if (!tpl_list_of(r, c->args->pos, c->args->n_pos, TPL_TUPLE, &now) ||
        (l->seen && !tpl_equal(r, &l->last_seen, &now, 0, &same)))
        return false;
    l->last_seen = now;
    l->seen = true;
    *out = tpl_bool(!same);
    return true;
}

static bool m_cycler_next(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_cycle *y = self->u.cycle;
    (void)r;
    (void)c;
    *out = y->items->v[y->pos];
    y->pos = (y->pos + 1) % y->items->n;
    return true;
}
static bool m_cycler_reset(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)r;
    (void)c;
    self->u.cycle->pos = 0;
    *out = tpl_none();
    return true;
}

static bool m_is_integer(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    (void)r;
    (void)c;
    *out = tpl_bool(!isinf(self->u.f) && floor(self->u.f) == self->u.f);
    return true;
}

static const tpl_func dict_methods[] = {
    {"get", "key,default", 1, m_get}, {"items", "", 0, m_items}, {"keys", "", 0, m_keys},
    {"values", "", 0, m_values},      {"copy", "", 0, m_copy},   {NULL, NULL, 0, NULL},
};
static const tpl_func list_methods[] = {
    {"index", "value", 1, m_list_index},
    {"count", "value", 1, m_list_count},
    {"copy", "", 0, m_copy},
    {NULL, NULL, 0, NULL},
};
static const tpl_func loop_methods[] = {
    {"cycle", "*", 0, m_loop_cycle},
    {"changed", "*", 0, m_loop_changed},
    {NULL, NULL, 0, NULL},
};
static const tpl_func cycler_methods[] = {
    {"next", "", 0, m_cycler_next},
    {"reset", "", 0, m_cycler_reset},
    {NULL, NULL, 0, NULL},
};
static const tpl_func float_methods[] = {
    {"is_integer", "", 0, m_is_integer},
    {NULL, NULL, 0, NULL},
};

const tpl_func *tpl_find_method(const tpl_value *self, const tpl_str *name) {
    const tpl_func *f;
    switch (self->type) {
    case TPL_STR: f = tpl_find(tpl_str_methods, name); return f ? f : tpl_find(tpl_str_more, name);
    case TPL_DICT: return tpl_find(dict_methods, name);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
        if (self->type != TPL_LIST && tpl_str_is(name, "copy"))
            return NULL;
        return tpl_find(list_methods, name);
    case TPL_LOOP: return tpl_find(loop_methods, name);
    case TPL_CYCLER: return tpl_find(cycler_methods, name);
    case TPL_FLOAT: return tpl_find(float_methods, name);
    default: return NULL;
    }
}

bool tpl_is_refused_method(const tpl_value *self, const tpl_str *name) {
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    bool dict = self->type == TPL_DICT;
    if (!dict && self->type != TPL_LIST)
        return false;
    size_t n = dict ? sizeof of_dict / sizeof *of_dict : sizeof of_list / sizeof *of_list;
    for (size_t i = 0; i < n; i++) {
        if (tpl_str_is(name, (dict ? of_dict : of_list)[i]))
            return true;
    }
    return false;
}

/* filter_pick.c - filters that use the items' values: map, select, sort, unique, join, sum, min,
 * max. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <string.h>

bool tpl_attribute_of(tpl_run *r, const tpl_value *item, const tpl_value *attribute, tpl_value *out) {
    *out = *item;
    if (attribute->type == TPL_UNDEF || attribute->type == TPL_NONE)
        return true;
    if (tpl_is_whole(attribute))
        return tpl_item(r, item, attribute, out);
    if (attribute->type != TPL_STR)
        return tpl_fail(r, "an attribute's name is '%s'", tpl_type_name(attribute->type));
    const char *p = attribute->u.s->data, *end = p + attribute->u.s->n;
    for (;;) {
        const char *dot = p;
        bool digits = true;
        int64_t number = 0;
        for (; dot < end && *dot != '.'; dot++) {
            digits = digits && *dot >= '0' && *dot <= '9' && dot - p < 18;
            number = digits ? number * 10 + (*dot - '0') : 0;
        }
        tpl_value key = tpl_int(number), of = *out;
        if (!(digits && dot > p) && !tpl_str_ref(r, p, (size_t)(dot - p), &key))
            return false;
        if (!tpl_charge(r, 1) || !tpl_item(r, &of, &key, out))
            return false;
        if (dot >= end)
            return true;
        p = dot + 1;
    }
}

/* The key of an item for sorting, grouping and comparing: its attribute, in lower case unless case_sensitive.
 */
static bool key_of(tpl_run *r, const tpl_value *item, const tpl_value *attribute, bool case_sensitive,
                   tpl_value *out) {
    if (!tpl_attribute_of(r, item, attribute, out))
        return false;
    return case_sensitive || out->type != TPL_STR || tpl_recase(r, out->u.s, TPL_LOWER, out);
}

static bool keys_of(tpl_run *r, const tpl_list *l, const tpl_value *attribute, bool case_sensitive,
                    tpl_value **out) {
    tpl_value *keys = tpl_alloc(r, l->n, sizeof *keys);
    for (size_t i = 0; keys && i < l->n; i++) {
        if (!key_of(r, &l->v[i], attribute, case_sensitive, &keys[i]))
            return false;
    }
    *out = keys;
    return keys != NULL;
}

/* The items of map and select; as in jinja2, a false value counts as empty. */
static bool walked(tpl_run *r, const tpl_value *v, const tpl_list **out) {
    static const tpl_list nothing = {.v = NULL, .n = 0};
    *out = &nothing;
    return !tpl_truth(v) || tpl_list_from(r, v, out);
}

static bool f_map(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const tpl_str attribute_name = {.data = "attribute", .n = 9, .n_char = 9};
    static const tpl_str default_name = {.data = "default", .n = 7, .n_char = 7};
    tpl_value *attribute = NULL, *fallback = NULL;
    const tpl_list *l;
    if (!walked(r, self, &l))
        return false;
    if (!c->args->n_pos) {
        if (!c->args->named || !tpl_dict_get_str(r, c->args->named, &attribute_name, &attribute) ||
            !tpl_dict_get_str(r, c->args->named, &default_name, &fallback) || !attribute)
            return tpl_fail(r, "map: needs a filter's name or an attribute");
    } else if (c->args->pos[0].type != TPL_STR) {
        return tpl_fail(r, "map: the filter's name is '%s'", tpl_type_name(c->args->pos[0].type));
    }
    tpl_value *v = tpl_alloc(r, l->n, sizeof *v);
    if (!v)
        return false;
    tpl_args rest = {0};
    if (!attribute)
        rest = (tpl_args){.pos = c->args->pos + 1, .n_pos = c->args->n_pos - 1, .named = c->args->named};
    for (size_t i = 0; i < l->n; i++) {
        if (attribute ? !tpl_attribute_of(r, &l->v[i], attribute, &v[i])
                      : !tpl_filter(r, c->args->pos[0].u.s, &l->v[i], &rest, &v[i]))
            return false;
        if (attribute && fallback && v[i].type == TPL_UNDEF)
            v[i] = *fallback;
    }
    return tpl_list_of(r, v, l->n, TPL_GEN, out);
}

/* Implements select, reject, selectattr and rejectattr. */
static bool pick(tpl_run *r, const tpl_value *self, tpl_call *c, bool keep, bool by_attribute,
                 tpl_value *out) {
    const tpl_list *l;
    tpl_items kept = {.r = r};
    size_t skip = by_attribute;
    const tpl_args *a = c->args;
    if (!walked(r, self, &l))
        return false;
    if (by_attribute && !a->n_pos)
        return tpl_fail(r, "selectattr and rejectattr need an attribute");
    bool has_test = a->n_pos > skip;
    if (has_test && a->pos[skip].type != TPL_STR)
        return tpl_fail(r, "a test's name is '%s'", tpl_type_name(a->pos[skip].type));
    tpl_args rest = {0};
    if (has_test)
        rest = (tpl_args){.pos = a->pos + skip + 1, .n_pos = a->n_pos - skip - 1, .named = a->named};
    for (size_t i = 0; i < l->n; i++) {
        tpl_value v = l->v[i];
        bool holds;
        if (by_attribute && !tpl_attribute_of(r, &l->v[i], &a->pos[0], &v))
            return false;
        holds = tpl_truth(&v);
        if (has_test && !tpl_test(r, a->pos[skip].u.s, &v, &rest, &holds))
            return false;
        if (holds == keep && !tpl_push(&kept, l->v[i]))
            return false;
    }
    return tpl_pushed(&kept, TPL_GEN, out);
}
static bool f_select(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pick(r, self, c, true, false, out);
}
static bool f_reject(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pick(r, self, c, false, false, out);
}
static bool f_selectattr(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pick(r, self, c, true, true, out);
}
static bool f_rejectattr(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return pick(r, self, c, false, true, out);
}

/* Stable merge sort of indices by key. reverse: descending, but still stable, as in Python. */
static bool merge_sort(tpl_run *r, const tpl_value *keys, size_t *order, size_t *spare, size_t n,
                       bool reverse) {
    if (n < 2)
        return true;
    size_t half = n / 2, i = 0, j = half;
    if (!merge_sort(r, keys, order, spare, half, reverse) ||
        !merge_sort(r, keys, order + half, spare, n - half, reverse))
        return false;
    for (size_t k = 0; k < n; k++) {
        int sign = 0;
        if (i < half && j < n && !tpl_order(r, &keys[order[j]], &keys[order[i]], 0, &sign))
            return false;
        bool right_first = sign != 2 && (reverse ? sign > 0 : sign < 0);
        spare[k] = i < half && (j == n || !right_first) ? order[i++] : order[j++];
    }
    memcpy(order, spare, n * sizeof *order);
    return true;
}

bool tpl_sort(tpl_run *r, const tpl_list *l, const tpl_value *keys, bool reverse, tpl_value *out) {
    size_t *order = tpl_alloc(r, l->n, sizeof *order);
    size_t *spare = order ? tpl_alloc(r, l->n, sizeof *spare) : NULL;
    tpl_value *v = spare ? tpl_alloc(r, l->n, sizeof *v) : NULL;
    if (!v)
        return false;
    for (size_t i = 0; i < l->n; i++)
        order[i] = i;
    if (!merge_sort(r, keys, order, spare, l->n, reverse))
        return false;
    for (size_t i = 0; i < l->n; i++)
        v[i] = l->v[order[i]];
    return tpl_list_of(r, v, l->n, TPL_LIST, out);
}

static bool flag(const tpl_call *c, int i) {
    return c->given[i] && tpl_truth(&c->arg[i]);
}

static bool f_sort(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    tpl_value *keys;
    return tpl_list_from(r, self, &l) && keys_of(r, l, &c->arg[2], flag(c, 1), &keys) &&
           tpl_sort(r, l, keys, flag(c, 0), out);
}

static bool f_dictsort(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    static const tpl_str items = {.data = "items", .n = 5, .n_char = 5};
    const tpl_str *by = NULL;
    tpl_value view, *keys;
    tpl_args none = {0};
    if (self->type != TPL_DICT)
        return tpl_fail(r, "dictsort: expected a mapping, found '%s'", tpl_type_name(self->type));
    if (!tpl_arg_str(r, c, 1, &by) || !tpl_call_row(r, tpl_find_method(self, &items), self, &none, &view))
        return false;
    if (by && !tpl_str_is(by, "key") && !tpl_str_is(by, "value"))
        return tpl_fail(r, "dictsort: by 'key' or by 'value'");
    tpl_value index = tpl_int(by && tpl_str_is(by, "value"));
    return keys_of(r, view.u.list, &index, flag(c, 0), &keys) &&
           tpl_sort(r, view.u.list, keys, flag(c, 2), out);
}

static bool f_unique(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    tpl_value *keys;
    tpl_items kept = {.r = r};
    if (!tpl_list_from(r, self, &l) || !keys_of(r, l, &c->arg[1], flag(c, 0), &keys))
        return false;
    tpl_dict *seen = tpl_dict_new(r, 4);
    for (size_t i = 0; seen && i < l->n; i++) {
        tpl_value *old;
        if (!tpl_dict_get(r, seen, &keys[i], &old))
            return false;
        if (!old && (!tpl_dict_set(r, seen, &keys[i], &keys[i]) || !tpl_push(&kept, l->v[i])))
            return false;
    }
    return seen && tpl_pushed(&kept, TPL_GEN, out);
}

static bool extreme(tpl_run *r, const tpl_value *self, tpl_call *c, bool max, tpl_value *out) {
    const tpl_list *l;
    tpl_value *keys;
    size_t best = 0;
    if (!tpl_list_from(r, self, &l) || !keys_of(r, l, &c->arg[1], flag(c, 0), &keys))
        return false;
    for (size_t i = 1; i < l->n; i++) {
        int sign;
        if (!tpl_order(r, &keys[i], &keys[best], 0, &sign))
            return false;
        if (sign == (max ? 1 : -1))
            best = i;
    }
    *out = l->n ? l->v[best] : tpl_undef(NULL);
    return true;
}
static bool f_min(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return extreme(r, self, c, false, out);
}
static bool f_max(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    return extreme(r, self, c, true, out);
}

static bool f_sum(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    tpl_value total = c->given[1] ? c->arg[1] : tpl_int(0);
    if (!tpl_list_from(r, self, &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        tpl_value v, before = total;
        if (!tpl_attribute_of(r, &l->v[i], &c->arg[0], &v) || !tpl_binary(r, T_ADD, &before, &v, &total))
            return false;
    }
    *out = total;
    return true;
}

static bool f_join(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    const tpl_list *l;
    tpl_builder b = {.r = r};
    if (!tpl_list_from(r, self, &l))
        return false;
    for (size_t i = 0; i < l->n; i++) {
        tpl_value v;
        if (i && c->given[0])
            tpl_put_str(&b, &c->arg[0]);
        if (!tpl_attribute_of(r, &l->v[i], &c->arg[1], &v))
            return false;
        tpl_put_str(&b, &v);
    }
    return tpl_built(&b, out);
}

static bool f_attr(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out) {
    tpl_value name;
    if (!tpl_to_str(r, &c->arg[0], &name))
        return false;
    if (self->type == TPL_DICT) /* attributes only, never items */
        return tpl_fail(r, "attr: a dict's items are not attributes");
    return tpl_attr(r, self, name.u.s, out);
}

const tpl_func tpl_pick_filters[] = {
    {"map", "*", 0, f_map},
    {"select", "*", 0, f_select},
    {"reject", "*", 0, f_reject},
    {"selectattr", "*", 0, f_selectattr},
    {"rejectattr", "*", 0, f_rejectattr},
    {"sort", "reverse,case_sensitive,attribute", 0, f_sort},
    {"dictsort", "case_sensitive,by,reverse", 0, f_dictsort},
    {"unique", "case_sensitive,attribute", 0, f_unique},
    {"min", "case_sensitive,attribute", 0, f_min},
    {"max", "case_sensitive,attribute", 0, f_max},
    {"sum", "attribute,start", 0, f_sum},
    {"join", "d,attribute", 0, f_join},
    {"attr", "name", 1, f_attr},
    {NULL, NULL, 0, NULL},
};

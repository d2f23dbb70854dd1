/* lookup.c - attributes, items and slices. As in jinja2, a.b means an attribute (a method) if it
 * exists, otherwise the item 'b'; a['b'] means the item first. A missing value is undefined, not an error. */
#include "jinja/run.h"

#include <string.h>

static bool undefined_named(tpl_run *r, const tpl_str *name, tpl_value *out) {
    tpl_str *copy = tpl_alloc(r, 1, sizeof *copy);
    if (!copy)
        return false;
    *copy = *name;
    *out = tpl_undef(copy);
    return true;
}

static bool method_value(tpl_run *r, const tpl_value *self, const tpl_func *f, tpl_value *out) {
    tpl_method *m = tpl_alloc(r, 1, sizeof *m);
    if (!m)
        return false;
    *m = (tpl_method){.self = *self, .func = f};
    *out = (tpl_value){.type = TPL_METHOD, .u = {.method = m}};
    return true;
}

static tpl_value neighbour(const tpl_loop *l, bool next) {
    if (next)
        return l->i + 1 < l->items->n ? l->items->v[l->i + 1] : tpl_undef(NULL);
    return l->i > 0 ? l->items->v[l->i - 1] : tpl_undef(NULL);
}

static bool loop_attr(const tpl_loop *l, const tpl_str *name, tpl_value *out) {
    int64_t i = (int64_t)l->i, n = (int64_t)l->items->n;
    const struct {
        const char *name;
        tpl_value value;
    } rows[] = {
        {"index", tpl_int(i + 1)},
        {"index0", tpl_int(i)},
        {"first", tpl_bool(i == 0)},
        {"last", tpl_bool(i + 1 == n)},
        {"length", tpl_int(n)},
        {"revindex", tpl_int(n - i)},
        {"revindex0", tpl_int(n - i - 1)},
        {"depth", tpl_int(1)},
        {"depth0", tpl_int(0)},
        {"previtem", neighbour(l, false)},
        {"nextitem", neighbour(l, true)},
    };
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        if (tpl_str_is(name, rows[k].name)) {
            *out = rows[k].value;
            return true;
        }
    }
    return false;
}

/* Looks up an attribute other than a dictionary's key. *hit: *out is set. */
static bool own_attr(tpl_run *r, const tpl_value *of, const tpl_str *name, tpl_value *out, bool *hit) {
    *hit = true;
    if (name->n && name->data[0] == '_')
        return undefined_named(r, name, out); /* private names are hidden by the sandbox */
    if (of->type == TPL_LOOP && loop_attr(of->u.loop, name, out))
        return true;
    if (of->type == TPL_MACRO && tpl_str_is(name, "name")) {
        *out = tpl_of_str(&of->u.macro->node->name);
        return true;
    }
    if (of->type == TPL_TUPLE && of->u.list->group &&
        (tpl_str_is(name, "grouper") || tpl_str_is(name, "list"))) {
        *out = of->u.list->v[tpl_str_is(name, "list")];
        return true;
    }
    if (of->type == TPL_CYCLER && tpl_str_is(name, "current")) {
        *out = of->u.cycle->items->v[of->u.cycle->pos];
        return true;
    }
    if (of->type == TPL_NS) {
        tpl_value *val;
        if (!tpl_dict_get_str(r, of->u.dict, name, &val))
            return false;
        if (val) {
            *out = *val;
            return true;
        }
    }
    if (tpl_is_refused_method(of, name))
        return undefined_named(r, name, out);
    const tpl_func *f = tpl_find_method(of, name);
    if (f)
        return method_value(r, of, f, out);
    *hit = false;
    return true;
}

bool tpl_attr(tpl_run *r, const tpl_value *of, const tpl_str *name, tpl_value *out) {
    bool hit;
    if (!tpl_need_defined(r, of) || !own_attr(r, of, name, out, &hit))
        return false;
    if (hit)
        return true;
    if (of->type == TPL_DICT) {
        tpl_value *val;
        if (!tpl_dict_get_str(r, of->u.dict, name, &val))
            return false;
        if (val) {
            *out = *val;
            return true;
        }
    }
    return undefined_named(r, name, out);
}

static bool char_at(tpl_run *r, const tpl_str *s, size_t i, tpl_value *out) {
    size_t from = tpl_utf8_offset(s, i);
    const char *p = s->data + from, *end = s->data + s->n;
    if (p < end)
        tpl_utf8_next(&p, end);
    return tpl_charge(r, s->n == s->n_char ? 1 : from / 16) &&
           tpl_str_part(r, s, s->data + from, (size_t)(p - s->data) - from, out);
}

/* Looks up of[i] with a number; *hit false: i is out of range, or `of` cannot be indexed. */
static bool by_index(tpl_run *r, const tpl_value *of, int64_t i, tpl_value *out, bool *hit) {
    bool series = of->type == TPL_LIST || of->type == TPL_TUPLE || of->type == TPL_RANGE;
    *hit = false;
    if (!series && of->type != TPL_STR)
        return true;
    int64_t n = (int64_t)(series ? of->u.list->n : of->u.s->n_char);
    if (i < -n || i >= n)
        return true;
    *hit = true;
    i += i < 0 ? n : 0;
    if (!series)
        return char_at(r, of->u.s, (size_t)i, out);
    *out = of->u.list->v[i];
    return true;
}

static bool key_undefined(tpl_run *r, const tpl_value *key, tpl_value *out) {
    tpl_value text;
    if (!tpl_to_str(r, key, &text))
        return false;
    *out = tpl_undef(text.u.s);
    return true;
}

bool tpl_item(tpl_run *r, const tpl_value *of, const tpl_value *key, tpl_value *out) {
    bool hit = false;
    if (!tpl_need_defined(r, of))
        return false;
    if (of->type == TPL_DICT && key->type != TPL_LIST && key->type != TPL_DICT) {
        tpl_value *val;
        if (!tpl_dict_get(r, of->u.dict, key, &val))
            return false;
        if (val) {
            *out = *val;
            return true;
        }
    } else if (tpl_is_whole(key)) {
        if (!by_index(r, of, tpl_as_int(key), out, &hit) || hit)
            return hit;
    }
    if (key->type == TPL_STR) {
        if (!own_attr(r, of, key->u.s, out, &hit) || hit)
            return hit;
        return undefined_named(r, key->u.s, out);
    }
    return key_undefined(r, key, out);
}

static bool slice_part(tpl_run *r, const tpl_value *v, int64_t missing, int64_t *out) {
    *out = missing;
    if (v->type == TPL_NONE)
        return true;
    if (!tpl_is_whole(v))
        return tpl_need_defined(r, v) &&
               tpl_fail(r, "a slice needs integers, found '%s'", tpl_type_name(v->type));
    *out = tpl_as_int(v);
    return true;
}

/* Python's clamping of one end of a slice. */
static int64_t clamp_end(int64_t i, int64_t n, bool backward) {
    if (i < 0)
        i = i < -n ? (backward ? -1 : 0) : i + n;
    else if (i >= n)
        i = backward ? n - 1 : n;
    return i;
}

static bool slice_str(tpl_run *r, const tpl_str *s, int64_t from, int64_t count, int64_t step,
                      tpl_value *out) {
    if (step == 1) {
        size_t begin = tpl_utf8_offset(s, (size_t)from), end = tpl_utf8_offset(s, (size_t)(from + count));
        return tpl_charge(r, end / 16) && tpl_str_part(r, s, s->data + begin, end - begin, out);
    }
    const tpl_list *chars;
    tpl_value whole = tpl_of_str(s);
    tpl_builder b = {.r = r, .safe = s->safe};
    if (!tpl_list_from(r, &whole, &chars))
        return false;
    for (int64_t k = 0, i = from; k < count; k++, i += step) {
        if ((size_t)i < chars->n)
            tpl_put_all(&b, chars->v[i].u.s);
    }
    return tpl_built(&b, out);
}

bool tpl_slice(tpl_run *r, const tpl_value *of, const tpl_value part[3], tpl_value *out) {
    bool series = of->type == TPL_LIST || of->type == TPL_TUPLE || of->type == TPL_RANGE;
    int64_t step, from, to;
    if (!tpl_need_defined(r, of))
        return false;
    if (!series && of->type != TPL_STR)
        return tpl_fail(r, "'%s' object cannot be sliced", tpl_type_name(of->type));
    int64_t n = (int64_t)(series ? of->u.list->n : of->u.s->n_char);
    if (!slice_part(r, &part[2], 1, &step))
        return false;
    if (step == 0)
        return tpl_fail(r, "a slice's step is zero");
    if (step < -INT64_MAX)
        step = -INT64_MAX;
    bool back = step < 0;
    if (!slice_part(r, &part[0], back ? n - 1 : 0, &from) || !slice_part(r, &part[1], back ? -n - 1 : n, &to))
        return false;
    from = clamp_end(from, n, back);
    to = clamp_end(to, n, back);
    int64_t gap = back ? from - to : to - from, size = back ? -step : step;
    int64_t count = gap <= 0 ? 0 : (gap - 1) / size + 1;
    int64_t first = from;
    if (count == 0)
        from = 0;
    if (count <= 1)
        step = 1; /* at most one item: the step does not matter, and cannot overflow */
    if (!series)
        return slice_str(r, of->u.s, from, count, step, out);
    tpl_value *v = tpl_alloc(r, (size_t)count, sizeof *v);
    if (!v)
        return false;
    for (int64_t k = 0; k < count; k++)
        v[k] = of->u.list->v[from + k * step];
    if (!tpl_list_of(r, v, (size_t)count, of->type, out))
        return false;
    if (of->type == TPL_RANGE) { /* start, stop and step of the slice, for printing */
        const tpl_list *l = of->u.list;
        tpl_list *made = (tpl_list *)(uintptr_t)out->u.list;
        made->start = l->start + first * l->step;
        made->stop = l->start + to * l->step;
        made->step = l->step * size * (back ? -1 : 1);
    }
    return true;
}

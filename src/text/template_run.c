/* template_run.c - a render's memory, limits and errors, and the building of strings, lists and dicts. */
#include "text/template_run.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef tpl_fail /* the macro for the analyser */
bool tpl_fail(tpl_run *r, const char *format, ...) {
    if (r->failed)
        return false;
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->failed = true;
    nib_fail(r->err, NIB_E_MODEL, "chat template line %d: %s", r->line, text);
    return false;
}

static bool fail_nomem(tpl_run *r, size_t n) {
    if (!r->failed)
        nib_fail_nomem(r->err, n, "rendering the chat template");
    r->failed = true;
    return false;
}

bool tpl_charge(tpl_run *r, uint64_t steps) {
    r->steps += steps;
    if (r->steps > r->limits.steps)
        return tpl_fail(r, "more than %llu steps", (unsigned long long)r->limits.steps);
    return true;
}

void *tpl_alloc(tpl_run *r, size_t n, size_t each) {
    uint64_t bytes;
    if (!num_mul_u64(n, each, &bytes) || bytes > r->limits.memory ||
        r->mem.bytes + bytes > r->limits.memory) {
        tpl_fail(r, "more than %zu bytes of memory", r->limits.memory);
        return NULL;
    }
    if (!tpl_charge(r, bytes / 64))
        return NULL;
    void *p = arena_alloc(&r->mem, bytes ? (size_t)bytes : 1);
    if (!p)
        fail_nomem(r, (size_t)bytes);
    return p;
}

bool tpl_emit(tpl_run *r, const char *data, size_t n) {
    if (n > r->limits.output - r->n_out)
        return tpl_fail(r, "more than %zu bytes of output", r->limits.output);
    if (!tpl_charge(r, n / 64))
        return false;
    void *grown = r->out;
    if (mem_grow(&grown, &r->cap_out, r->n_out + n + 1, 1))
        return fail_nomem(r, r->n_out + n + 1);
    r->out = grown;
    if (n)
        memcpy(r->out + r->n_out, data, n);
    r->n_out += n;
    return true;
}

bool tpl_same(tpl_run *r, const tpl_str *a, const tpl_str *b, bool *out) {
    *out = tpl_str_same(a, b);
    return a->n != b->n || tpl_charge(r, a->n / 64);
}

static bool str_made(tpl_run *r, tpl_str s, tpl_value *out) {
    tpl_str *made = tpl_alloc(r, 1, sizeof *made);
    if (!made)
        return false;
    *made = s;
    *out = tpl_of_str(made);
    return true;
}

bool tpl_str_ref(tpl_run *r, const char *data, size_t n, tpl_value *out) {
    data = data ? data : ""; /* no caller has to check for NULL */
    return tpl_charge(r, n / 64) &&
           str_made(r, (tpl_str){.data = data, .n = n, .n_char = tpl_utf8_count(data, n)}, out);
}

bool tpl_str_copy(tpl_run *r, const char *data, size_t n, tpl_value *out) {
    char *copy = tpl_alloc(r, n, 1);
    if (!copy)
        return false;
    if (n)
        memcpy(copy, data, n);
    return tpl_str_ref(r, copy, n, out);
}

bool tpl_concat(tpl_run *r, const tpl_str *a, const tpl_str *b, tpl_value *out) {
    tpl_grow *grow = a->grow;
    /* a character that is split between both strings would be counted twice; only damaged text has one */
    size_t n = a->n + b->n, n_char = a->n_char + b->n_char;
    if (!grow || grow->used != a->n || grow->cap - grow->used < b->n) {
        size_t cap = n + NUM_MIN(n, 4u << 20) + 32;
        char *data = tpl_alloc(r, cap, 1);
        grow = data ? tpl_alloc(r, 1, sizeof *grow) : NULL;
        if (!grow)
            return false;
        if (a->n)
            memcpy(data, a->data, a->n);
        *grow = (tpl_grow){.used = n, .cap = cap};
        if (b->n)
            memcpy(data + a->n, b->data, b->n);
        return str_made(r, (tpl_str){.data = data, .n = n, .n_char = n_char, .grow = grow}, out);
    }
    if (!tpl_charge(r, b->n / 64))
        return false;
    /* the spare bytes after a are unused, so append in place */
    if (b->n)
        memcpy((char *)(uintptr_t)a->data + a->n, b->data, b->n);
    grow->used = n;
    return str_made(r, (tpl_str){.data = a->data, .n = n, .n_char = n_char, .grow = grow}, out);
}

bool tpl_list_of(tpl_run *r, const tpl_value *v, size_t n, tpl_type as, tpl_value *out) {
    tpl_list *l = tpl_alloc(r, 1, sizeof *l);
    if (!l)
        return false;
    static const tpl_value nothing = {.type = TPL_NONE, .u = {.i = 0}};
    l->v = v ? v : &nothing;
    l->n = n;
    *out = tpl_of_list(l, as);
    if (as == TPL_GEN) {
        tpl_gen *g = tpl_alloc(r, 1, sizeof *g);
        if (!g)
            return false;
        g->list = l;
        out->u.gen = g;
    }
    return true;
}

tpl_dict *tpl_dict_new(tpl_run *r, size_t cap) {
    tpl_dict *d = tpl_alloc(r, 1, sizeof *d);
    if (!d)
        return NULL;
    d->cap = cap;
    d->key = tpl_alloc(r, cap, sizeof *d->key);
    d->val = d->key ? tpl_alloc(r, cap, sizeof *d->val) : NULL;
    return d->val ? d : NULL;
}

static bool hashable(tpl_run *r, const tpl_value *key, int depth) {
    if (!tpl_charge(r, 1))
        return false;
    if (key->type == TPL_LIST || key->type == TPL_DICT || depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(r, "unhashable type: '%s'", tpl_type_name(key->type));
    for (size_t i = 0; key->type == TPL_TUPLE && i < key->u.list->n; i++) {
        if (!hashable(r, &key->u.list->v[i], depth + 1))
            return false;
    }
    return true;
}

bool tpl_dict_get_str(tpl_run *r, const tpl_dict *d, const tpl_str *key, tpl_value **val) {
    *val = NULL;
    if (!tpl_charge(r, d->n / 8))
        return false;
    for (size_t i = 0; i < d->n && !*val; i++) {
        bool same = false;
        if (d->key[i].type == TPL_STR && !tpl_same(r, d->key[i].u.s, key, &same))
            return false;
        if (same)
            *val = &d->val[i];
    }
    return true;
}

bool tpl_dict_get(tpl_run *r, const tpl_dict *d, const tpl_value *key, tpl_value **val) {
    if (key->type == TPL_STR)
        return tpl_dict_get_str(r, d, key->u.s, val);
    *val = NULL;
    if (!hashable(r, key, 0) || !tpl_charge(r, d->n / 2))
        return false;
    for (size_t i = 0; i < d->n; i++) {
        bool same;
        if (!tpl_equal(r, &d->key[i], key, 0, &same))
            return false;
        if (same) {
            *val = &d->val[i];
            break;
        }
    }
    return true;
}

bool tpl_dict_set(tpl_run *r, tpl_dict *d, const tpl_value *key, const tpl_value *val) {
    tpl_value *old;
    if (!tpl_dict_get(r, d, key, &old))
        return false;
    if (old) {
        *old = *val;
        return true;
    }
    if (d->n == d->cap || !d->key || !d->val) {
        size_t cap = d->cap ? 2 * d->cap : 4;
        tpl_value *k = tpl_alloc(r, cap, sizeof *k), *v = k ? tpl_alloc(r, cap, sizeof *v) : NULL;
        if (!v)
            return false;
        if (d->n && d->key && d->val) {
            memcpy(k, d->key, d->n * sizeof *k);
            memcpy(v, d->val, d->n * sizeof *v);
        }
        d->key = k;
        d->val = v;
        d->cap = cap;
    }
    d->key[d->n] = *key;
    d->val[d->n++] = *val;
    return true;
}

static bool list_from_json(tpl_run *r, const json_t *json, int depth, tpl_value *out) {
    size_t n = json_array_size(json);
    tpl_value *v = tpl_alloc(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!tpl_from_json(r, json_array_get(json, i), depth + 1, &v[i]))
            return false;
    }
    return tpl_list_of(r, v, n, TPL_LIST, out);
}

static bool dict_from_json(tpl_run *r, const json_t *json, int depth, tpl_value *out) {
    tpl_dict *d = tpl_dict_new(r, json_object_size(json));
    if (!d)
        return false;
    /* jansson's iterators do not change the object, but take it without const */
    json_t *object = jsonx_counted(json);
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        if (!tpl_str_ref(r, json_object_iter_key(it), json_object_iter_key_len(it), &d->key[d->n]) ||
            !tpl_from_json(r, json_object_iter_value(it), depth + 1, &d->val[d->n]))
            return false;
        d->n++; /* keys are distinct in a jansson object */
    }
    *out = (tpl_value){.type = TPL_DICT, .u = {.dict = d}};
    return true;
}

bool tpl_from_json(tpl_run *r, const json_t *json, int depth, tpl_value *out) {
    if (depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(r, "a variable is nested more than %d deep", TPL_MAX_VALUE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT: return dict_from_json(r, json, depth, out);
    case JSON_ARRAY: return list_from_json(r, json, depth, out);
    case JSON_STRING: return tpl_str_ref(r, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER: *out = tpl_int(json_integer_value(json)); return true;
    case JSON_REAL: *out = tpl_float(json_real_value(json)); return true;
    case JSON_TRUE: *out = tpl_bool(true); return true;
    case JSON_FALSE: *out = tpl_bool(false); return true;
    default: *out = tpl_none(); return true;
    }
}

void tpl_put(tpl_builder *b, const char *data, size_t n) {
    if (b->failed || !n)
        return;
    if (n > b->cap - b->n) {
        size_t cap = NUM_MAX(2 * b->cap, b->n + n + 48);
        char *grown = tpl_alloc(b->r, cap, 1);
        if (!grown) {
            b->failed = true;
            return;
        }
        if (b->n)
            memcpy(grown, b->data, b->n);
        b->data = grown;
        b->cap = cap;
    }
    memcpy(b->data + b->n, data, n);
    b->n += n;
}

void tpl_puts(tpl_builder *b, const char *text) {
    tpl_put(b, text, strlen(text));
}

void tpl_put_code(tpl_builder *b, uint32_t code) {
    char text[4];
    tpl_put(b, text, tpl_utf8_put(text, code));
}

bool tpl_built(tpl_builder *b, tpl_value *out) {
    return !b->failed && tpl_str_ref(b->r, b->data, b->n, out);
}

bool tpl_push(tpl_items *l, tpl_value v) {
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        tpl_value *grown = tpl_alloc(l->r, cap, sizeof *grown);
        if (!grown)
            return false;
        if (l->n)
            memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return true;
}

bool tpl_pushed(tpl_items *l, tpl_type as, tpl_value *out) {
    return tpl_list_of(l->r, l->v, l->n, as, out);
}

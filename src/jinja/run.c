/* run.c - a render's memory, limits and errors, and the building of strings, lists and dicts. */
#include "jinja/run.h"

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

/* Writes the marks of a string's first n bytes. */
static void copy_marks(uint8_t *to, const uint8_t *mark, size_t n) {
    if (mark && n)
        memcpy(to, mark, n);
    else if (n)
        memset(to, 0, n);
}

bool tpl_emit(tpl_run *r, const tpl_str *s) {
    const size_t n = s->n;
    if (n > r->limits.output - r->n_out)
        return tpl_fail(r, "more than %zu bytes of output", r->limits.output);
    if (!tpl_charge(r, n / 64))
        return false;
    if (mem_grow((void **)&r->out, &r->cap_out, r->n_out + n + 1, 1) ||
        mem_grow((void **)&r->out_mark, &r->cap_mark, r->n_out + n + 1, 1))
        return fail_nomem(r, r->n_out + n + 1);
    if (n)
        memcpy(r->out + r->n_out, s->data, n);
    copy_marks(r->out_mark + r->n_out, s->mark, n);
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

bool tpl_str_part(tpl_run *r, const tpl_str *s, const char *at, size_t n, tpl_value *out) {
    return tpl_charge(r, n / 64) && str_made(r,
                                             (tpl_str){.data = at ? at : "",
                                                       .n = n,
                                                       .n_char = tpl_utf8_count(at, n),
                                                       .mark = s->mark ? s->mark + (at - s->data) : NULL,
                                                       .safe = s->safe},
                                             out);
}

/* Copies a to memory with spare bytes after it. NULL: failed. */
static char *copy_to_grow(tpl_run *r, const tpl_str *a, size_t n, tpl_grow **grow) {
    const size_t cap = n + NUM_MIN(n, 4u << 20) + 32;
    char *data = tpl_alloc(r, cap, 1);
    *grow = data ? tpl_alloc(r, 1, sizeof **grow) : NULL;
    if (!*grow)
        return NULL;
    **grow = (tpl_grow){.used = a->n, .cap = cap};
    if (a->n)
        memcpy(data, a->data, a->n);
    return data;
}

bool tpl_concat(tpl_run *r, const tpl_str *a, const tpl_str *b, tpl_value *out) {
    tpl_grow *grow = a->grow;
    char *data = (char *)(uintptr_t)a->data;
    /* a character that is split between both strings would be counted twice; only damaged text has one */
    const size_t n = a->n + b->n, n_char = a->n_char + b->n_char;
    /* appends in place if the spare bytes after a are unused */
    if ((!grow || grow->used != a->n || grow->cap - grow->used < b->n) &&
        !(data = copy_to_grow(r, a, n, &grow)))
        return false;
    if ((a->mark || b->mark) && !grow->mark) {
        grow->mark = tpl_alloc(r, grow->cap, 1);
        if (!grow->mark)
            return false;
        copy_marks(grow->mark, a->mark, a->n);
    }
    if (!tpl_charge(r, b->n / 64))
        return false;
    if (b->n)
        memcpy(data + a->n, b->data, b->n);
    if (grow->mark)
        copy_marks(grow->mark + a->n, b->mark, b->n);
    grow->used = n;
    return str_made(
        r,
        (tpl_str){.data = data, .n = n, .n_char = n_char, .mark = grow->mark, .safe = a->safe, .grow = grow},
        out);
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

/* A string of a variable: all its bytes are marked. */
static bool marked_str(tpl_run *r, const char *data, size_t n, tpl_value *out) {
    if (n > r->n_one) {
        const size_t cap = NUM_MAX(2 * r->n_one, n + 256);
        r->ones = tpl_alloc(r, cap, 1);
        r->n_one = r->ones ? cap : 0;
        if (!r->ones)
            return false;
        memset(r->ones, 1, cap);
    }
    return tpl_charge(r, n / 64) &&
           str_made(r, (tpl_str){.data = data, .n = n, .n_char = tpl_utf8_count(data, n), .mark = r->ones},
                    out);
}

static bool is_word(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && !(c >= '0' && c <= '9') && c != '_' &&
            c != '-')
            return false;
    }
    return n > 0;
}

/* Whether a member is the role of a message: {"messages": [{"role": ...}]}. */
static bool is_role(const char *key, const json_t *value, int depth) {
    enum { OF_MESSAGE = 2 };
    return depth == OF_MESSAGE && strcmp(key, "role") == 0 && json_is_string(value) &&
           is_word(json_string_value(value), json_string_length(value));
}

static bool list_from_json(tpl_run *r, const json_t *json, bool own, int depth, tpl_value *out) {
    size_t n = json_array_size(json);
    tpl_value *v = tpl_alloc(r, n, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (!tpl_from_json(r, json_array_get(json, i), own, depth + 1, &v[i]))
            return false;
    }
    return tpl_list_of(r, v, n, TPL_LIST, out);
}

static bool dict_from_json(tpl_run *r, const json_t *json, bool own, int depth, tpl_value *out) {
    tpl_dict *d = tpl_dict_new(r, json_object_size(json));
    if (!d)
        return false;
    /* jansson's iterators do not change the object, but take it without const */
    json_t *object = jsonx_counted(json);
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        if (!marked_str(r, key, json_object_iter_key_len(it), &d->key[d->n]) ||
            !tpl_from_json(r, value, own || is_role(key, value, depth), depth + 1, &d->val[d->n]))
            return false;
        d->n++; /* keys are distinct in a jansson object */
    }
    *out = (tpl_value){.type = TPL_DICT, .u = {.dict = d}};
    return true;
}

bool tpl_from_json(tpl_run *r, const json_t *json, bool own, int depth, tpl_value *out) {
    if (depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(r, "a variable is nested more than %d deep", TPL_MAX_VALUE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT: return dict_from_json(r, json, own, depth, out);
    case JSON_ARRAY: return list_from_json(r, json, own, depth, out);
    case JSON_STRING:
        return (own ? tpl_str_ref : marked_str)(r, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER: *out = tpl_int(json_integer_value(json)); return true;
    case JSON_REAL: *out = tpl_float(json_real_value(json)); return true;
    case JSON_TRUE: *out = tpl_bool(true); return true;
    case JSON_FALSE: *out = tpl_bool(false); return true;
    default: *out = tpl_none(); return true;
    }
}

/* Makes space for n more bytes, and for their marks if `marks` or if there are some. */
static bool make_space(tpl_builder *b, size_t n, bool marks) {
    const size_t cap = n > b->cap - b->n ? NUM_MAX(2 * b->cap, b->n + n + 48) : b->cap;
    if (cap > b->cap) {
        char *grown = tpl_alloc(b->r, cap, 1);
        if (!grown)
            return false;
        if (b->n)
            memcpy(grown, b->data, b->n);
        b->data = grown;
    }
    if ((marks && !b->mark) || (b->mark && cap > b->cap)) {
        uint8_t *grown = tpl_alloc(b->r, cap, 1);
        if (!grown)
            return false;
        copy_marks(grown, b->mark, b->n);
        b->mark = grown;
    }
    b->cap = cap;
    return true;
}

void tpl_put(tpl_builder *b, const char *data, size_t n) {
    if (b->failed || !n)
        return;
    b->failed = !make_space(b, n, b->marked);
    if (b->failed)
        return;
    memcpy(b->data + b->n, data, n);
    if (b->mark)
        memset(b->mark + b->n, b->marked, n);
    b->n += n;
}

void tpl_put_part(tpl_builder *b, const tpl_str *s, const char *at, size_t n) {
    if (b->failed || !n)
        return;
    b->failed = !make_space(b, n, s->mark != NULL);
    if (b->failed)
        return;
    memcpy(b->data + b->n, at, n);
    if (b->mark)
        copy_marks(b->mark + b->n, s->mark ? s->mark + (at - s->data) : NULL, n);
    b->n += n;
}

void tpl_put_all(tpl_builder *b, const tpl_str *s) {
    tpl_put_part(b, s, s->data, s->n);
}

void tpl_puts(tpl_builder *b, const char *text) {
    tpl_put(b, text, strlen(text));
}

void tpl_put_code(tpl_builder *b, uint32_t code) {
    char text[4];
    tpl_put(b, text, tpl_utf8_put(text, code));
}

bool tpl_built(tpl_builder *b, tpl_value *out) {
    return !b->failed && tpl_charge(b->r, b->n / 64) &&
           str_made(b->r,
                    (tpl_str){.data = b->data ? b->data : "",
                              .n = b->n,
                              .n_char = tpl_utf8_count(b->data, b->n),
                              .mark = b->mark,
                              .safe = b->safe},
                    out);
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

/* ops.c - arithmetic, comparison, truth, membership and iteration with Python's rules. Integers have
 * 64 bits: a result that needs more, as Python would give, is an error. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <math.h>
#include <string.h>

bool tpl_truth(const tpl_value *v) {
    switch (v->type) {
    case TPL_UNDEF:
    case TPL_NONE: return false;
    case TPL_BOOL: return v->u.b;
    case TPL_INT: return v->u.i != 0;
    case TPL_FLOAT: return v->u.f != 0;
    case TPL_STR: return v->u.s->n != 0;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW: return v->u.list->n != 0;
    case TPL_DICT: return v->u.dict->n != 0;
    default: return true;
    }
}

bool tpl_need_defined(tpl_run *r, const tpl_value *v) {
    if (v->type != TPL_UNDEF)
        return true;
    const tpl_str *s = v->u.s;
    if (!s)
        return tpl_fail(r, "a value is undefined");
    return tpl_fail(r, "'%.*s' is undefined", (int)(s->n > 100 ? 100 : s->n), s->data);
}

static bool equal_lists(tpl_run *r, const tpl_list *a, const tpl_list *b, int depth, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        if (!tpl_equal(r, &a->v[i], &b->v[i], depth + 1, out))
            return false;
    }
    return true;
}

static bool equal_dicts(tpl_run *r, const tpl_dict *a, const tpl_dict *b, int depth, bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; *out && i < a->n; i++) {
        tpl_value *other;
        if (!tpl_dict_get(r, b, &a->key[i], &other))
            return false;
        *out = other != NULL;
        if (other && !tpl_equal(r, &a->val[i], other, depth + 1, out))
            return false;
    }
    return true;
}

bool tpl_equal(tpl_run *r, const tpl_value *a, const tpl_value *b, int depth, bool *out) {
    if (depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(r, "values nested more than %d deep are compared", TPL_MAX_VALUE_DEPTH);
    if (!tpl_charge(r, 1))
        return false;
    *out = false;
    if (tpl_is_number(a) && tpl_is_number(b)) {
        *out = tpl_is_whole(a) && tpl_is_whole(b) ? tpl_as_int(a) == tpl_as_int(b)
                                                  : tpl_as_float(a) == tpl_as_float(b);
        return true;
    }
    if (a->type != b->type)
        return true;
    switch (a->type) {
    case TPL_UNDEF:
    case TPL_NONE: *out = true; return true;
    case TPL_STR: return tpl_same(r, a->u.s, b->u.s, out);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE: return equal_lists(r, a->u.list, b->u.list, depth, out);
    case TPL_DICT: return equal_dicts(r, a->u.dict, b->u.dict, depth, out);
    default: *out = a->u.gen == b->u.gen; return true; /* the same object */
    }
}

static int sign_of(const tpl_str *a, const tpl_str *b) {
    int c = memcmp(a->data ? a->data : "", b->data ? b->data : "", a->n < b->n ? a->n : b->n);
    return c ? (c < 0 ? -1 : 1) : a->n == b->n ? 0 : a->n < b->n ? -1 : 1;
}

bool tpl_order(tpl_run *r, const tpl_value *a, const tpl_value *b, int depth, int *out) {
    if (depth > TPL_MAX_VALUE_DEPTH)
        return tpl_fail(r, "values nested more than %d deep are compared", TPL_MAX_VALUE_DEPTH);
    if (!tpl_charge(r, 1) || !tpl_need_defined(r, a) || !tpl_need_defined(r, b))
        return false;
    if (tpl_is_whole(a) && tpl_is_whole(b)) {
        int64_t x = tpl_as_int(a), y = tpl_as_int(b);
        *out = x < y ? -1 : x > y;
        return true;
    }
    if (tpl_is_number(a) && tpl_is_number(b)) {
        double x = tpl_as_float(a), y = tpl_as_float(b);
        *out = x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
        return true;
    }
    if (a->type == TPL_STR && b->type == TPL_STR) {
        *out = sign_of(a->u.s, b->u.s);
        return tpl_charge(r, a->u.s->n / 64);
    }
    if (a->type != b->type || (a->type != TPL_LIST && a->type != TPL_TUPLE))
        return tpl_fail(r, "'%s' and '%s' have no order", tpl_type_name(a->type), tpl_type_name(b->type));
    const tpl_list *x = a->u.list, *y = b->u.list;
    for (size_t i = 0; i < x->n && i < y->n; i++) {
        bool same = false;
        if (!tpl_equal(r, &x->v[i], &y->v[i], depth + 1, &same))
            return false;
        if (!same)
            return tpl_order(r, &x->v[i], &y->v[i], depth + 1, out);
    }
    *out = x->n < y->n ? -1 : x->n > y->n;
    return true;
}

static bool contains(tpl_run *r, const tpl_value *in, const tpl_value *what, bool *out) {
    *out = false;
    if (in->type == TPL_STR) {
        if (what->type != TPL_STR)
            return tpl_fail(r, "'in <string>' needs a string on the left, not '%s'",
                            tpl_type_name(what->type));
        *out = tpl_find_in(in->u.s->data, in->u.s->n, what->u.s->data, what->u.s->n) != NULL;
        return tpl_charge(r, in->u.s->n / 16);
    }
    if (in->type == TPL_DICT) {
        tpl_value *val;
        if (!tpl_dict_get(r, in->u.dict, what, &val))
            return false;
        *out = val != NULL;
        return true;
    }
    const tpl_list *l = NULL;
    if (!tpl_list_from(r, in, &l) || !l)
        return false;
    for (size_t i = 0; !*out && i < l->n; i++) {
        if (!tpl_equal(r, &l->v[i], what, 0, out))
            return false;
    }
    return true;
}

static bool chars_of(tpl_run *r, const tpl_str *s, const tpl_list **out) {
    tpl_value *v = tpl_alloc(r, s->n_char, sizeof *v);
    tpl_str *each = v ? tpl_alloc(r, s->n_char, sizeof *each) : NULL;
    tpl_list *l = each ? tpl_alloc(r, 1, sizeof *l) : NULL;
    if (!l)
        return false;
    const char *p = s->data, *end = s->data + s->n;
    for (l->v = v; p < end && l->n < s->n_char; l->n++) {
        const char *from = p;
        tpl_utf8_next(&p, end);
        each[l->n] = (tpl_str){.data = from,
                               .n = (size_t)(p - from),
                               .n_char = 1,
                               .mark = s->mark ? s->mark + (from - s->data) : NULL};
        v[l->n] = tpl_of_str(&each[l->n]);
    }
    *out = l;
    return true;
}

static bool list_of_value(tpl_run *r, const tpl_value *v, const tpl_list **out) {
    tpl_list *l;
    switch (v->type) {
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW: *out = v->u.list; return true;
    case TPL_STR: return chars_of(r, v->u.s, out);
    case TPL_UNDEF:
    case TPL_DICT:
    case TPL_GEN:
        l = tpl_alloc(r, 1, sizeof *l);
        if (!l)
            return false;
        *out = l;
        if (v->type == TPL_DICT) {
            l->v = v->u.dict->key;
            l->n = v->u.dict->n;
        } else if (v->type == TPL_GEN) {
            l->v = v->u.gen->list->v + v->u.gen->pos;
            l->n = v->u.gen->list->n - v->u.gen->pos;
            v->u.gen->pos = v->u.gen->list->n;
        }
        return true;
    default: return tpl_fail(r, "'%s' object is not iterable", tpl_type_name(v->type));
    }
}

/* Charges a step for each item, because the caller iterates over the list. */
bool tpl_list_from(tpl_run *r, const tpl_value *v, const tpl_list **out) {
    return list_of_value(r, v, out) && tpl_charge(r, (*out)->n / 4);
}

bool tpl_length(tpl_run *r, const tpl_value *v, size_t *out) {
    switch (v->type) {
    case TPL_UNDEF: *out = 0; return true;
    case TPL_STR: *out = v->u.s->n_char; return true;
    case TPL_DICT: *out = v->u.dict->n; return true;
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_RANGE:
    case TPL_VIEW: *out = v->u.list->n; return true;
    default: return tpl_fail(r, "'%s' object has no length", tpl_type_name(v->type));
    }
}

static bool too_large(tpl_run *r) {
    return tpl_fail(r, "an integer does not fit 64 bits");
}

static bool int_power(tpl_run *r, int64_t base, int64_t exponent, tpl_value *out) {
    int64_t value = 1;
    if (exponent < 0) {
        if (!base)
            return tpl_fail(r, "zero cannot be raised to a negative power");
        *out = tpl_float(pow((double)base, (double)exponent));
        return true;
    }
    for (; exponent; exponent >>= 1) {
        if ((exponent & 1) && __builtin_mul_overflow(value, base, &value))
            return too_large(r);
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return too_large(r);
    }
    *out = tpl_int(value);
    return true;
}

static bool int_binary(tpl_run *r, int op, int64_t x, int64_t y, tpl_value *out) {
    int64_t z = 0;
    switch (op) {
    case T_ADD:
        if (__builtin_add_overflow(x, y, &z))
            return too_large(r);
        break;
    case T_SUB:
        if (__builtin_sub_overflow(x, y, &z))
            return too_large(r);
        break;
    case T_MUL:
        if (__builtin_mul_overflow(x, y, &z))
            return too_large(r);
        break;
    case T_POW: return int_power(r, x, y, out);
    default:
        if (!y)
            return tpl_fail(r, "division by zero");
        if (op == T_DIV) {
            *out = tpl_float((double)x / (double)y);
            return true;
        }
        if (y == -1) { /* INT64_MIN / -1 */
            if (op == T_FLOORDIV && __builtin_sub_overflow((int64_t)0, x, &z))
                return too_large(r);
            if (op == T_MOD)
                z = 0;
            break;
        }
        z = op == T_FLOORDIV ? x / y : x % y;
        if (x % y && (x < 0) != (y < 0)) /* Python rounds down */
            z += op == T_FLOORDIV ? -1 : y;
    }
    *out = tpl_int(z);
    return true;
}

static bool float_binary(tpl_run *r, int op, double x, double y, tpl_value *out) {
    double z = 0;
    switch (op) {
    case T_ADD: z = x + y; break;
    case T_SUB: z = x - y; break;
    case T_MUL: z = x * y; break;
    case T_POW:
        z = pow(x, y);
        if (isnan(z) && !isnan(x) && !isnan(y))
            return tpl_fail(r, "the power is a complex number");
        if (isinf(z) && !isinf(x) && !isinf(y))
            return tpl_fail(r,
                            x == 0 ? "zero cannot be raised to a negative power" : "the result is too large");
        break;
    default:
        if (y == 0)
            return tpl_fail(r, "division by zero");
        z = x / y;
        if (op == T_DIV)
            break;
        double mod = fmod(x, y);
        if (mod != 0 && (mod < 0) != (y < 0))
            mod += y;
        z = op == T_MOD ? (mod == 0 ? copysign(0, y) : mod) : round((x - mod) / y);
    }
    *out = tpl_float(z);
    return true;
}

static bool repeat(tpl_run *r, const tpl_value *what, int64_t times, tpl_value *out) {
    size_t n = times > 0 ? (size_t)times : 0;
    if (what->type == TPL_STR) {
        const tpl_str *s = what->u.s;
        tpl_builder b = {.r = r, .safe = s->safe};
        uint64_t bytes;
        if (__builtin_mul_overflow((uint64_t)n, (uint64_t)s->n, &bytes) || bytes > r->limits.memory)
            return tpl_fail(r, "more than %zu bytes of memory", r->limits.memory);
        for (size_t i = 0; s->n && i < n && !b.failed; i++)
            tpl_put_all(&b, s);
        return tpl_built(&b, out);
    }
    const tpl_list *l = what->u.list;
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)n, (uint64_t)l->n, &bytes) || bytes > r->limits.memory)
        return tpl_fail(r, "more than %zu bytes of memory", r->limits.memory);
    tpl_value *v = tpl_alloc(r, (size_t)bytes, sizeof *v);
    if (!v)
        return false;
    for (size_t i = 0; l->n && i < n; i++)
        memcpy(v + i * l->n, l->v, l->n * sizeof *v);
    return tpl_list_of(r, v, (size_t)bytes, what->type, out);
}

static bool join_lists(tpl_run *r, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    size_t n = a->u.list->n + b->u.list->n;
    tpl_value *v = tpl_alloc(r, n, sizeof *v);
    if (!v)
        return false;
    if (a->u.list->n)
        memcpy(v, a->u.list->v, a->u.list->n * sizeof *v);
    if (b->u.list->n)
        memcpy(v + a->u.list->n, b->u.list->v, b->u.list->n * sizeof *v);
    return tpl_list_of(r, v, n, a->type, out);
}

/* a + b; if one of them is Markup, the other is escaped. */
static bool add_texts(tpl_run *r, const tpl_str *a, const tpl_str *b, tpl_value *out) {
    tpl_value escaped;
    if (a->safe != b->safe) {
        if (!tpl_escape(r, a->safe ? b : a, &escaped))
            return false;
        *(a->safe ? &b : &a) = escaped.u.s;
    }
    return tpl_concat(r, a, b, out);
}

static bool is_series(const tpl_value *v) {
    return v->type == TPL_STR || v->type == TPL_LIST || v->type == TPL_TUPLE;
}

bool tpl_binary(tpl_run *r, int op, const tpl_value *a, const tpl_value *b, tpl_value *out) {
    if (op == T_MOD && a->type == TPL_STR)
        return tpl_percent(r, a->u.s, b, out);
    if (!tpl_need_defined(r, a) || !tpl_need_defined(r, b))
        return false;
    if (tpl_is_whole(a) && tpl_is_whole(b))
        return int_binary(r, op, tpl_as_int(a), tpl_as_int(b), out);
    if (tpl_is_number(a) && tpl_is_number(b))
        return float_binary(r, op, tpl_as_float(a), tpl_as_float(b), out);
    if (op == T_ADD && a->type == TPL_STR && b->type == TPL_STR)
        return add_texts(r, a->u.s, b->u.s, out);
    if (op == T_ADD && a->type == b->type && is_series(a))
        return join_lists(r, a, b, out);
    if (op == T_MUL && is_series(a) && tpl_is_whole(b))
        return repeat(r, a, tpl_as_int(b), out);
    if (op == T_MUL && is_series(b) && tpl_is_whole(a))
        return repeat(r, b, tpl_as_int(a), out);
    return tpl_fail(r, "'%s' cannot be used between '%s' and '%s'", tpl_token_name(op),
                    tpl_type_name(a->type), tpl_type_name(b->type));
}

bool tpl_compare(tpl_run *r, int op, const tpl_value *a, const tpl_value *b, bool *out) {
    if (op == T_IN || op == T_NOT_IN) {
        if (!contains(r, b, a, out))
            return false;
        *out = *out == (op == T_IN);
        return true;
    }
    if (op == T_EQ || op == T_NE) {
        if (!tpl_equal(r, a, b, 0, out))
            return false;
        *out = *out == (op == T_EQ);
        return true;
    }
    int order = 0;
    if (!tpl_order(r, a, b, 0, &order))
        return false;
    *out = order == 2   ? false
           : op == T_LT ? order < 0
           : op == T_LE ? order <= 0
           : op == T_GT ? order > 0
                        : order >= 0;
    return true;
}

/* test.c - the tests after `is`, and the look-up of filters and tests by name. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <string.h>

static bool say(bool b, tpl_value *out) {
    *out = tpl_bool(b);
    return true;
}

/* X(name, condition on *v) */
#define TYPE_TESTS(X)                                                                                        \
    X(defined, v->type != TPL_UNDEF)                                                                         \
    X(undefined, v->type == TPL_UNDEF)                                                                       \
    X(none, v->type == TPL_NONE)                                                                             \
    X(boolean, v->type == TPL_BOOL)                                                                          \
    X(true, v->type == TPL_BOOL && v->u.b)                                                                   \
    X(false, v->type == TPL_BOOL && !v->u.b)                                                                 \
    X(integer, v->type == TPL_INT)                                                                           \
    X(float, v->type == TPL_FLOAT)                                                                           \
    X(number, tpl_is_number(v))                                                                              \
    X(string, v->type == TPL_STR)                                                                            \
    X(mapping, v->type == TPL_DICT)                                                                          \
    X(sequence, v->type == TPL_UNDEF || v->type == TPL_STR || v->type == TPL_LIST || v->type == TPL_TUPLE || \
                    v->type == TPL_RANGE || v->type == TPL_DICT)                                             \
    X(iterable, v->type == TPL_UNDEF || v->type == TPL_STR || v->type == TPL_LIST || v->type == TPL_TUPLE || \
                    v->type == TPL_RANGE || v->type == TPL_DICT || v->type == TPL_VIEW ||                    \
                    v->type == TPL_GEN || v->type == TPL_LOOP)                                               \
    X(callable, v->type == TPL_UNDEF || v->type == TPL_MACRO || v->type == TPL_FUNC ||                       \
                    v->type == TPL_METHOD || v->type == TPL_JOINER || v->type == TPL_LOOP)                   \
    X(escaped, v->type == TPL_STR && v->u.s->safe)

#define TYPE_X(name, condition)                                                                              \
    static bool t_##name(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {                      \
        (void)r;                                                                                             \
        (void)c;                                                                                             \
        (void)v;                                                                                             \
        return say(condition, out);                                                                          \
    }
TYPE_TESTS(TYPE_X)
#undef TYPE_X

/* X(function, operator) */
#define COMPARE_TESTS(X) X(eq, T_EQ) X(ne, T_NE) X(lt, T_LT) X(le, T_LE) X(gt, T_GT) X(ge, T_GE) X(in, T_IN)

#define COMPARE_X(name, op)                                                                                  \
    static bool t_##name(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {                      \
        bool holds;                                                                                          \
        return tpl_compare(r, op, v, &c->arg[0], &holds) && say(holds, out);                                 \
    }
COMPARE_TESTS(COMPARE_X)
#undef COMPARE_X

static bool remainder_is(tpl_run *r, const tpl_value *v, const tpl_value *by, int64_t want, tpl_value *out) {
    tpl_value rest, wanted = tpl_int(want);
    bool same;
    return tpl_binary(r, T_MOD, v, by, &rest) && tpl_equal(r, &rest, &wanted, 0, &same) && say(same, out);
}
static bool t_odd(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    tpl_value two = tpl_int(2);
    (void)c;
    return remainder_is(r, v, &two, 1, out);
}
static bool t_even(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    tpl_value two = tpl_int(2);
    (void)c;
    return remainder_is(r, v, &two, 0, out);
}
static bool t_divisibleby(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    return remainder_is(r, v, &c->arg[0], 0, out);
}

static bool case_test(tpl_run *r, const tpl_value *v, bool upper, tpl_value *out) {
    tpl_value text;
    return tpl_to_str(r, v, &text) && tpl_all_case(r, text.u.s, upper, out);
}
static bool t_lower(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    (void)c;
    return case_test(r, v, false, out);
}
static bool t_upper(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    (void)c;
    return case_test(r, v, true, out);
}

/* Identity. Numbers and strings are compared by value, which is how Python's small ones behave. */
static bool t_sameas(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    const tpl_value *o = &c->arg[0];
    bool same = v->type == o->type;
    if (same && (v->type == TPL_STR || tpl_is_number(v)))
        return tpl_equal(r, v, o, 0, &same) && say(same, out);
    return say(same && (v->type == TPL_NONE || v->type == TPL_UNDEF || v->u.gen == o->u.gen), out);
}

static const tpl_func *find_filter(const tpl_str *name) {
    const tpl_func *const tables[] = {tpl_text_filters, tpl_list_filters, tpl_pick_filters, tpl_more_filters};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const tpl_func *f = tpl_find(tables[i], name);
        if (f)
            return f;
    }
    return NULL;
}

static bool t_filter(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    (void)r;
    (void)c;
    return say(v->type == TPL_STR && find_filter(v->u.s), out);
}
static bool t_test(tpl_run *r, const tpl_value *v, tpl_call *c, tpl_value *out) {
    (void)r;
    (void)c;
    return say(v->type == TPL_STR && tpl_find(tpl_tests, v->u.s), out);
}

const tpl_func tpl_tests[] = {
#define TYPE_X(name, condition) {#name, "", 0, t_##name},
    TYPE_TESTS(TYPE_X)
#undef TYPE_X
#define COMPARE_X(name, op) {#name, "other", 1, t_##name},
        COMPARE_TESTS(COMPARE_X)
#undef COMPARE_X
            {"equalto", "other", 1, t_eq},
    {"==", "other", 1, t_eq},
    {"!=", "other", 1, t_ne},
    {"<", "other", 1, t_lt},
    {"lessthan", "other", 1, t_lt},
    {"<=", "other", 1, t_le},
    {">", "other", 1, t_gt},
    {"greaterthan", "other", 1, t_gt},
    {">=", "other", 1, t_ge},
    {"odd", "", 0, t_odd},
    {"even", "", 0, t_even},
    {"divisibleby", "num", 1, t_divisibleby},
    {"lower", "", 0, t_lower},
    {"upper", "", 0, t_upper},
    {"sameas", "other", 1, t_sameas},
    {"filter", "", 0, t_filter},
    {"test", "", 0, t_test},
    {NULL, NULL, 0, NULL},
};

static bool unknown(tpl_run *r, const char *what, const tpl_str *name) {
    return tpl_fail(r, "the %s '%.*s' is not known", what, (int)(name->n > 60 ? 60 : name->n), name->data);
}

bool tpl_filter(tpl_run *r, const tpl_str *name, const tpl_value *self, const tpl_args *args,
                tpl_value *out) {
    const tpl_func *f = find_filter(name);
    if (!f)
        return unknown(r, "filter", name);
    tpl_value input = *self; /* out may be self */
    return tpl_charge(r, 1) && tpl_call_row(r, f, &input, args, out);
}

bool tpl_test(tpl_run *r, const tpl_str *name, const tpl_value *self, const tpl_args *args, bool *out) {
    const tpl_func *f = tpl_find(tpl_tests, name);
    tpl_value result;
    if (!f)
        return unknown(r, "test", name);
    if (!tpl_charge(r, 1) || !tpl_call_row(r, f, self, args, &result))
        return false;
    *out = result.u.b;
    return true;
}

/* eval.c - expressions, calls, and the binding of arguments to parameters. */
#include "jinja/run.h"

#include "jinja/lex.h"

#include <string.h>

static bool eval_name(tpl_run *r, const tpl_node *n, tpl_value *out) {
    uint64_t looked = 0;
    for (const tpl_scope *s = r->scope; s; s = s->outer) {
        for (const tpl_binding *b = s->first; b; b = b->next, looked++) {
            if (tpl_str_same(&b->name, &n->name)) {
                *out = b->value;
                return tpl_charge(r, looked / 8);
            }
        }
    }
    const tpl_func *f = tpl_find(tpl_globals, &n->name);
    *out = f ? (tpl_value){.type = TPL_FUNC, .u = {.func = f}} : tpl_undef(&n->name);
    return tpl_charge(r, looked / 8);
}

static bool eval_items(tpl_run *r, const tpl_node *n, tpl_type as, tpl_value *out) {
    tpl_value *v = tpl_alloc(r, (size_t)n->n_kid, sizeof *v);
    if (!v)
        return false;
    for (int i = 0; i < n->n_kid; i++) {
        if (!tpl_eval(r, n->kid[i], &v[i]))
            return false;
    }
    return tpl_list_of(r, v, (size_t)n->n_kid, as, out);
}

static bool eval_dict(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_dict *d = tpl_dict_new(r, (size_t)n->n_kid / 2);
    if (!d)
        return false;
    for (int i = 0; i < n->n_kid; i += 2) {
        tpl_value key, val;
        if (!tpl_eval(r, n->kid[i], &key) || !tpl_eval(r, n->kid[i + 1], &val) ||
            !tpl_dict_set(r, d, &key, &val))
            return false;
    }
    *out = (tpl_value){.type = TPL_DICT, .u = {.dict = d}};
    return true;
}

static bool eval_slice(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value of, part[3] = {tpl_none(), tpl_none(), tpl_none()};
    const tpl_node *const nodes[3] = {n->b, n->c, n->d};
    if (!tpl_eval(r, n->a, &of))
        return false;
    for (int i = 0; i < 3; i++) {
        if (nodes[i] && !tpl_eval(r, nodes[i], &part[i]))
            return false;
    }
    return tpl_slice(r, &of, part, out);
}

static bool eval_compare(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value left, right;
    bool holds = true;
    if (!tpl_eval(r, n->a, &left))
        return false;
    for (int i = 0; holds && i < n->n_kid; i++) {
        if (!tpl_eval(r, n->kid[i]->a, &right) || !tpl_compare(r, n->kid[i]->op, &left, &right, &holds))
            return false;
        left = right;
    }
    *out = tpl_bool(holds);
    return true;
}

static bool eval_concat(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value part, text;
    tpl_str first;
    if (!tpl_eval(r, n->kid[0], &part) || !tpl_to_str(r, &part, out))
        return false;
    first = *out->u.s;
    first.safe = false; /* the result is a plain text */
    for (int i = 1; i < n->n_kid; i++) {
        if (!tpl_eval(r, n->kid[i], &part) || !tpl_to_str(r, &part, &text) ||
            !tpl_concat(r, i == 1 ? &first : out->u.s, text.u.s, out))
            return false;
    }
    return true;
}

static bool eval_sign(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value v;
    if (!tpl_eval(r, n->a, &v) || !tpl_need_defined(r, &v))
        return false;
    if (!tpl_is_number(&v))
        return tpl_fail(r, "a sign before '%s'", tpl_type_name(v.type));
    if (n->kind == N_POS) {
        *out = v.type == TPL_FLOAT ? v : tpl_int(tpl_as_int(&v));
        return true;
    }
    tpl_value zero = tpl_int(0);
    if (v.type == TPL_FLOAT)
        *out = tpl_float(-v.u.f);
    else
        return tpl_binary(r, T_SUB, &zero, &v, out);
    return true;
}

static bool eval_cond(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value condition;
    if (!tpl_eval(r, n->b, &condition))
        return false;
    if (tpl_truth(&condition))
        return tpl_eval(r, n->a, out);
    *out = tpl_undef(NULL);
    return !n->c || tpl_eval(r, n->c, out);
}

static bool eval_junction(tpl_run *r, const tpl_node *n, tpl_value *out) {
    if (!tpl_eval(r, n->a, out))
        return false;
    return tpl_truth(out) == (n->kind == N_OR) || tpl_eval(r, n->b, out);
}

static bool add_named(tpl_run *r, tpl_args *args, const tpl_value *name, const tpl_value *v) {
    tpl_value *old;
    if (!args->named && !(args->named = tpl_dict_new(r, 4)))
        return false;
    if (!tpl_dict_get(r, args->named, name, &old))
        return false;
    if (old)
        return tpl_fail(r, "an argument is given twice");
    return tpl_dict_set(r, args->named, name, v);
}

static bool spread_arg(tpl_run *r, const tpl_node *arg, const tpl_value *v, tpl_items *pos, tpl_args *args) {
    if (arg->op == '*') {
        const tpl_list *l;
        if (!tpl_list_from(r, v, &l))
            return false;
        for (size_t i = 0; i < l->n; i++) {
            if (!tpl_push(pos, l->v[i]))
                return false;
        }
        return true;
    }
    if (v->type != TPL_DICT)
        return tpl_fail(r, "'**' needs a dict, found '%s'", tpl_type_name(v->type));
    for (size_t i = 0; i < v->u.dict->n; i++) {
        if (v->u.dict->key[i].type != TPL_STR)
            return tpl_fail(r, "an argument's name is a '%s'", tpl_type_name(v->u.dict->key[i].type));
        if (!add_named(r, args, &v->u.dict->key[i], &v->u.dict->val[i]))
            return false;
    }
    return true;
}

static bool eval_args(tpl_run *r, const tpl_node *n, tpl_args *args) {
    tpl_items pos = {.r = r};
    *args = (tpl_args){0};
    for (int i = 0; i < n->n_kid; i++) {
        const tpl_node *arg = n->kid[i];
        tpl_value v, name = tpl_of_str(&arg->name);
        if (!tpl_eval(r, arg->a, &v))
            return false;
        bool ok = arg->op       ? spread_arg(r, arg, &v, &pos, args)
                  : arg->name.n ? add_named(r, args, &name, &v)
                                : tpl_push(&pos, v);
        if (!ok)
            return false;
    }
    args->pos = pos.v;
    args->n_pos = pos.n;
    return true;
}

static bool invoke(tpl_run *r, const tpl_value *callee, const tpl_args *args, tpl_value *out) {
    static const tpl_value nothing = {.type = TPL_NONE, .u = {.i = 0}};
    switch (callee->type) {
    case TPL_FUNC: return tpl_call_row(r, callee->u.func, &nothing, args, out);
    case TPL_METHOD: return tpl_call_row(r, callee->u.method->func, &callee->u.method->self, args, out);
    case TPL_MACRO: return tpl_call_macro(r, callee->u.macro, args, out);
    case TPL_JOINER: /* empty the first time, then the separator */
        *out = callee->u.cycle->items->v[callee->u.cycle->pos];
        callee->u.cycle->pos = 1;
        return true;
    case TPL_LOOP: return tpl_fail(r, "recursive loops are not supported");
    case TPL_UNDEF: return tpl_need_defined(r, callee);
    default: return tpl_fail(r, "'%s' object cannot be called", tpl_type_name(callee->type));
    }
}

bool tpl_call_node(tpl_run *r, const tpl_node *call, const tpl_value *caller, tpl_value *out) {
    static const tpl_str caller_name = {.data = "caller", .n = 6, .n_char = 6};
    tpl_value callee, name = tpl_of_str(&caller_name);
    tpl_args args;
    if (!tpl_eval(r, call->a, &callee) || !eval_args(r, call, &args))
        return false;
    if (caller && !add_named(r, &args, &name, caller))
        return false;
    r->line = call->line;
    return invoke(r, &callee, &args, out);
}

static bool eval_filter(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value self = r->captured;
    tpl_args args;
    if (n->a && !tpl_eval(r, n->a, &self))
        return false;
    if (!eval_args(r, n, &args))
        return false;
    r->line = n->line;
    return tpl_filter(r, &n->name, &self, &args, out);
}

static bool eval_test(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value self;
    tpl_args args;
    bool holds;
    if (!tpl_eval(r, n->a, &self) || !eval_args(r, n, &args))
        return false;
    r->line = n->line;
    if (!tpl_test(r, &n->name, &self, &args, &holds))
        return false;
    *out = tpl_bool(holds);
    return true;
}

static bool eval_not(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value v;
    if (!tpl_eval(r, n->a, &v))
        return false;
    *out = tpl_bool(!tpl_truth(&v));
    return true;
}

static bool eval_pair(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value a, b;
    if (!tpl_eval(r, n->a, &a) || !tpl_eval(r, n->b, &b))
        return false;
    r->line = n->line;
    return n->kind == N_ITEM ? tpl_item(r, &a, &b, out) : tpl_binary(r, n->op, &a, &b, out);
}

static bool eval_attr(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_value of;
    if (!tpl_eval(r, n->a, &of))
        return false;
    r->line = n->line;
    return tpl_attr(r, &of, &n->name, out);
}

static bool eval_kind(tpl_run *r, const tpl_node *n, tpl_value *out) {
    switch (n->kind) {
    case N_CONST: *out = n->value; return true;
    case N_NAME: return eval_name(r, n, out);
    case N_TUPLE: return eval_items(r, n, TPL_TUPLE, out);
    case N_LIST: return eval_items(r, n, TPL_LIST, out);
    case N_DICT: return eval_dict(r, n, out);
    case N_ATTR: return eval_attr(r, n, out);
    case N_ITEM:
    case N_BINARY: return eval_pair(r, n, out);
    case N_SLICE: return eval_slice(r, n, out);
    case N_CALL: return tpl_call_node(r, n, NULL, out);
    case N_FILTER: return eval_filter(r, n, out);
    case N_TEST: return eval_test(r, n, out);
    case N_NOT: return eval_not(r, n, out);
    case N_NEG:
    case N_POS: return eval_sign(r, n, out);
    case N_AND:
    case N_OR: return eval_junction(r, n, out);
    case N_CONCAT: return eval_concat(r, n, out);
    case N_COMPARE: return eval_compare(r, n, out);
    case N_COND: return eval_cond(r, n, out);
    default: return tpl_fail(r, "not an expression");
    }
}

bool tpl_eval(tpl_run *r, const tpl_node *n, tpl_value *out) {
    *out = (tpl_value){.type = TPL_NONE};
    if (!tpl_charge(r, 1))
        return false;
    r->line = n->line;
    if (r->depth == r->limits.depth)
        return tpl_fail(r, "nested more than %d deep", r->limits.depth);
    r->depth++;
    bool ok = eval_kind(r, n, out);
    r->depth--;
    return ok;
}

const tpl_func *tpl_find(const tpl_func *table, const tpl_str *name) {
    for (const tpl_func *f = table; f->name; f++) {
        if (tpl_str_is(name, f->name))
            return f;
    }
    return NULL;
}

/* The index of a parameter's name in "a,b,c"; -1: it is not in the list. */
static int param_index(const char *params, const tpl_str *name) {
    for (int i = 0;; i++) {
        size_t n = strcspn(params, ",");
        if (name->n == n && memcmp(params, name->data, n) == 0)
            return i;
        if (!params[n])
            return -1;
        params += n + 1;
    }
}

static int param_count(const char *params) {
    int n = *params != 0;
    for (; *params; params++)
        n += *params == ',';
    return n;
}

bool tpl_call_row(tpl_run *r, const tpl_func *f, const tpl_value *self, const tpl_args *args,
                  tpl_value *out) {
    tpl_call c = {.args = args};
    if (f->params[0] == '*')
        return f->fn(r, self, &c, out);
    int n = param_count(f->params);
    if (args->n_pos > (size_t)n)
        return tpl_fail(r, "%s() takes at most %d arguments, %zu given", f->name, n, args->n_pos);
    for (int i = 0; i < n; i++) {
        c.given[i] = (size_t)i < args->n_pos;
        c.arg[i] = c.given[i] ? args->pos[i] : tpl_undef(NULL);
    }
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const tpl_str *name = args->named->key[i].u.s;
        int at = n ? param_index(f->params, name) : -1;
        if (at < 0 || c.given[at])
            return tpl_fail(r, "%s() %s '%.*s'", f->name, at < 0 ? "has no argument" : "is given twice",
                            (int)(name->n > 60 ? 60 : name->n), name->data);
        c.given[at] = true;
        c.arg[at] = args->named->val[i];
    }
    for (int i = 0; i < f->required; i++) {
        if (!c.given[i])
            return tpl_fail(r, "%s() needs %d arguments", f->name, f->required);
    }
    return f->fn(r, self, &c, out);
}

bool tpl_arg_int(tpl_run *r, const tpl_call *c, int i, int64_t *out) {
    if (!c->given[i] || c->arg[i].type == TPL_NONE)
        return true;
    if (!tpl_is_whole(&c->arg[i]))
        return tpl_need_defined(r, &c->arg[i]) &&
               tpl_fail(r, "expected an integer, found '%s'", tpl_type_name(c->arg[i].type));
    *out = tpl_as_int(&c->arg[i]);
    return true;
}

bool tpl_arg_str(tpl_run *r, const tpl_call *c, int i, const tpl_str **out) {
    if (!c->given[i] || c->arg[i].type == TPL_NONE)
        return true;
    if (c->arg[i].type != TPL_STR)
        return tpl_need_defined(r, &c->arg[i]) &&
               tpl_fail(r, "expected a string, found '%s'", tpl_type_name(c->arg[i].type));
    *out = c->arg[i].u.s;
    return true;
}

bool tpl_arg_for(tpl_run *r, const tpl_value *self, const tpl_call *c, int i, const tpl_str **out) {
    tpl_value escaped;
    if (!tpl_arg_str(r, c, i, out))
        return false;
    if (!*out || !self->u.s->safe)
        return true;
    if (!tpl_escape(r, *out, &escaped))
        return false;
    *out = escaped.u.s;
    return true;
}

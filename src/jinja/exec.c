/* exec.c - statements: output, conditions, loops, assignments, macros. */
#include "jinja/run.h"

#include <string.h>

static tpl_scope *scope_new(tpl_run *r, tpl_scope *outer) {
    tpl_scope *s = tpl_alloc(r, 1, sizeof *s);
    if (s)
        s->outer = outer;
    return s;
}

/* Removes a scope's names, unless a macro has kept the scope. */
static void scope_clear(tpl_run *r, tpl_scope *s) {
    if (s->kept)
        return;
    while (s->first) {
        tpl_binding *b = s->first;
        s->first = b->next;
        b->next = r->spare;
        r->spare = b;
    }
}

bool tpl_bind(tpl_run *r, tpl_scope *scope, const tpl_str *name, const tpl_value *v) {
    uint64_t looked = 0;
    for (tpl_binding *b = scope->first; b; b = b->next, looked++) {
        if (tpl_str_same(&b->name, name)) {
            b->value = *v;
            return tpl_charge(r, looked / 8);
        }
    }
    tpl_binding *b = r->spare;
    if (b)
        r->spare = b->next;
    else if (!(b = tpl_alloc(r, 1, sizeof *b)))
        return false;
    *b = (tpl_binding){.name = *name, .value = *v, .next = scope->first};
    scope->first = b;
    return tpl_charge(r, looked / 8);
}

static bool set_ns_attr(tpl_run *r, const tpl_node *target, const tpl_value *v) {
    tpl_node name = {.kind = N_NAME, .line = target->line, .name = target->name};
    tpl_value ns, key = tpl_of_str(&target->name2);
    if (!tpl_eval(r, &name, &ns))
        return false;
    if (ns.type != TPL_NS)
        return tpl_fail(r, "cannot assign an attribute: '%.*s' is no namespace",
                        (int)(target->name.n > 60 ? 60 : target->name.n), target->name.data);
    if (target->name2.n && target->name2.data[0] == '_')
        return tpl_fail(r, "a namespace cannot hold names that begin with '_'");
    return tpl_dict_set(r, ns.u.dict, &key, v);
}

static bool assign(tpl_run *r, const tpl_node *target, const tpl_value *v) {
    if (target->kind == N_NAME)
        return tpl_bind(r, r->scope, &target->name, v);
    if (target->kind == N_NS_ATTR)
        return set_ns_attr(r, target, v);
    const tpl_list *l;
    if (!tpl_list_from(r, v, &l))
        return false;
    if (l->n != (size_t)target->n_kid)
        return tpl_fail(r, "expected %d values to unpack, found %zu", target->n_kid, l->n);
    for (int i = 0; i < target->n_kid; i++) {
        if (!assign(r, target->kid[i], &l->v[i]))
            return false;
    }
    return true;
}

static tpl_flow flow_of(bool ok) {
    return ok ? TPL_NEXT : TPL_FAILED;
}

static tpl_flow exec_in(tpl_run *r, tpl_scope *scope, const tpl_node *body) {
    tpl_scope *outer = r->scope;
    r->scope = scope;
    tpl_flow flow = tpl_exec(r, body);
    r->scope = outer;
    return flow;
}

/* Runs a body and returns its output as a string. */
static bool capture(tpl_run *r, tpl_scope *scope, const tpl_node *body, tpl_value *out) {
    size_t from = r->n_out;
    tpl_builder b = {.r = r};
    if (exec_in(r, scope, body) == TPL_FAILED)
        return false;
    const tpl_str printed = {.data = r->out, .n = r->n_out, .mark = r->out_mark};
    if (r->n_out > from)
        tpl_put_part(&b, &printed, r->out + from, r->n_out - from);
    r->n_out = from;
    return tpl_built(&b, out);
}

static bool capture_new(tpl_run *r, const tpl_node *body, tpl_value *out) {
    tpl_scope *s = scope_new(r, r->scope);
    return s && capture(r, s, body, out);
}

static bool print(tpl_run *r, const tpl_value *v) {
    tpl_value text;
    return tpl_to_str(r, v, &text) && tpl_emit(r, text.u.s);
}

static bool exec_print(tpl_run *r, const tpl_node *n) {
    tpl_value v;
    return tpl_eval(r, n->a, &v) && print(r, &v);
}

static tpl_flow exec_if(tpl_run *r, const tpl_node *n) {
    for (int i = 0; i < n->n_kid; i += 2) {
        tpl_value condition;
        if (!tpl_eval(r, n->kid[i], &condition))
            return TPL_FAILED;
        if (tpl_truth(&condition))
            return tpl_exec(r, n->kid[i + 1]);
    }
    return n->a ? tpl_exec(r, n->a) : TPL_NEXT;
}

/* Whether the item that is bound in `scope` passes the loop's filter. */
static bool passes(tpl_run *r, const tpl_node *n, tpl_scope *scope, const tpl_value *item, bool *out) {
    tpl_scope *outer = r->scope;
    tpl_value v;
    r->scope = scope;
    bool ok = assign(r, n->a, item) && tpl_eval(r, n->c, &v);
    r->scope = outer;
    *out = ok && tpl_truth(&v);
    scope_clear(r, scope);
    return ok;
}

/* If the body reads `loop`, the length must be known, so all items are filtered before the first iteration.
 * Otherwise each item is filtered just before its iteration, and the filter sees what earlier iterations have
 * set. */
static bool filter_all(tpl_run *r, const tpl_node *n, tpl_scope *scope, const tpl_list **items) {
    tpl_items kept = {.r = r};
    tpl_value list;
    for (size_t i = 0; i < (*items)->n; i++) {
        bool pass;
        if (!passes(r, n, scope, &(*items)->v[i], &pass) || (pass && !tpl_push(&kept, (*items)->v[i])))
            return false;
    }
    if (!tpl_pushed(&kept, TPL_LIST, &list))
        return false;
    *items = list.u.list;
    return true;
}

static tpl_flow one_round(tpl_run *r, const tpl_node *n, tpl_scope *scope, const tpl_value *item,
                          tpl_loop *loop) {
    static const tpl_str loop_name = {.data = "loop", .n = 4, .n_char = 4};
    tpl_value loop_value = {.type = TPL_LOOP, .u = {.loop = loop}};
    tpl_scope *outer = r->scope;
    r->scope = scope;
    tpl_flow flow = flow_of(tpl_bind(r, scope, &loop_name, &loop_value) && assign(r, n->a, item));
    if (flow == TPL_NEXT)
        flow = tpl_exec(r, n->body);
    r->scope = outer;
    return flow;
}

static tpl_flow run_rounds(tpl_run *r, const tpl_node *n, const tpl_list *items, tpl_scope *scope,
                           bool *any) {
    tpl_loop *loop = tpl_alloc(r, 1, sizeof *loop);
    if (!loop)
        return TPL_FAILED;
    *loop = (tpl_loop){.items = items};
    for (size_t i = 0; i < items->n; i++) {
        bool pass = true;
        if (!tpl_charge(r, 1) || (n->c && !n->op && !passes(r, n, scope, &items->v[i], &pass)))
            return TPL_FAILED;
        if (!pass)
            continue;
        loop->i = i;
        tpl_flow flow = one_round(r, n, scope, &items->v[i], loop);
        if (flow == TPL_FAILED || flow == TPL_BROKE)
            return flow;
        *any = *any || flow == TPL_NEXT; /* as in jinja2: an iteration that was left early does not count */
        if (scope->kept) {
            scope = scope_new(r, scope->outer);
            if (!scope)
                return TPL_FAILED;
        }
        scope_clear(r, scope);
    }
    return TPL_NEXT;
}

static tpl_flow exec_for(tpl_run *r, const tpl_node *n) {
    tpl_value over;
    const tpl_list *items;
    bool any = false;
    if (!tpl_eval(r, n->b, &over) || !tpl_list_from(r, &over, &items))
        return TPL_FAILED;
    tpl_scope *scope = scope_new(r, r->scope);
    if (!scope || (n->c && n->op && !filter_all(r, n, scope, &items)))
        return TPL_FAILED;
    tpl_flow flow = run_rounds(r, n, items, scope, &any);
    if (flow == TPL_FAILED)
        return flow;
    scope_clear(r, scope);
    if (any || !n->d)
        return TPL_NEXT;
    tpl_scope *otherwise = scope_new(r, r->scope);
    return otherwise ? exec_in(r, otherwise, n->d) : TPL_FAILED;
}

static bool exec_set_block(tpl_run *r, const tpl_node *n) {
    tpl_value text, before = r->captured;
    if (!capture_new(r, n->body, &text))
        return false;
    if (n->b) {
        r->captured = text;
        if (!tpl_eval(r, n->b, &text))
            return false;
        r->captured = before;
    }
    return assign(r, n->a, &text);
}

static bool exec_filter_block(tpl_run *r, const tpl_node *n) {
    tpl_value text, before = r->captured;
    if (!capture_new(r, n->body, &text))
        return false;
    r->captured = text;
    if (!tpl_eval(r, n->b, &text))
        return false;
    r->captured = before;
    return print(r, &text);
}

static bool macro_value(tpl_run *r, const tpl_node *n, tpl_value *out) {
    tpl_macro *m = tpl_alloc(r, 1, sizeof *m);
    if (!m)
        return false;
    *m = (tpl_macro){.node = n, .scope = r->scope};
    for (tpl_scope *s = r->scope; s; s = s->outer)
        s->kept = true;
    *out = (tpl_value){.type = TPL_MACRO, .u = {.macro = m}};
    return true;
}

static bool exec_macro(tpl_run *r, const tpl_node *n) {
    tpl_value m;
    return macro_value(r, n, &m) && tpl_bind(r, r->scope, &n->name, &m);
}

static bool exec_call_block(tpl_run *r, const tpl_node *n) {
    tpl_value caller, text;
    return macro_value(r, n, &caller) && tpl_call_node(r, n->a, &caller, &text) && print(r, &text);
}

static tpl_flow exec_scope(tpl_run *r, const tpl_node *n) {
    tpl_scope *s = scope_new(r, r->scope), *outer = r->scope;
    if (!s)
        return TPL_FAILED;
    for (int i = 0; i < n->n_kid; i += 2) { /* values are evaluated in the outer scope */
        tpl_value v;
        if (!tpl_eval(r, n->kid[i + 1], &v))
            return TPL_FAILED;
        r->scope = s;
        bool ok = assign(r, n->kid[i], &v);
        r->scope = outer;
        if (!ok)
            return TPL_FAILED;
    }
    return exec_in(r, s, n->body);
}

static bool exec_set(tpl_run *r, const tpl_node *n) {
    tpl_value v;
    return tpl_eval(r, n->b, &v) && assign(r, n->a, &v);
}

static tpl_flow exec_body(tpl_run *r, const tpl_node *n) {
    for (int i = 0; i < n->n_kid; i++) {
        tpl_flow flow = tpl_exec(r, n->kid[i]);
        if (flow != TPL_NEXT)
            return flow;
    }
    return TPL_NEXT;
}

static tpl_flow exec_kind(tpl_run *r, const tpl_node *n) {
    switch (n->kind) {
    case N_TEXT: return flow_of(tpl_emit(r, n->value.u.s));
    case N_PRINT: return flow_of(exec_print(r, n));
    case N_BODY: return exec_body(r, n);
    case N_IF: return exec_if(r, n);
    case N_FOR: return exec_for(r, n);
    case N_SET: return flow_of(exec_set(r, n));
    case N_SET_BLOCK: return flow_of(exec_set_block(r, n));
    case N_MACRO: return flow_of(exec_macro(r, n));
    case N_CALL_BLOCK: return flow_of(exec_call_block(r, n));
    case N_FILTER_BLOCK: return flow_of(exec_filter_block(r, n));
    case N_SCOPE: return exec_scope(r, n);
    case N_BREAK: return TPL_BROKE;
    case N_CONTINUE: return TPL_CONTINUED;
    default: return flow_of(tpl_fail(r, "not a statement"));
    }
}

tpl_flow tpl_exec(tpl_run *r, const tpl_node *n) {
    if (!tpl_charge(r, 1))
        return TPL_FAILED;
    r->line = n->line;
    if (r->depth == r->limits.depth)
        return flow_of(tpl_fail(r, "nested more than %d deep", r->limits.depth));
    r->depth++;
    tpl_flow flow = exec_kind(r, n);
    r->depth--;
    return flow;
}

/* Takes the argument `name` from the named arguments. */
static bool take_named(tpl_run *r, tpl_dict *named, bool *used, const tpl_str *name, tpl_value *out,
                       bool *hit) {
    tpl_value *val = NULL;
    if (named && !tpl_dict_get_str(r, named, name, &val))
        return false;
    *hit = val != NULL;
    if (val) {
        *out = *val;
        used[val - named->val] = true;
    }
    return true;
}

static bool bind_extra(tpl_run *r, const tpl_node *n, tpl_scope *s, const tpl_args *args, bool *used) {
    static const tpl_str names[3] = {{.data = "caller", .n = 6, .n_char = 6},
                                     {.data = "varargs", .n = 7, .n_char = 7},
                                     {.data = "kwargs", .n = 6, .n_char = 6}};
    tpl_value v = tpl_undef(&names[0]);
    bool hit;
    if (n->op & TPL_READS_CALLER) {
        if (!take_named(r, args->named, used, &names[0], &v, &hit) || !tpl_bind(r, s, &names[0], &v))
            return false;
    }
    size_t n_param = (size_t)n->n_kid;
    if (n->op & TPL_READS_VARARGS) {
        size_t more = args->n_pos > n_param ? args->n_pos - n_param : 0;
        if (!tpl_list_of(r, args->pos ? args->pos + (args->n_pos - more) : NULL, more, TPL_TUPLE, &v) ||
            !tpl_bind(r, s, &names[1], &v))
            return false;
    } else if (args->n_pos > n_param) {
        return tpl_fail(r, "macro '%.*s' takes at most %zu arguments, %zu given", (int)n->name.n,
                        n->name.n ? n->name.data : "", n_param, args->n_pos);
    }
    tpl_dict *rest = tpl_dict_new(r, 4);
    if (!rest)
        return false;
    for (size_t i = 0; args->named && i < args->named->n; i++) {
        const tpl_str *name = args->named->key[i].u.s;
        if (used[i])
            continue;
        if (!(n->op & TPL_READS_KWARGS))
            return tpl_fail(r, "macro '%.*s' has no argument '%.*s'", (int)n->name.n,
                            n->name.n ? n->name.data : "", (int)(name->n > 60 ? 60 : name->n), name->data);
        if (!tpl_dict_set(r, rest, &args->named->key[i], &args->named->val[i]))
            return false;
    }
    v = (tpl_value){.type = TPL_DICT, .u = {.dict = rest}};
    return !(n->op & TPL_READS_KWARGS) || tpl_bind(r, s, &names[2], &v);
}

static bool bind_params(tpl_run *r, const tpl_node *n, tpl_scope *s, const tpl_args *args) {
    bool *used = tpl_alloc(r, args->named ? args->named->n : 0, 1);
    if (!used)
        return false;
    for (int i = 0; i < n->n_kid; i++) {
        const tpl_node *param = n->kid[i];
        tpl_value v = tpl_undef(&param->name);
        bool hit = (size_t)i < args->n_pos, named = false;
        if (hit)
            v = args->pos[i];
        else if (!take_named(r, args->named, used, &param->name, &v, &named))
            return false;
        if (!hit && !named && param->a) { /* a default may use the parameters before it */
            tpl_scope *outer = r->scope;
            r->scope = s;
            bool ok = tpl_eval(r, param->a, &v);
            r->scope = outer;
            if (!ok)
                return false;
        }
        if (!tpl_bind(r, s, &param->name, &v))
            return false;
    }
    return bind_extra(r, n, s, args, used);
}

bool tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_args *args, tpl_value *out) {
    tpl_scope *s = scope_new(r, m->scope);
    return s && bind_params(r, m->node, s, args) && capture(r, s, m->node->body, out);
}

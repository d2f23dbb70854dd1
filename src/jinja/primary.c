/* primary.c - parses operands: names, constants, lists, dictionaries, expressions in parentheses. */
#include "jinja/parse.h"

#include <string.h>

static tpl_node *parse_list(tpl_parser *p, int line) {
    tpl_node *n = tpl_node_new(p, N_LIST, line);
    if (!n || !tpl_advance(p))
        return NULL;
    while (p->tok.kind != T_RBRACKET) {
        tpl_node *item = tpl_parse_expression(p, true);
        if (!item || !tpl_add_kid(p, n, item))
            return NULL;
        if (p->tok.kind != T_RBRACKET && !tpl_expect(p, T_COMMA))
            return NULL;
    }
    return tpl_advance(p) ? n : NULL;
}

static tpl_node *parse_dict(tpl_parser *p, int line) {
    tpl_node *n = tpl_node_new(p, N_DICT, line);
    if (!n || !tpl_advance(p))
        return NULL;
    while (p->tok.kind != T_RBRACE) {
        tpl_node *key = tpl_parse_expression(p, true);
        if (!key || !tpl_expect(p, T_COLON) || !tpl_add_kid(p, n, key))
            return NULL;
        tpl_node *val = tpl_parse_expression(p, true);
        if (!val || !tpl_add_kid(p, n, val))
            return NULL;
        if (p->tok.kind != T_RBRACE && !tpl_expect(p, T_COMMA))
            return NULL;
    }
    return tpl_advance(p) ? n : NULL;
}

static tpl_node *parse_parens(tpl_parser *p, int line) {
    if (!tpl_advance(p))
        return NULL;
    tpl_node *n = p->tok.kind == T_RPAREN ? tpl_node_new(p, N_TUPLE, line) : tpl_parse_tuple(p, true);
    return n && tpl_expect(p, T_RPAREN) ? n : NULL;
}

/* Appends more to *all, whose own capacity is *cap bytes. */
static bool join_string(tpl_parser *p, tpl_str *all, size_t *cap, const tpl_str *more) {
    const size_t n = all->n + more->n;
    char *data = (char *)(uintptr_t)all->data;
    if (n > *cap) {
        data = arena_alloc(p->mem, 2 * n);
        if (!data) {
            nib_fail_nomem(p->err, 2 * n, "the chat template");
            return false;
        }
        *cap = 2 * n;
        memcpy(data, all->data, all->n);
    }
    memcpy(data + all->n, more->data, more->n);
    *all = (tpl_str){.data = data, .n = n, .n_char = all->n_char + more->n_char};
    return true;
}

/* Adjacent string literals form one string, as in Python. */
static tpl_node *parse_strings(tpl_parser *p, int line) {
    tpl_node *n = tpl_node_new(p, N_CONST, line);
    tpl_str all = p->tok.text;
    size_t cap = 0;
    if (!n || !tpl_advance(p))
        return NULL;
    while (p->tok.kind == T_STRING) {
        if (!join_string(p, &all, &cap, &p->tok.text) || !tpl_advance(p))
            return NULL;
    }
    return tpl_const_str(p, n, all) ? n : NULL;
}

static void note_use(tpl_parser *p, const tpl_str *name) {
    if (p->loop_use && tpl_str_is(name, "loop"))
        *p->loop_use = 1;
    if (!p->macro_use)
        return;
    if (tpl_str_is(name, "caller"))
        *p->macro_use |= TPL_READS_CALLER;
    if (tpl_str_is(name, "varargs"))
        *p->macro_use |= TPL_READS_VARARGS;
    if (tpl_str_is(name, "kwargs"))
        *p->macro_use |= TPL_READS_KWARGS;
}

static tpl_node *parse_name(tpl_parser *p, int line) {
    tpl_node *n = tpl_node_new(p, N_CONST, line);
    if (!n)
        return NULL;
    const tpl_str *name = &p->tok.text;
    if (tpl_str_is(name, "true") || tpl_str_is(name, "True")) {
        n->value = tpl_bool(true);
    } else if (tpl_str_is(name, "false") || tpl_str_is(name, "False")) {
        n->value = tpl_bool(false);
    } else if (tpl_str_is(name, "none") || tpl_str_is(name, "None")) {
        n->value = tpl_none();
    } else {
        n->kind = N_NAME;
        n->name = *name;
        note_use(p, name);
    }
    return tpl_advance(p) ? n : NULL;
}

tpl_node *tpl_parse_primary(tpl_parser *p) {
    int line = p->tok.line;
    switch (p->tok.kind) {
    case T_NAME: return parse_name(p, line);
    case T_STRING: return parse_strings(p, line);
    case T_LPAREN: return parse_parens(p, line);
    case T_LBRACKET: return parse_list(p, line);
    case T_LBRACE: return parse_dict(p, line);
    case T_INT:
    case T_FLOAT: {
        tpl_node *n = tpl_node_new(p, N_CONST, line);
        if (!n)
            return NULL;
        n->value = p->tok.kind == T_INT ? tpl_int(p->tok.i) : tpl_float(p->tok.f);
        return tpl_advance(p) ? n : NULL;
    }
    default: break;
    }
    tpl_parse_fail(p, line, "expected an expression, found '%s'", tpl_token_name(p->tok.kind));
    return NULL;
}

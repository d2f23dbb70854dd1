/* expr.c - parses expressions with jinja2's precedence, which differs from Python's: unary minus
 * binds closer than power, and `~` is between + and *. One routine parses all binary operators, by a table of
 * levels. */
#include "jinja/parse.h"

#include "base/num.h"

static tpl_node *parse_unary(tpl_parser *p, bool with_filters);

/* Left-associative levels, lowest precedence first. */
static const struct {
    tpl_token_kind ops[5];
} levels[] = {{{T_ADD, T_SUB}}, {{T_TILDE}}, {{T_MUL, T_DIV, T_FLOORDIV, T_MOD}}, {{T_POW}}};

static bool in_level(int level, tpl_token_kind kind) {
    for (int i = 0; levels[level].ops[i] != T_END; i++) {
        if (levels[level].ops[i] == kind)
            return true;
    }
    return false;
}

static tpl_node *parse_level(tpl_parser *p, int level) {
    if (level == (int)NUM_COUNT(levels))
        return parse_unary(p, true);
    tpl_node *left = parse_level(p, level + 1);
    while (left && in_level(level, p->tok.kind)) {
        tpl_node *n = tpl_node_new(p, p->tok.kind == T_TILDE ? N_CONCAT : N_BINARY, p->tok.line);
        if (!n)
            return NULL;
        n->op = p->tok.kind;
        if (n->kind == N_CONCAT) {
            if (!tpl_add_kid(p, n, left))
                return NULL;
            while (p->tok.kind == T_TILDE) {
                tpl_node *kid = tpl_advance(p) ? parse_level(p, level + 1) : NULL;
                if (!kid || !tpl_add_kid(p, n, kid))
                    return NULL;
            }
        } else {
            n->a = left;
            n->b = tpl_advance(p) ? parse_level(p, level + 1) : NULL;
            if (!n->b)
                return NULL;
        }
        left = n;
    }
    return left;
}

/* The comparison operator at the current token; T_END: none. Skips the `not` of `not in`. */
static bool compare_op(tpl_parser *p, int *op) {
    *op = T_END;
    if (tpl_is_word(p, "in")) {
        *op = T_IN;
    } else if (tpl_is_word(p, "not")) {
        tpl_token next;
        if (!tpl_peek(p, &next))
            return false;
        if (next.kind == T_NAME && tpl_str_is(&next.text, "in")) {
            *op = T_NOT_IN;
            return tpl_advance(p);
        }
    } else if (p->tok.kind == T_EQ || p->tok.kind == T_NE || p->tok.kind == T_LT || p->tok.kind == T_LE ||
               p->tok.kind == T_GT || p->tok.kind == T_GE) {
        *op = p->tok.kind;
    }
    return true;
}

static tpl_node *parse_compare(tpl_parser *p) {
    tpl_node *left = parse_level(p, 0), *n = NULL;
    while (left) {
        int op;
        if (!compare_op(p, &op))
            return NULL;
        if (op == T_END)
            return n ? n : left;
        if (!n) {
            n = tpl_node_new(p, N_COMPARE, p->tok.line);
            if (!n)
                return NULL;
            n->a = left;
        }
        tpl_node *operand = tpl_node_new(p, N_OPERAND, p->tok.line);
        if (!operand || !tpl_advance(p))
            return NULL;
        operand->op = op;
        operand->a = parse_level(p, 0);
        if (!operand->a || !tpl_add_kid(p, n, operand))
            return NULL;
    }
    return NULL;
}

static tpl_node *parse_not(tpl_parser *p) {
    if (!tpl_is_word(p, "not"))
        return parse_compare(p);
    tpl_node *n = tpl_node_new(p, N_NOT, p->tok.line);
    if (!n || !tpl_enter(p) || !tpl_advance(p))
        return NULL;
    n->a = parse_not(p);
    p->depth--;
    return n->a ? n : NULL;
}

static tpl_node *parse_junction(tpl_parser *p, bool is_or) {
    tpl_node *left = is_or ? parse_junction(p, false) : parse_not(p);
    while (left && tpl_is_word(p, is_or ? "or" : "and")) {
        tpl_node *n = tpl_node_new(p, is_or ? N_OR : N_AND, p->tok.line);
        if (!n || !tpl_advance(p))
            return NULL;
        n->a = left;
        n->b = is_or ? parse_junction(p, false) : parse_not(p);
        if (!n->b)
            return NULL;
        left = n;
    }
    return left;
}

tpl_node *tpl_parse_expression(tpl_parser *p, bool with_cond) {
    if (!tpl_enter(p))
        return NULL;
    tpl_node *left = parse_junction(p, true);
    while (left && with_cond && tpl_is_word(p, "if")) {
        tpl_node *n = tpl_node_new(p, N_COND, p->tok.line);
        if (!n || !tpl_advance(p))
            return NULL;
        n->a = left;
        n->b = parse_junction(p, true);
        if (!n->b)
            return NULL;
        if (tpl_is_word(p, "else")) {
            n->c = tpl_advance(p) ? tpl_parse_expression(p, true) : NULL;
            if (!n->c)
                return NULL;
        }
        left = n;
    }
    p->depth--;
    return left;
}

static bool ends_tuple(const tpl_parser *p) {
    return p->tok.kind == T_PRINT_END || p->tok.kind == T_BLOCK_END || p->tok.kind == T_RPAREN;
}

tpl_node *tpl_parse_tuple(tpl_parser *p, bool with_cond) {
    int line = p->tok.line;
    tpl_node *first = tpl_parse_expression(p, with_cond);
    if (!first || p->tok.kind != T_COMMA)
        return first;
    tpl_node *n = tpl_node_new(p, N_TUPLE, line);
    if (!n || !tpl_add_kid(p, n, first))
        return NULL;
    while (p->tok.kind == T_COMMA) {
        if (!tpl_advance(p))
            return NULL;
        if (ends_tuple(p))
            break;
        tpl_node *item = tpl_parse_expression(p, with_cond);
        if (!item || !tpl_add_kid(p, n, item))
            return NULL;
    }
    return n;
}

/* Parses one argument of a call: expression, name=expression, *expression or **expression. */
static tpl_node *parse_arg(tpl_parser *p) {
    tpl_node *arg = tpl_node_new(p, N_ARG, p->tok.line);
    if (!arg)
        return NULL;
    tpl_token next;
    if (p->tok.kind == T_MUL || p->tok.kind == T_POW) {
        arg->op = p->tok.kind == T_MUL ? '*' : 'k';
        if (!tpl_advance(p))
            return NULL;
    } else if (p->tok.kind == T_NAME) {
        if (!tpl_peek(p, &next))
            return NULL;
        if (next.kind == T_ASSIGN) {
            arg->name = p->tok.text;
            if (!tpl_advance(p)) /* past the name */
                return NULL;
            if (!tpl_advance(p)) /* past the sign */
                return NULL;
        }
    }
    arg->a = tpl_parse_expression(p, true);
    return arg->a ? arg : NULL;
}

static bool parse_args(tpl_parser *p, tpl_node *call) {
    bool named = false;
    if (!tpl_expect(p, T_LPAREN))
        return false;
    while (p->tok.kind != T_RPAREN) {
        tpl_node *arg = parse_arg(p);
        if (!arg)
            return false;
        bool is_named = arg->name.n || arg->op == 'k';
        if (named && !is_named && arg->op != '*')
            return tpl_parse_fail(p, arg->line, "a positional argument after a named one");
        named = named || is_named;
        if (!tpl_add_kid(p, call, arg))
            return false;
        if (p->tok.kind != T_RPAREN && !tpl_expect(p, T_COMMA))
            return false;
    }
    return tpl_advance(p);
}

/* Parses the content of the brackets of a[...]: an index, a slice, or a tuple. */
static tpl_node *parse_subscript(tpl_parser *p, tpl_node *of, int line) {
    tpl_node *n = tpl_node_new(p, N_ITEM, line);
    if (!n)
        return NULL;
    n->a = of;
    tpl_node **part[3] = {&n->b, &n->c, &n->d};
    int i = 0;
    while (p->tok.kind != T_RBRACKET) {
        if (p->tok.kind == T_COLON) {
            n->kind = N_SLICE;
            if (++i > 2) {
                tpl_parse_fail(p, line, "a slice has at most three parts");
                return NULL;
            }
            if (!tpl_advance(p))
                return NULL;
            continue;
        }
        if (*part[i]) {
            tpl_parse_fail(p, p->tok.line, "expected ']', found '%.*s'", (int)NUM_MIN(p->tok.text.n, 40u),
                           p->tok.text.n ? p->tok.text.data : "");
            return NULL;
        }
        *part[i] = tpl_parse_tuple(p, true);
        if (!*part[i])
            return NULL;
    }
    if (n->kind == N_ITEM && !n->b) {
        tpl_parse_fail(p, line, "nothing between '[' and ']'");
        return NULL;
    }
    return tpl_advance(p) ? n : NULL;
}

static tpl_node *parse_dot(tpl_parser *p, tpl_node *of) {
    int line = p->tok.line;
    if (!tpl_advance(p))
        return NULL;
    tpl_node *n = tpl_node_new(p, p->tok.kind == T_INT ? N_ITEM : N_ATTR, line);
    if (!n)
        return NULL;
    n->a = of;
    if (p->tok.kind == T_INT) {
        n->b = tpl_node_new(p, N_CONST, line);
        if (!n->b)
            return NULL;
        n->b->value = tpl_int(p->tok.i);
    } else if (p->tok.kind == T_NAME) {
        n->name = p->tok.text;
    } else {
        tpl_parse_fail(p, line, "expected a name after '.', found '%s'", tpl_token_name(p->tok.kind));
        return NULL;
    }
    return tpl_advance(p) ? n : NULL;
}

static tpl_node *parse_call(tpl_parser *p, tpl_node *callee) {
    tpl_node *n = tpl_node_new(p, N_CALL, p->tok.line);
    if (!n)
        return NULL;
    n->a = callee;
    return parse_args(p, n) ? n : NULL;
}

static tpl_node *parse_postfix(tpl_parser *p, tpl_node *n) {
    while (n) {
        int line = p->tok.line;
        if (p->tok.kind == T_DOT)
            n = parse_dot(p, n);
        else if (p->tok.kind == T_LBRACKET)
            n = tpl_advance(p) ? parse_subscript(p, n, line) : NULL;
        else if (p->tok.kind == T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

/* Parses a filter's or a test's name; dots are accepted, but no such name exists. */
static bool parse_dotted(tpl_parser *p, tpl_str *name) {
    if (p->tok.kind != T_NAME)
        return tpl_parse_fail(p, p->tok.line, "expected a name, found '%s'", tpl_token_name(p->tok.kind));
    *name = p->tok.text;
    return tpl_advance(p);
}

tpl_node *tpl_parse_filters(tpl_parser *p, tpl_node *inner, bool first) {
    while (first || p->tok.kind == T_PIPE) {
        if (!first && !tpl_advance(p))
            return NULL;
        first = false;
        tpl_node *n = tpl_node_new(p, N_FILTER, p->tok.line);
        if (!n || !parse_dotted(p, &n->name))
            return NULL;
        n->a = inner;
        if (p->tok.kind == T_LPAREN && !parse_args(p, n))
            return NULL;
        inner = n;
    }
    return inner;
}

/* A test may take one argument without brackets: `x is divisibleby 3`. */
static bool parse_bare_arg(tpl_parser *p, tpl_node *n) {
    tpl_token_kind k = p->tok.kind;
    bool starts =
        k == T_NAME || k == T_STRING || k == T_INT || k == T_FLOAT || k == T_LBRACKET || k == T_LBRACE;
    if (!starts || tpl_is_word(p, "else") || tpl_is_word(p, "or") || tpl_is_word(p, "and"))
        return true;
    if (tpl_is_word(p, "is"))
        return tpl_parse_fail(p, p->tok.line, "tests cannot be chained with 'is'");
    tpl_node *arg = tpl_node_new(p, N_ARG, p->tok.line);
    if (!arg)
        return false;
    arg->a = tpl_parse_primary(p);
    if (arg->a)
        arg->a = parse_postfix(p, arg->a);
    return arg->a && tpl_add_kid(p, n, arg);
}

static tpl_node *parse_test(tpl_parser *p, tpl_node *of) {
    tpl_node *n = tpl_node_new(p, N_TEST, p->tok.line);
    bool negated = false;
    if (!n || !tpl_advance(p))
        return NULL;
    if (tpl_is_word(p, "not")) {
        negated = true;
        if (!tpl_advance(p))
            return NULL;
    }
    n->a = of;
    if (!parse_dotted(p, &n->name))
        return NULL;
    if (p->tok.kind == T_LPAREN ? !parse_args(p, n) : !parse_bare_arg(p, n))
        return NULL;
    if (!negated)
        return n;
    tpl_node *not_n = tpl_node_new(p, N_NOT, n->line);
    if (not_n)
        not_n->a = n;
    return not_n;
}

static tpl_node *parse_unary(tpl_parser *p, bool with_filters) {
    tpl_node *n;
    if (!tpl_enter(p))
        return NULL;
    if (p->tok.kind == T_SUB || p->tok.kind == T_ADD) {
        n = tpl_node_new(p, p->tok.kind == T_SUB ? N_NEG : N_POS, p->tok.line);
        if (!n || !tpl_advance(p))
            return NULL;
        n->a = parse_unary(p, false);
        if (!n->a)
            return NULL;
    } else {
        n = tpl_parse_primary(p);
    }
    p->depth--;
    n = n ? parse_postfix(p, n) : NULL;
    while (n && with_filters) {
        if (p->tok.kind == T_PIPE)
            n = tpl_parse_filters(p, n, false);
        else if (tpl_is_word(p, "is"))
            n = parse_test(p, n);
        else if (p->tok.kind == T_LPAREN)
            n = parse_call(p, n);
        else
            break;
    }
    return n;
}

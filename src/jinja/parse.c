/* parse.c - parses statements; expressions are in expr.c. Each {% word %} is a row of a
 * table; other words are refused by name and line. */
#include "jinja/parse.h"

#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool tpl_parse_fail(tpl_parser *p, int line, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    nib_fail(p->err, NIB_E_MODEL, "chat template line %d: %s", line, text);
    return false;
}

bool tpl_advance(tpl_parser *p) {
    if (p->has_next) {
        p->tok = p->next;
        p->has_next = false;
        return true;
    }
    return tpl_lex_next(&p->lex, &p->tok, p->err) == NIB_OK;
}

bool tpl_peek(tpl_parser *p, tpl_token *out) {
    if (!p->has_next && tpl_lex_next(&p->lex, &p->next, p->err) != NIB_OK)
        return false;
    p->has_next = true;
    *out = p->next;
    return true;
}

bool tpl_is_word(const tpl_parser *p, const char *word) {
    return p->tok.kind == T_NAME && tpl_str_is(&p->tok.text, word);
}

bool tpl_expect(tpl_parser *p, tpl_token_kind kind) {
    if (p->tok.kind == kind)
        return tpl_advance(p);
    bool has_text = p->tok.kind == T_NAME || p->tok.kind == T_STRING;
    return tpl_parse_fail(p, p->tok.line, "expected '%s', found '%.*s'", tpl_token_name(kind),
                          has_text ? (int)NUM_MIN(p->tok.text.n, 60u) : 60,
                          has_text ? p->tok.text.data : tpl_token_name(p->tok.kind));
}

static bool accept_token(tpl_parser *p, tpl_token_kind kind, bool *hit) {
    *hit = p->tok.kind == kind;
    return !*hit || tpl_advance(p);
}

bool tpl_enter(tpl_parser *p) {
    if (++p->depth > 2 * TPL_MAX_NEST)
        return tpl_parse_fail(p, p->tok.line, "nested too deeply");
    return true;
}

tpl_node *tpl_node_new(tpl_parser *p, tpl_kind kind, int line) {
    tpl_node *n = arena_alloc(p->mem, sizeof *n);
    if (!n) {
        nib_fail_nomem(p->err, sizeof *n, "the chat template");
        return NULL;
    }
    n->kind = kind;
    n->line = line;
    return n;
}

bool tpl_add_kid(tpl_parser *p, tpl_node *parent, tpl_node *kid) {
    if (parent->n_kid == parent->cap_kid) {
        int cap = parent->cap_kid ? 2 * parent->cap_kid : 4;
        tpl_node **grown = arena_array(p->mem, (size_t)cap, sizeof *grown);
        if (!grown) {
            nib_fail_nomem(p->err, (size_t)cap * sizeof *grown, "the chat template");
            return false;
        }
        if (parent->n_kid)
            memcpy(grown, parent->kid, (size_t)parent->n_kid * sizeof *grown);
        parent->kid = grown;
        parent->cap_kid = cap;
    }
    parent->kid[parent->n_kid++] = kid;
    return true;
}

bool tpl_const_str(tpl_parser *p, tpl_node *n, tpl_str text) {
    tpl_str *s = arena_alloc(p->mem, sizeof *s);
    if (!s) {
        nib_fail_nomem(p->err, sizeof *s, "the chat template");
        return false;
    }
    *s = text;
    n->value = tpl_of_str(s);
    return true;
}

/* Parses a body. ends: words that end it, separated by '|'; NULL: the end of the template. Stops at that
 * word. */
static tpl_node *parse_body(tpl_parser *p, const char *ends, int opened);

/* Parses a body up to the word `end`; the caller parses the tag's closing. */
static bool parse_until(tpl_parser *p, tpl_node *n, const char *end) {
    if (!tpl_expect(p, T_BLOCK_END))
        return false;
    n->body = parse_body(p, end, n->line);
    return n->body && tpl_advance(p);
}

/* Parses a target: name, (a, b), a, b or, with_ns (for set), ns.attr. */
static tpl_node *parse_target(tpl_parser *p, bool with_ns);

static tpl_node *parse_one_target(tpl_parser *p, bool with_ns) {
    tpl_node *n = tpl_node_new(p, N_NAME, p->tok.line);
    bool hit;
    if (!n || !accept_token(p, T_LPAREN, &hit))
        return NULL;
    if (hit) {
        if (!tpl_enter(p))
            return NULL;
        n = parse_target(p, with_ns);
        p->depth--;
        return n && tpl_expect(p, T_RPAREN) ? n : NULL;
    }
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};
    for (size_t i = 0; i < NUM_COUNT(reserved); i++) {
        if (tpl_is_word(p, reserved[i])) {
            tpl_parse_fail(p, n->line, "cannot assign to '%s'", reserved[i]);
            return NULL;
        }
    }
    n->name = p->tok.text;
    if (!tpl_expect(p, T_NAME))
        return NULL;
    if (with_ns && p->tok.kind == T_DOT) {
        if (!tpl_advance(p))
            return NULL;
        n->kind = N_NS_ATTR;
        n->name2 = p->tok.text;
        if (!tpl_expect(p, T_NAME))
            return NULL;
    }
    return n;
}

static tpl_node *parse_target(tpl_parser *p, bool with_ns) {
    tpl_node *first = parse_one_target(p, with_ns);
    if (!first || p->tok.kind != T_COMMA)
        return first;
    tpl_node *n = tpl_node_new(p, N_TUPLE, first->line);
    if (!n || !tpl_add_kid(p, n, first))
        return NULL;
    while (p->tok.kind == T_COMMA) {
        if (!tpl_advance(p))
            return NULL;
        if (p->tok.kind != T_NAME && p->tok.kind != T_LPAREN)
            break; /* a comma at the end */
        if (tpl_is_word(p, "in"))
            break;
        tpl_node *t = parse_one_target(p, with_ns);
        if (!t || !tpl_add_kid(p, n, t))
            return NULL;
    }
    return n;
}

/* Parses {% else %} and its body, if it is there, and the end. */
static bool parse_else(tpl_parser *p, const tpl_node *n, const char *end, tpl_node **body) {
    if (tpl_is_word(p, "else")) {
        if (!tpl_advance(p) || !tpl_expect(p, T_BLOCK_END))
            return false;
        *body = parse_body(p, end, n->line);
        if (!*body)
            return false;
    }
    return tpl_advance(p);
}

static bool parse_for(tpl_parser *p, tpl_node *n) {
    int *outer = p->loop_use;
    n->a = parse_target(p, false);
    if (!n->a)
        return false;
    if (!tpl_is_word(p, "in"))
        return tpl_parse_fail(p, n->line, "expected 'in' after the loop's target");
    if (!tpl_advance(p))
        return false;
    n->b = tpl_parse_tuple(p, false);
    if (!n->b)
        return false;
    if (tpl_is_word(p, "if")) {
        n->c = tpl_advance(p) ? tpl_parse_expression(p, true) : NULL;
        if (!n->c)
            return false;
    }
    if (tpl_is_word(p, "recursive"))
        return tpl_parse_fail(p, n->line, "recursive loops ({%% for ... recursive %%}) are not supported");
    if (!tpl_expect(p, T_BLOCK_END))
        return false;
    p->loop_use = &n->op;
    p->loops++;
    n->body = parse_body(p, "else|endfor", n->line);
    p->loops--;
    p->loop_use = outer;
    if (!n->body)
        return false;
    return parse_else(p, n, "endfor", &n->d);
}

static bool parse_if(tpl_parser *p, tpl_node *n) {
    for (;;) {
        tpl_node *condition = tpl_parse_tuple(p, false);
        if (!condition || !tpl_expect(p, T_BLOCK_END))
            return false;
        tpl_node *body = parse_body(p, "elif|else|endif", n->line);
        if (!body || !tpl_add_kid(p, n, condition) || !tpl_add_kid(p, n, body))
            return false;
        if (!tpl_is_word(p, "elif"))
            break;
        if (!tpl_advance(p))
            return false;
    }
    return parse_else(p, n, "endif", &n->a);
}

/* Parses a body whose output is captured. {% break %} cannot leave it, so outer loops do not count inside. */
static bool parse_function_body(tpl_parser *p, tpl_node *n, const char *end) {
    int *use = p->macro_use, *loop_use = p->loop_use, loops = p->loops;
    if (n->kind == N_MACRO)
        p->macro_use = &n->op;
    p->loops = 0;
    bool ok = parse_until(p, n, end);
    p->macro_use = use;
    p->loop_use = loop_use;
    p->loops = loops;
    return ok;
}

static bool parse_set(tpl_parser *p, tpl_node *n) {
    bool is_value;
    n->a = parse_target(p, true);
    if (!n->a || !accept_token(p, T_ASSIGN, &is_value))
        return false;
    if (is_value) {
        n->b = tpl_parse_tuple(p, true);
        return n->b != NULL;
    }
    n->kind = N_SET_BLOCK;
    if (p->tok.kind == T_PIPE && !(n->b = tpl_parse_filters(p, NULL, false)))
        return false;
    return parse_function_body(p, n, "endset");
}

/* Parses the parameters of a macro or of a call block: (a, b=1). */
static bool parse_signature(tpl_parser *p, tpl_node *n) {
    bool has_default = false;
    if (!tpl_expect(p, T_LPAREN))
        return false;
    while (p->tok.kind != T_RPAREN) {
        tpl_node *arg = tpl_node_new(p, N_ARG, p->tok.line);
        if (!arg)
            return false;
        arg->name = p->tok.text;
        bool hit;
        if (!tpl_expect(p, T_NAME) || !accept_token(p, T_ASSIGN, &hit))
            return false;
        if (hit)
            arg->a = tpl_parse_expression(p, true);
        if (hit && !arg->a)
            return false;
        if (!hit && has_default)
            return tpl_parse_fail(p, arg->line, "a parameter without default after one with a default");
        has_default = hit;
        if (!tpl_add_kid(p, n, arg))
            return false;
        if (p->tok.kind != T_RPAREN && !tpl_expect(p, T_COMMA))
            return false;
    }
    return tpl_advance(p);
}

static bool parse_macro(tpl_parser *p, tpl_node *n) {
    n->name = p->tok.text;
    return tpl_expect(p, T_NAME) && parse_signature(p, n) && parse_function_body(p, n, "endmacro");
}

static bool parse_call_block(tpl_parser *p, tpl_node *n) {
    if (p->tok.kind == T_LPAREN && !parse_signature(p, n))
        return false;
    n->a = tpl_parse_expression(p, true);
    if (!n->a)
        return false;
    if (n->a->kind != N_CALL)
        return tpl_parse_fail(p, n->line, "{%% call %%} expects a call");
    return parse_function_body(p, n, "endcall");
}

static bool parse_filter_block(tpl_parser *p, tpl_node *n) {
    n->b = tpl_parse_filters(p, NULL, true);
    return n->b && parse_function_body(p, n, "endfilter");
}

static bool parse_generation(tpl_parser *p, tpl_node *n) {
    return parse_function_body(p, n, "endgeneration");
}

static bool parse_with(tpl_parser *p, tpl_node *n) {
    while (p->tok.kind != T_BLOCK_END) {
        if (n->n_kid && !tpl_expect(p, T_COMMA))
            return false;
        tpl_node *target = parse_target(p, false);
        if (!target || !tpl_expect(p, T_ASSIGN) || !tpl_add_kid(p, n, target))
            return false;
        tpl_node *value = tpl_parse_expression(p, true);
        if (!value || !tpl_add_kid(p, n, value))
            return false;
    }
    return parse_until(p, n, "endwith");
}

static bool parse_jump(tpl_parser *p, tpl_node *n) {
    if (!p->loops)
        return tpl_parse_fail(p, n->line, "{%% %s %%} outside a loop",
                              n->kind == N_BREAK ? "break" : "continue");
    return true;
}

static bool parse_print(tpl_parser *p, tpl_node *n) {
    n->a = tpl_parse_tuple(p, true);
    return n->a != NULL;
}

static const struct {
    const char *word;
    tpl_kind kind;
    bool (*parse)(tpl_parser *p, tpl_node *n); /* called after the word; stops before %} */
} statements[] = {
    {"for", N_FOR, parse_for},
    {"if", N_IF, parse_if},
    {"set", N_SET, parse_set},
    {"macro", N_MACRO, parse_macro},
    {"call", N_CALL_BLOCK, parse_call_block},
    {"filter", N_FILTER_BLOCK, parse_filter_block},
    {"generation", N_SCOPE, parse_generation},
    {"with", N_SCOPE, parse_with},
    {"break", N_BREAK, parse_jump},
    {"continue", N_CONTINUE, parse_jump},
    {"print", N_PRINT, parse_print},
};

static tpl_node *parse_statement(tpl_parser *p) {
    if (p->tok.kind != T_NAME) {
        tpl_parse_fail(p, p->tok.line, "expected a tag's name, found '%s'", tpl_token_name(p->tok.kind));
        return NULL;
    }
    for (size_t i = 0; i < NUM_COUNT(statements); i++) {
        if (!tpl_is_word(p, statements[i].word))
            continue;
        tpl_node *n = tpl_node_new(p, statements[i].kind, p->tok.line);
        if (!n || !tpl_enter(p) || !tpl_advance(p) || !statements[i].parse(p, n))
            return NULL;
        p->depth--;
        return tpl_expect(p, T_BLOCK_END) ? n : NULL;
    }
    tpl_parse_fail(p, p->tok.line, "the tag {%% %.*s %%} is not known, or does not belong here",
                   (int)NUM_MIN(p->tok.text.n, 60u), p->tok.text.data);
    return NULL;
}

static bool ends_body(const tpl_parser *p, const char *ends) {
    if (p->tok.kind != T_NAME)
        return false;
    for (const char *word = ends; word && *word;) {
        size_t n = strcspn(word, "|");
        if (p->tok.text.n == n && memcmp(p->tok.text.data, word, n) == 0)
            return true;
        word += n + (word[n] == '|');
    }
    return false;
}

/* Parses one statement or text of a body. *end: the current token is the word that ends the body. */
static tpl_node *parse_piece(tpl_parser *p, const char *ends, bool *end) {
    tpl_node *n = tpl_node_new(p, p->tok.kind == T_DATA ? N_TEXT : N_PRINT, p->tok.line);
    if (!n)
        return NULL;
    if (p->tok.kind == T_DATA)
        return tpl_const_str(p, n, p->tok.text) && tpl_advance(p) ? n : NULL;
    if (p->tok.kind == T_PRINT_BEGIN) {
        n->a = tpl_advance(p) ? tpl_parse_tuple(p, true) : NULL;
        return n->a && tpl_expect(p, T_PRINT_END) ? n : NULL;
    }
    if (!tpl_expect(p, T_BLOCK_BEGIN))
        return NULL;
    *end = ends_body(p, ends);
    return *end ? n : parse_statement(p);
}

static tpl_node *parse_body(tpl_parser *p, const char *ends, int opened) {
    tpl_node *body = tpl_node_new(p, N_BODY, p->tok.line);
    while (body && p->tok.kind != T_END) {
        bool end = false;
        tpl_node *piece = parse_piece(p, ends, &end);
        if (!piece)
            return NULL;
        if (end)
            return body;
        if (!tpl_add_kid(p, body, piece))
            return NULL;
    }
    if (body && ends) {
        tpl_parse_fail(p, p->tok.line, "unexpected end of template: the tag of line %d is not closed (%s)",
                       opened, ends);
        return NULL;
    }
    return body;
}

nib_status tpl_parse(arena *mem, const char *source, size_t n, tpl_node **out, nib_error *err) {
    nib_error local = {NIB_OK, ""};
    tpl_parser p = {.mem = mem, .err = err ? err : &local};
    NIB_TRY(tpl_lex_init(&p.lex, mem, source, n, err));
    *out = tpl_advance(&p) ? parse_body(&p, NULL, 1) : NULL;
    return *out ? NIB_OK : p.err->status;
}

/* template_parse.h - shared by the parts of the parser: operands (template_primary.c), expressions
 * (template_expr.c) and statements (template_parse.c). */
#ifndef NIB_TEXT_TEMPLATE_PARSE_H
#define NIB_TEXT_TEMPLATE_PARSE_H

#include "text/template_lex.h"

typedef struct tpl_parser {
    tpl_lexer lex;
    arena *mem;
    tpl_token tok, next;
    bool has_next;
    int depth;
    int loops;      /* {% for %} around this point, inside the current macro */
    int *loop_use;  /* where to note that `loop` is read; NULL outside loops */
    int *macro_use; /* where to note that caller, varargs, kwargs are read */
    nib_error *err;
} tpl_parser;

/* All return false (NULL) after filling p->err. */
bool tpl_advance(tpl_parser *p);
bool tpl_peek(tpl_parser *p, tpl_token *out); /* the token after the current one */
bool tpl_is_word(const tpl_parser *p, const char *word);
bool tpl_expect(tpl_parser *p, tpl_token_kind kind);
bool tpl_parse_fail(tpl_parser *p, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));
tpl_node *tpl_node_new(tpl_parser *p, tpl_kind kind, int line);
bool tpl_add_kid(tpl_parser *p, tpl_node *parent, tpl_node *kid);
bool tpl_const_str(tpl_parser *p, tpl_node *n, tpl_str text);
bool tpl_enter(tpl_parser *p); /* counts nesting; p->depth-- on the way out */

tpl_node *tpl_parse_expression(tpl_parser *p, bool with_cond);
/* expression, or a tuple when a comma follows; with_cond: `x if y` is allowed at the top */
tpl_node *tpl_parse_tuple(tpl_parser *p, bool with_cond);
/* at '|', or with first = true at a filter's name: filters over `inner` (which may be NULL) */
tpl_node *tpl_parse_filters(tpl_parser *p, tpl_node *inner, bool first);
tpl_node *tpl_parse_primary(tpl_parser *p);

#endif

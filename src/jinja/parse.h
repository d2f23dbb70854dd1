/* parse.h - shared by the parts of the parser: operands (primary.c), expressions
 * (expr.c) and statements (parse.c). */
#ifndef NIB_JINJA_PARSE_H
#define NIB_JINJA_PARSE_H

#include "jinja/lex.h"

typedef struct tpl_parser {
    tpl_lexer lex;
    arena *mem;
    tpl_token tok, next;
    bool has_next;
    int depth;
    int loops;      /* number of enclosing {% for %} loops within the current macro */
    int *loop_use;  /* set when `loop` is read; NULL outside loops */
    int *macro_use; /* gets TPL_READS_* flags; NULL outside macros */
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
bool tpl_enter(tpl_parser *p); /* counts nesting; the caller does p->depth-- at the end */

tpl_node *tpl_parse_expression(tpl_parser *p, bool with_cond);
/* An expression, or a tuple if a comma follows. with_cond: `x if y` is allowed at the top. */
tpl_node *tpl_parse_tuple(tpl_parser *p, bool with_cond);
/* Parses filters over `inner` (may be NULL), at '|' or, with `first`, at a filter's name. */
tpl_node *tpl_parse_filters(tpl_parser *p, tpl_node *inner, bool first);
tpl_node *tpl_parse_primary(tpl_parser *p);

#endif

/* expression.h - the output of the grammar parser and the input of the compiler: a tree in one array. */
#ifndef NIB_GRAMMAR_EXPRESSION_H
#define NIB_GRAMMAR_EXPRESSION_H

#include "grammar/char_ranges.h"
#include "grammar/pda.h"

#include <stdbool.h>

typedef enum node_kind {
    NODE_SEQUENCE, /* of children */
    NODE_EITHER,   /* one of the children */
    NODE_REPEAT,   /* the child, min to max times */
    NODE_CLASS,    /* a character in one of the ranges */
    NODE_TEXT,     /* bytes */
    NODE_RULE      /* a call */
} node_kind;

#define NODE_NONE    UINT32_MAX
#define NODE_FOREVER UINT32_MAX /* of max */

typedef struct node {
    node_kind kind;
    uint32_t child;  /* the last one; NODE_NONE */
    uint32_t before; /* the sibling before this one; NODE_NONE: the first */
    uint32_t at, n;  /* CLASS: ranges; TEXT: bytes; RULE: at is its number */
    uint32_t min, max;
} node;

typedef struct rule {
    char *name; /* NULL: one of the compiler's */
    uint32_t body;
    int line; /* where its name occurs first */
} rule;

typedef struct expression {
    node *nodes;
    char_range *ranges;
    char *bytes;
    rule *rules;
    size_t n_node, n_range, n_byte, n_rule;
    size_t cap_node, cap_range, cap_byte, cap_rule;
} expression;

/* Makes the program of an expression (gbnf.c). Adds rules for repetitions. */
nib_status expression_compile(expression *e, pda *out, nib_error *err);
/* NIB_E_USAGE: a rule begins with itself, or no text completes the root. */
nib_status pda_check(const pda *p, const expression *names, nib_error *err);

#endif

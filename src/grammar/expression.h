/* expression.h - the output of the grammar parser and the input of the compiler: a tree in one array. */
#ifndef NIB_GRAMMAR_EXPRESSION_H
#define NIB_GRAMMAR_EXPRESSION_H

#include "grammar/char_ranges.h"
#include "grammar/pda.h"

#include <stdbool.h>

typedef enum node_kind {
    NODE_SEQUENCE, /* the children one after the other */
    NODE_EITHER,   /* one of the children */
    NODE_BOTH,     /* a text that both children match; max is 0: that the second one does not match */
    NODE_REPEAT,   /* the child, min to max times */
    NODE_CLASS,    /* a character in one of the ranges */
    NODE_TEXT,     /* bytes */
    NODE_RULE      /* a call of a rule */
} node_kind;

#define NODE_NONE    UINT32_MAX
#define NODE_FOREVER PDA_FOREVER /* max: without limit */

typedef struct node {
    node_kind kind;
    uint32_t child;  /* the last child; NODE_NONE: none */
    uint32_t before; /* the sibling before this one; NODE_NONE: the first */
    uint32_t at, n;  /* CLASS: ranges; TEXT: bytes; RULE: at is its number */
    uint32_t min, max;
} node;

typedef struct rule {
    char *name; /* NULL: made by the compiler */
    uint32_t body;
    int line; /* line on which its name occurs first */
} rule;

typedef struct expression {
    node *nodes;
    char_range *ranges;
    char *bytes;
    rule *rules;
    size_t n_node, n_range, n_byte, n_rule;
    size_t cap_node, cap_range, cap_byte, cap_rule;
} expression;

/* Compiles an expression to a program (compile.c). Adds rules for repetitions to *e. */
nib_status expression_compile(expression *e, pda *out, nib_error *err);
/* NIB_E_USAGE: a rule begins with itself, or no text completes the root. */
nib_status pda_check(const pda *p, const expression *names, nib_error *err);

#endif

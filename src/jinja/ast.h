/* ast.h - a parsed chat template: one kind of node whose fields depend on its kind. */
#ifndef NIB_JINJA_AST_H
#define NIB_JINJA_AST_H

#include "base/arena.h"
#include "base/status.h"
#include "jinja/value.h"

/* X(kind, what the fields hold) */
#define TPL_NODES(X)                                                                                         \
    X(CONST, "value")                                                                                        \
    X(NAME, "name")                                                                                          \
    X(TUPLE, "kid: items")                                                                                   \
    X(LIST, "kid: items")                                                                                    \
    X(DICT, "kid: key, value, key, value")                                                                   \
    X(ATTR, "a.name")                                                                                        \
    X(ITEM, "a[b]")                                                                                          \
    X(SLICE, "a[b:c:d], each may be NULL")                                                                   \
    X(CALL, "a(kid...)")                                                                                     \
    X(ARG, "one argument: a; name: keyword; op: 0, '*' or 'k' for **")                                       \
    X(FILTER, "a | name(kid...); a is NULL for what a filter block captured")                                \
    X(TEST, "a is name(kid...)")                                                                             \
    X(NOT, "not a")                                                                                          \
    X(NEG, "-a")                                                                                             \
    X(POS, "+a")                                                                                             \
    X(AND, "a and b")                                                                                        \
    X(OR, "a or b")                                                                                          \
    X(BINARY, "a op b")                                                                                      \
    X(CONCAT, "kid ~ kid ~ ...")                                                                             \
    X(COMPARE, "a, then kid: N_OPERAND")                                                                     \
    X(OPERAND, "op and a, of a comparison")                                                                  \
    X(COND, "a if b else c; c may be NULL")                                                                  \
    X(TEXT, "value: a string that is printed")                                                               \
    X(PRINT, "a")                                                                                            \
    X(BODY, "kid: statements")                                                                               \
    X(IF, "kid: condition, body, condition, body, ...; a: else or NULL")                                     \
    X(FOR, "a target, b iterable, c filter or NULL, body, d else or NULL; op: 1 when it reads `loop`")       \
    X(SET, "a target, b value")                                                                              \
    X(SET_BLOCK, "a target, b filters over N_FILTER with a NULL inside, or NULL; body")                      \
    X(NS_ATTR, "target name.name2")                                                                          \
    X(MACRO, "name, kid: N_ARG with a = default or NULL, body; op: what it reads, TPL_READS_...")            \
    X(CALL_BLOCK, "as N_MACRO without a name; a: the call")                                                  \
    X(FILTER_BLOCK, "b filters, body")                                                                       \
    X(SCOPE, "body in a scope of its own; kid: target, value, ... (with), none for generation")              \
    X(BREAK, "")                                                                                             \
    X(CONTINUE, "")

typedef enum tpl_kind {
#define TPL_X(id, fields) N_##id,
    TPL_NODES(TPL_X)
#undef TPL_X
} tpl_kind;

enum { TPL_READS_CALLER = 1, TPL_READS_VARARGS = 2, TPL_READS_KWARGS = 4 };

typedef struct tpl_node {
    tpl_kind kind;
    int line;
    int op; /* a tpl_token_kind for operators */
    tpl_str name, name2;
    tpl_value value;
    struct tpl_node *a, *b, *c, *d, *body;
    struct tpl_node **kid;
    int n_kid, cap_kid;
} tpl_node;

#define TPL_MAX_SOURCE (512u << 10)
#define TPL_MAX_NEST   150 /* of blocks and brackets while parsing */
#define TPL_MAX_NAME   255 /* bytes: bounds the cost of comparing names */

/* Parses the source (any newlines) to an N_BODY in the arena `mem`. NIB_E_MODEL names the construct and the
 * line. */
nib_status tpl_parse(arena *mem, const char *source, size_t n, tpl_node **out, nib_error *err);

#endif

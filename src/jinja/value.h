/* value.h - the values of a chat template: Python's plain values.
 *
 * Values never change once made (the sandbox of the reference refuses append, update and so on), except a
 * namespace, a loop, a cycler and a joiner. All memory belongs to the arena of one render, or to the
 * template's own (constants); strings may also point into the caller's JSON. Threads share only constants. */
#ifndef NIB_JINJA_VALUE_H
#define NIB_JINJA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* X(enumerator, name in error messages) */
#define TPL_TYPES(X)                                                                                         \
    X(UNDEF, "undefined")                                                                                    \
    X(NONE, "NoneType")                                                                                      \
    X(BOOL, "bool")                                                                                          \
    X(INT, "int")                                                                                            \
    X(FLOAT, "float")                                                                                        \
    X(STR, "str")                                                                                            \
    X(LIST, "list")                                                                                          \
    X(TUPLE, "tuple")                                                                                        \
    X(DICT, "dict")                                                                                          \
    X(RANGE, "range")                                                                                        \
    X(VIEW, "dict view")                                                                                     \
    X(GEN, "generator")                                                                                      \
    X(NS, "Namespace")                                                                                       \
    X(LOOP, "LoopContext")                                                                                   \
    X(MACRO, "macro")                                                                                        \
    X(FUNC, "function")                                                                                      \
    X(METHOD, "method")                                                                                      \
    X(CYCLER, "Cycler")                                                                                      \
    X(JOINER, "Joiner")

typedef enum tpl_type {
#define TPL_X(id, name) TPL_##id,
    TPL_TYPES(TPL_X)
#undef TPL_X
} tpl_type;

/* Spare bytes after a string, which one concatenation may use, so that `x = x + piece` in a loop is linear.
 */
typedef struct tpl_grow {
    size_t used, cap;
    uint8_t *mark; /* [cap]; NULL: no byte is marked */
} tpl_grow;

typedef struct tpl_str {
    const char *data; /* UTF-8, not NUL-terminated */
    size_t n;         /* bytes */
    size_t n_char;    /* code points; a byte that is no UTF-8 counts as one */
    /* [n] 1: the byte comes from a variable (a message, a tool), not from the template; NULL: all are 0.
     * Every operation keeps the marks of the characters that it copies or converts. */
    const uint8_t *mark;
    bool safe;      /* a Markup of jinja2: what is added to it is escaped */
    tpl_grow *grow; /* NULL: none */
} tpl_str;

typedef struct tpl_value tpl_value;

struct tpl_value {
    tpl_type type;
    union {
        bool b;
        int64_t i;
        double f;
        const tpl_str *s;            /* STR; UNDEF: the name of the missing value, or NULL */
        const struct tpl_list *list; /* LIST, TUPLE, RANGE, VIEW */
        struct tpl_gen *gen;
        struct tpl_dict *dict; /* DICT (constant once made), NS */
        struct tpl_loop *loop;
        const struct tpl_macro *macro;
        const struct tpl_func *func; /* a row of a table */
        const struct tpl_method *method;
        struct tpl_cycle *cycle; /* CYCLER, JOINER */
    } u;
};

typedef struct tpl_list {
    const tpl_value *v;
    size_t n;
    const char *view;          /* VIEW: "dict_items", ... */
    int64_t start, stop, step; /* RANGE: as written */
    bool group;                /* TUPLE: its items are also called grouper and list */
} tpl_list;

typedef struct tpl_gen { /* yields its items once */
    const tpl_list *list;
    size_t pos;
} tpl_gen;

typedef struct tpl_dict { /* in order of insertion */
    tpl_value *key, *val;
    size_t n, cap;
} tpl_dict;

typedef struct tpl_loop {
    const tpl_list *items;
    size_t i;
    tpl_value last_seen; /* loop.changed */
    bool seen;
} tpl_loop;

typedef struct tpl_macro {
    const struct tpl_node *node; /* N_MACRO or N_CALL_BLOCK: parameters and body */
    struct tpl_scope *scope;     /* the scope in which it was defined */
} tpl_macro;

typedef struct tpl_method {
    tpl_value self;
    const struct tpl_func *func;
} tpl_method;

typedef struct tpl_cycle {
    const tpl_list *items; /* of a joiner: the separator */
    size_t pos;
} tpl_cycle;

const char *tpl_type_name(tpl_type t);

/* The code point at *p of untrusted UTF-8 (a bad byte gives U+FFFD); moves *p past it. p < end. */
uint32_t tpl_utf8_next(const char **p, const char *end);
size_t tpl_utf8_put(char *out, uint32_t code); /* at most 4 bytes; returns how many */
size_t tpl_utf8_count(const char *s, size_t n);
/* Byte offset of code point `index` (<= n_char). */
size_t tpl_utf8_offset(const tpl_str *s, size_t index);
bool tpl_is_space(uint32_t code); /* Python's str.isspace */

static inline tpl_value tpl_none(void) {
    return (tpl_value){.type = TPL_NONE, .u = {.i = 0}};
}
static inline tpl_value tpl_bool(bool b) {
    tpl_value v = {.type = TPL_BOOL, .u = {.i = 0}};
    v.u.b = b;
    return v;
}
static inline tpl_value tpl_int(int64_t i) {
    return (tpl_value){.type = TPL_INT, .u = {.i = i}};
}
static inline tpl_value tpl_float(double f) {
    return (tpl_value){.type = TPL_FLOAT, .u = {.f = f}};
}
static inline tpl_value tpl_undef(const tpl_str *name) {
    return (tpl_value){.type = TPL_UNDEF, .u = {.s = name}};
}
static inline tpl_value tpl_of_str(const tpl_str *s) {
    return (tpl_value){.type = TPL_STR, .u = {.s = s}};
}
static inline tpl_value tpl_of_list(const tpl_list *l, tpl_type as) {
    return (tpl_value){.type = as, .u = {.list = l}};
}
static inline bool tpl_is_number(const tpl_value *v) {
    return v->type == TPL_INT || v->type == TPL_FLOAT || v->type == TPL_BOOL;
}
static inline bool tpl_is_whole(const tpl_value *v) { /* Python: True is 1 */
    return v->type == TPL_INT || v->type == TPL_BOOL;
}
static inline int64_t tpl_as_int(const tpl_value *v) {
    return v->type == TPL_BOOL ? (int64_t)v->u.b : v->u.i;
}
static inline double tpl_as_float(const tpl_value *v) {
    return v->type == TPL_FLOAT ? v->u.f : (double)tpl_as_int(v);
}
bool tpl_str_is(const tpl_str *s, const char *text);
static inline bool tpl_is_marked(const tpl_str *s, const char *at) { /* at: into s->data */
    return s->mark && s->mark[at - s->data];
}
bool tpl_str_same(const tpl_str *a, const tpl_str *b);

#endif

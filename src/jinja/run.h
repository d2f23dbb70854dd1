/* run.h - one render of a chat template: its memory, limits, scopes and output, and the functions
 * that the evaluator's files share. Every function that can fail returns false after filling r->err, once. */
#ifndef NIB_JINJA_RUN_H
#define NIB_JINJA_RUN_H

#include "jinja/ast.h"

#include <jansson.h>

/* Bounds of one render. Work is charged in proportion to the size of values. */
typedef struct tpl_limits {
    uint64_t steps; /* evaluated nodes + copied bytes / 64 + examined characters / 16 + items / 4 */
    size_t memory;  /* of the render's arena */
    size_t output;
    int depth; /* of evaluation: expressions, statements and macro calls together */
} tpl_limits;

/* Far above the needs of any conversation that fits a model's context, and small for a machine. */
#define TPL_LIMITS          ((tpl_limits){.steps = 20u << 20, .memory = 256u << 20, .output = 32u << 20, .depth = 600})
#define TPL_MAX_VALUE_DEPTH 200 /* of nested lists and dicts, when printed, compared or converted */

typedef struct tpl_binding {
    tpl_str name;
    tpl_value value;
    struct tpl_binding *next;
} tpl_binding;

typedef struct tpl_scope {
    tpl_binding *first;
    struct tpl_scope *outer;
    bool kept; /* a macro refers to it */
} tpl_scope;

typedef struct tpl_run {
    arena mem;
    tpl_limits limits;
    uint64_t steps;
    int depth, line;
    tpl_scope *scope;
    tpl_binding *spare; /* free bindings of ended scopes */
    tpl_value captured; /* input of a filter block's filters */
    char *out;
    uint8_t *out_mark; /* [n_out] as tpl_str.mark */
    size_t n_out, cap_out, cap_mark;
    uint8_t *ones; /* [n_one] the marks of all strings that are variables */
    size_t n_one;
    int64_t now;
    nib_error *err; /* never NULL */
    bool failed;
} tpl_run;

/* --- run.c: memory, limits, errors, strings, lists, dicts --- */
bool tpl_fail(tpl_run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__ /* it cannot see from outside that this is always false */
#define tpl_fail(r, ...) ((void)tpl_fail(r, __VA_ARGS__), false)
#endif
bool tpl_charge(tpl_run *r, uint64_t steps);
void *tpl_alloc(tpl_run *r, size_t n, size_t each); /* NULL: failed */
bool tpl_emit(tpl_run *r, const tpl_str *s);
bool tpl_same(tpl_run *r, const tpl_str *a, const tpl_str *b, bool *out); /* tpl_str_same, charged */
bool tpl_str_ref(tpl_run *r, const char *data, size_t n, tpl_value *out); /* does not copy data; no marks */
/* A part of s, which is not copied: n bytes from `at`, a pointer into s->data. Keeps marks and `safe`. */
bool tpl_str_part(tpl_run *r, const tpl_str *s, const char *at, size_t n, tpl_value *out);
bool tpl_concat(tpl_run *r, const tpl_str *a, const tpl_str *b, tpl_value *out);         /* safe as a is */
bool tpl_list_of(tpl_run *r, const tpl_value *v, size_t n, tpl_type as, tpl_value *out); /* does not copy v */
tpl_dict *tpl_dict_new(tpl_run *r, size_t cap);
bool tpl_dict_set(tpl_run *r, tpl_dict *d, const tpl_value *key, const tpl_value *val);
bool tpl_dict_get(tpl_run *r, const tpl_dict *d, const tpl_value *key,
                  tpl_value **val); /* *val NULL: no such key */
bool tpl_dict_get_str(tpl_run *r, const tpl_dict *d, const tpl_str *key, tpl_value **val);
/* A variable's value; its strings point into the JSON and are marked, unless `own`. */
bool tpl_from_json(tpl_run *r, const json_t *json, bool own, int depth, tpl_value *out);

/* A string under construction. A failure is remembered and checked once, in tpl_built. */
typedef struct tpl_builder {
    tpl_run *r;
    char *data;
    uint8_t *mark; /* [cap]; NULL: no byte is marked */
    size_t n, cap;
    bool marked; /* what tpl_put and its kin append comes from a variable */
    bool safe;   /* of the result */
    bool failed;
} tpl_builder;
void tpl_put(tpl_builder *b, const char *data, size_t n);
void tpl_put_part(tpl_builder *b, const tpl_str *s, const char *at, size_t n); /* with its marks */
void tpl_put_all(tpl_builder *b, const tpl_str *s);
void tpl_puts(tpl_builder *b, const char *text);
void tpl_put_code(tpl_builder *b, uint32_t code);
bool tpl_built(tpl_builder *b, tpl_value *out);

/* A list being built. */
typedef struct tpl_items {
    tpl_run *r;
    tpl_value *v;
    size_t n, cap;
} tpl_items;
bool tpl_push(tpl_items *l, tpl_value v);
bool tpl_pushed(tpl_items *l, tpl_type as, tpl_value *out);

/* --- repr.c: values as text --- */
bool tpl_to_str(tpl_run *r, const tpl_value *v, tpl_value *out); /* Python's str() */
void tpl_put_str(tpl_builder *b, const tpl_value *v);
void tpl_put_repr(tpl_builder *b, const tpl_value *v, int depth);
void tpl_put_float(tpl_builder *b, double f); /* Python's repr() of a float */
bool tpl_is_printable(uint32_t code);

/* --- ops.c: operations on values --- */
bool tpl_truth(const tpl_value *v);
bool tpl_equal(tpl_run *r, const tpl_value *a, const tpl_value *b, int depth, bool *out);
bool tpl_order(tpl_run *r, const tpl_value *a, const tpl_value *b, int depth,
               int *out); /* 2: neither (NaN) */
bool tpl_binary(tpl_run *r, int op, const tpl_value *a, const tpl_value *b, tpl_value *out);
bool tpl_compare(tpl_run *r, int op, const tpl_value *a, const tpl_value *b, bool *out);
bool tpl_list_from(tpl_run *r, const tpl_value *v,
                   const tpl_list **out); /* the items that a for loop visits */
bool tpl_length(tpl_run *r, const tpl_value *v, size_t *out);
bool tpl_need_defined(tpl_run *r, const tpl_value *v); /* fails, with its name, if v is undefined */

/* --- lookup.c: a.b, a[b], a[b:c:d] --- */
bool tpl_attr(tpl_run *r, const tpl_value *of, const tpl_str *name, tpl_value *out);
bool tpl_item(tpl_run *r, const tpl_value *of, const tpl_value *key, tpl_value *out);
bool tpl_slice(tpl_run *r, const tpl_value *of, const tpl_value part[3], tpl_value *out);

/* --- functions, filters, tests and methods: rows of tables --- */
typedef struct tpl_args {
    tpl_value *pos;
    size_t n_pos;
    tpl_dict *named; /* NULL: none */
} tpl_args;

typedef struct tpl_call {
    const tpl_args *args; /* as given */
    tpl_value arg[6];     /* by parameter; UNDEF where not given */
    bool given[6];
} tpl_call;

typedef bool (*tpl_fn)(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out);

typedef struct tpl_func {
    const char *name;
    const char *params; /* "a,b,c"; "*": takes c->args as given */
    int required;
    tpl_fn fn;
} tpl_func;

/* A table ends with a row whose name is NULL. */
const tpl_func *tpl_find(const tpl_func *table, const tpl_str *name);
bool tpl_call_row(tpl_run *r, const tpl_func *f, const tpl_value *self, const tpl_args *args, tpl_value *out);
bool tpl_arg_int(tpl_run *r, const tpl_call *c, int i,
                 int64_t *out); /* *out is unchanged if the argument is missing or none */
bool tpl_arg_str(tpl_run *r, const tpl_call *c, int i, const tpl_str **out);
/* The same for a method of the string self: Markup escapes what it gets. */
bool tpl_arg_for(tpl_run *r, const tpl_value *self, const tpl_call *c, int i, const tpl_str **out);

extern const tpl_func tpl_globals[];      /* func.c */
extern const tpl_func tpl_text_filters[]; /* filter_text.c */
extern const tpl_func tpl_list_filters[]; /* filter_list.c */
extern const tpl_func tpl_pick_filters[]; /* filter_pick.c: map, select, sort, ... */
extern const tpl_func tpl_more_filters[]; /* filter_more.c */
extern const tpl_func tpl_tests[];        /* test.c */
extern const tpl_func tpl_str_methods[];  /* str.c */
extern const tpl_func tpl_str_more[];     /* str_more.c */

/* item.a.b.0 for attribute = "a.b.0"; a number is an index. NONE or UNDEF: the item itself. */
bool tpl_attribute_of(tpl_run *r, const tpl_value *item, const tpl_value *attribute, tpl_value *out);
/* The list sorted by keys [l->n]; stable, also if reversed. */
bool tpl_sort(tpl_run *r, const tpl_list *l, const tpl_value *keys, bool reverse, tpl_value *out);

const tpl_func *tpl_find_method(const tpl_value *self, const tpl_str *name);
bool tpl_is_refused_method(const tpl_value *self, const tpl_str *name); /* a method that would modify self */
bool tpl_filter(tpl_run *r, const tpl_str *name, const tpl_value *self, const tpl_args *args, tpl_value *out);
bool tpl_test(tpl_run *r, const tpl_str *name, const tpl_value *self, const tpl_args *args, bool *out);
bool tpl_tojson(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out);            /* tojson.c */
bool tpl_percent(tpl_run *r, const tpl_str *format, const tpl_value *args, tpl_value *out); /* percent.c */
bool tpl_str_format(tpl_run *r, const tpl_value *self, tpl_call *c, tpl_value *out);        /* brace.c */

/* text helpers of str.c that filters use as well */
typedef enum tpl_case { TPL_LOWER, TPL_UPPER, TPL_CAPITAL, TPL_SWAP } tpl_case;
bool tpl_recase(tpl_run *r, const tpl_str *s, tpl_case how, tpl_value *out);
bool tpl_strip(tpl_run *r, const tpl_str *s, const tpl_str *chars, bool left, bool right, tpl_value *out);
bool tpl_replace(tpl_run *r, const tpl_str *s, const tpl_str *from, const tpl_str *to, int64_t max,
                 tpl_value *out);
const char *tpl_find_in(const char *s, size_t n, const char *what, size_t n_what); /* NULL: not found */
bool tpl_find_last(tpl_run *r, const char *s, size_t n, const tpl_str *what,
                   const char **out);                          /* *out NULL: not found */
bool tpl_escape(tpl_run *r, const tpl_str *s, tpl_value *out); /* as Markup; s itself if it is one */
bool tpl_title(tpl_run *r, const tpl_str *s, bool python, tpl_value *out);
bool tpl_is_alnum(uint32_t code);                                            /* str.isalnum */
bool tpl_all_case(tpl_run *r, const tpl_str *s, bool upper, tpl_value *out); /* str.isupper, str.islower */

/* --- eval.c and exec.c --- */
bool tpl_eval(tpl_run *r, const tpl_node *n, tpl_value *out);
bool tpl_call_node(tpl_run *r, const tpl_node *call, const tpl_value *caller, tpl_value *out);

typedef enum tpl_flow { TPL_NEXT, TPL_BROKE, TPL_CONTINUED, TPL_FAILED } tpl_flow;
tpl_flow tpl_exec(tpl_run *r, const tpl_node *n);
bool tpl_call_macro(tpl_run *r, const tpl_macro *m, const tpl_args *args, tpl_value *out);
bool tpl_bind(tpl_run *r, tpl_scope *scope, const tpl_str *name, const tpl_value *v);

/* As template_render, with other limits; for tests and fuzzing. */
struct template;
struct template_text;
nib_status tpl_render_limited(const struct template *t, const json_t *own, const json_t *variables,
                              int64_t now, tpl_limits limits, struct template_text *out, nib_error *err);

#endif

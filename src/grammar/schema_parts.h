/* schema_parts.h - shared by the files that convert a schema to a grammar.
 *
 * Numbers keep their exact value and spelling: before the schema is parsed, each number in its text is
 * replaced by its index in `numbers`. So an integer of the parsed schema is never a value. */
#ifndef NIB_GRAMMAR_SCHEMA_PARTS_H
#define NIB_GRAMMAR_SCHEMA_PARTS_H

#include "base/jsonx.h"
#include "grammar/decimal.h"
#include "grammar/pda.h"

typedef struct writer { /* growing text; `lost`: why some of it is missing */
    char *data;
    size_t n, cap;
    nib_status lost; /* NIB_E_USAGE: it is too long; NIB_E_NOMEM */
} writer;

void writer_put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
void writer_lose(writer *w, nib_status why); /* NIB_OK: nothing is missing */
/* Writes text as a GBNF literal. */
void writer_literal(writer *w, const char *text, size_t n_byte);
/* Writes the JSON text of a value as a GBNF literal. */
void writer_json(writer *w, const json_t *value);
/* Writes one character within a class. */
void writer_class_char(writer *w, uint32_t c);

typedef struct reference {
    const json_t *to;
    uint32_t rule;
    char *path;
} reference;

typedef struct schema_maker {
    const json_t *whole;
    const json_t *numbers; /* the spellings of all numbers */
    const char *root;
    writer out;
    uint32_t n_rule;
    reference *refs; /* [n_ref]; the rules of those from n_ref_done on are not written yet */
    size_t n_ref, cap_ref, n_ref_done;
    char path[200];   /* path of the current schema, for messages */
    bool impossible;  /* the last refusal was schema_impossible */
    unsigned formats; /* sets of rules for formats that are written */
    json_t *made;     /* owns merged schemas, which are not part of `whole` */
    int64_t n_merge;
    int depth;
    struct schema_matcher *matcher; /* of the last string schema that a value was compared with; NULL */
    nib_error *err;
} schema_maker;

/* ---- schema.c ---- */

/* Writes the rules that all schemas use. */
void schema_put_common(schema_maker *m);
void schema_clear(schema_maker *m);
/* Writes an expression for a schema. */
nib_status schema_describe(schema_maker *m, const json_t *schema, writer *body);
/* Writes a sub-schema as a rule. */
nib_status schema_rule(schema_maker *m, const json_t *schema, const char *member, uint32_t *rule);
/* NIB_E_USAGE with the path of the current schema and this message. impossible: because no value matches: an
 * alternative or an optional member is left out instead. */
nib_status schema_refuse_as(schema_maker *m, bool impossible, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
#define schema_refuse(m, ...)     schema_refuse_as(m, false, __VA_ARGS__)
#define schema_impossible(m, ...) schema_refuse_as(m, true, __VA_ARGS__)
/* The error of a text that is not whole. */
nib_status schema_whole(schema_maker *m, const writer *w);
nib_status schema_no_memory(schema_maker *m);
/* Writes rule ROOT-n with this body, which is freed. */
nib_status schema_emit(schema_maker *m, uint32_t rule, writer *body);
/* Writes rules, a line each, in which %s is ROOT. */
void schema_put_rules(schema_maker *m, const char *const *rules, size_t n);
/* The new value; the maker owns it. NULL (also for NULL): no memory. */
json_t *schema_own(schema_maker *m, json_t *value);

/* ---- schema_keywords.c ---- */

/* Refuses the keywords that cannot be expressed, and values that no schema has. */
nib_status schema_check(schema_maker *m, const json_t *schema);
/* Whether a schema restricts values by no other keyword. */
bool schema_is_alone(const json_t *schema, const char *keyword);
/* The target of a `$ref`; NULL: it is not in the schema. */
const json_t *schema_resolve(const schema_maker *m, const json_t *ref);
/* The spelling of a number; NULL: the value is none. */
const char *schema_number_text(const schema_maker *m, const json_t *value);
/* A number of the schema, which is there. */
nib_status schema_decimal(schema_maker *m, const json_t *schema, const char *keyword, decimal *out);
/* Reads a whole number that is not negative; a missing one leaves *out unchanged. */
nib_status schema_count(schema_maker *m, const json_t *schema, const char *keyword, int64_t *out);

/* ---- schema_depend.c ---- */

/* The schema with choices in `allOf` instead of the keywords that depend on a member, and `if`; the maker
 * owns *out, which is `schema` itself if it has none of them. */
nib_status schema_expand(schema_maker *m, const json_t *schema, const json_t **out);

/* ---- schema_merge.c ---- */

/* Merges the schema with its `allOf` and references; the maker owns *out. */
nib_status schema_merge(schema_maker *m, const json_t *schema, const json_t **out);
/* A schema for the values of both; the maker owns it. */
nib_status schema_both(schema_maker *m, const json_t *a, const json_t *b, const json_t **out);

/* ---- schema_valid.c ---- */

nib_status schema_valid(schema_maker *m, const json_t *schema, const json_t *value, bool *out);
bool schema_equal(const schema_maker *m, const json_t *a, const json_t *b);
/* NIB_E_USAGE (schema_impossible) if no string or number matches the schema. */
nib_status schema_check_some(schema_maker *m, const json_t *schema, const char *type);
void schema_matcher_free(struct schema_matcher *x); /* NULL is fine */

/* ---- each of these writes one expression ---- */

nib_status schema_values(schema_maker *m, const json_t *schema, writer *body); /* enum or const */
nib_status schema_any_of(schema_maker *m, const json_t *schema, const char *keyword, writer *body);
nib_status schema_object(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_array(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_string(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_number(schema_maker *m, const json_t *schema, bool integer, writer *body);
/* The characters of strings that the regular expression matches. */
nib_status schema_pattern(schema_maker *m, const json_t *value, writer *body);
/* The characters of strings in this format; false: the format is not known, and so restricts nothing. */
bool schema_format(schema_maker *m, const char *name, writer *body);
/* Numbers that are multiples of a number. */
nib_status schema_multiple(schema_maker *m, const json_t *value, bool integer, writer *body);

/* The first character of valid UTF-8 that is not empty, and its bytes. */
uint32_t schema_char_at(const char *text, size_t *n_byte);

#endif

/* schema_parts.h - shared by the files that convert a schema to a grammar. */
#ifndef NIB_GRAMMAR_SCHEMA_PARTS_H
#define NIB_GRAMMAR_SCHEMA_PARTS_H

#include "base/jsonx.h"
#include "grammar/pda.h"

typedef struct writer { /* growing text; `full`: some of it is missing */
    char *data;
    size_t n, cap;
    bool full;
} writer;

void writer_put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes text as a GBNF literal. */
void writer_literal(writer *w, const char *text, size_t n_byte);
/* Writes the JSON of a value as a literal. */
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
    const char *root;
    writer out;
    uint32_t n_rule;
    reference *refs; /* [n_ref]; the rules of those from n_ref_done on are not written yet */
    size_t n_ref, cap_ref, n_ref_done;
    char path[200]; /* path of the current schema, for messages */
    json_t *made;   /* owns merged schemas, which are not part of `whole`; NULL: none */
    int n_merge;
    nib_error *err;
} schema_maker;

/* Writes a sub-schema as a rule. */
nib_status schema_rule(schema_maker *m, const json_t *schema, const char *member, uint32_t *rule);
/* Merges the schema with its `allOf` and references; the maker owns *out. */
nib_status schema_merge(schema_maker *m, const json_t *schema, const json_t **out);
/* The target of a `$ref`; NULL: it is not in the schema. */
const json_t *schema_resolve(const schema_maker *m, const json_t *ref);
/* NIB_E_USAGE with the path of the current schema and this message. */
nib_status schema_refuse(schema_maker *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes rule ROOT-n with this body, which is freed. */
nib_status schema_emit(schema_maker *m, uint32_t rule, writer *body);
/* Reads a whole number from 0 to 999,999; a missing one leaves *out unchanged. */
nib_status schema_count(schema_maker *m, const json_t *schema, const char *keyword, int64_t *out);

/* The first character of valid UTF-8 that is not empty, and its bytes. */
uint32_t schema_char_at(const char *text, size_t *n_byte);

/* Each of these writes one expression. */
nib_status schema_object(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_array(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_string(schema_maker *m, const json_t *schema, writer *body);
/* Writes a string that the regular expression matches. */
nib_status schema_pattern(schema_maker *m, const json_t *value, writer *body);
/* Numbers with bounds, as decimals. */
nib_status schema_decimal(schema_maker *m, const json_t *schema, writer *body);
/* Writes the integers lo..hi; lo >= 0. */
void schema_put_range(writer *body, int64_t lo, int64_t hi);
nib_status schema_number(schema_maker *m, const json_t *schema, bool integer, writer *body);

#endif

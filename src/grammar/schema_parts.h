/* schema_parts.h - shared by the files that convert a schema to a grammar. */
#ifndef NIB_GRAMMAR_SCHEMA_PARTS_H
#define NIB_GRAMMAR_SCHEMA_PARTS_H

#include "base/jsonx.h"
#include "grammar/pda.h"

typedef struct writer { /* text that grows; `full`: some of it is missing */
    char *data;
    size_t n, cap;
    bool full;
} writer;

void writer_put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "text" as GBNF has it. */
void writer_literal(writer *w, const char *text, size_t n_byte);
/* The JSON of a value as a literal. */
void writer_json(writer *w, const json_t *value);
/* One character within a class. */
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
    reference *refs; /* those from `n_ref_done` on are still to be written */
    size_t n_ref, cap_ref, n_ref_done;
    char path[200]; /* of the schema that is read */
    json_t *made;   /* schemas that are no part of the whole: an array; NULL: none */
    int n_merge;
    nib_error *err;
} schema_maker;

/* The rule of a sub-schema, which is written. */
nib_status schema_rule(schema_maker *m, const json_t *schema, const char *member, uint32_t *rule);
/* The schema with all that `allOf` and references say, as one; the maker's. */
nib_status schema_merge(schema_maker *m, const json_t *schema, const json_t **out);
/* What a `$ref` means; NULL: it is not in the schema. */
const json_t *schema_resolve(const schema_maker *m, const json_t *ref);
nib_status schema_refuse(schema_maker *m, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A rule ROOT-n with that body, which is freed. */
nib_status schema_emit(schema_maker *m, uint32_t rule, writer *body);
/* A whole number of 0 or more below a million; *out stays where there is none. */
nib_status schema_count(schema_maker *m, const json_t *schema, const char *keyword, int64_t *out);

/* The first character of UTF-8 text that is not empty, and how many bytes it has. */
uint32_t schema_char_at(const char *text, size_t *n_byte);

/* What each writes is one expression. */
nib_status schema_object(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_array(schema_maker *m, const json_t *schema, writer *body);
nib_status schema_string(schema_maker *m, const json_t *schema, writer *body);
/* A string that the regular expression matches. */
nib_status schema_pattern(schema_maker *m, const json_t *value, writer *body);
/* Of numbers with bounds, as decimals. */
nib_status schema_decimal(schema_maker *m, const json_t *schema, writer *body);
/* Whole numbers lo..hi, of 0 and more. */
void schema_put_range(writer *body, int64_t lo, int64_t hi);
nib_status schema_number(schema_maker *m, const json_t *schema, bool integer, writer *body);

#endif

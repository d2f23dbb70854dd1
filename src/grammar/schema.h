/* schema.h - converts a JSON schema (2020-12) to a grammar (GBNF) of JSON texts that it describes.
 *
 * Every text of the grammar matches the schema: keywords are expressed exactly, also beside each other, or
 * refused by name (docs/grammar.md). Annotations and unknown members are ignored. Not every matching text is
 * in the grammar: members are in the order of `properties`, an object without `additionalProperties` has no
 * others, white space and the digits of numbers are bounded. */
#ifndef NIB_GRAMMAR_SCHEMA_H
#define NIB_GRAMMAR_SCHEMA_H

#include "base/status.h"

/* Converts one schema of n_byte bytes to rules ROOT and ROOT-...; {} means any JSON object. The caller frees
 * *out with mem_free. NIB_E_USAGE names the place and the keyword. */
nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err);

#endif

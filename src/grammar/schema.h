/* schema.h - converts a JSON schema to a grammar (GBNF) of the JSON texts that it describes.
 *
 * The subset is the one that OpenAI's client and common agents send (docs/grammar.md). Other keywords are
 * refused by name, also those that no grammar can express (uniqueItems). Annotations and unknown members are
 * ignored. Members are in the order of `properties`. An object without `additionalProperties` has no others.
 * oneOf is read as anyOf. White space and the digits of numbers (16 before and after the point) are
 * bounded. */
#ifndef NIB_GRAMMAR_SCHEMA_H
#define NIB_GRAMMAR_SCHEMA_H

#include "base/status.h"

/* Converts one schema of n_byte bytes to rules ROOT and ROOT-...; {} means any JSON object. The caller frees
 * *out with mem_free. NIB_E_USAGE names the place and the keyword. */
nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err);

#endif

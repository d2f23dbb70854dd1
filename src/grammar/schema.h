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

/* *out (mem_free): rules ROOT and ROOT-..., for one schema of n_byte bytes; {} is any JSON object.
 * NIB_E_USAGE names the place and the keyword. */
nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err);

#endif

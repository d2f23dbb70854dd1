/* schema.h - a JSON schema as a grammar (GBNF) of the JSON texts that it describes.
 *
 * The subset is the one that OpenAI's client and the common agents send: docs/server.md lists it. What is
 * outside of it is refused by name, and so is what no grammar can say (uniqueItems); annotations and unknown
 * members mean nothing. Members come in the order in which `properties` has them; an object without
 * `additionalProperties` has no others; oneOf is read as anyOf. White space is bounded, and so are the digits
 * of numbers (16 before and behind the point). */
#ifndef NIB_GRAMMAR_SCHEMA_H
#define NIB_GRAMMAR_SCHEMA_H

#include "base/status.h"

/* *out (mem_free): rules ROOT and ROOT-..., for one schema of n_byte bytes; {} is any JSON object.
 * NIB_E_USAGE names the place and the keyword. */
nib_status schema_grammar(const char *json, size_t n_byte, const char *root, char **out, nib_error *err);

#endif

/* vocabulary.h - where the build unpacked the vocabularies of tests/data/tokenizer. */
#ifndef NIB_TESTS_VOCABULARY_H
#define NIB_TESTS_VOCABULARY_H

#include <stddef.h>

/* "gpt-2" -> BUILD/tests/data/tokenizer/gpt-2.gguf, BUILD from the environment (tools/run-tests.sh sets it)
 * or "build". Valid until the next call. */
const char *vocabulary_path(const char *name);

/* The text of a tokenizer.json with 2 n + 1 tokens: t, 0, 1, ... and t0, t1, ...; n merges as "t 0" or as
 * ["t", "0"], or scores. Freed by mem_free; n_byte without the NUL. */
typedef enum vocabulary_kind { VOCABULARY_MERGES, VOCABULARY_PAIRS, VOCABULARY_SCORES } vocabulary_kind;
char *vocabulary_json(vocabulary_kind kind, int n, size_t *n_byte);

#endif

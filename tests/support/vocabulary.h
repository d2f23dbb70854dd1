/* vocabulary.h - where the build unpacked the vocabularies of tests/data/tokenizer. */
#ifndef NIB_TESTS_VOCABULARY_H
#define NIB_TESTS_VOCABULARY_H

/* "gpt-2" -> BUILD/tests/data/tokenizer/gpt-2.gguf, BUILD from the environment (tools/run-tests.sh sets it)
 * or "build". Valid until the next call. */
const char *vocabulary_path(const char *name);

#endif

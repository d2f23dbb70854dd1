/* memory_estimate.h - an upper bound on the memory of a tokenizer, computed before its vocabulary is read.
 * For published vocabularies it is little more than the actual memory. */
#ifndef NIB_TOKENIZER_MEMORY_ESTIMATE_H
#define NIB_TOKENIZER_MEMORY_ESTIMATE_H

#include "formats/container.h"

/* Counts of a GGUF file's vocabulary. Zero it first. */
typedef struct vocabulary_sizes {
    uint64_t n_token, n_text, longest; /* tokens; bytes of their texts, and of the longest one */
    uint64_t n_added;                  /* added tokens */
    uint64_t n_merge, n_score, n_charsmap;
} vocabulary_sizes;

/* For container_open_headers: fills s, which must outlive that call. */
container_visitor vocabulary_visitor(vocabulary_sizes *s);

typedef struct tokenizer_need {
    uint64_t kept; /* bytes while the tokenizer is open */
    uint64_t peak; /* bytes while it is built: `kept`, the vocabulary, and buffers of files */
} tokenizer_need;

/* Estimates the memory of c's tokenizer. s: the counts of container_open_headers. The tokenizer.json of a
 * folder is read through a small buffer. *out is zero if c has no tokenizer. */
nib_status tokenizer_estimate(const container *c, const vocabulary_sizes *s, tokenizer_need *out,
                              nib_error *err);

#endif

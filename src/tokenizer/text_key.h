/* text_key.h - a sorted list of texts with their tokens that works like a trie: texts with a common prefix
 * are adjacent, so a search narrows a range byte by byte. */
#ifndef NIB_TOKENIZER_TEXT_KEY_H
#define NIB_TOKENIZER_TEXT_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct text_key {
    const char *text; /* borrowed from the caller */
    uint32_t n_byte;
    int32_t id;
} text_key;

typedef struct text_keys {
    text_key *item; /* [n], owned by the caller */
    size_t n, cap;
    uint32_t first[257]; /* once sorted: the texts that begin with byte b are item[first[b]..first[b + 1]) */
} text_keys;

/* Sorts ascending by text, then by id. No text may be empty. */
void text_keys_sort(text_keys *k);

typedef struct text_walk { /* the keys that are still possible */
    uint32_t low, high;
    size_t depth;
    uint64_t units; /* units of work so far (work.h) */
} text_walk;

static inline text_walk text_walk_of(const text_keys *k, const char *text) {
    const unsigned char b = (unsigned char)*text;
    return (text_walk){k->first[b], k->first[b + 1], 1, 1};
}

/* The next key that is a prefix of text[0, n), shortest first; NULL: no more. n > 0. */
const text_key *text_walk_next(text_walk *w, const text_keys *k, const char *text, size_t n);

#endif

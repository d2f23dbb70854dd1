/* text_key.h - texts with the tokens that they stand for, in an order in which those that begin alike lie
 * side by side: a trie is then a range that is narrowed byte by byte. */
#ifndef NIB_TEXT_TEXT_KEY_H
#define NIB_TEXT_TEXT_KEY_H

#include <stddef.h>
#include <stdint.h>

typedef struct text_key {
    const char *text; /* the caller's */
    uint32_t n_byte;
    int32_t id;
} text_key;

/* Ascending by text, equal ones by id. No text is empty. Those that begin with byte b are then
 * first[b] .. first[b + 1]. */
void text_key_sort(text_key *key, size_t n, uint32_t first[257]);

#endif

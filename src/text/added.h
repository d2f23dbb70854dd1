/* added.h - finding added tokens (special or user-defined) in a text: the leftmost, and of those the longest.
 */
#ifndef NIB_TEXT_ADDED_H
#define NIB_TEXT_ADDED_H

#include "text/text_key.h"
#include "text/vocab.h"

typedef struct added_set {
    text_key *item; /* [n] what is looked for: the tokens' texts, normalised where they say so; owned */
    size_t n, cap;
    uint32_t first[257]; /* items that begin with byte b: first[b] .. first[b + 1] */
} added_set;

nib_status added_put(added_set *s, const char *text, size_t n_byte, int32_t id,
                     nib_error *err); /* before sorting */
void added_sort(added_set *s);
void added_deinit(added_set *s);
size_t added_heap_bytes(const added_set *s);
uint64_t added_bytes(uint64_t n,
                     uint64_t text_bytes); /* of n tokens in all, at the most, while they are put */

typedef struct added_match {
    size_t begin, end; /* white space that the token strips included */
    int32_t id;
} added_match;

/* The first match in text[from, n); false: none. Control tokens only when `special`; what lies before `from`
 * is looked at only to know whether a word goes on. */
bool added_find(const added_set *s, const vocab *v, bool special, const char *text, size_t n, size_t from,
                added_match *out);

#endif

/* added.h - finds added tokens (special or user-defined) in a text: the leftmost one, and among these the
 * longest. */
#ifndef NIB_TOKENIZER_ADDED_H
#define NIB_TOKENIZER_ADDED_H

#include "tokenizer/text_key.h"
#include "tokenizer/vocab.h"
#include "tokenizer/work.h"

typedef struct added_set {
    text_keys keys;  /* the tokens' texts, normalised if the token requires it; owned */
    uint32_t *by_id; /* [keys.n] indices into keys, ascending by id; owned */
} added_set;

nib_status added_put(added_set *s, const char *text, size_t n_byte, int32_t id,
                     nib_error *err); /* before sorting */
nib_status added_sort(added_set *s, nib_error *err);
void added_deinit(added_set *s);
size_t added_heap_bytes(const added_set *s);
uint64_t added_bytes(uint64_t n, uint64_t text_bytes); /* peak memory while n tokens are added */

typedef struct added_match {
    size_t begin, end; /* byte range, including white space that the token strips */
    int32_t id;
} added_match;

typedef struct added_search {
    const added_set *set;
    const vocab *vocab;
    bool special; /* control tokens are found too */
    const uint8_t
        *mark; /* of the text: no control token is found over a byte that is not 0; NULL: all are 0 */
    text_work *work;
} added_search;

/* Finds the first match in text[from, n); *found false: none. The text before `from` only decides whether a
 * word continues at `from`. NIB_E_MODEL: the bound on work is reached (work.h). */
nib_status added_find(const added_search *search, const char *text, size_t n, size_t from, bool *found,
                      added_match *out, nib_error *err);

/* The key of that token (borrowed); NULL: it is not in the set. */
const text_key *added_of(const added_set *s, int32_t id);

#endif

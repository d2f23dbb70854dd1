/* charsmap.h - the "precompiled charsmap" of SentencePiece models: a double-array trie from character
 * sequences to offsets of replacements, followed by the replacements, each with a NUL (sentencepiece,
 * normalizer.cc; the trie is the unit layout of Darts-clone). Its content is not trusted: every index is
 * checked when it is used. */
#ifndef NIB_TOKENIZER_CHARSMAP_H
#define NIB_TOKENIZER_CHARSMAP_H

#include "base/status.h"

typedef struct charsmap charsmap;

/* Copies the data, which is not trusted. The caller closes *out. NIB_E_MODEL: it is too short for its trie.
 */
nib_status charsmap_open(const void *data, size_t n_byte, charsmap **out, nib_error *err);
void charsmap_close(charsmap *m);

/* Finds the longest (or shortest) entry that is a prefix of text [n_byte]. Returns its length in bytes, 0:
 * none. *to [n_to]: the replacement, owned by the map. */
size_t charsmap_find(const charsmap *m, const char *text, size_t n_byte, bool longest, const char **to,
                     size_t *n_to);

#endif

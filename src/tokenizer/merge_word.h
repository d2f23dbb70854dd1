/* merge_word.h - joins the symbols of one word; for merges.c and merges_encode.c. */
#ifndef NIB_TOKENIZER_MERGE_WORD_H
#define NIB_TOKENIZER_MERGE_WORD_H

#include "tokenizer/merges.h"

/* A word. Symbol i is text[s->start[i], s->start[i + 1]) and has id s->id[i] (below 0: it is not a token). */
typedef struct merge_word {
    const merges *m;
    const vocab *v;
    merge_scratch *s;
    const char *text;
} merge_word;

/* Reserves n symbols and n + 1 starts; drops the old content. */
nib_status merge_reserve(merge_scratch *s, size_t n, nib_error *err);
/* Joins the best pair of the *n symbols until there is none, and sets *n to the number of symbols that
 * remain. NIB_E_MODEL: the bound on work is reached. */
nib_status merge_symbols(const merge_word *w, size_t *n, nib_error *err);

#endif

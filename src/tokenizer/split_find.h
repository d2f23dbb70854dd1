/* split_find.h - finds the matches of one step of the pre-tokenizer in a text. */
#ifndef NIB_TOKENIZER_SPLIT_FIND_H
#define NIB_TOKENIZER_SPLIT_FIND_H

#include "tokenizer/split.h"

typedef struct split_span {
    size_t begin, end;
    bool found;
} split_span;

typedef struct split_search { /* state of one step in one text; initially text and n are set, the rest is zero
                               */
    const char *text;
    size_t n;
    size_t digits; /* SPLIT_THREES: digits that remain after the last match */
} split_search;

/* Finds the next match at or after `from`. last: end of the previous match, or 0. All calls for one text take
 * linear time together, except SPLIT_REGEX, which is bounded by run->work. */
nib_status split_find(const split_step *step, regex_run *run, split_search *s, size_t from, size_t last,
                      split_span *out, nib_error *err);

#endif

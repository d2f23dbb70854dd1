/* split_find.h - finds the matches of one step of the pre-tokenizer in a text. */
#ifndef NIB_TEXT_SPLIT_FIND_H
#define NIB_TEXT_SPLIT_FIND_H

#include "text/split.h"

typedef struct split_span {
    size_t begin, end;
    bool found;
} split_span;

typedef struct split_search { /* of one step in one text: text and n are set, the rest is zero */
    const char *text;
    size_t n;
    size_t digits; /* SPLIT_THREES: left behind the last match */
} split_search;

/* The next match at or behind `from`, which is 0 or the last match's end, and then `last` too. In all, the
 * calls on one text take time in proportion to it, but for SPLIT_REGEX, which takes steps of run->work. */
nib_status split_find(const split_step *step, regex_run *run, split_search *s, size_t from, size_t last,
                      split_span *out, nib_error *err);

#endif

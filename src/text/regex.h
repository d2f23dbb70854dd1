/* regex.h - the regular expressions of tokenizers, in Oniguruma's (Ruby) syntax without references to groups,
 * run by PCRE2. Differences between the two are translated: \s \w \d \h \b, classes of characters newer than
 * PCRE2's tables, line anchors. Compiled once and read-only; each thread matches with its own regex_run. */
#ifndef NIB_TEXT_REGEX_H
#define NIB_TEXT_REGEX_H

#include "text/work.h"

typedef struct regex regex;

nib_status regex_open(const char *pattern, size_t n_byte, regex **out, nib_error *err); /* NIB_E_MODEL */
void regex_close(regex *r);
size_t regex_heap_bytes(const regex *r);

typedef struct regex_run { /* set work, zero the rest; one thread's working memory, for any number of patterns
                            */
    text_work *work;
    struct pcre2_real_match_data_8 *data;
    struct pcre2_real_match_context_8 *context;
    struct pcre2_real_jit_stack_8 *stack;
    size_t last; /* where the last item of a pattern was tried */
} regex_run;
void regex_run_deinit(regex_run *run);

/* The first match at or behind `from` in valid UTF-8 (surrogates are characters): *found, [*begin, *end). An
 * empty match counts, but not one at `not_empty_at` (SIZE_MAX: anywhere). NIB_E_MODEL when run->work has no
 * steps left for it. The run must not move between calls. */
nib_status regex_find(const regex *r, regex_run *run, const char *text, size_t n_byte, size_t from,
                      size_t not_empty_at, bool *found, size_t *begin, size_t *end, nib_error *err);

#endif

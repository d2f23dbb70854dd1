/* regex.h - the regular expressions of tokenizers, in Oniguruma's (Ruby) syntax without references to groups,
 * executed by PCRE2. Differences between the two are translated: \s \w \d \h \b, classes with characters that
 * are newer than PCRE2's tables, line anchors. Compiled once and read-only; each thread matches with its own
 * regex_run. */
#ifndef NIB_TOKENIZER_REGEX_H
#define NIB_TOKENIZER_REGEX_H

#include "tokenizer/work.h"

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
    size_t last; /* position at which the last item of a pattern was tried */
} regex_run;
void regex_run_deinit(regex_run *run);

/* Finds the first match at or after `from` in valid UTF-8 (surrogates count as characters): *found, [*begin,
 * *end). An empty match counts, except at `not_empty_at` (SIZE_MAX: it counts everywhere). NIB_E_MODEL:
 * run->work has no units left. The run must not move in memory between calls. */
nib_status regex_find(const regex *r, regex_run *run, const char *text, size_t n_byte, size_t from,
                      size_t not_empty_at, bool *found, size_t *begin, size_t *end, nib_error *err);

#endif

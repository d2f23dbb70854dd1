/* logits.h - the logits of every position of a pass, kept in a test's memory. */
#ifndef NIB_TESTS_LOGITS_H
#define NIB_TESTS_LOGITS_H

#include <stdint.h>

typedef struct logits_rows {
    float *data; /* [positions, n_vocab], the test's */
    int64_t n_vocab;
    int64_t
        next; /* the position that is to come: they come in order, each once; negative when they did not */
} logits_rows;

void logits_keep(void *rows, int64_t position, const float *row); /* for nib_session_forward */

#endif

/* logits.h - the logits of every position of a pass, kept in a test's memory. */
#ifndef NIB_TESTS_LOGITS_H
#define NIB_TESTS_LOGITS_H

#include "nib.h"

typedef struct logits_rows {
    float *data; /* [positions, n_vocab], the test's */
    int64_t n_vocab;
    int64_t next; /* the next position: they must come in order, each once; negative if they did not */
} logits_rows;

void logits_keep(void *rows, int64_t position, const float *row); /* for nib_session_forward */
size_t logits_bytes(const logits_rows *r);                        /* for each position that came */

/* n pseudo-random ids below n_vocab, by the seed. */
void logits_tokens(int32_t *tokens, int n, int64_t n_vocab, int seed);
/* The logits of all n positions of a session, or of a new session of the engine; free() the data. Fails the
 * test on an error. */
logits_rows logits_of_session(nib_session *s, const int32_t *tokens, int n, int64_t n_vocab);
logits_rows logits_of(nib_engine *e, const int32_t *tokens, int n);
/* Those of a model's file, of LOGITS_N pseudo-random ids below 104: positions past the windows and rotary
 * switches of the fixtures. */
enum { LOGITS_N = 24 };
logits_rows logits_of_file(const char *path, int activation);
/* relative_error of all positions that both have. */
double logits_distance(const logits_rows *a, const logits_rows *b);
/* logits_of for rows that count as generated ones (exec/step.h), up to n_row in a pass. */
logits_rows logits_generated(nib_engine *e, const int32_t *tokens, int n, int n_row);

#endif

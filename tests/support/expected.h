/* expected.h - reads the results of another implementation: expected.safetensors beside a fixture. */
#ifndef NIB_TESTS_EXPECTED_H
#define NIB_TESTS_EXPECTED_H

#include <stdint.h>

typedef struct expected {
    int32_t *input_ids; /* [n_input] */
    int n_input;
    float *logits; /* [n_input, n_vocab] */
    int64_t n_vocab;
    int32_t *greedy; /* [n_greedy]: greedy tokens after the first 16 of input_ids */
    int n_greedy;
    /* Of a head that predicts later tokens (tools/make-ahead-fixture.py); NULL or 0: there is none. */
    float *states;   /* [n_input, width] */
    float *ahead;    /* [n_input - 1, n_vocab] */
    int32_t *answer; /* [n_answer]: greedy tokens after the first 16, for which the head proposes `proposed`
                        tokens, and `accepted` right ones */
    int64_t width;
    int n_answer, proposed, accepted;
    char *bytes;
} expected;

/* Fails the running test if the file is not as expected. */
void expected_load(const char *path, expected *out);
void expected_free(expected *e);

/* RMS of a - b over the standard deviation of b. */
double relative_rms(const float *a, const float *b, int64_t n);
/* The length of a - b over that of a. */
double relative_error(const float *a, const float *b, int64_t n);

#endif

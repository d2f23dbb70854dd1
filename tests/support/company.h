/* company.h - computes one answer beside different other requests. Its tokens and their probabilities have
 * the same bits whatever else is computed at the same time or was computed before. */
#ifndef NIB_TESTS_COMPANY_H
#define NIB_TESTS_COMPANY_H

#include "nib.h"

enum { COMPANY_TOKENS = 24, COMPANY_TOP = 8, COMPANY_PROMPT = 120, COMPANY_CTX = 320 };

/* An answer: the sampled tokens, and the likeliest token at each position. */
typedef struct company_answer {
    int n;
    nib_candidate drawn[COMPANY_TOKENS], top[COMPANY_TOKENS][COMPANY_TOP];
} company_answer;

/* The other requests. */
typedef enum company {
    COMPANY_SESSION,   /* nothing; nib_generate */
    COMPANY_BATCH,     /* nothing, in a batch */
    COMPANY_ANSWERS,   /* three others that decode already */
    COMPANY_LONG,      /* a prompt of 200 tokens that arrives while it decodes */
    COMPANY_BESIDE,    /* its prompt arrives while another answer decodes, together with 100 rows of a third
                          prompt */
    COMPANY_BEGINNING, /* another request answered all of the prompt but its last token before: its pages are
                        * shared
                        */
    COMPANY_ANSWERED,  /* the prompt continues with the answer to an earlier request */
    COMPANY_DRAFTS,    /* tokens are proposed */
    COMPANY_PAUSE,     /* pages are scarce: it pauses, and is computed again */
    COMPANY_COUNT
} company;
extern const char *const company_names[COMPANY_COUNT];

/* The answer to tokens[0..COMPANY_PROMPT), greedy. The engine is new, and has COMPANY_CTX positions. */
void company_ask(nib_engine *e, company how, const int32_t *tokens, company_answer *out);

/* A prompt, for COMPANY_ANSWERED too: 60 tokens, and the answer to these in a session of an engine, and more.
 */
void company_prompt(nib_engine *e, int64_t n_vocab, int32_t tokens[COMPANY_PROMPT]);

#endif

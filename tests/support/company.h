/* company.h - one answer of an engine in different company: whatever else is computed meanwhile or was
 * computed before, its tokens and their probabilities have the same bits. */
#ifndef NIB_TESTS_COMPANY_H
#define NIB_TESTS_COMPANY_H

#include "nib.h"

enum { COMPANY_TOKENS = 24, COMPANY_TOP = 8, COMPANY_PROMPT = 120, COMPANY_CTX = 320 };

/* An answer: what was drawn, and the likeliest in its place. */
typedef struct company_answer {
    int n;
    nib_candidate drawn[COMPANY_TOKENS], top[COMPANY_TOKENS][COMPANY_TOP];
} company_answer;

/* What else there is. */
typedef enum company {
    COMPANY_SESSION,   /* nothing; nib_generate */
    COMPANY_BATCH,     /* nothing, in a batch */
    COMPANY_ANSWERS,   /* three others that decode already */
    COMPANY_LONG,      /* a prompt of 200 tokens that comes while it decodes */
    COMPANY_BESIDE,    /* its prompt comes while another one decodes, and 100 rows of a third prompt */
    COMPANY_BEGINNING, /* another answered all of the prompt but its last token before: its pages are shared
                        */
    COMPANY_ANSWERED,  /* the prompt goes on with what another was answered before */
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

/* logprobs.h - log-probabilities of an answer's tokens, as JSON. */
#ifndef NIB_SERVER_LOGPROBS_H
#define NIB_SERVER_LOGPROBS_H

#include "server/job.h"

/* A token's bytes [n_byte] (the caller frees *text with mem_free); none if the tokenizer has no such token.
 * False: out of memory. */
bool token_text(const nib_engine *e, int32_t token, char **text, size_t *n_byte);
/* "logprobs" of the answer's tokens from `from` on, in the form of the call's API; null unless requested.
 * NULL: out of memory. */
json_t *tokens_logprobs(const answer *a, size_t from);

#endif

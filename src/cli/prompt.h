/* prompt.h - what the model of 'nibble run' is given: a user's turn as its chat template writes it, a text
 * that it continues, or token ids. */
#ifndef NIB_CLI_PROMPT_H
#define NIB_CLI_PROMPT_H

#include "cli/cli.h"

typedef struct prompt {
    int32_t *tokens;
    size_t n_token;
    bool turn; /* it is a user's turn: what follows is an answer, which ends by itself */
} prompt;

/* What is wrong with it before a model is opened. An exit code. */
int prompt_check(const cli_args *args);
/* Positions that prompt and answer surely take at most, or nearly so for a turn; 0: not known before it is
 * read. */
int64_t max_prompt(const cli_args *args);
/* An exit code; prompt_clear in any case. */
int prompt_read(const cli_args *args, const nib_engine *engine, prompt *out);
void prompt_clear(prompt *p);

#endif

/* prompt.h - the prompt of 'nibble run': a user turn rendered by the chat template, a text to continue, or
 * token ids. */
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

/* prompt.h - the prompt of 'nibble run': a user turn rendered by the chat template, a text to continue, or
 * token ids. */
#ifndef NIB_CLI_CHAT_PROMPT_H
#define NIB_CLI_CHAT_PROMPT_H

#include "cli/cli.h"

typedef struct prompt {
    int32_t *tokens;
    size_t n_token;
    bool turn; /* a user's turn: the model answers, and the answer ends by itself */
} prompt;

/* Checks the arguments before a model is opened. Returns an exit code. */
int prompt_check(const cli_args *args);
/* Upper bound of the positions of prompt and answer (for a turn an estimate); 0: not known before the prompt
 * is read. */
int64_t max_prompt(const cli_args *args);
/* Reads and tokenizes the prompt. Returns an exit code. The caller calls prompt_clear in any case. */
int prompt_read(const cli_args *args, const nib_engine *engine, prompt *out);
void prompt_clear(prompt *p);

#endif

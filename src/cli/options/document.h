/* document.h - prints a man page and shell completions from the tables. */
#ifndef NIB_CLI_OPTIONS_DOCUMENT_H
#define NIB_CLI_OPTIONS_DOCUMENT_H

#include <stdbool.h>
#include <stdio.h>

void cli_print_man(FILE *out); /* troff, section 1 */

/* ---- completion.c ---- */
bool cli_print_completion(const char *shell, FILE *out); /* "bash" or "zsh"; false: another */

#endif

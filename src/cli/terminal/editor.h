/* editor.h - line editing at a terminal (libedit, emacs keys; ~/.editrc is read). The terminal is raw only
 * while a line is typed. */
#ifndef NIB_CLI_TERMINAL_EDITOR_H
#define NIB_CLI_TERMINAL_EDITOR_H

#include "cli/terminal/input.h"

typedef struct editor editor;

editor *editor_open(bool colour, bool remember); /* NULL: the terminal does not support editing */
void editor_close(editor *e);                    /* NULL is fine */
input_result editor_line(editor *e, const char *prompt, const char **line, size_t *n_byte);

#endif

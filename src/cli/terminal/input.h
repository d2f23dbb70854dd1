/* input.h - lines from stdin: typed at a terminal, with editing and a history, or from a pipe. One thread.
 * Signals that interrupt (cli.h) end a line that is being typed. */
#ifndef NIB_CLI_TERMINAL_INPUT_H
#define NIB_CLI_TERMINAL_INPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct input input;

typedef struct input_options {
    bool terminal; /* stdin is a terminal: prompts are shown, and lines can be edited if stderr is one too */
    bool colour;   /* of prompts */
    bool remember; /* keep a history of typed lines */
} input_options;

input *input_open(const input_options *options); /* NULL: no memory */
void input_close(input *in);                     /* restores the terminal; NULL is fine */

typedef enum input_result {
    INPUT_LINE,
    INPUT_END,
    INPUT_FAILED,     /* errno says why stdin cannot be read */
    INPUT_CLEARED,    /* Ctrl-C cleared the typed line */
    INPUT_INTERRUPTED /* a signal, with nothing typed */
} input_result;

/* Reads the next line, without its newline. *line is valid until the next call. Blocks. */
input_result input_line(input *in, const char *prompt, const char **line, size_t *n_byte);

#endif

/* terminal.h - lines and bars as wide as the terminal, coloured if enabled, in ASCII unless the terminal
 * shows UTF-8. */
#ifndef NIB_CLI_TERMINAL_TERMINAL_H
#define NIB_CLI_TERMINAL_TERMINAL_H

#include "cli/cli.h"

typedef struct terminal {
    const cli_args *args;
    FILE *out; /* to stderr with cli_note, so that -q and --log apply */
    int width; /* columns, 20 or more */
    bool colour, utf8;
} terminal;

terminal terminal_open(const cli_args *args, FILE *out);
/* Prints one line; the format has no newline. */
void terminal_line(const terminal *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { TERMINAL_GREEN = 32, TERMINAL_YELLOW = 33, TERMINAL_RED = 31 };
enum { TERMINAL_BAR = 320 }; /* bytes for any bar */
/* Makes a bar `columns` wide of which `share` (0 to 1) is full, in out [TERMINAL_BAR]. Returns out. */
const char *terminal_bar(const terminal *s, char *out, int columns, double share, int colour);

#endif

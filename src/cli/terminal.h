/* terminal.h - lines and bars for a person: as wide as the terminal, coloured if enabled, in ASCII where
 * other characters cannot be shown. */
#ifndef NIB_CLI_TERMINAL_H
#define NIB_CLI_TERMINAL_H

#include "cli/cli.h"

typedef struct terminal {
    const cli_args *args;
    FILE *out; /* stderr: through cli_note, so -q and --log hold */
    int width; /* columns, 20 or more */
    bool colour, utf8;
} terminal;

terminal terminal_open(const cli_args *args, FILE *out);
/* One line, without its newline. */
void terminal_line(const terminal *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { TERMINAL_GREEN = 32, TERMINAL_YELLOW = 33, TERMINAL_RED = 31 };
enum { TERMINAL_BAR = 320 }; /* bytes that hold any bar */
/* A bar `columns` wide of which share (0 to 1) is full; out holds TERMINAL_BAR bytes. Returns out. */
const char *terminal_bar(const terminal *s, char *out, int columns, double share, int colour);

#endif

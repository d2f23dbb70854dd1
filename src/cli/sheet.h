/* sheet.h - small tables and bars for people: as wide as the terminal, coloured when that is wanted, in plain
 * characters where others cannot be shown. */
#ifndef NIB_CLI_SHEET_H
#define NIB_CLI_SHEET_H

#include "cli/cli.h"

typedef struct sheet {
    const cli_args *args;
    FILE *out; /* stderr: through cli_note, so -q and --log hold */
    int width; /* columns, 20 or more */
    bool colour, utf8;
} sheet;

sheet sheet_open(const cli_args *args, FILE *out);
/* One line, without its newline. */
void sheet_line(const sheet *s, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { SHEET_GREEN = 32, SHEET_YELLOW = 33, SHEET_RED = 31 };
enum { SHEET_BAR = 320 }; /* bytes that hold any bar */
/* A bar `columns` wide of which share (0 to 1) is full; out holds SHEET_BAR bytes. Returns out. */
const char *sheet_bar(const sheet *s, char *out, int columns, double share, int colour);

#endif

/* history.h - typed lines, stored for the next time: one line of UTF-8 an entry (CR for each line break in
 * it), oldest first, in $XDG_STATE_HOME/nibble/history (default ~/.local/state/nibble/history), readable by
 * its owner only. Each line is written when it is entered, so that no way of leaving loses it, and
 * simultaneous conversations share the file. An unreadable or unwritable history is ignored. */
#ifndef NIB_CLI_TERMINAL_HISTORY_H
#define NIB_CLI_TERMINAL_HISTORY_H

#include <stddef.h>

enum {
    HISTORY_LINES = 1000,      /* maximum number of stored lines */
    HISTORY_LINE_BYTES = 8192, /* a longer line is not stored */
    HISTORY_BYTES = 1 << 20
};

typedef struct history_file history_file;

typedef void (*history_line_fn)(void *user, const char *line);

/* Calls fn for each stored line, oldest first, and cuts the file to the newest HISTORY_LINES if it has become
 * too long. NULL: no history can be stored. */
history_file *history_file_open(history_line_fn fn, void *user);
void history_file_add(history_file *h, const char *line, size_t n_byte); /* NULL is fine */
void history_file_close(history_file *h);

#endif

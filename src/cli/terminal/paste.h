/* paste.h - text pasted in bracketed-paste mode (between the marks that a terminal puts around it): its line
 * breaks do not end a line that is being typed. */
#ifndef NIB_CLI_TERMINAL_PASTE_H
#define NIB_CLI_TERMINAL_PASTE_H

#include <stdbool.h>
#include <stddef.h>

#define PASTE_ASK  "\033[?2004h"
#define PASTE_STOP "\033[?2004l"
#define PASTE_MARK "\\e[200~" /* the beginning of a paste, for el_set's EL_BIND */

enum { MAX_PASTE = 1 << 20 }; /* bytes */

/* Reads the next byte into *byte; returns a number above 0 if there was one. */
typedef int (*paste_byte_fn)(void *user, char *byte);

/* Reads a paste up to its end mark and returns UTF-8, NUL-terminated, with \n for every line break and
 * without control characters except tabs; invalid bytes become U+FFFD. The caller frees it with mem_free.
 * NULL: the input ended, or the paste is longer than MAX_PASTE or than memory allows (*too_long is set, and
 * all of it has been read). */
char *paste_read(paste_byte_fn next, void *user, bool *too_long);

#endif

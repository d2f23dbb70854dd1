/* paste.h - text pasted in bracketed-paste mode (between the marks that a terminal puts around it): its line
 * breaks do not end a line that is being typed. */
#ifndef NIB_CLI_PASTE_H
#define NIB_CLI_PASTE_H

#include <stdbool.h>
#include <stddef.h>

#define PASTE_ASK  "\033[?2004h"
#define PASTE_STOP "\033[?2004l"
#define PASTE_MARK "\\e[200~" /* what begins it, as el_set's EL_BIND takes it */

enum { MAX_PASTE = 1 << 20 }; /* bytes */

/* The next byte into *byte; what it returns is above 0 when there was one. */
typedef int (*paste_byte_fn)(void *user, char *byte);

/* Reads until the mark that ends it: UTF-8 with \n for every line break, without other control characters
 * than tabs, NUL-terminated; bytes that are no UTF-8 become U+FFFD. Caller frees with mem_free. NULL: the
 * input ended, or it is longer than MAX_PASTE (*too_long: all of it has been read) or than memory allows. */
char *paste_read(paste_byte_fn next, void *user, bool *too_long);

#endif

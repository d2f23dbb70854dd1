/* escape.h - makes text from files safe to print on one line of a terminal. */
#ifndef NIB_BASE_ESCAPE_H
#define NIB_BASE_ESCAPE_H

#include <stddef.h>

/* Copies NUL-terminated `in` to out (capacity cap >= 1, always terminated): control characters and bytes that
 * are no UTF-8 become \n, \t or \xNN. Text that does not fit is cut at a character's end. Returns the length.
 */
size_t escape_line(char *out, size_t cap, const char *in);

#endif

/* line_reader.h - lines of a file or a pipe, in bounded memory and without waiting for a pipe. One thread. */
#ifndef NIB_SERVER_LINE_READER_H
#define NIB_SERVER_LINE_READER_H

#include "nib.h"

typedef struct line_reader {
    int fd;         /* the caller's */
    size_t max;     /* maximum bytes of a line */
    int64_t number; /* of the line that was returned last; the first is 1 */
    /* private: */
    char *data;
    size_t n, at, cap; /* bytes read, bytes returned, bytes allocated */
    bool ended, cut;   /* cut: the rest of a line that was too long is to be skipped */
} line_reader;

typedef enum line_result {
    LINE_WHOLE,
    LINE_CUT,  /* the first `max` bytes of a longer line; the rest is skipped */
    LINE_WAIT, /* nothing to read now: wait for fd (a pipe) */
    LINE_END,
    LINE_FAILED, /* errno has the reason */
    LINE_NO_MEMORY
} line_result;

/* Reads the next line, without its newline; *text is valid until the next call. The last line need not end
 * with a newline. A byte-order mark before the first line is skipped. */
line_result line_next(line_reader *r, const char **text, size_t *n_byte);
void line_reader_clear(line_reader *r); /* frees its memory; fd stays open */

#endif

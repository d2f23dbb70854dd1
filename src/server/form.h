/* form.h - a body of multipart/form-data in a file (RFC 7578): the fields purpose and file. Nothing in it is
 * trusted. Memory does not depend on its size. */
#ifndef NIB_SERVER_FORM_H
#define NIB_SERVER_FORM_H

#include <stdbool.h>
#include <stdio.h>

typedef struct form {
    char purpose[32], filename[256]; /* "": not given */
    long begin, end;                 /* the file's content; both 0: there is none */
} form;

/* Reads the form of f, whose parts are separated by `boundary` (with its two dashes; at most 128 bytes).
 * False: it has no field `file`. f's position changes. */
bool form_read(FILE *f, const char *boundary, form *out);

#endif

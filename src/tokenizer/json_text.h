/* json_text.h - parses the large members of a tokenizer.json in place: a vocabulary of 262,144 entries as
 * jansson values would need a hundred megabytes for a moment. Small members go through jsonx. A cursor is at
 * the first unread byte; faults are NIB_E_MODEL with the byte's position. */
#ifndef NIB_TOKENIZER_JSON_TEXT_H
#define NIB_TOKENIZER_JSON_TEXT_H

#include "tokenizer/tokenizer.h"

typedef struct json_text {
    const char *begin, *p, *end;
} json_text;

/* Skips white space and returns the next byte; 0 at the end. */
char json_text_peek(json_text *j);
/* Skips white space and consumes c. */
nib_status json_text_expect(json_text *j, char c, nib_error *err);
/* Replaces *out by a string's content (UTF-8). A lone surrogate, or more than 1 MiB, is an error. */
nib_status json_text_string(json_text *j, text_buffer *out, nib_error *err);
nib_status json_text_number(json_text *j, double *out, nib_error *err);
/* Skips one value of any kind, nested at most 64 deep. */
nib_status json_text_skip(json_text *j, nib_error *err);
/* Inside an object or array: `open` was consumed. True: another element follows, and the cursor is after the
 * comma. False: the cursor is after `close`. *first is set to true before the first call. */
nib_status json_text_next(json_text *j, char close, bool *first, bool *more, nib_error *err);

/* The value of root.outer.inner, as a range; begin is NULL if it is missing. A duplicate is NIB_E_MODEL. */
nib_status json_text_find(const char *text, size_t n_byte, const char *outer, const char *inner,
                          json_text *out, nib_error *err);

#endif

/* buffer.h - a growing byte buffer for received and sent data. Zeroed is empty. */
#ifndef NIB_SERVER_BUFFER_H
#define NIB_SERVER_BUFFER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
    char *data;
    size_t n, cap;
    size_t taken;   /* of data, by buffer_take */
    bool no_memory; /* something is missing: what is there must not be sent */
} buffer;

void buffer_clear(buffer *b);
void buffer_add(buffer *b, const void *data, size_t n);
void buffer_text(buffer *b, const char *text);
/* The value's text; takes the reference. NULL (no memory while it was made) counts as missing. */
void buffer_json(buffer *b, json_t *value);
size_t buffer_left(const buffer *b);
/* Moves up to n bytes to out; the number. What was taken is given up. */
size_t buffer_take(buffer *b, char *out, size_t n);

#endif

/* buffer.h - a growing byte buffer. Zeroed is empty. The data is terminated, and freed by mem_free. */
#ifndef NIB_BASE_BUFFER_H
#define NIB_BASE_BUFFER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct buffer {
    char *data;
    size_t n, cap;
    size_t taken;   /* bytes of data that buffer_take has returned */
    bool no_memory; /* some data is missing: the rest must not be used */
} buffer;

/* Frees the data; the buffer is empty again. */
void buffer_clear(buffer *b);
/* Add bytes, or a terminated string. Out of memory sets no_memory. */
void buffer_add(buffer *b, const void *data, size_t n);
void buffer_text(buffer *b, const char *text);
/* Adds the value's JSON text, compact or with these flags of jansson's; takes the reference. NULL (out of
 * memory), and a value that has no text, set no_memory. */
void buffer_json(buffer *b, json_t *value);
void buffer_json_as(buffer *b, json_t *value, size_t flags);
/* The same. Each of the strings raw[n], which are inside the value and in its order, is JSON that is written
 * as it stands. */
void buffer_json_raw(buffer *b, json_t *value, json_t *const *raw, size_t n);
/* Bytes that buffer_take has not returned yet. */
size_t buffer_left(const buffer *b);
/* Frees what buffer_take has returned, when that is at least half of the memory. */
void buffer_trim(buffer *b);
/* Moves up to n bytes to out and returns their number. */
size_t buffer_take(buffer *b, char *out, size_t n);

#endif

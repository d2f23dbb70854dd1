/* cursor.h - reads a file's header front to back through one large buffer, never past a limit. Errors name
 * the file offset and the item. One thread. */
#ifndef NIB_FORMATS_CURSOR_H
#define NIB_FORMATS_CURSOR_H

#include "base/file.h"

#include <string.h>

typedef struct cursor {
    file *f;
    const char *what; /* the item being read, for messages */
    uint64_t read;    /* file offset after the buffered bytes */
    uint64_t limit;   /* nothing is read from here on */
    uint8_t *buffer;
    size_t begin, end; /* buffered bytes not yet taken */
} cursor;

/* Reads f from its start up to `limit` (at most the file's size). Allocates the buffer; f is borrowed. */
nib_status cursor_open(cursor *c, file *f, uint64_t limit, nib_error *err);
void cursor_close(cursor *c);

static inline uint64_t cursor_at(const cursor *c) {
    return c->read - (c->end - c->begin);
}
static inline uint64_t cursor_left(const cursor *c) {
    return c->limit - cursor_at(c);
}

/* Fails if fewer than n bytes are left before the limit. */
nib_status cursor_need(const cursor *c, uint64_t n_byte, nib_error *err);
/* cursor_take when the buffer has to be filled. */
nib_status cursor_take_slow(cursor *c, void *out, size_t n_byte, nib_error *err);

/* Copies the next n bytes. */
static inline nib_status cursor_take(cursor *c, void *out, size_t n_byte, nib_error *err) {
    if (c->end - c->begin < n_byte)
        return cursor_take_slow(c, out, n_byte, err);
    memcpy(out, c->buffer + c->begin, n_byte);
    c->begin += n_byte;
    return NIB_OK;
}
static inline nib_status cursor_u32(cursor *c, uint32_t *out, nib_error *err) {
    return cursor_take(c, out, sizeof *out,
                       err); /* the file and every supported processor are little-endian */
}
static inline nib_status cursor_u64(cursor *c, uint64_t *out, nib_error *err) {
    return cursor_take(c, out, sizeof *out, err);
}

#endif

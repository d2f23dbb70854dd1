/* buffer.h - a growing byte buffer for the writers' headers. */
#ifndef NIB_FORMATS_BUFFER_H
#define NIB_FORMATS_BUFFER_H

#include "base/mem.h"
#include "base/status.h"

#include <string.h>

typedef struct buffer {
    uint8_t *data; /* freed by mem_free */
    size_t n, cap;
} buffer;

/* Appends n_byte bytes. NIB_E_NOMEM leaves the buffer unchanged. */
static inline nib_status buffer_put(buffer *b, const void *data, size_t n_byte, nib_error *err) {
    if (n_byte > SIZE_MAX - b->n || mem_grow((void **)&b->data, &b->cap, b->n + n_byte, 1))
        return nib_fail_nomem(err, n_byte, "a header");
    if (n_byte)
        memcpy(b->data + b->n, data, n_byte);
    b->n += n_byte;
    return NIB_OK;
}

#endif

/* cursor.c - see cursor.h. */
#include "formats/cursor.h"

#include "base/mem.h"
#include "base/num.h"

#include <inttypes.h>

enum { BUFFER = 256 << 10 }; /* bytes: large enough to make system calls cheap, small enough for the cache */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "files are little-endian and are read without conversion");

nib_status cursor_open(cursor *c, file *f, uint64_t limit, nib_error *err) {
    *c = (cursor){
        .f = f, .what = "the header", .limit = NUM_MIN(limit, file_size(f)), .buffer = mem_alloc(BUFFER)};
    return c->buffer ? NIB_OK : nib_fail_nomem(err, BUFFER, "a read buffer");
}

void cursor_close(cursor *c) {
    mem_free(c->buffer);
    c->buffer = NULL;
}

nib_status cursor_need(const cursor *c, uint64_t n_byte, nib_error *err) {
    const uint64_t left = cursor_left(c);
    if (n_byte <= left)
        return NIB_OK;
    if (c->limit < file_size(c->f))
        return nib_fail(err, NIB_E_MODEL,
                        "%s at offset %" PRIu64 " needs %" PRIu64
                        " bytes, more than a header may have (%" PRIu64 ")",
                        c->what, cursor_at(c), n_byte, c->limit);
    return nib_fail(err, NIB_E_MODEL,
                    "%s at offset %" PRIu64 ": expected %" PRIu64 " bytes, the file ends after %" PRIu64
                    " (cut off?)",
                    c->what, cursor_at(c), n_byte, left);
}

nib_status cursor_take_slow(cursor *c, void *out, size_t n_byte, nib_error *err) {
    NIB_TRY(cursor_need(c, n_byte, err));
    uint8_t *to = out;
    for (;;) {
        const size_t n = NUM_MIN(n_byte, c->end - c->begin);
        memcpy(to, c->buffer + c->begin, n);
        c->begin += n;
        to += n;
        n_byte -= n;
        if (!n_byte)
            return NIB_OK;
        if (n_byte >= BUFFER) {
            NIB_TRY(file_read_at(c->f, to, c->read, n_byte, err));
            c->read += n_byte;
            return NIB_OK;
        }
        const size_t fill = (size_t)NUM_MIN((uint64_t)BUFFER, c->limit - c->read);
        NIB_TRY(file_read_at(c->f, c->buffer, c->read, fill, err));
        c->read += fill;
        c->begin = 0;
        c->end = fill;
    }
}

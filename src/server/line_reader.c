/* line_reader.c - see line_reader.h. */
#include "server/line_reader.h"

#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

enum { READ_BYTES = 64 << 10 };

/* Reads more bytes. LINE_WHOLE: some were read, or the end was reached. */
static line_result fill(line_reader *r) {
    struct pollfd one = {.fd = r->fd, .events = POLLIN};
    if (r->data && r->at > 0) {
        memmove(r->data, r->data + r->at, r->n - r->at);
        r->n -= r->at;
        r->at = 0;
    }
    if (mem_grow((void **)&r->data, &r->cap, NUM_MIN(r->n + READ_BYTES, r->max + 1), 1))
        return LINE_NO_MEMORY;
    if (poll(&one, 1, 0) == 0)
        return LINE_WAIT;
    const ssize_t got = read(r->fd, r->data + r->n, NUM_MIN(r->cap, r->max + 1) - r->n);
    if (got < 0 && errno != EINTR && errno != EAGAIN)
        return LINE_FAILED;
    r->n += got > 0 ? (size_t)got : 0;
    r->ended = got == 0;
    return got < 0 ? LINE_WAIT : LINE_WHOLE;
}

static line_result give(line_reader *r, size_t n_byte, const char **text, size_t *out) {
    static const char mark[] = "\xEF\xBB\xBF";
    const size_t skip = r->number == 0 && r->data && n_byte >= 3 && !memcmp(r->data + r->at, mark, 3) ? 3 : 0;
    *text = r->data + r->at + skip;
    *out = n_byte - skip;
    r->number++;
    return LINE_WHOLE;
}

line_result line_next(line_reader *r, const char **text, size_t *n_byte) {
    for (;;) {
        const size_t left = r->n - r->at;
        const char *from = left ? r->data + r->at : NULL;
        const char *end = from ? memchr(from, '\n', left) : NULL;
        if (end && !r->cut) {
            const line_result result = give(r, (size_t)(end - from), text, n_byte);
            r->at += (size_t)(end - from) + 1;
            return result;
        }
        if (r->cut) {
            r->at += end ? (size_t)(end - from) + 1 : left;
            r->cut = !end;
        } else if (left > r->max) {
            give(r, r->max, text, n_byte);
            r->cut = true;
            return LINE_CUT;
        } else if (r->ended && left > 0) {
            const line_result result = give(r, left, text, n_byte);
            r->at = r->n;
            return result;
        }
        if (r->ended)
            return LINE_END;
        if (end)
            continue;
        const line_result result = fill(r);
        if (result != LINE_WHOLE)
            return result;
    }
}

void line_reader_clear(line_reader *r) {
    mem_free(r->data);
    r->data = NULL;
    r->n = r->at = r->cap = 0;
}

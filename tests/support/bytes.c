/* bytes.c - see bytes.h. */
#include "support/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

size_t bytes_put(bytes *b, const void *data, size_t n) {
    const size_t at = b->n;
    if (n > sizeof b->data - b->n) {
        fail_msg("the test's file is too long");
        return at;
    }
    memcpy(b->data + at, data, n);
    b->n += n;
    return at;
}

size_t bytes_u8(bytes *b, uint8_t v) {
    return bytes_put(b, &v, sizeof v);
}

size_t bytes_u32(bytes *b, uint32_t v) {
    return bytes_put(b, &v, sizeof v);
}

size_t bytes_u64(bytes *b, uint64_t v) {
    return bytes_put(b, &v, sizeof v);
}

size_t bytes_f32(bytes *b, float v) {
    return bytes_put(b, &v, sizeof v);
}

size_t bytes_text(bytes *b, const char *text) {
    const size_t at = bytes_u64(b, strlen(text));
    bytes_put(b, text, strlen(text));
    return at;
}

void bytes_align(bytes *b, size_t to) {
    while (b->n % to)
        bytes_u8(b, 0);
}

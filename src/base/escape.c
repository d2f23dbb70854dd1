/* escape.c - see escape.h. */
#include "base/escape.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* Writes one character of `in` as it is shown to `shown`; returns the bytes read. */
static size_t show_char(const char *in, size_t n, char shown[8]) {
    utf8proc_int32_t c = -1;
    utf8proc_ssize_t used = utf8proc_iterate((const utf8proc_uint8_t *)in, (utf8proc_ssize_t)n, &c);
    unsigned char byte = (unsigned char)in[0];
    if (used <= 0 || (used == 1 && (byte < 0x20 || byte == 0x7f))) {
        if (byte == '\n' || byte == '\t')
            snprintf(shown, 8, "\\%c", byte == '\n' ? 'n' : 't');
        else
            snprintf(shown, 8, "\\x%02x", byte);
        return 1;
    }
    if (c >= 0x80 && c < 0xa0) { /* C1 controls: some terminals act on them */
        snprintf(shown, 8, "\\x%02x", (unsigned)c);
        return (size_t)used;
    }
    memcpy(shown, in, (size_t)used);
    shown[used] = 0;
    return (size_t)used;
}

size_t escape_line(char *out, size_t cap, const char *in) {
    size_t left = strlen(in), length = 0;
    while (left > 0) {
        char shown[8];
        size_t used = show_char(in, left, shown), size = strlen(shown);
        if (length + size >= cap)
            break;
        memcpy(out + length, shown, size);
        length += size;
        in += used;
        left -= used;
    }
    out[length] = 0;
    return length;
}

/* paste.c - see paste.h. */
#include "cli/terminal/paste.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

static const char mark[] = "\033[201~";

/* Reads the bytes before the end mark and drops the mark. NULL: the input ended, or it is too long. */
static char *read_marked(paste_byte_fn next, void *user, size_t *n_byte, bool *too_long) {
    const size_t n_mark = sizeof mark - 1;
    char *data = NULL, recent[sizeof mark] = "", byte;
    size_t n = 0, cap = 0;
    *too_long = false;
    while (memcmp(recent, mark, n_mark)) {
        if (next(user, &byte) <= 0) {
            mem_free(data);
            return NULL;
        }
        memmove(recent, recent + 1, n_mark - 1);
        recent[n_mark - 1] = byte;
        *too_long |= n == MAX_PASTE || mem_grow((void **)&data, &cap, n + 1, 1);
        if (!*too_long)
            data[n++] = byte;
    }
    if (*too_long) {
        mem_free(data);
        return NULL;
    }
    *n_byte = n - n_mark;
    return data;
}

static bool is_control(utf8proc_int32_t code) {
    return code != '\n' && code != '\t' && utf8proc_category(code) == UTF8PROC_CATEGORY_CC;
}

char *paste_read(paste_byte_fn next, void *user, bool *too_long) {
    static const char replacement[] = "\xEF\xBF\xBD";
    const size_t max = sizeof replacement - 1;
    size_t n_byte, n = 0;
    char *raw = read_marked(next, user, &n_byte, too_long);
    char *text = raw ? mem_alloc(max * n_byte + 1) : NULL;
    for (size_t i = 0; text && i < n_byte;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t wide =
            utf8proc_iterate((const uint8_t *)raw + i, (utf8proc_ssize_t)(n_byte - i), &code);
        if (wide <= 0) {
            memcpy(text + n, replacement, max);
            n += max;
        } else if (code == '\r') {
            text[n++] = '\n';
        } else if (!is_control(code)) {
            memcpy(text + n, raw + i, (size_t)wide);
            n += (size_t)wide;
        }
        i += wide > 0 ? (size_t)wide : 1;
    }
    if (text)
        text[n] = 0;
    mem_free(raw);
    return text;
}

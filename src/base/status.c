/* status.c - errors are written once, here. A message may quote bytes from a file, so it is made printable.
 */
#include "base/status.h"
#include "base/escape.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *nib_status_text(nib_status status) {
    switch (status) {
#define NIB_X(name, number, exit_code, text)                                                                 \
    case NIB_E_##name: return text;
        NIB_STATUS_MAP(NIB_X)
#undef NIB_X
    }
    return "unknown status";
}

int nib_status_exit_code(nib_status status) {
    switch (status) {
#define NIB_X(name, number, exit_code, text)                                                                 \
    case NIB_E_##name: return exit_code;
        NIB_STATUS_MAP(NIB_X)
#undef NIB_X
    }
    return 1;
}

const char *nib_version(void) {
    return NIB_VERSION;
}

void nib_free(void *memory) {
    mem_free(memory);
}

/* In parentheses, because the header has macros of these names for the analyser. */
nib_status(nib_fail)(nib_error *err, nib_status status, const char *format, ...) {
    if (err) {
        char raw[2 * sizeof err->message]; /* arguments may point into err->message */
        va_list args;
        va_start(args, format);
        if (vsnprintf(raw, sizeof raw, format, args) < 0)
            raw[0] = 0;
        va_end(args);
        err->status = status;
        escape_line(err->message, sizeof err->message, raw);
    }
    return status;
}

nib_status(nib_fail_nomem)(nib_error *err, size_t n_byte, const char *what) {
    char size[32];
    return nib_fail(err, NIB_E_NOMEM, "out of memory: expected %s for %s, the system gave none",
                    num_format_size(n_byte, size), what);
}

nib_status(nib_fail_errno)(nib_error *err, const char *what, const char *path, int errno_value) {
    char text[128] = "";
    /* The GNU form of strerror_r may return a string of its own and leave the buffer alone. */
    const char *reason = strerror_r(errno_value, text, sizeof text);
    return nib_fail(err, NIB_E_IO, "%s: %s: %s", path, what, reason);
}

nib_status nib_fail_prefix(nib_error *err, nib_status status, const char *prefix) {
    if (!err)
        return status;
    /* The message is already printable: only the prefix may need escaping. */
    char shown[sizeof err->message], old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    size_t n = escape_line(shown, sizeof shown - 2, prefix);
    memcpy(shown + n, ": ", 3);
    n += 2;
    memcpy(err->message, shown, n);
    escape_line(err->message + n, sizeof err->message - n, old);
    err->status = status;
    return status;
}

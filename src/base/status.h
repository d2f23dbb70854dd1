/* status.h - fills a nib_error at the place of the fault. Every fallible function in the tree returns
 * nib_status and takes a last `nib_error *err` (may be NULL). */
#ifndef NIB_BASE_STATUS_H
#define NIB_BASE_STATUS_H

#include "nib.h"

/* Writes status and message (printf format; say what was expected and what was found) and returns status, so
 * that `return nib_fail(err, NIB_E_MODEL, "...")` is one line. A message that is too long is cut at a
 * character's end; control characters from files are shown escaped. */
nib_status nib_fail(nib_error *err, nib_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The usual text for a failed allocation of n bytes for `what`. */
nib_status nib_fail_nomem(nib_error *err, size_t n_byte, const char *what);

/* NIB_E_IO with `what`, the path and strerror(errno_value). */
nib_status nib_fail_errno(nib_error *err, const char *what, const char *path, int errno_value);

/* Puts "prefix: " before the message, e.g. the file's name; status stays. */
nib_status nib_fail_prefix(nib_error *err, nib_status status, const char *prefix);

#ifdef __clang_analyzer__
/* Tells the static analyser that these functions never return NIB_OK for another status. */
#define nib_fail(err, status, ...)         ((void)nib_fail(err, status, __VA_ARGS__), (status))
#define nib_fail_nomem(err, n_byte, what)  ((void)nib_fail_nomem(err, n_byte, what), NIB_E_NOMEM)
#define nib_fail_errno(err, what, path, e) ((void)nib_fail_errno(err, what, path, e), NIB_E_IO)
#endif

/* Return from the caller when `expression` is not NIB_OK. */
#define NIB_TRY(expression)                                                                                  \
    do {                                                                                                     \
        nib_status nib_try_status = (expression);                                                            \
        if (nib_try_status != NIB_OK)                                                                        \
            return nib_try_status;                                                                           \
    } while (0)

#endif

/* log.h - lines for the embedding program; the library itself prints nothing. */
#ifndef NIB_BASE_LOG_H
#define NIB_BASE_LOG_H

#include "nib.h"

typedef struct logger {
    nib_log_fn fn; /* NULL: silent */
    void *user;
} logger;

/* Formats one line (printf format, without a newline) and passes it on. */
void log_line(const logger *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

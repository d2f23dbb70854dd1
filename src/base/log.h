/* log.h - lines for the embedding program; the library itself prints nothing. */
#ifndef NIB_BASE_LOG_H
#define NIB_BASE_LOG_H

#include "nib.h"

typedef struct logger {
    nib_log_fn fn; /* NULL: silent */
    void *user;
    bool details; /* log_detail logs */
} logger;

/* Formats one line (printf format, without a newline) and passes it on. */
void log_line(const logger *log, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The same for a line that nobody has to act on. */
void log_detail(const logger *log, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

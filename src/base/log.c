/* log.c - see log.h. */
#include "base/log.h"
#include "base/escape.h"

#include <stdarg.h>
#include <stdio.h>

static void write_line(const logger *log, const char *format, va_list args) {
    char raw[1024], line[1024];
    if (vsnprintf(raw, sizeof raw, format, args) < 0)
        raw[0] = 0;
    escape_line(line, sizeof line, raw);
    log->fn(log->user, line);
}

void log_line(const logger *log, const char *format, ...) {
    va_list args;
    if (!log || !log->fn)
        return;
    va_start(args, format);
    write_line(log, format, args);
    va_end(args);
}

void log_detail(const logger *log, const char *format, ...) {
    va_list args;
    if (!log || !log->fn || !log->details)
        return;
    va_start(args, format);
    write_line(log, format, args);
    va_end(args);
}

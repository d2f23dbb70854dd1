/* log.c - see log.h. */
#include "base/log.h"
#include "base/escape.h"

#include <stdarg.h>
#include <stdio.h>

void log_line(const logger *log, const char *format, ...) {
    if (!log || !log->fn)
        return;
    char raw[1024], line[1024];
    va_list args;
    va_start(args, format);
    if (vsnprintf(raw, sizeof raw, format, args) < 0)
        raw[0] = 0;
    va_end(args);
    escape_line(line, sizeof line, raw);
    log->fn(log->user, line);
}

/* terminal.c - see terminal.h. */
#include "cli/terminal/terminal.h"

#include "base/num.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_BAR = 60 }; /* columns; with 3 bytes each and the colours it fits TERMINAL_BAR */

static int terminal_width(FILE *out) {
    struct winsize size;
    if (!isatty(fileno(out)) || ioctl(fileno(out), TIOCGWINSZ, &size) || size.ws_col == 0)
        return 80;
    return NUM_MAX((int)size.ws_col, 20);
}

/* True if the environment names a UTF-8 locale; no locale has to be loaded for that. */
static bool knows_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        const char *value = getenv(names[i]);
        if (value && *value)
            return strcasestr(value, "utf-8") || strcasestr(value, "utf8");
    }
    return false;
}

terminal terminal_open(const cli_args *args, FILE *out) {
    return (terminal){args, out, terminal_width(out), cli_colour(out), knows_utf8()};
}

void terminal_line(const terminal *s, const char *format, ...) {
    char line[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (s->out == stderr)
        cli_note(s->args, "%s", line);
    else
        fprintf(s->out, "%s\n", line);
}

const char *terminal_bar(const terminal *s, char *out, int columns, double share, int colour) {
    columns = NUM_MIN(columns, MAX_BAR);
    if (columns < 4) { /* too narrow: no bar */
        out[0] = 0;
        return out;
    }
    int full = (int)(NUM_MIN(NUM_MAX(share, 0.0), 1.0) * columns + 0.5);
    if (full == 0 && share > 0)
        full = 1; /* show a small share as one column */
    int n = s->colour ? sprintf(out, "\033[%dm", colour) : 0;
    for (int i = 0; i < columns; i++)
        n += sprintf(out + n, "%s", i < full ? (s->utf8 ? "█" : "#") : (s->utf8 ? "░" : "."));
    if (s->colour)
        n += sprintf(out + n, "\033[0m");
    out[n] = 0;
    return out;
}

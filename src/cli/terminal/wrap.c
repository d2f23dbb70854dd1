/* wrap.c - lines broken between words, see wrap.h. */
#include "cli/terminal/wrap.h"

#include "base/buffer.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

void wrap_init(wrap *w) {
    const char *term = getenv("TERM");
    memset(w, 0, sizeof *w);
    w->terminal = isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb");
    wrap_reset(w);
}

static void begin_word(wrap *w) {
    w->word_column = w->column;
    w->n_word = 0;
    w->whole = true;
}

static void begin_line(wrap *w) {
    w->column = 0;
    w->last = 0;
    w->joins = 0;
    begin_word(w);
}

void wrap_reset(wrap *w) {
    begin_line(w);
    w->fresh = true;
}

static int columns(void) {
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : INT_MAX;
}

static bool opens(int32_t code) {
    const utf8proc_category_t c = utf8proc_category(code);
    return c == UTF8PROC_CATEGORY_PS || c == UTF8PROC_CATEGORY_PI;
}

static bool closes(int32_t code) {
    const utf8proc_category_t c = utf8proc_category(code);
    return c == UTF8PROC_CATEGORY_PE || c == UTF8PROC_CATEGORY_PF || c == UTF8PROC_CATEGORY_PO;
}

/* True if a line may end between two characters without a space. */
static bool parts(int32_t before, int32_t after) {
    const bool wide = utf8proc_charwidth(before) == 2 || utf8proc_charwidth(after) == 2;
    return wide && !opens(before) && !closes(after);
}

/* Moves the current word to a new line. */
static void break_line(wrap *w, buffer *out) {
    char back[32];
    if (!w->whole || w->word_column == 0) /* the word fills the line: the terminal breaks it */
        return;
    if (w->n_word) {
        const int n = snprintf(back, sizeof back, "\r\033[%dC\033[K", w->word_column);
        buffer_add(out, back, (size_t)n);
    }
    buffer_add(out, "\n", 1);
    buffer_add(out, w->word, w->n_word);
    w->column -= w->word_column;
    w->word_column = 0;
}

static void put_space(wrap *w, buffer *out, int32_t code) {
    if (w->column < w->columns) { /* a space at the end of a full line is invisible */
        buffer_add(out, code == '\t' ? "\t" : " ", 1);
        w->column = code == '\t' ? NUM_MIN((w->column / 8 + 1) * 8, w->columns - 1) : w->column + 1;
    }
    begin_word(w);
}

static void put_visible(wrap *w, buffer *out, int32_t code, const char *bytes, size_t n) {
    const int width = utf8proc_charwidth(code);
    const bool joined = w->last && !utf8proc_grapheme_break_stateful(w->last, code, &w->joins);
    if (w->last && !joined && parts(w->last, code))
        begin_word(w);
    if (w->column + width > w->columns)
        break_line(w, out);
    if (w->column + width > w->columns) { /* the terminal wraps by itself */
        w->column = w->word_column = 0;
        w->whole = false;
    }
    buffer_add(out, bytes, n);
    w->column += width;
    if (w->n_word + n > sizeof w->word)
        w->whole = false;
    if (w->whole) {
        memcpy(w->word + w->n_word, bytes, n);
        w->n_word += n;
    }
}

static void put_character(wrap *w, buffer *out, int32_t code, const char *bytes, size_t n) {
    static const char unknown[] = "\xEF\xBF\xBD";
    if (w->fresh && code == ' ')
        return;
    w->fresh = false;
    if (code == '\n') {
        buffer_add(out, "\n", 1);
        begin_line(w);
        return;
    }
    if (code == ' ' || code == '\t') {
        put_space(w, out, code);
    } else if (code < 0 || utf8proc_category(code) == UTF8PROC_CATEGORY_CC) {
        code = 0xFFFD;
        put_visible(w, out, code, unknown, sizeof unknown - 1);
    } else {
        put_visible(w, out, code, bytes, n);
    }
    w->last = code;
}

bool wrap_write(wrap *w, const char *text, size_t n_byte) {
    if (!w->terminal)
        return cli_write(text, n_byte);
    buffer out = {0};
    w->columns = columns();
    for (size_t i = 0; i < n_byte;) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n =
            utf8proc_iterate((const uint8_t *)text + i, (utf8proc_ssize_t)(n_byte - i), &code);
        if (n <= 0) { /* invalid: one byte is shown as unknown */
            code = -1;
            n = 1;
        }
        put_character(w, &out, code, text + i, (size_t)n);
        i += (size_t)n;
    }
    const bool written = !out.no_memory && cli_write(out.data ? out.data : "", out.n);
    mem_free(out.data);
    return written;
}

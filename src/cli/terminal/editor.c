/* editor.c - see editor.h; uses libedit. libedit reads with get_char below: its own read is retried after the
 * first signal, and a signal between its check of a flag and its read would be lost. Its signal handlers are
 * off, since they signal the whole process group, so resizing, stopping and continuing are handled here. */
#include "cli/terminal/editor.h"

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/terminal/history.h"
#include "cli/terminal/paste.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdatomic.h>
#include <limits.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>
#include <wchar.h>

struct editor {
    EditLine *el;
    History *history;
    history_file *file; /* NULL: no history is stored */
    FILE *out;          /* stderr's terminal, buffered */
    bool colour;
    bool marks_pastes;
    char prompt[64];
    int prompt_columns;
    bool was_empty; /* the line was empty when a signal came */
};

static atomic_bool resized, stopping;

static void on_terminal_signal(int number) {
    atomic_store(number == SIGTSTP ? &stopping : &resized, true);
    int saved_errno = errno;
    cli_wake();
    errno = saved_errno;
}

static editor *editor_of(EditLine *el) {
    editor *e;
    return el_get(el, EL_CLIENTDATA, &e) ? NULL : e;
}

/* Switches bracketed paste on or off. A signal that ends the program also switches it off. */
static void mark_pastes(const editor *e, bool on) {
    if (!e->marks_pastes)
        return;
    fputs(on ? PASTE_ASK : PASTE_STOP, e->out);
    fflush(e->out);
    cli_undo_terminal(on ? PASTE_STOP : NULL);
}

/* Handles Ctrl-Z: restores the terminal, stops, and prepares the terminal again when continued. */
static void stop_here(EditLine *el) {
    struct sigaction before, plain = {.sa_handler = SIG_DFL};
    mark_pastes(editor_of(el), false);
    el_set(el, EL_PREP_TERM, 0);
    sigaction(SIGTSTP, &plain, &before);
    raise(SIGTSTP);
    sigaction(SIGTSTP, &before, NULL);
    el_set(el, EL_PREP_TERM, 1);
    mark_pastes(editor_of(el), true);
    el_set(el, EL_REFRESH);
}

/* Columns of a character that is drawn at `column`. */
static int columns_of(wchar_t c, int column) {
    if (c == '\t')
        return 8 - column % 8;
    return c < ' ' || c == 0x7f ? 2 : utf8proc_charwidth((utf8proc_int32_t)c); /* ^A */
}

/* Number of lines from the prompt to the cursor on a terminal of this width. */
static int lines_above(const editor *e, int columns) {
    const LineInfoW *line = el_wline(e->el);
    int lines = 0, column = e->prompt_columns;
    for (const wchar_t *c = line->buffer; c < line->cursor; c++) {
        const int wide = *c == '\n' ? 0 : columns_of(*c, column);
        if (*c == '\n' || column + wide > columns) {
            lines++;
            column = 0;
        }
        column += wide;
    }
    return lines + (column >= columns);
}

/* After a resize terminals reflow the lines and move the cursor, so everything from the prompt on is drawn
 * again. */
static void redraw(editor *e) {
    struct winsize size;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const int up = known ? lines_above(e, size.ws_col) : 0;
    if (up)
        fprintf(e->out, "\033[%dA", up);
    fputs("\r\033[J", e->out);
    el_resize(e->el);
    el_set(e->el, EL_REFRESH);
}

/* Reads one byte. 0: end; -1: a signal that ends the line, or an error. Several resizes in a row cause one
 * redraw at their end. */
static int get_byte(EditLine *el, char *byte) {
    enum { REST_MS = 80 };
    for (bool stale = false;;) {
        const bool ready = cli_wait_input(STDIN_FILENO, stale ? REST_MS : -1);
        if (cli_interrupted())
            return -1;
        if (atomic_exchange(&stopping, false))
            stop_here(el);
        const bool moved = atomic_exchange(&resized, false);
        if (ready ? stale || moved : stale && !moved)
            redraw(editor_of(el));
        stale = moved;
        if (!ready)
            continue;
        const ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n >= 0 || errno != EINTR)
            return (int)n;
    }
}

/* el_rfunc_t: reads one character; invalid bytes become U+FFFD. */
static int get_char(EditLine *el, wchar_t *out) {
    mbstate_t state = {0};
    for (;;) {
        char byte;
        int got = get_byte(el, &byte);
        if (got <= 0) {
            const LineInfo *line = el_line(el);
            editor_of(el)->was_empty = line->lastchar == line->buffer;
            return got;
        }
        size_t n = mbrtowc(out, &byte, 1, &state);
        if (n == (size_t)-1)
            *out = 0xFFFD;
        if (n != (size_t)-2)
            return 1;
    }
}

static char *get_prompt(EditLine *el) {
    return editor_of(el)->prompt;
}

static int next_pasted(void *user, char *byte) {
    return get_byte(user, byte);
}

/* Editor functions, as el_set's EL_ADDFN takes them. */
static unsigned char on_paste(EditLine *el, int key) {
    (void)key;
    bool too_long;
    char *text = paste_read(next_pasted, el, &too_long);
    if (text && *text)
        too_long = el_insertstr(el, text) != 0;
    mem_free(text);
    if (too_long) {
        fprintf(editor_of(el)->out, "\r\n[the pasted text is too long and is left out]\r\n");
        return CC_REDISPLAY;
    }
    return CC_REFRESH;
}

static unsigned char on_line_break(EditLine *el, int key) {
    (void)key;
    return el_insertstr(el, "\n") ? CC_ERROR : CC_REFRESH;
}

static void remember(void *user, const char *line) {
    editor *e = user;
    HistEvent event;
    if (mbstowcs(NULL, line, 0) != (size_t)-1)
        history(e->history, &event, H_ENTER, line);
}

static bool is_newest(const editor *e, const char *line) {
    HistEvent event;
    return !history(e->history, &event, H_FIRST) && !strcmp(event.str, line);
}

/* Sets the character encoding to UTF-8 whatever the locale is, and keeps the rest of the locale. */
static bool set_utf8(void) {
    if (setlocale(LC_CTYPE, "") && !strcmp(nl_langinfo(CODESET), "UTF-8"))
        return true;
    return setlocale(LC_CTYPE, "C.UTF-8") != NULL;
}

static bool set_up(editor *e) {
    HistEvent event;
    int fd = dup(STDERR_FILENO);
    e->out = fd < 0 ? NULL : fdopen(fd, "w");
    e->el = e->out ? el_init("nibble", stdin, e->out, e->out) : NULL;
    e->history = history_init();
    if (!e->out && fd >= 0)
        close(fd);
    if (!e->el || !e->history)
        return false;
    history(e->history, &event, H_SETSIZE, (int)HISTORY_LINES);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT_ESC, get_prompt, '\1');
    el_set(e->el, EL_EDITOR, "emacs");
    el_set(e->el, EL_HIST, history, e->history);
    el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(e->el, EL_BIND, "^W", "ed-delete-prev-word", NULL);
    el_set(e->el, EL_BIND, "\\e[1;5C", "em-next-word", NULL); /* Ctrl and an arrow key in xterm */
    el_set(e->el, EL_BIND, "\\e[1;5D", "ed-prev-word", NULL);
    /* el_set would copy the names and never free them */
    el_wset(e->el, EL_ADDFN, L"nibble-paste", L"insert what is pasted", on_paste);
    el_wset(e->el, EL_ADDFN, L"nibble-line-break", L"begin a new line of the message", on_line_break);
    el_set(e->el, EL_BIND, "\\e\r", "nibble-line-break", NULL);
    el_set(e->el, EL_BIND, "\\e\n", "nibble-line-break", NULL);
    el_source(e->el, NULL);
    const char *keys;
    e->marks_pastes = !el_get(e->el, EL_EDITOR, &keys) && !strcmp(keys, "emacs");
    if (e->marks_pastes) /* in vi's insert mode Escape begins no sequence */
        el_set(e->el, EL_BIND, PASTE_MARK, "nibble-paste", NULL);
    el_set(e->el, EL_GETCFN, get_char);
    return true;
}

editor *editor_open(bool colour, bool keep) {
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDERR_FILENO) || !term || !*term || !strcmp(term, "dumb") ||
        !set_utf8())
        return NULL;
    editor *e = mem_calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->colour = colour;
    cli_save_terminal();
    if (!set_up(e)) {
        editor_close(e);
        return NULL;
    }
    e->file = keep ? history_file_open(remember, e) : NULL;
    return e;
}

void editor_close(editor *e) {
    if (!e)
        return;
    if (e->el)
        el_end(e->el);
    if (e->history)
        history_end(e->history);
    if (e->out)
        fclose(e->out);
    history_file_close(e->file);
    mem_free(e);
}

/* el_gets, with handlers for its signals. */
static const char *get_line(editor *e, int *n) {
    struct sigaction act = {.sa_handler = on_terminal_signal}, winch, tstp;
    sigaction(SIGWINCH, &act, &winch);
    sigaction(SIGTSTP, &act, &tstp);
    if (tstp.sa_handler == SIG_IGN) /* no job control */
        sigaction(SIGTSTP, &tstp, NULL);
    el_resize(e->el); /* the size may have changed while an answer was written */
    mark_pastes(e, true);
    const char *text = el_gets(e->el, n);
    mark_pastes(e, false);
    sigaction(SIGWINCH, &winch, NULL);
    sigaction(SIGTSTP, &tstp, NULL);
    fflush(e->out);
    return text;
}

input_result editor_line(editor *e, const char *prompt, const char **line, size_t *n_byte) {
    int n = 0;
    /* The colour ends before the last character: libedit drops an escape sequence with nothing after it. */
    int last = (int)strlen(prompt) - 1;
    snprintf(e->prompt, sizeof e->prompt, e->colour ? "\1\033[1;32m\1%.*s\1\033[0m\1%s" : "%.*s%s", last,
             prompt, prompt + last);
    e->prompt_columns = last + 1;
    const char *text = get_line(e, &n);
    if (cli_interrupted())
        return e->was_empty || cli_ending() ? INPUT_INTERRUPTED : INPUT_CLEARED;
    if (!text || n <= 0)
        return INPUT_END;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    *line = text;
    *n_byte = (size_t)n;
    char *entry = mem_strndup(text, (size_t)n);
    if (entry && n > 0 && !is_newest(e, entry)) {
        remember(e, entry);
        history_file_add(e->file, entry, strlen(entry));
    }
    mem_free(entry);
    return INPUT_LINE;
}

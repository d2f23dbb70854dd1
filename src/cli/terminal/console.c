/* console.c - stdout for answers, stderr for everything else. */
#include "cli/cli.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_LINE = 1024 };

static int write_errno;            /* errno of the first failed write to stdout; 0: none */
static bool wrote_document;        /* the document of --json was written */
static atomic_bool progress_shown; /* the terminal shows a progress line */
static bool stdin_closed;
static FILE *log_file;

void cli_hold_closed(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            stdin_closed |= fd == STDIN_FILENO;
            if (open("/dev/null", fd == STDERR_FILENO ? O_WRONLY : O_RDONLY) != fd)
                return;
        }
}

bool cli_stdin_closed(void) {
    return stdin_closed;
}

bool cli_colour(FILE *stream) {
    const char *no = getenv("NO_COLOR");
    return !(no && *no) && isatty(fileno(stream));
}

bool cli_log_open(const char *path) {
    if (!path || (log_file = fopen(path, "a")))
        return true;
    cli_usage_error("--log: cannot append to %s: %s", path, strerror(errno));
    return false;
}

static void end_progress(void) {
    if (atomic_exchange(&progress_shown, false))
        fputs("\r\033[K", stderr);
}

/* Writes a line to the log file, without colours. */
static void write_log(const char *prefix, const char *line) {
    flockfile(log_file); /* a server logs from two threads */
    fputs(prefix, log_file);
    for (const char *c = line; *c; c++)
        if (*c == '\033' && c[1] == '[')
            c += 1 + strcspn(c + 1, "m");
        else
            fputc(*c, log_file);
    fputc('\n', log_file);
    funlockfile(log_file);
}

static void write_line(const char *prefix, const char *line) {
    end_progress();
    fflush(stdout);
    fprintf(stderr, "%s%s\n", prefix, line);
    if (log_file)
        write_log(prefix, line);
}

int cli_fail(const nib_error *err) {
    const char *message = err->message[0] ? err->message : nib_status_text(err->status);
    cli_failed(err->status, message);
    if (err->status == NIB_E_CANCELLED)
        end_progress();
    else
        write_line("nibble: ", message);
    return nib_status_exit_code(err->status);
}

int cli_usage_error(const char *format, ...) {
    char line[MAX_LINE];
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    cli_failed(NIB_E_USAGE, line);
    write_line("nibble: ", line);
    return nib_status_exit_code(NIB_E_USAGE);
}

int cli_no_memory(void) {
    const nib_error err = {NIB_E_NOMEM, ""};
    return cli_fail(&err);
}

void cli_note(const cli_args *args, const char *format, ...) {
    char line[MAX_LINE];
    if (args->quiet)
        return;
    va_list list;
    va_start(list, format);
    vsnprintf(line, sizeof line, format, list);
    va_end(list);
    write_line("", line);
}

void cli_log(void *user, const char *line) {
    cli_note(user, "nibble: %s", line);
}

bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const cli_args *args = user;
    if (!args->quiet && isatty(STDERR_FILENO) && total) {
        static int shown = -1; /* at most one line for each percent */
        int percent = (int)((double)done / (double)total * 100);
        if (percent != shown || !progress_shown)
            fprintf(stderr, "\r\033[K%s %3d %%", what, percent);
        shown = percent;
        progress_shown = true;
        if (done >= total)
            end_progress();
    }
    return !cli_interrupted();
}

void cli_progress_line(const cli_args *args, const char *line) {
    struct winsize size;
    if (args->quiet || !isatty(STDERR_FILENO))
        return;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    fprintf(stderr, "\r\033[K%.*s", known ? size.ws_col - 1 : 79, line);
    progress_shown = true;
}

bool cli_write(const char *data, size_t n_byte) {
    if (write_errno)
        return false;
    end_progress();
    if (fflush(stdout))
        write_errno = errno ? errno : EIO;
    while (n_byte && !write_errno) {
        const ssize_t n = write(STDOUT_FILENO, data, n_byte);
        if (n < 0 && (errno != EINTR || cli_ending())) /* not after a signal that ends the program */
            write_errno = errno;
        data += n > 0 ? n : 0;
        n_byte -= n > 0 ? (size_t)n : 0;
    }
    return !write_errno;
}

bool cli_wrote_json(void) {
    return wrote_document;
}

int cli_document(char *text, json_t **out) {
    nib_error err;
    const nib_status status = jsonx_parse(text, strlen(text), out, &err);
    nib_free(text);
    return status == NIB_OK ? 0 : cli_fail(&err);
}

int cli_document_of(nib_status status, char *text, const nib_error *err, json_t **out) {
    *out = NULL;
    const int code = text ? cli_document(text, out) : 0;
    if (status == NIB_OK)
        return code;
    if (*out)
        cli_made(*out);
    return cli_fail(err);
}

int cli_write_json(json_t *document, const cli_args *args) {
    (void)args;
    char *text =
        document && !jsonx_lost() ? jsonx_text(document, JSON_REAL_PRECISION(9) | JSON_COMPACT) : NULL;
    json_decref(document);
    if (!text)
        return cli_no_memory(); /* a part of the document may be missing */
    cli_write(text, strlen(text));
    cli_write("\n", 1);
    wrote_document = true;
    mem_free(text);
    return 0;
}

/* Reports a failed write to stdout, except to a closed pipe. */
static void report_unwritten(void) {
    char line[MAX_LINE];
    snprintf(line, sizeof line, "cannot write to stdout: %s", strerror(write_errno));
    if (write_errno != EPIPE)
        write_line("nibble: ", line);
}

int cli_finish(int exit_code) {
    end_progress();
    if ((fflush(stdout) || ferror(stdout)) && !write_errno)
        write_errno = errno ? errno : EIO;
    if (write_errno && exit_code <= nib_status_exit_code(NIB_E_FAILED)) { /* commands return 0 or that */
        exit_code = nib_status_exit_code(write_errno == EINTR ? NIB_E_CANCELLED : NIB_E_FAILED);
        if (write_errno != EINTR)
            report_unwritten();
    }
    if (log_file)
        fclose(log_file);
    return cli_signal_code(exit_code);
}

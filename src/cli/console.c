/* console.c - stdout for answers, stderr for everything else, and signals. */
#include "cli/cli.h"

#include "base/num.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

static atomic_bool interrupted;
static atomic_int ending; /* the signal that ends the program; 0: none */
static _Atomic(nib_session *) running;
static int wake_pipe[2] = {-1, -1}; /* a handler writes here, so that no signal is lost before poll waits */
static struct termios terminal;     /* to be left as it was found */
static atomic_bool terminal_saved;
static _Atomic(const char *) terminal_undo;
static int write_errno;     /* why stdout could not be written, 0: it could */
static bool progress_shown; /* a progress line stands on the terminal */
static bool stdin_closed;
static FILE *log_file;

/* Runs in a signal handler. */
static void leave_now(int exit_code) {
    const char *undo = atomic_load(&terminal_undo);
    if (undo && write(STDERR_FILENO, undo, strlen(undo)) < 0) {
        /* there is no terminal any more */
    }
    if (atomic_load(&terminal_saved))
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    _exit(exit_code);
}

static void on_signal(int number) {
    int saved_errno = errno;
    if (number == SIGINT) {
        if (atomic_exchange(&interrupted, true))
            leave_now(nib_status_exit_code(NIB_E_CANCELLED));
    } else if (atomic_exchange(&ending, number)) {
        leave_now(128 + number);
    }
    nib_session *session = atomic_load(&running);
    if (session)
        nib_session_cancel(session);
    cli_wake();
    errno = saved_errno;
}

/* A standard stream that is closed would be the first file that is opened: something takes its place, from
 * which nothing comes, and which cannot be written but for stderr. */
static void hold_closed(void) {
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

void cli_console_init(void) {
    hold_closed();
    if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK))
        wake_pipe[0] = wake_pipe[1] = -1;
    struct sigaction act = {.sa_handler = on_signal}, before;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &act, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error that we see and report */
}

bool cli_interrupted(void) {
    return atomic_load(&interrupted) || atomic_load(&ending);
}

bool cli_ending(void) {
    return atomic_load(&ending) != 0;
}

void cli_interrupt_clear(void) {
    atomic_store(&interrupted, false);
}

void cli_interrupt_session(nib_session *session) {
    atomic_store(&running, session);
    if (session && cli_interrupted())
        nib_session_cancel(session);
}

void cli_wake(void) {
    if (write(wake_pipe[1], "", 1) < 0) {
        /* full: it will wake up anyway */
    }
}

bool cli_wait_input(int most_ms) {
    struct pollfd fds[2] = {{.fd = STDIN_FILENO, .events = POLLIN}, {.fd = wake_pipe[0], .events = POLLIN}};
    while (!cli_interrupted()) {
        const int n = poll(fds, 2, most_ms);
        if (n == 0)
            return false;
        if (n < 0 && errno != EINTR)
            return true; /* reading will say what is wrong */
        char drained[64];
        if (n > 0 && fds[1].revents && read(wake_pipe[0], drained, sizeof drained) > 0)
            return false;
        if (n > 0 && fds[0].revents)
            return true;
    }
    return false;
}

void cli_save_terminal(void) {
    if (tcgetattr(STDIN_FILENO, &terminal) == 0)
        atomic_store(&terminal_saved, true);
}

void cli_undo_terminal(const char *sequence) {
    atomic_store(&terminal_undo, sequence);
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
    if (progress_shown)
        fputs("\r\033[K", stderr);
    progress_shown = false;
}

/* A line as a file wants it: without colours. */
static void write_log(const char *prefix, const char *line) {
    fputs(prefix, log_file);
    for (const char *c = line; *c; c++)
        if (*c == '\033' && c[1] == '[')
            c += 1 + strcspn(c + 1, "m");
        else
            fputc(*c, log_file);
    fputc('\n', log_file);
}

static void say(const char *prefix, const char *format, va_list list) {
    char line[1024];
    vsnprintf(line, sizeof line, format, list);
    end_progress();
    fflush(stdout);
    fprintf(stderr, "%s%s\n", prefix, line);
    if (log_file)
        write_log(prefix, line);
}

static void say_error(const char *format, ...) {
    va_list list;
    va_start(list, format);
    say("nibble: ", format, list);
    va_end(list);
}

int cli_fail(const nib_error *err) {
    if (err->status == NIB_E_CANCELLED)
        end_progress();
    else
        say_error("%s", err->message[0] ? err->message : nib_status_text(err->status));
    return nib_status_exit_code(err->status);
}

int cli_usage_error(const char *format, ...) {
    va_list list;
    va_start(list, format);
    say("nibble: ", format, list);
    va_end(list);
    return nib_status_exit_code(NIB_E_USAGE);
}

void cli_note(const cli_args *args, const char *format, ...) {
    if (args->quiet)
        return;
    va_list list;
    va_start(list, format);
    say("", format, list);
    va_end(list);
}

void cli_log(void *user, const char *line) {
    cli_note(user, "nibble: %s", line);
}

bool cli_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const cli_args *args = user;
    if (!args->quiet && isatty(STDERR_FILENO) && total) {
        static int shown = -1; /* one line for each percent is enough for any eye and any log */
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
    if (fwrite(data, 1, n_byte, stdout) != n_byte || fflush(stdout)) {
        write_errno = errno ? errno : EIO;
        return false;
    }
    return true;
}

int cli_write_json(json_t *document, const cli_args *args) {
    (void)args;
    char *text = document ? json_dumps(document, JSON_REAL_PRECISION(9) | JSON_COMPACT) : NULL;
    json_decref(document);
    if (!text)
        return cli_usage_error("out of memory");
    cli_write(text, strlen(text));
    cli_write("\n", 1);
    free(text);
    return 0;
}

int cli_finish(int exit_code) {
    end_progress();
    if ((fflush(stdout) || ferror(stdout)) && !write_errno)
        write_errno = errno ? errno : EIO;
    if (write_errno && exit_code == 0) {
        if (write_errno != EPIPE) /* who closed the pipe knows */
            say_error("cannot write to stdout: %s", strerror(write_errno));
        exit_code = 1;
    }
    if (log_file)
        fclose(log_file);
    if (cli_ending() && exit_code == nib_status_exit_code(NIB_E_CANCELLED))
        exit_code = 128 + atomic_load(&ending);
    return exit_code;
}

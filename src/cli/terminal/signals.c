/* signals.c - one flag, which long work polls through cli_cancel; a wait for a file is woken.
 *
 * The first signal sets the flag, and the command ends by itself and cleans up its files and terminal. If it
 * cannot (a system call does not return), the second signal, or the alarm that the first one sets, ends the
 * process. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

enum { GRACE_SECONDS = 5 }; /* ending takes about 0.1 s, longer on an overloaded machine */

static atomic_bool interrupted;
static atomic_int ending;           /* the signal that ends the program; 0: none */
static atomic_bool drains;          /* do not set the alarm */
static int wake_pipe[2] = {-1, -1}; /* a handler writes here, so that no signal is lost before poll waits */
static struct termios terminal;     /* its state at the start, to be restored */
static atomic_bool terminal_saved;
static _Atomic(const char *) terminal_undo;

int cli_signal_code(int exit_code) {
    const int number = atomic_load(&ending);
    return number && exit_code == nib_status_exit_code(NIB_E_CANCELLED) ? 128 + number : exit_code;
}

/* These two run in a signal handler. */
static void leave_now(int number) {
    const char *undo = atomic_load(&terminal_undo);
    (void)number;
    if (undo && write(STDERR_FILENO, undo, strlen(undo)) < 0) {
        /* the terminal is gone */
    }
    if (atomic_load(&terminal_saved))
        tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    _exit(cli_signal_code(nib_status_exit_code(NIB_E_CANCELLED)));
}

static void on_signal(int number) {
    int saved_errno = errno;
    const bool both = atomic_load(&drains) && cli_interrupted();
    const bool again =
        number == SIGINT ? atomic_exchange(&interrupted, true) : atomic_exchange(&ending, number) != 0;
    if (again || both)
        leave_now(number);
    if (!atomic_load(&drains))
        alarm(GRACE_SECONDS);
    cli_wake();
    errno = saved_errno;
}

void cli_signals_init(void) {
    if (pipe2(wake_pipe, O_CLOEXEC | O_NONBLOCK))
        wake_pipe[0] = wake_pipe[1] = -1;
    struct sigaction act = {.sa_handler = on_signal}, late = {.sa_handler = leave_now}, before;
    sigaction(SIGALRM, &late, NULL);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup */
        sigaction(SIGHUP, &act, NULL);
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is a write error that we see and report */
    signal(SIGXFSZ, SIG_IGN); /* so is a file that has reached its limit (ulimit -f) */
}

void cli_signals_drain(void) {
    atomic_store(&drains, true);
}

void cli_signals_leave(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGPIPE, SIGXFSZ};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        signal(numbers[i], SIG_DFL);
}

bool cli_interrupted(void) {
    return atomic_load(&interrupted) || atomic_load(&ending);
}

bool cli_cancel(void *user) {
    (void)user;
    return cli_interrupted();
}

bool cli_ending(void) {
    return atomic_load(&ending) != 0;
}

void cli_interrupt_clear(void) {
    atomic_store(&interrupted, false);
    if (!cli_ending())
        alarm(0);
}

void cli_wake(void) {
    if (write(wake_pipe[1], "", 1) < 0) {
        /* the pipe is full, so the wait ends anyway */
    }
}

bool cli_wait_input(int fd, int max_ms) {
    struct pollfd fds[2] = {{.fd = fd, .events = POLLIN}, {.fd = wake_pipe[0], .events = POLLIN}};
    while (!cli_interrupted()) {
        const int n = poll(fds, 2, max_ms);
        if (n == 0)
            return false;
        if (n < 0 && errno != EINTR)
            return true; /* the read will report the error */
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

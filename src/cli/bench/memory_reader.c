/* memory_reader.c - see memory_reader.h. Over a socket the parent sends the seconds of a pass and the child
 * replies with the rate. The child ends when the socket is closed, so it also ends if the parent is killed.
 */
#include "cli/bench/memory_reader.h"

#include "cli/cli.h"
#include "base/rate.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* The child's loop. It allocates its buffer at the first pass, so that an engine opened before that is
 * planned without it. */
static void serve(int end, int n_thread) {
    rate_reader *memory = NULL;
    double value;
    while (recv(end, &value, sizeof value, MSG_WAITALL) == (ssize_t)sizeof value) {
        if (!memory && rate_reader_open(n_thread, (uint64_t)1 << 29, &memory, NULL))
            return;
        value = rate_reader_pass(memory, value);
        if (send(end, &value, sizeof value, MSG_NOSIGNAL) != (ssize_t)sizeof value)
            return;
    }
}

bool memory_reader_open(memory_reader *r, int n_thread) {
    int ends[2];
    *r = (memory_reader){0, -1};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        return false;
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        cli_signals_leave();
        serve(ends[1], n_thread);
        _exit(0);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return false;
    }
    *r = (memory_reader){child, ends[0]};
    return true;
}

double memory_reader_pass(memory_reader *r, double seconds) {
    if (!r->child)
        return 0;
    if (send(r->end, &seconds, sizeof seconds, MSG_NOSIGNAL) != (ssize_t)sizeof seconds ||
        !cli_wait_input(r->end, -1) ||
        recv(r->end, &seconds, sizeof seconds, MSG_WAITALL) != (ssize_t)sizeof seconds) {
        memory_reader_close(r);
        return 0;
    }
    return seconds;
}

void memory_reader_close(memory_reader *r) {
    if (!r->child)
        return;
    close(r->end);
    kill(r->child, SIGKILL); /* it may be in a pass */
    while (waitpid(r->child, NULL, 0) < 0 && errno == EINTR)
        continue;
    *r = (memory_reader){0, -1};
}

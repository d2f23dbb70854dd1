/* processes.c - see processes.h. */
#include "cluster/processes.h"

#include "base/num.h"
#include "cluster/heartbeat.h"
#include "cluster/launch.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BLAME_S 1.0
#define END_S   5.0
enum { POLL_NS = 5000000 };

extern char **environ;

static int spawn(char *const *argv, const int *fds, size_t n_fd, int in, bool ignores_interrupt, pid_t *out) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t blocked;
    int failed = posix_spawn_file_actions_init(&files);
    if (failed)
        return failed;
    for (size_t i = 0; i < n_fd && !failed; i++)
        failed = posix_spawn_file_actions_adddup2(&files, fds[i], fds[i]); /* clears close-on-exec */
    if (!failed && in < 0)
        failed = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    else if (!failed)
        failed = posix_spawn_file_actions_adddup2(&files, in, STDIN_FILENO);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (!failed)
        failed = posix_spawnattr_init(&attributes);
    if (!failed) {
        pthread_sigmask(SIG_BLOCK, NULL, &blocked);
        if (ignores_interrupt)
            sigaddset(&blocked, SIGINT);
        posix_spawnattr_setsigmask(&attributes, &blocked);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
        failed = posix_spawnp(out, argv[0], &files, &attributes, argv, environ);
        posix_spawnattr_destroy(&attributes);
    }
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

nib_status processes_spawn(processes *p, char *const *argv, const int *fds, size_t n_fd, int in,
                           bool ignores_interrupt, nib_error *err) {
    const int failed = spawn(argv, fds, n_fd, in, ignores_interrupt, &p->id[p->n]);
    if (failed)
        return nib_fail(err, NIB_E_FAILED, "cannot start %s for a rank: %s", argv[0], strerror(failed));
    p->n++;
    return NIB_OK;
}

/* Starts "PROGRAM --rank IN,OUT,CONTROL". */
static nib_status start_one(processes *p, const char *program, rank_link of, nib_error *err) {
    char connections[64];
    char *const argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--rank", connections, NULL};
    const int fds[] = {of.in, of.out, of.control};
    snprintf(connections, sizeof connections, "%d,%d,%d", of.in, of.out, of.control);
    return processes_spawn(p, argv, fds, NUM_COUNT(fds), -1, false, err);
}

/* On this machine: pairs of sockets connect them. */
static nib_status start_here(processes *p, const processes_how *how, rank_link *first, int *controls,
                             nib_error *err) {
    rank_link links[CLUSTER_MAX_RANK];
    const int n = how->places->n;
    nib_status status = NIB_OK;
    for (int i = 0; i < n; i++)
        links[i] = (rank_link){-1, -1, -1};
    for (int i = 0; i < n && status == NIB_OK; i++)
        status = link_pair(&links[(i + 1) % n].in, &links[i].out, err);
    for (int i = 1; i < n && status == NIB_OK; i++)
        status = link_pair(&controls[i - 1], &links[i].control, err);
    for (int i = 1; i < n && status == NIB_OK; i++)
        status = start_one(p, how->program, links[i], err);
    for (int i = status == NIB_OK ? 1 : 0; i < n; i++)
        link_close(&links[i]);
    if (status == NIB_OK)
        *first = links[0];
    return status;
}

nib_status processes_start(processes *p, const processes_how *how, rank_link *first, int *controls,
                           nib_error *err) {
    const int n = how->places->n;
    p->n = 0;
    for (int i = 1; i < n; i++) {
        controls[i - 1] = -1;
        memcpy(p->host[i - 1], how->places->place[i].name, CLUSTER_HOST);
    }
    const nib_status status = how->places->over_network ? launch_ranks(p, how, first, controls, err)
                                                        : start_here(p, how, first, controls, err);
    for (int i = 1; i < n && status != NIB_OK; i++)
        if (controls[i - 1] >= 0)
            close(controls[i - 1]);
    if (status != NIB_OK)
        processes_end(p);
    return status;
}

/* ---- their end ---- */

static void pause_briefly(void) {
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
}

/* Whether rank i + 1 has ended; *how: as of waitpid. */
static bool has_ended(processes *p, int i, int *how) {
    *how = 0;
    if (p->id[i] == 0)
        return false;
    const pid_t got = waitpid(p->id[i], how, WNOHANG);
    if (got == 0 || (got < 0 && errno == EINTR))
        return false;
    p->id[i] = 0; /* also if another part of the program has waited for it */
    return true;
}

enum { NAME = CLUSTER_HOST + 64 };

/* "rank 2 on gpu1 (process 17)"; the process of a rank on another host is its launcher's. */
static const char *name_rank(const processes *p, int rank, pid_t id, char out[NAME]) {
    const char *host = p->host[rank - 1];
    int n = snprintf(out, NAME, "rank %d%s%s", rank, host[0] ? " on " : "", host);
    if (id)
        snprintf(out + n, NAME - (size_t)n, " (process %ld)", (long)id);
    return out;
}

/* Names the first rank that has ended by a signal or with an error. any: or in another way. */
static nib_status find_ended(processes *p, bool any, nib_error *err) {
    char name[NAME];
    for (int i = 0; i < p->n; i++) {
        const pid_t id = p->id[i];
        int how;
        if (!has_ended(p, i, &how))
            continue;
        name_rank(p, i + 1, id, name);
        if (WIFSIGNALED(how))
            return nib_fail(err, NIB_E_FAILED, "%s was ended by signal %d (%s)", name, WTERMSIG(how),
                            strsignal(WTERMSIG(how)));
        if (any || (WIFEXITED(how) && WEXITSTATUS(how) != 0))
            return nib_fail(err, NIB_E_FAILED, "%s has ended with exit code %d", name, WEXITSTATUS(how));
    }
    return NIB_OK;
}

nib_status processes_check(processes *p, nib_error *err) {
    return find_ended(p, true, err);
}

nib_status processes_blame(processes *p, int first, nib_error *err) {
    const double until = time_now() + BLAME_S;
    char name[NAME];
    while (time_now() < until) {
        NIB_TRY(find_ended(p, false, err));
        pause_briefly();
    }
    if (first > 0)
        return nib_fail(err, NIB_E_FAILED, "%s has ended: its connection is closed",
                        name_rank(p, first, p->id[first - 1], name));
    return nib_fail(err, NIB_E_FAILED, "the connection of the ranks is broken");
}

nib_status processes_kill(processes *p, int rank, nib_error *err) {
    const pid_t id = p->id[rank - 1];
    char name[NAME];
    int how;
    if (!has_ended(p, rank - 1, &how) && id)
        kill(id, SIGKILL);
    return nib_fail(
        err, NIB_E_FAILED, "%s has given no sign of life for %d seconds: it is stopped, or hangs%s",
        name_rank(p, rank, id, name), HEARTBEAT_S, p->host[rank - 1][0] ? ", or cannot be reached" : "");
}

void processes_end(processes *p) {
    const double until = time_now() + END_S;
    int how;
    for (int i = 0; i < p->n; i++) {
        while (p->id[i] && !has_ended(p, i, &how) && time_now() < until)
            pause_briefly();
        if (p->id[i] == 0)
            continue;
        kill(p->id[i], SIGKILL);
        while (waitpid(p->id[i], &how, 0) < 0 && errno == EINTR)
            ;
        p->id[i] = 0;
    }
    p->n = 0;
}

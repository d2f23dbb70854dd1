/* processes.c - see processes.h. */
#include "cluster/processes.h"

#include "base/mem.h"
#include "base/num.h"
#include "cluster/heartbeat.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GPU_VARIABLE "CUDA_VISIBLE_DEVICES"
#define BLAME_S      1.0
#define END_S        5.0
enum { POLL_NS = 5000000 };

extern char **environ;

/* The GPU of that number among those that this process sees. */
static void name_gpu(int gpu, char *out, size_t size) {
    const char *seen = getenv(GPU_VARIABLE);
    snprintf(out, size, "%s=%d", GPU_VARIABLE, gpu);
    for (int i = 0; seen && *seen; i++) {
        const size_t n = strcspn(seen, ",");
        if (i == gpu)
            snprintf(out, size, "%s=%.*s", GPU_VARIABLE, (int)n, seen);
        seen += n + (seen[n] == ',');
    }
}

/* A copy of the environment with one more variable. */
static char **environment_with(char *variable) {
    const size_t n = strcspn(variable, "=") + 1;
    size_t n_all = 0, at = 0;
    while (environ[n_all])
        n_all++;
    char **out = mem_array(n_all + 2, sizeof *out);
    for (size_t i = 0; out && i < n_all; i++)
        if (strncmp(environ[i], variable, n) != 0)
            out[at++] = environ[i];
    if (out) {
        out[at++] = variable;
        out[at] = NULL;
    }
    return out;
}

/* The program gets its connections as the same numbers, an empty stdin, and stderr as stdout: answers are
 * the first rank's. */
static int spawn(const char *program, rank_link of, char **environment, pid_t *out) {
    char connections[64];
    char *const argv[] = {(char *)(uintptr_t) "nibble", (char *)(uintptr_t) "--rank", connections, NULL};
    const int fds[] = {of.in, of.out, of.control};
    posix_spawn_file_actions_t files;
    snprintf(connections, sizeof connections, "%d,%d,%d", of.in, of.out, of.control);
    int failed = posix_spawn_file_actions_init(&files);
    if (failed)
        return failed;
    for (size_t i = 0; i < NUM_COUNT(fds) && !failed; i++)
        failed = posix_spawn_file_actions_adddup2(&files, fds[i], fds[i]); /* clears close-on-exec */
    if (!failed)
        failed = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    if (!failed)
        failed = posix_spawnp(out, program, &files, NULL, argv, environment);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

static nib_status start_one(processes *p, const char *program, const cluster_place *place, rank_link of,
                            nib_error *err) {
    char gpu[64];
    char **environment = environ;
    if (place->gpu >= 0) {
        name_gpu(place->gpu, gpu, sizeof gpu);
        environment = environment_with(gpu);
        if (!environment)
            return nib_fail_nomem(err, sizeof *environ, "the environment of a rank");
    }
    const int failed = spawn(program, of, environment, &p->id[p->n]);
    if (environment != environ)
        mem_free((void *)environment);
    if (failed)
        return nib_fail(err, NIB_E_FAILED, "cannot start %s for a rank: %s", program, strerror(failed));
    p->n++;
    return NIB_OK;
}

nib_status processes_start(processes *p, const char *program, const cluster_places *places, rank_link *first,
                           int *controls, nib_error *err) {
    rank_link links[CLUSTER_MAX_RANK];
    const int n = places->n;
    nib_status status = NIB_OK;
    p->n = 0;
    for (int i = 0; i < n; i++)
        links[i] = (rank_link){-1, -1, -1};
    for (int i = 0; i < n && status == NIB_OK; i++)
        status = link_pair(&links[(i + 1) % n].in, &links[i].out, err);
    for (int i = 1; i < n; i++)
        controls[i - 1] = -1;
    for (int i = 1; i < n && status == NIB_OK; i++)
        status = link_pair(&controls[i - 1], &links[i].control, err);
    for (int i = 1; i < n && status == NIB_OK; i++)
        status = start_one(p, program, &places->place[i], links[i], err);
    for (int i = status == NIB_OK ? 1 : 0; i < n; i++)
        link_close(&links[i]);
    if (status == NIB_OK)
        *first = links[0];
    else {
        for (int i = 1; i < n; i++)
            if (controls[i - 1] >= 0)
                close(controls[i - 1]);
        processes_end(p);
    }
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

nib_status processes_blame(processes *p, nib_error *err) {
    const double until = time_now() + BLAME_S;
    while (time_now() < until) {
        for (int i = 0; i < p->n; i++) {
            const pid_t id = p->id[i];
            int how;
            if (!has_ended(p, i, &how))
                continue;
            if (WIFSIGNALED(how))
                return nib_fail(err, NIB_E_FAILED, "rank %d (process %ld) was ended by signal %d (%s)", i + 1,
                                (long)id, WTERMSIG(how), strsignal(WTERMSIG(how)));
            if (WIFEXITED(how) && WEXITSTATUS(how) != 0)
                return nib_fail(err, NIB_E_FAILED, "rank %d (process %ld) has ended with exit code %d", i + 1,
                                (long)id, WEXITSTATUS(how));
        }
        pause_briefly();
    }
    return nib_fail(err, NIB_E_FAILED, "the connection of the ranks is broken");
}

nib_status processes_kill(processes *p, int rank, nib_error *err) {
    const pid_t id = p->id[rank - 1];
    int how;
    if (!has_ended(p, rank - 1, &how) && id)
        kill(id, SIGKILL);
    return nib_fail(err, NIB_E_FAILED,
                    "rank %d (process %ld) has given no sign of life for %d seconds: it is stopped, or hangs",
                    rank, (long)id, HEARTBEAT_S);
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

/* processes.h - the other ranks' processes, which the first one starts. */
#ifndef NIB_CLUSTER_PROCESSES_H
#define NIB_CLUSTER_PROCESSES_H

#include "base/cancel.h"
#include "cluster/link.h"
#include "cluster/places.h"

#include <sys/types.h>

typedef struct processes {
    int n;
    pid_t id[CLUSTER_MAX_RANK]; /* of rank i + 1, or of its launcher; 0: it has ended, and was waited for */
    char host[CLUSTER_MAX_RANK][CLUSTER_HOST]; /* of rank i + 1; "": this one */
} processes;

typedef struct processes_how {
    const char *program;  /* nibble, on this machine */
    const char *launcher; /* words before a host's name and the program to run there (launch.h) */
    const cluster_places *places;
    const canceller *cancel; /* NULL: never */
} processes_how;

/* Starts ranks 1 to places->n - 1, connected in a ring; *first is rank 0's, and controls [n - 1] are its
 * connections for signs of life. On an error nothing is left. NIB_E_FAILED: a program cannot be started, or a
 * host not be reached. */
nib_status processes_start(processes *p, const processes_how *how, rank_link *first, int *controls,
                           nib_error *err);
/* Starts argv as the next rank, with the descriptors of fds [n_fd] under the same numbers, this stdin (below
 * 0: an empty one), and stderr as its stdout. ignores_interrupt: Ctrl-C does not end it. */
nib_status processes_spawn(processes *p, char *const *argv, const int *fds, size_t n_fd, int in,
                           bool ignores_interrupt, nib_error *err);
/* NIB_E_FAILED names a rank that has ended although all are needed. */
nib_status processes_check(processes *p, nib_error *err);
/* Kills a rank that is stopped or hangs, and names it. Returns the status. */
nib_status processes_kill(processes *p, int rank, nib_error *err);
/* After a connection has failed: names the rank that has ended by a signal or with an error, if there is one
 * within a second, else the rank whose connection ended first (0: unknown). Returns the status. */
nib_status processes_blame(processes *p, int first, nib_error *err);
/* Waits for all, which end because rank 0 has closed its connections; kills those that do not. */
void processes_end(processes *p);

#endif

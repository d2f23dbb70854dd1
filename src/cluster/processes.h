/* processes.h - the other ranks' processes, which the first one starts. */
#ifndef NIB_CLUSTER_PROCESSES_H
#define NIB_CLUSTER_PROCESSES_H

#include "cluster/link.h"
#include "cluster/places.h"

#include <sys/types.h>

typedef struct processes {
    int n;
    pid_t id[CLUSTER_MAX_RANK]; /* of rank i + 1; 0: it has ended, and was waited for */
} processes;

/* Starts ranks 1 to places->n - 1 as "PROGRAM --rank IN,OUT,CONTROL", connected in a ring; *first is rank
 * 0's, and controls [n - 1] are its connections for signs of life. On an error nothing is left. NIB_E_FAILED:
 * the program cannot be started. */
nib_status processes_start(processes *p, const char *program, const cluster_places *places, rank_link *first,
                           int *controls, nib_error *err);
/* Kills a rank that is stopped or hangs, and names it. Returns the status. */
nib_status processes_kill(processes *p, int rank, nib_error *err);
/* After a connection has failed: names the rank that has ended by a signal or with an error, if there is one
 * within a second. Returns the status. */
nib_status processes_blame(processes *p, nib_error *err);
/* Waits for all, which end because rank 0 has closed its connections; kills those that do not. */
void processes_end(processes *p);

#endif

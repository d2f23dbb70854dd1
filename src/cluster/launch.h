/* launch.h - ranks on several hosts: how the first one starts them, and how all find each other.
 *
 * Rank 0 listens on a port of the first host, and starts "LAUNCHER HOST PROGRAM --rank tcp:PORT,RANK,ADDRESS"
 * for each other rank; on the first host PROGRAM alone. The secret of the run goes to their stdin, because
 * everybody sees a command line. Each rank calls rank 0 (its connection for signs of life), with the port at
 * which it listens itself; when all have, rank 0 tells each the address of the next one. Then the ring is
 * closed in its order: rank i accepts the call of rank i - 1, and calls rank i + 1. */
#ifndef NIB_CLUSTER_LAUNCH_H
#define NIB_CLUSTER_LAUNCH_H

#include "cluster/processes.h"

#define LAUNCH_PREFIX "tcp:"

/* As processes_start, which calls it and undoes an error. */
nib_status launch_ranks(processes *p, const processes_how *how, rank_link *first, int *controls,
                        nib_error *err);
/* The side of another rank: `text` is what follows --rank. The caller closes *out, also after an error. */
nib_status launch_join(const char *text, rank_link *out, nib_error *err);

#endif

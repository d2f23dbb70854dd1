/* heartbeat.h - whether the other ranks live. A rank that ends closes its connections, but one that is
 * stopped or hangs in the system does not. So a thread of each rank sends a byte to the first rank twice a
 * second, however long its pass takes, and a thread of the first rank waits for them. When a rank has been
 * silent for HEARTBEAT_S seconds, the ring is shut, so that whoever waits for a message gets an error. */
#ifndef NIB_CLUSTER_HEARTBEAT_H
#define NIB_CLUSTER_HEARTBEAT_H

#include "cluster/link.h"
#include "cluster/places.h"

enum { HEARTBEAT_S = 4 };

typedef struct heartbeat heartbeat;

/* The other ranks: beats on l->control, until it is closed. When the first rank ends, the ring is shut. */
nib_status heartbeat_begin(const rank_link *l, heartbeat **out, nib_error *err);
/* The first rank: watches n others, whose connections are controls [n], owned if it succeeds. */
nib_status heartbeat_watch(const int *controls, int n, const rank_link *ring, heartbeat **out,
                           nib_error *err);
/* The rank that was silent, from 1 on; 0: none. */
int heartbeat_silent(const heartbeat *h);
/* The rank whose connection ended first, from 1 on; 0: none. */
int heartbeat_ended(const heartbeat *h);
void heartbeat_end(heartbeat *h); /* before the ring is closed; NULL is fine */

#endif

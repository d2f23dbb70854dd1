/* link.h - the connections of a rank: to the rank before it and to the one after it, and to the first rank.
 *
 * The ranks of a pipeline are a ring: 0 -> 1 -> ... -> n - 1 -> 0. A message goes around it in one direction.
 * A rank whose neighbour has ended gets an error at once, because the system closes its connections, and ends
 * as well; so the end of any rank reaches the first one. One thread sends, one receives. The connection to
 * the first rank is for signs of life (heartbeat.h). */
#ifndef NIB_CLUSTER_LINK_H
#define NIB_CLUSTER_LINK_H

#include "base/status.h"

typedef struct rank_link {
    int in, out, control; /* connected stream sockets, owned; below 0: none */
} rank_link;

typedef struct link_part {
    const void *at;
    size_t n_byte;
} link_part;

enum { LINK_MAX_PART = 6 };

/* Moves a descriptor above those that a started program gets; other programs do not inherit it. Returns the
 * new one, or below 0 with errno; the old one is closed. fd below 0: likewise. */
int link_raise(int fd);
/* Two connected sockets that other programs do not inherit. */
nib_status link_pair(int *in, int *out, nib_error *err);
void link_close(rank_link *l);
/* Ends the connections: calls that block on them fail. Any thread. */
void link_shut(const rank_link *l);
/* Sends the parts one after the other; blocks while the next rank does not receive. NIB_E_IO: it has
 * ended. */
nib_status link_send(const rank_link *l, const link_part *parts, int n_part, nib_error *err);
/* Returns when something is there or the connection has ended, or after `seconds`. It does not sleep. */
void link_look(const rank_link *l, double seconds);
/* Blocks until n_byte bytes are there. ended: the rank before may have ended, so that there is nothing to
 * receive (*ended is then true, with NIB_OK); NULL: that is an error. NIB_E_IO: it has ended. */
nib_status link_receive(const rank_link *l, void *to, size_t n_byte, bool *ended, nib_error *err);

#endif

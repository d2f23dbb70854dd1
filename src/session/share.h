/* share.h - who is served next: the client that has had least, by the virtual token counters of Sheng et al.
 * 2024 (VTC, algorithm 2). Each client has a counter of what was computed for it; a client that comes anew
 * begins where the least of those that are there stands, so that nobody saves up. Between two clients that
 * always have something to do the counters differ by no more than one step gives.
 *
 * One thread at a time. */
#ifndef NIB_SESSION_SHARE_H
#define NIB_SESSION_SHARE_H

#include <stdint.h>

enum { SHARE_CLIENTS = 512 /* that are told apart at a time */ };
/* What a token of an answer counts, in tokens of a prompt (section 3.1). */
#define SHARE_ANSWER 2.0

typedef struct share_client {
    uint64_t id;
    double served;
    int64_t n_open; /* requests that wait or are computed */
} share_client;

/* Zeroed: nobody. */
typedef struct share {
    int n;
    share_client clients[SHARE_CLIENTS];
} share;

/* A client has a request more; returns the place of its counter until share_leave. */
int share_enter(share *s, uint64_t id);
void share_leave(share *s, int client);
void share_serve(share *s, int client, double n_token);
double share_served(const share *s, int client);

#endif

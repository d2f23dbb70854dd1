/* fairness.h - fair scheduling among clients by virtual token counters (VTC: Sheng et al. 2024, algorithm 2).
 * Each client has a counter of the tokens that were computed for it, and the client with the lowest counter
 * is served next. The counter of a new client starts at the lowest counter of the active clients, or, if
 * there are none, at that of the client that left last, so no client saves up credit. The counters of two
 * clients that always have requests differ by no more than one step adds.
 *
 * One thread at a time. */
#ifndef NIB_SESSION_FAIRNESS_H
#define NIB_SESSION_FAIRNESS_H

#include <stdint.h>

enum { FAIRNESS_CLIENTS = 512 /* maximum number of counters; further clients share the last one */ };
/* Cost of a generated token, in tokens of a prompt (section 3.1). */
#define FAIRNESS_ANSWER 2.0

typedef struct fairness_client {
    uint64_t id;
    double served;  /* the counter: weighted tokens */
    int64_t n_open; /* waiting and running requests */
} fairness_client;

/* Zeroed: no clients. */
typedef struct fairness {
    int n;
    double left; /* the counter of the client that left last */
    fairness_client clients[FAIRNESS_CLIENTS];
} fairness;

/* Adds a request of client `id`. Returns the index of its counter, valid until fairness_leave. */
int fairness_enter(fairness *s, uint64_t id);
void fairness_leave(fairness *s, int client);                 /* ends one request */
void fairness_serve(fairness *s, int client, double n_token); /* adds n_token to the counter */
double fairness_served(const fairness *s, int client);

#endif

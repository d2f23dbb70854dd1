/* fairness.c - see fairness.h. */
#include "session/fairness.h"

#include "base/num.h"

/* The lowest counter of active clients, or, without any, the counter of the last active one. */
static double min_served(const fairness *s) {
    double min = -1;
    for (int i = 0; i < s->n; i++)
        if (s->clients[i].n_open > 0 && (min < 0 || s->clients[i].served < min))
            min = s->clients[i].served;
    return min < 0 ? s->left : min;
}

/* The index of the client's counter. A new client gets a new counter, else that of the client without
 * requests with the lowest counter. If all clients have requests, it shares the last one. */
static int place_of(fairness *s, uint64_t id) {
    int idle = -1;
    for (int i = 0; i < s->n; i++) {
        const fairness_client *c = &s->clients[i];
        if (c->id == id)
            return i;
        if (c->n_open == 0 && (idle < 0 || c->served < s->clients[idle].served))
            idle = i;
    }
    if (s->n < FAIRNESS_CLIENTS)
        idle = s->n++;
    if (idle < 0)
        return FAIRNESS_CLIENTS - 1;
    s->clients[idle] = (fairness_client){.id = id};
    return idle;
}

int fairness_enter(fairness *s, uint64_t id) {
    const double min = min_served(s);
    const int i = place_of(s, id);
    fairness_client *c = &s->clients[i];
    if (c->n_open == 0)
        c->served = NUM_MAX(c->served, min);
    c->n_open++;
    return i;
}

void fairness_leave(fairness *s, int client) {
    s->clients[client].n_open--;
    s->left = s->clients[client].served;
}

void fairness_serve(fairness *s, int client, double n_token) {
    s->clients[client].served += n_token;
}

double fairness_served(const fairness *s, int client) {
    return s->clients[client].served;
}

/* share.c - see share.h. */
#include "session/share.h"

#include "base/num.h"

/* Of those with something to do; 0: there is none. */
static double least_served(const share *s) {
    double least = -1;
    for (int i = 0; i < s->n; i++)
        if (s->clients[i].n_open > 0 && (least < 0 || s->clients[i].served < least))
            least = s->clients[i].served;
    return NUM_MAX(least, 0.0);
}

/* Its place, or one for it: a new one, or that of a client without requests, the one that had least. When all
 * are busy it shares the last one. */
static int place_of(share *s, uint64_t id) {
    int idle = -1;
    for (int i = 0; i < s->n; i++) {
        const share_client *c = &s->clients[i];
        if (c->id == id)
            return i;
        if (c->n_open == 0 && (idle < 0 || c->served < s->clients[idle].served))
            idle = i;
    }
    if (s->n < SHARE_CLIENTS)
        idle = s->n++;
    if (idle < 0)
        return SHARE_CLIENTS - 1;
    s->clients[idle] = (share_client){.id = id};
    return idle;
}

int share_enter(share *s, uint64_t id) {
    const double least = least_served(s);
    const int i = place_of(s, id);
    share_client *c = &s->clients[i];
    if (c->n_open == 0)
        c->served = NUM_MAX(c->served, least);
    c->n_open++;
    return i;
}

void share_leave(share *s, int client) {
    s->clients[client].n_open--;
}

void share_serve(share *s, int client, double n_token) {
    s->clients[client].served += n_token;
}

double share_served(const share *s, int client) {
    return s->clients[client].served;
}

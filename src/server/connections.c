/* connections.c - see connections.h.
 *
 *     waits for headers --> waits for a body --> works: its answer is computed or sent
 *            ^                                          |
 *            '------------------------------------------'
 *
 * libmicrohttpd bounds only the time without any progress, so a client that sends a byte now and then would
 * keep its connection, and a few hundred of those all connections. */
#include "server/connections.h"

#include "base/mem.h"
#include "base/thread.h"
#include "server/admit.h"

#include <math.h>
#include <sys/socket.h>

enum {
    HEADER_S = 10,        /* for the headers of a connection's first request, and for a body's first bytes */
    BODY_RATE = 4 << 10,  /* bytes a second that a body must have on average after that */
    SHARE_PER_CLIENT = 2, /* another machine may have this part of the connections */
};

static double deadline(const server *s, const connection *c) {
    const double timeout = s->options.timeout_s, first = fmin(HEADER_S, timeout);
    if (c->state == CONNECTION_BODY)
        return c->since + first + (double)c->n_byte / BODY_RATE;
    return c->since + (c->n_request ? timeout : first); /* libmicrohttpd's timeout too, between requests */
}

/* Shuts a connection down; libmicrohttpd then closes it. */
static void end(connection *c) {
    shutdown(c->fd, SHUT_RDWR);
    c->ended = true;
}

/* Which of two connections without work is ended first: one without headers, then the older one. */
static bool before(const connection *a, const connection *b) {
    return a->state != b->state ? a->state < b->state : a->since < b->since;
}

/* Makes room for a new connection; false: all have work. client 0: of any client. */
static bool end_one(const server *s, uint64_t client) {
    connection *found = NULL;
    for (connection *c = s->connections; c; c = c->next)
        if (!c->ended && c->state != CONNECTION_WORKS && (!client || c->client == client) &&
            (!found || before(c, found)))
            found = c;
    if (found)
        end(found);
    return found != NULL;
}

static int count(const server *s, uint64_t client) {
    int n = 0;
    for (const connection *c = s->connections; c; c = c->next)
        n += !c->ended && (!client || c->client == client);
    return n;
}

/* Guarded. */
static bool has_room(const server *s, const connection *c) {
    const int max = s->options.n_connection, per_client = max / SHARE_PER_CLIENT;
    if (c->client && count(s, c->client) >= per_client && !end_one(s, c->client))
        return false;
    return count(s, 0) < max || end_one(s, 0);
}

static void begin(server *s, struct MHD_Connection *from, void **context) {
    connection *c = mem_calloc(1, sizeof *c);
    *context = c;
    if (!c)
        return;
    c->fd = web.get_connection_info(from, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    c->client = admit_machine(c->fd);
    c->since = time_now();
    pthread_mutex_lock(&s->lock);
    c->crowded = !has_room(s, c);
    c->next = s->connections;
    s->connections = c;
    pthread_mutex_unlock(&s->lock);
    server_wake(s); /* to wait for its deadline */
}

static void forget(server *s, connection *c) {
    pthread_mutex_lock(&s->lock);
    for (connection **at = &s->connections; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    pthread_mutex_unlock(&s->lock);
    mem_free(c);
}

void connections_note(void *user, struct MHD_Connection *from, void **context,
                      enum MHD_ConnectionNotificationCode code) {
    server *s = user;
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        begin(s, from, context);
    else if (*context)
        forget(s, *context);
}

connection *connection_of(struct MHD_Connection *from) {
    return web.get_connection_info(from, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

void connection_set(server *s, connection *c, connection_state state) {
    pthread_mutex_lock(&s->lock);
    c->state = state;
    c->since = time_now();
    c->n_byte = 0;
    c->n_request += state == CONNECTION_BODY;
    pthread_mutex_unlock(&s->lock);
}

void connection_got(server *s, connection *c, size_t n_byte) {
    pthread_mutex_lock(&s->lock);
    c->n_byte += n_byte;
    pthread_mutex_unlock(&s->lock);
}

int connections_tend(server *s, int max_ms) {
    const double now = time_now();
    pthread_mutex_lock(&s->lock);
    for (connection *c = s->connections; c; c = c->next) {
        const double left = deadline(s, c) - now;
        if (c->ended || c->state == CONNECTION_WORKS)
            continue;
        if (left <= 0)
            end(c);
        else if (left * 1000 < max_ms)
            max_ms = (int)(left * 1000) + 1;
    }
    pthread_mutex_unlock(&s->lock);
    return max_ms;
}

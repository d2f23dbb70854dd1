/* connections.h - the connections of a server: deadlines for requests, and room for new connections.
 *
 * A request's headers, and each part of its body, must arrive in time. Where the maximum number of
 * connections is reached, a new one replaces the oldest that has no complete request. If all have one, the
 * new connection is crowded: it may have reports that need no key (/health), for which libmicrohttpd has
 * CONNECTIONS_ROOM further places. Another machine may have half of the connections.
 *
 * Only libmicrohttpd's thread makes and frees connections; their fields are guarded by server.lock. */
#ifndef NIB_SERVER_CONNECTIONS_H
#define NIB_SERVER_CONNECTIONS_H

#include "server/web.h"

enum { CONNECTIONS_ROOM = 8 };

typedef struct server server;

typedef enum connection_state { CONNECTION_HEADERS, CONNECTION_BODY, CONNECTION_WORKS } connection_state;

typedef struct connection {
    struct connection *next;
    int fd;
    uint64_t client; /* its machine; 0: this one */
    connection_state state;
    double since;    /* time at which the state began */
    uint64_t n_byte; /* of the body so far */
    int n_request;
    bool crowded; /* there was no room for it */
    bool ended;   /* it was shut down */
} connection;

/* libmicrohttpd's callback; user: the server. */
void connections_note(void *user, struct MHD_Connection *from, void **context,
                      enum MHD_ConnectionNotificationCode code);
connection *connection_of(struct MHD_Connection *from); /* NULL: there was no memory for it */
void connection_set(server *s, connection *c, connection_state state);
void connection_got(server *s, connection *c, size_t n_byte); /* of a body */
/* Ends the connections whose time is over. Returns the milliseconds until the next deadline, at most max_ms.
 */
int connections_tend(server *s, int max_ms);

#endif

/* listen.h - the listening socket of a server. */
#ifndef NIB_SERVER_LISTEN_H
#define NIB_SERVER_LISTEN_H

#include "nib.h"

typedef struct listener {
    int fd;
    int port;          /* 0: a Unix socket */
    bool loopback;     /* only this machine can reach it */
    char host[128];    /* as requested; in brackets if the address has colons */
    char address[192]; /* "http://127.0.0.1:8080" */
    const char *path;  /* a Unix socket, removed by listen_close; NULL: none. Borrowed */
} listener;

/* Opens a listening socket. host: a name, a numeric address, or the path of a Unix socket (it contains a /).
 * port 0: any free one. A socket file without a listener is replaced. NIB_E_USAGE: the address is not
 * available. */
nib_status listen_open(const char *host, int port, listener *out, nib_error *err);
void listen_close(listener *l); /* closes the socket and removes a Unix socket's file */

#endif

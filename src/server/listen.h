/* listen.h - the listening socket of a server. */
#ifndef NIB_SERVER_LISTEN_H
#define NIB_SERVER_LISTEN_H

#include "nib.h"

typedef struct listener {
    int fd;
    int port;          /* 0: a Unix socket */
    bool loopback;     /* nobody outside this machine can reach it */
    char host[128];    /* as it was asked for, in brackets where an address has colons */
    char address[192]; /* "http://127.0.0.1:8080" */
    const char *path;  /* of a Unix socket, to be removed in the end; NULL: none. The caller's */
} listener;

/* host: a name or a number, or the path of a Unix socket with a / in it. A socket that nobody listens at any
 * more is replaced. NIB_E_USAGE: it cannot be had. */
nib_status listen_open(const char *host, int port, listener *out, nib_error *err);
void listen_close(listener *l);

#endif

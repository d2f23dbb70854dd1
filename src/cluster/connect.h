/* connect.h - TCP connections between ranks, which prove themselves before anything else is read.
 *
 *   the one that was called          the one that called
 *   GREETING: its build, a nonce  ->
 *                                 <- PROOF: its build, a nonce, who it is, HMAC of both messages
 *   ANSWER: HMAC of both messages ->
 *
 * The key is a secret that the first rank makes for each run. All three have a fixed size, which never
 * changes, so that a peer of another build can still be named. What a port gets instead of a proof is dropped
 * and holds nobody up. The bytes that follow are neither encrypted nor signed: the network is trusted not to
 * change them. */
#ifndef NIB_CLUSTER_CONNECT_H
#define NIB_CLUSTER_CONNECT_H

#include "base/status.h"

enum { CONNECT_SECRET = 32, CONNECT_ADDRESS = 64, CONNECT_S = 60 /* for the call of one more rank */ };

typedef struct connect_secret {
    uint8_t bytes[CONNECT_SECRET];
} connect_secret;

typedef enum connect_kind { CONNECT_CONTROL = 1, CONNECT_RING } connect_kind;

/* Who calls. */
typedef struct connect_who {
    int32_t kind; /* a connect_kind */
    int32_t rank;
    int32_t port; /* at which it can be called; 0: it cannot */
} connect_who;

/* An address without a name's look-up: "10.0.0.1", "fe80::1%eth0". */
typedef struct connect_address {
    char host[CONNECT_ADDRESS];
    int32_t port;
} connect_address;

typedef struct connect_listener connect_listener;

/* Called while something is waited for, several times a second; an error ends the wait. */
typedef nib_status (*connect_check)(void *user, nib_error *err);

/* NIB_E_FAILED: the system's source of random numbers fails. */
nib_status connect_secret_make(connect_secret *out, nib_error *err);
/* As 64 hexadecimal digits, and back. False: the text is none. */
void connect_secret_print(const connect_secret *s, char out[2 * CONNECT_SECRET + 1]);
bool connect_secret_parse(const char *text, connect_secret *out);

/* Looks a name or a number up. loopback: whether only this machine reaches it. NIB_E_USAGE: unknown. */
nib_status connect_find(const char *name, connect_address *out, bool *loopback, nib_error *err);
/* Listens at this address of this machine; its port 0: any, which at->port then has. */
nib_status connect_listen(connect_address *at, const connect_secret *secret, connect_listener **out,
                          nib_error *err);
void connect_unlisten(connect_listener *l); /* NULL is fine */
/* Blocks until a caller has proved itself, at most `s` seconds. *fd: the connection, the caller's. from NULL,
 * or its address with the port of *who. NIB_E_FAILED: the time is over, or the caller has another build. */
nib_status connect_accept(connect_listener *l, double s, connect_check check, void *user, connect_who *who,
                          connect_address *from, int *fd, nib_error *err);

/* Opens a connection. own: this end's address, whose port is 0; NULL: not wanted. NIB_E_IO names the address.
 */
nib_status connect_dial(const connect_address *to, int *fd, connect_address *own, nib_error *err);
/* Proves who calls, and checks the proof of the one that was called. NIB_E_FAILED: it has none. */
nib_status connect_prove(int fd, const connect_secret *secret, const connect_who *who, nib_error *err);

#endif

/* http.h - GET over HTTP and HTTPS, by libcurl. The library is loaded when a connection is opened and not
 * linked: with its own libraries it would add 6 MB to the memory of every command, and 10 ms to its start-up.
 * Proxies are read from the environment, as in curl. One thread; Ctrl-C and SIGTERM end a request within a
 * tenth of a second. */
#ifndef NIB_CLI_PULL_HTTP_H
#define NIB_CLI_PULL_HTTP_H

#include "nib.h"

typedef struct http http;

/* Makes a connection object, which the caller closes. token: sent to the host of a request, not to the target
 * of a redirection; NULL: none. NIB_E_FAILED: libcurl is not installed. */
nib_status http_open(const char *token, http **out, nib_error *err);
void http_close(http *h); /* NULL is fine */

typedef struct http_request {
    const char *url;
    uint64_t from; /* the first byte to send; a server may ignore this and send all */
    /* Called for each piece of the body, which begins at byte `at`; not for the bodies of errors. Anything
     * but NIB_OK ends the request. */
    nib_status (*body)(void *user, uint64_t at, const void *data, size_t n_byte, nib_error *err);
    void *user;
} http_request;

typedef struct http_answer {
    long status;   /* 200, 404, ...; 0: no answer */
    bool again;    /* the failure may be temporary */
    char code[64]; /* the hub's error code, "GatedRepo"; "": none */
} http_answer;

/* Blocks until the whole answer is received. NIB_E_IO: no connection, a broken one, or an HTTP status that is
 * an error; NIB_E_CANCELLED: interrupted; or the status that body returned. */
nib_status http_get(http *h, const http_request *request, http_answer *answer, nib_error *err);

/* Escapes text for an address: all bytes but letters, digits and -._~/ become %XX. False: `out` is too small.
 */
bool http_escape(const char *text, char *out, size_t size);

#endif

/* http.h - GET over HTTP and HTTPS, by libcurl. The library is loaded when a connection is opened and not
 * linked: with its own libraries it would add 6 MB to the memory of every command, and 10 ms to its start-up.
 * Proxies are read from the environment, as in curl. One thread; Ctrl-C and SIGTERM end a request within a
 * tenth of a second. */
#ifndef NIB_CLI_HTTP_H
#define NIB_CLI_HTTP_H

#include "nib.h"

typedef struct http http;

/* token: sent to the host of a request, not to where it redirects; NULL: none. NIB_E_FAILED: there is no
 * libcurl. */
nib_status http_open(const char *token, http **out, nib_error *err);
void http_close(http *h); /* NULL is fine */

typedef struct http_request {
    const char *url;
    uint64_t from; /* the first byte that is wanted; a server may send all of them nevertheless */
    /* A piece of the body, the byte `at` first; bodies of errors do not come here. Not NIB_OK ends the
     * request. */
    nib_status (*body)(void *user, uint64_t at, const void *data, size_t n_byte, nib_error *err);
    void *user;
} http_request;

typedef struct http_answer {
    long status;   /* 200, 404, ...; 0: no answer */
    bool again;    /* what failed may be different the next time */
    char code[64]; /* what the hub calls its error, "GatedRepo"; "": nothing */
} http_answer;

/* NIB_OK when the whole answer has come. NIB_E_IO: no connection, a broken one, or a status that is an error;
 * NIB_E_CANCELLED; or what body gave. */
nib_status http_get(http *h, const http_request *request, http_answer *answer, nib_error *err);

/* Text as a part of an address: what is not a letter, a digit or one of -._~/ becomes %XX. False: `out` is
 * too small. */
bool http_escape(const char *text, char *out, size_t size);

#endif

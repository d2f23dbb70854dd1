/* exchange.h - one request and its answer. Over HTTP it belongs to its connection; libmicrohttpd's thread
 * makes and frees it. Without HTTP (local.h) it has no connection and is never suspended, and the thread that
 * computes makes and frees it. */
#ifndef NIB_SERVER_EXCHANGE_H
#define NIB_SERVER_EXCHANGE_H

#include "server/connections.h"
#include "server/dialect.h"
#include "server/parts.h"

#include <stdio.h>

typedef struct job job;

typedef enum route_kind {
    ROUTE_OPEN,   /* needs no key, at any time */
    ROUTE_LOOK,   /* a report, after server_begin */
    ROUTE_UPLOAD, /* the same, with a body that goes to a file (files.h) */
    ROUTE_MODEL,  /* uses the model that the body names */
    ROUTE_ANSWER  /* the same, and refused while the server ends */
} route_kind;

typedef struct route {
    const char *method, *path; /* "{model}" at its end: a name */
    route_kind kind;
    const dialect *how;          /* for answers and faults; NULL: OpenAI's */
    void (*handle)(exchange *x); /* on libmicrohttpd's thread: fills reply, or begins a job */
} route;

extern const route server_routes[];
extern const size_t server_n_route;

struct exchange {
    server *s;
    served *model;  /* held; NULL: none is needed */
    served *wanted; /* must be loaded first */
    served *gone;   /* a model to unload that is not loaded: the reply says so */
    exchange *next; /* guarded: in the list that waits for models; of server_ask: in its list */
    double keep_s;  /* seconds for which the model stays loaded; NAN: not given */
    struct MHD_Connection *connection; /* NULL: the request came by server_ask: */
    char *tag;                         /* of its reply */
    int fd;
    connection *over;   /* its connection's entry; NULL: the request came by server_ask */
    const route *route; /* NULL: unknown path */
    fault why;          /* if set, the reply */
    char named[128];    /* the model's name in the path */
    char what[96];      /* "POST /v1/completions", for the log */
    double begun;
    uint64_t client;   /* identifies the client by its key or address, for fairness */
    const char *allow; /* header of a 405; NULL: none */
    buffer body, reply;
    uint64_t n_body, n_reply; /* charged to the server */
    FILE *upload;             /* the body of an upload; NULL: none */
    uint64_t n_upload, n_content;
    int content; /* with has_content: a file of n_content bytes that is the reply */
    bool has_content;
    const char *type;
    job *job;
    bool counted; /* in n_exchange */
    bool handled;
    bool suspended; /* guarded */
};

const char *exchange_header(const exchange *x, const char *name); /* NULL: the request has none */
/* Finds the route of a method and an address; *x->why says if there is none. */
void exchange_route(exchange *x, const char *url, const char *method);
/* Begins to answer: x->reply, x->why or x->job is set. False: it waits for its model. */
bool exchange_handle(exchange *x);
void exchange_write_fault(exchange *x);        /* sets the reply to x->why in the route's dialect */
void exchange_write_whole(exchange *x);        /* sets the reply to its job's answer */
void exchange_drop_job(exchange *x);           /* cancels it, if it is not done */
void exchange_free(exchange *x);               /* drops its job */
enum { EXCHANGE_CONNECTION_BYTES = 16 << 10 }; /* of each connection: headers, and one piece of output */
struct MHD_Daemon *exchange_listen(server *s);
void exchange_suspend(exchange *x);             /* guarded */
void exchange_resume(exchange *x);              /* guarded */
void exchange_json(exchange *x, json_t *value); /* sets the reply; takes the reference */

#endif

/* server.h - an engine behind HTTP: OpenAI's API, answered by one batch.
 *
 * The thread of server_run computes. A thread of libmicrohttpd reads requests and writes answers, and sleeps
 * while there is nothing to send. A third thread loads a requested model while others answer. A request is
 * checked and tokenized on the thread that read it and added to the batch; its connection is suspended until
 * there is text for it. Bodies, values and connections are bounded by the options.
 *
 * libmicrohttpd is loaded by server_open and not linked: with its own libraries it would add to the memory
 * and the start-up time of every command. */
#ifndef NIB_SERVER_SERVER_H
#define NIB_SERVER_SERVER_H

#include "nib.h"

typedef struct server server;

/* A model that can be asked for. All of it is copied. */
typedef struct server_model {
    const char *name; /* for those who ask */
    const char *arch; /* its family, for those who ask before it is loaded */
    uint64_t n_param, n_byte;
    int64_t n_ctx_train;
} server_model;

/* What other models take of the caps. */
typedef struct server_reserved {
    uint64_t ram;  /* bytes that they may still make resident beside what the process has */
    uint64_t vram; /* bytes that they have */
    bool alone;    /* there is no other: weights may be read from disk while it computes */
} server_reserved;

typedef struct server_options {
    const server_model *models; /* [n_model], at least one; without a name a request means the first */
    size_t n_model;
    int n_loaded; /* of them at the same time, at most; 0: as many as fit */
    /* Loads models[model], on a thread of its own, one at a time. NIB_E_NOFIT: it would fit with less beside
     * it. */
    nib_status (*open)(void *user, size_t model, const server_reserved *reserved, nib_engine **out,
                       nib_error *err);
    void *opener;            /* its user */
    uint64_t ram_cap;        /* of the process, for those who ask; NIB_AUTO: none */
    const char *host;        /* a name or number of this machine; "/PATH": a Unix socket. NULL: 127.0.0.1 */
    int port;                /* 0: one that is free */
    const char *const *keys; /* one of them is asked for; none: everybody may. Copied */
    size_t n_key;
    int n_connection;       /* at the same time; 0: 256 */
    int n_queue;            /* requests that wait for a place, at most; 0: 64 */
    uint64_t max_body;      /* bytes of one request; 0: 1 MiB, or what `request_bytes` allows */
    uint64_t request_bytes; /* bytes that requests may take together beside the engine; 0: 256 MiB */
    int timeout_s;          /* a connection on which nothing moves is closed after; 0: 60 */
    const char
        *prefix_cache;     /* folder for keys and values, as nib_batch_options has it. Copied; NULL: none */
    uint64_t prefix_bytes; /* likewise */
    int n_draft, n_draft_min; /* likewise */
    double latency_s;         /* likewise */
    int n_beside;             /* sessions of an engine that are not for answers: its embeddings' */
    int64_t n_position; /* likewise; not 0: requests are admitted before all that they may need is free */
    int pooling;        /* of embeddings, a nib_pooling */
    bool log_requests;  /* a line for each: what was asked, how it ended; never what was said, nor keys */
    nib_log_fn log;     /* NULL: none */
    void *user;         /* of log */
} server_options;

/* Listens at once, and answers that the model is being loaded until server_begin. NIB_E_USAGE: this address
 * cannot be had; NIB_E_FAILED: there is no libmicrohttpd. */
nib_status server_open(const server_options *options, server **out, nib_error *err);
void server_close(server *s); /* before its engine; NULL is fine */

/* "http://127.0.0.1:8080", "unix:/run/nibble.sock". */
const char *server_address(const server *s);
int server_port(const server *s); /* 0: a Unix socket */

typedef struct server_host {
    /* Until fd can be read, max_ms went by, or something else is to be looked at. */
    void (*wait)(void *user, int fd, int max_ms);
    /* Whether to take no more requests, and return when those that are there are answered. */
    bool (*ending)(void *user);
    void *user;
} server_host;

/* A model that proposes what follows, for the first model's answers; before server_begin, closed after the
 * server (nib_batch_options.draft). */
void server_draft(server *s, nib_engine *draft);
/* From now on requests are taken, n_sequence of which are computed together. Once. engine: of the first
 * model, the server's from now on in any case; NULL: that one is loaded when it is asked for, too. */
nib_status server_begin(server *s, nib_engine *engine, int n_sequence, nib_error *err);
/* Of the model that was loaded last; NULL: there is none. By the thread of server_run, or after it. */
const nib_engine *server_engine(const server *s);
/* Computes. Returns when host->ending said so; afterwards nobody is answered. */
void server_run(server *s, const server_host *host);

#endif

/* server.h - an engine behind HTTP: the APIs of OpenAI, Anthropic and Ollama, answered by one batch. Or
 * without HTTP (server_ask).
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

#include "nib_batch.h"

typedef struct server server;

/* A model that requests may name. Copied. */
typedef struct server_model {
    const char *name;      /* in requests and answers */
    const char *arch;      /* its family, reported before it is loaded */
    const char *container; /* "gguf", "safetensors"; NULL: unknown, likewise: */
    const char *format;    /* the number format of most of its bytes, "Q4_K" */
    const char *digest;    /* 64 hexadecimal digits that identify it */
    uint64_t n_param, n_byte;
    int64_t n_ctx_train;
} server_model;

/* Memory of the other models under the caps. */
typedef struct server_reserved {
    uint64_t ram;  /* bytes that they may still make resident, beyond the process's resident ones */
    uint64_t vram; /* bytes that they use */
    bool alone;    /* there is no other: weights may be streamed from disk */
} server_reserved;

/* What requests get that do not say it. */
typedef struct server_defaults {
    nib_sampling sampling; /* its texts are borrowed until server_close */
    int64_t max_tokens;    /* -1: as many as fit */
    int64_t seed;          /* -1: another one for each request */
    bool ignore_eos;
} server_defaults;

typedef struct server_options {
    const server_model *models; /* [n_model], at least one; a request without a name gets the first */
    size_t n_model;
    int n_loaded; /* maximum number of loaded models; 0: as many as fit */
    /* Loads models[model] on a thread of its own, one at a time. NIB_E_NOFIT: it would fit if others were
     * unloaded. */
    nib_status (*open)(void *user, size_t model, const server_reserved *reserved, nib_engine **out,
                       nib_error *err);
    void *opener; /* its user */
    bool local;   /* without HTTP: requests come by server_ask, for the one model that server_begin gets */
    uint64_t ram_cap;        /* of the process, for reports; NIB_AUTO: none */
    const char *host;        /* a name or number of this machine; "/PATH": a Unix socket. NULL: 127.0.0.1 */
    int port;                /* 0: any free port */
    const char *const *keys; /* a request needs one of them; none: no key is needed. Copied */
    size_t n_key;
    bool keyless;           /* other machines need no key either; else `host` without keys must be this one */
    int n_connection;       /* maximum number of connections; 0: 256 */
    int n_queue;            /* maximum number of waiting requests; 0: 64 */
    uint64_t max_body;      /* maximum bytes of one request; 0: 1 MiB, or what `request_bytes` allows */
    uint64_t request_bytes; /* maximum bytes of all requests together, beside the engine; 0: 256 MiB */
    int timeout_s;          /* seconds after which an idle connection is closed; 0: 60 */
    const char
        *prefix_cache; /* folder for keys and values (nib_batch_options.prefix_cache). Copied; NULL: none */
    uint64_t prefix_bytes;    /* likewise */
    uint64_t cache_ram;       /* likewise */
    int n_draft, n_draft_min; /* likewise */
    double latency_s;         /* likewise */
    int schedule;             /* likewise */
    int64_t n_spread;         /* likewise */
    int n_beside;             /* sessions of an engine for other uses than answers: for embeddings */
    int64_t n_position; /* likewise; not 0: requests are admitted before all KV pages that they may need are
                           free */
    int pooling;        /* for embeddings, a nib_pooling */
    bool
        special_in_messages; /* special tokens that messages and tools name are parsed: they can end a turn */
    const server_defaults *defaults; /* copied; NULL: those of nib_sampling_init, and no limit */
    const char
        *files; /* folder of /v1/files and /v1/batches, made when the first file comes. Copied; NULL: none */
    bool log_requests; /* one line each: method, path, result; never texts or keys */
    nib_log_fn log;    /* NULL: none */
    void *user;        /* of log */
} server_options;

/* Listens immediately; until server_begin the answer is that the model is being loaded. The caller closes
 * *out. NIB_E_USAGE: the address is not available, or other machines can reach it without a key;
 * NIB_E_FAILED: libmicrohttpd is not installed. */
nib_status server_open(const server_options *options, server **out, nib_error *err);
void server_close(server *s); /* before the engines; NULL is fine */

/* "http://127.0.0.1:8080", "unix:/run/nibble.sock". */
const char *server_address(const server *s);
int server_port(const server *s); /* 0: a Unix socket */

typedef struct server_host {
    /* Returns when fd is readable, after max_ms, or when `ending` may have changed. */
    void (*wait)(void *user, int fd, int max_ms);
    /* True: accept no more requests, and return after the accepted ones are answered. */
    bool (*ending)(void *user);
    void *user;
} server_host;

/* Sets the draft model for the first model's answers (nib_batch_options.draft); n_byte: the RAM that it may
 * still make resident, for reports. Before server_begin; the caller closes it after the server. */
void server_draft(server *s, nib_engine *draft, uint64_t n_byte);
/* Begins to accept requests; n_sequence of them are computed together. To be called once. engine: the first
 * model's, which the server owns from now on, also after an error; NULL: it is loaded on request, too. */
nib_status server_begin(server *s, nib_engine *engine, int n_sequence, nib_error *err);
/* The engine of the model that was loaded last (borrowed); NULL: none is loaded. On the thread of server_run,
 * or after it. */
const nib_engine *server_engine(const server *s);
/* Computes until host->ending returns true; afterwards no request is answered. Blocks. */
void server_run(server *s, const server_host *host);

/* ---- without HTTP (options.local) ----
 * Requests and replies as they would be over HTTP, from and to the caller. One thread calls all of it, and
 * server_close. */

/* Adds a request: the body [n_byte] for an address of OpenAI's API that generates (/v1/...). What is wrong
 * with it is in its reply. tag: identifies the reply; copied. False: other replies must be taken first, since
 * the queue or the memory for requests is full; with no other request, memory has run out. */
bool server_ask(server *s, const char *method, const char *url, const char *body, size_t n_byte,
                const char *tag);
/* Answers that run or wait. */
size_t server_n_answer(const server *s);
/* Computes one step. A step that fails is tried again twice. host: wait is used between the tries; ending is
 * not. False: there was nothing to compute. */
bool server_compute(server *s, const server_host *host);

typedef struct server_reply {
    char *tag;
    int status; /* HTTP status */
    char *body; /* JSON in one line [n_byte] */
    size_t n_byte;
    uint64_t n_prompt, n_predicted; /* tokens */
    bool lost;                      /* computing failed, which the same request may survive another time: */
    char why[512];                  /* the reason */
} server_reply;

/* Takes a reply that is complete, the oldest request's first; in_order: only that of the oldest request.
 * False: there is none. The caller clears *out. */
bool server_take(server *s, bool in_order, server_reply *out);
void server_reply_clear(server_reply *r);

#endif

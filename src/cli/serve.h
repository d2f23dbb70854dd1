/* serve.h - one run of nibble serve or nibble batch: what its options say, and what it has open meanwhile. */
#ifndef NIB_CLI_SERVE_H
#define NIB_CLI_SERVE_H

#include "cli/cli.h"
#include "server/server.h"

#include <stdatomic.h>

enum { SERVE_MAX_MODELS = 64 };

typedef struct serve_job serve_job;

/* What an engine asks back, from any thread. */
typedef struct serve_opening {
    const serve_job *job;
    atomic_bool loading; /* a signal ends that; afterwards it only ends what is not begun */
} serve_opening;

struct serve_job {
    cli_args *args;
    int n_sequence, pooling;
    char *key_text; /* of the file; keys points into it */
    cli_strings keys;
    server_model models[SERVE_MAX_MODELS];
    char *names[SERVE_MAX_MODELS], *archs[SERVE_MAX_MODELS]; /* theirs */
    const char *paths[SERVE_MAX_MODELS];                     /* or names from the models folder */
    serve_opening openings[SERVE_MAX_MODELS], draft_opening;
    size_t n_model;
    char *list;           /* --models; paths point into it */
    nib_engine *draft;    /* NULL: none */
    uint64_t draft_bytes; /* bytes that it may still make resident */
    uint64_t kept_bytes;  /* bytes that the command keeps beside engines and requests; set before the first
                             engine is opened */
    server *server;
};

/* Reads what is about requests, keys and models, of job->args. usual: the sequences without --parallel.
 * Returns 0, or an exit code after a message; the job is to be forgotten either way. */
int serve_read(serve_job *job, int usual);
/* Frees what serve_read made. */
void serve_forget(serve_job *job);

/* ---- serve_engine.c ---- */
/* Bytes that requests may take of the cap on RAM; 0: there is no cap. The engine has the rest. */
uint64_t serve_request_bytes(const cli_args *args);
int serve_sessions_beside(const serve_job *job); /* of an engine, for other uses than answers */
int64_t serve_draft_max(const cli_args *args);   /* proposed tokens; 0: no speculation */
/* Opens the draft model and gives it to the server, if there is one; first of all, because what it takes is a
 * part of the process when the model that answers is planned. The caller closes job->draft. Returns an exit
 * code. */
int serve_open_draft(serve_job *job);
/* Opens the model that is loaded from the start. *out NULL: there is none. Returns an exit code. */
int serve_open_first(serve_job *job, nib_engine **out);
/* server_options.open; user: the job. The server calls it on one thread at a time. */
nib_status serve_open_on_demand(void *user, size_t model, const server_reserved *reserved, nib_engine **out,
                                nib_error *err);

#endif

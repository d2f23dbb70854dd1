/* serve.h - one run of nibble serve: what its options say, and what it has open meanwhile. */
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
    server *server;
};

/* Reads what is about requests, keys and models, of job->args. Returns 0, or an exit code after a message;
 * the job is to be forgotten either way. */
int serve_read(serve_job *job);
/* Frees what serve_read made. */
void serve_forget(serve_job *job);

#endif

/* serve.h - a run of nibble serve or nibble batch: its options, engines and server. */
#ifndef NIB_CLI_SERVE_SERVE_H
#define NIB_CLI_SERVE_SERVE_H

#include "cli/cli.h"
#include "nib_tools.h"
#include "server/server.h"

#include <stdatomic.h>

enum {
    SERVE_MAX_MODELS = 64,
    SERVE_BODY_SHARE = 8 /* one body gets at most this fraction of the bytes for requests, as in the server */
};

typedef struct serve_job serve_job;

/* The user of an engine's callbacks, which run on any thread. */
typedef struct serve_opening {
    const serve_job *job;
    uint64_t beside;     /* bytes of the cap that neither requests nor this engine have */
    atomic_bool loading; /* a signal cancels loading; after that, running answers are finished first */
} serve_opening;

struct serve_job {
    cli_args *args;
    int n_sequence, pooling;
    int64_t n_pass;         /* planned rows of a pass; 0: an option or a rule decides */
    int64_t n_position;     /* planned positions of all answers together; 0: an option or a rule decides */
    int32_t kv_on_disk;     /* planned layers with their keys and values on the disk */
    int64_t n_ctx;          /* positions that a planned request may need */
    int64_t max_n_ctx;      /* positions that none exceeds; 0: not known */
    nib_flow_format format; /* planned formats; zeroed: none */
    double kv_loss;         /* as nib_flow.kv_loss */
    char kv_layers[NIB_FLOW_KV_LAYERS];
    char *files;    /* folder of /v1/files; NULL: none */
    char *key_text; /* of the file; keys points into it */
    cli_strings keys;
    server_model models[SERVE_MAX_MODELS];
    char *names[SERVE_MAX_MODELS], *archs[SERVE_MAX_MODELS]; /* owned by the models */
    char formats[SERVE_MAX_MODELS][16], digests[SERVE_MAX_MODELS][65];
    const char *paths[SERVE_MAX_MODELS]; /* or names in the models folder */
    serve_opening openings[SERVE_MAX_MODELS], draft_opening;
    size_t n_model;
    char *list;           /* --models; paths point into it */
    nib_engine *draft;    /* NULL: none */
    uint64_t draft_bytes; /* bytes that the draft model may still make resident */
    uint64_t max_body;    /* bytes of a line that a batch holds, if requests have as many; 0: no batch */
    uint64_t kept_bytes;  /* bytes that the command keeps beside engines and requests; set before the first
                             engine is opened */
    server *server;
};

/* Reads the options for requests, keys and models from job->args. usual: the sequences without --parallel.
 * Returns an exit code, after printing the error if it is not 0. The caller calls serve_forget in any case.
 */
int serve_read(serve_job *job, int usual);
/* Frees the memory of serve_read. */
void serve_forget(serve_job *job);

/* ---- serve_engine.c ---- */
/* Bytes for requests under the cap on RAM, the rest being for the engine; 0: there is no cap. */
uint64_t serve_request_bytes(const cli_args *args);
/* Sets *ram to the part of the cap that is left for engines beside requests and `others`. Returns an exit
 * code. */
int serve_engine_ram(const cli_args *args, uint64_t others, uint64_t *ram);
/* The smallest cap that leaves an engine `ram` bytes beside requests, a line and `others`. */
uint64_t serve_cap_of(uint64_t ram, uint64_t others, uint64_t max_body);
int serve_sessions_beside(const serve_job *job); /* an engine's sessions for other uses than answers */
/* Plans for these requests, at most max, the fastest first, if no option decides the sequences: *n is 0 then.
 * Returns an exit code: 0 also where no plan can be made, unless a latency was asked for. */
int serve_plan(serve_job *job, const nib_workload *work, nib_flow *out, size_t max, size_t *n);
/* Takes the sequences, their positions and the rows of a pass from a plan. */
void serve_follow(serve_job *job, const nib_workload *work, const nib_flow *plan);
/* Stores what a trial run has reached. */
void serve_keep_trial(serve_job *job, const nib_workload *work, const nib_flow *plan, double tok_s);
/* If there is a draft model, opens it and sets it in the server. To be called before other models are opened,
 * so that its memory counts as part of the process when they are planned. The caller closes job->draft.
 * Returns an exit code. */
int serve_open_draft(serve_job *job);
/* Opens the model that is loaded at the start. *out NULL: there is none. The caller closes it. Returns an
 * exit code. */
int serve_open_first(serve_job *job, nib_engine **out);
/* An open engine's memory under the command's caps, which requests and a draft model share. */
memory_use serve_memory(const serve_job *job, const nib_engine *engine);
/* server_options.open; user: the job. The server calls it on one thread at a time. */
nib_status serve_open_on_demand(void *user, size_t model, const server_reserved *reserved, nib_engine **out,
                                nib_error *err);

#endif

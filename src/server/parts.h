/* parts.h - a server, and its parts; for the files of this folder.
 *
 *     exchange   one request and its answer (exchange.h)
 *     job        the work for an exchange: one or more answers, each one request to the batch (job.h)
 *     dialect    how answers are written: one table of functions for each API (dialect.h)
 *     served     a model that requests may name (models.h)
 *
 * server.lock guards the list of jobs, every field of jobs that is marked as guarded, and whether a
 * connection is suspended. Order: server.lock, then the batch's own. */
#ifndef NIB_SERVER_PARTS_H
#define NIB_SERVER_PARTS_H

#include "server/listen.h"
#include "server/load.h"
#include "server/server.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct job job;
typedef struct exchange exchange;
typedef struct connection connection;

enum { N_TIME = 12 };
extern const double
    server_times[N_TIME - 1]; /* seconds; bounds of the histogram of times to the first token */

/* Shares of options.request_bytes: divisors for received bodies, connections, and the text of streams that
 * their clients have not read; the probabilities of one request's tokens, or embeddings, have 3/16; the
 * values, text and tokens of the body that is parsed, of requests until they are answered, and replies until
 * they are read have 3/8: requests and replies at most so much of it that 1/8 of it is left to write a reply.
 */
enum { SHARE_BODIES = 4, SHARE_CONNECTIONS = 8, SHARE_TEXTS = 16 };
#define LOGPROBS_SHARE(bytes) ((bytes) / 16 * 3)
#define VALUES_SHARE(bytes)   ((bytes) / 8 * 3)
#define REQUESTS_SHARE(bytes) (VALUES_SHARE(bytes) / 8 * 3)
#define REPLIES_SHARE(bytes)  (VALUES_SHARE(bytes) / 2)

typedef struct server_counts { /* since server_open; guarded */
    uint64_t n_request, n_refused, n_cancelled, n_failed;
    uint64_t prompt_tokens, cached_tokens, predicted_tokens;
    double prompt_s, predicted_s;
    uint64_t first_token[N_TIME];
} server_counts;

struct server {
    server_options options;
    server_defaults defaults;
    char **keys; /* [options.n_key] */
    char *host, *prefix_cache, *files;
    struct batches *batches; /* NULL: no folder for files */
    served *models;          /* [n_model] */
    size_t n_model;
    listener listener;
    struct MHD_Daemon *daemon; /* NULL: no HTTP */
    exchange *asked;           /* by server_ask, whose reply is not taken; in order */
    int wake;                  /* an eventfd that wakes the computing thread */
    time_t opened;
    served *newest; /* guarded: loaded last; NULL: it was unloaded */
    load load;
    int n_sequence;
    nib_engine *draft;    /* the first model's draft model; NULL: none */
    uint64_t draft_bytes; /* that it could still make resident when the first model was opened */
    atomic_bool ready, ending;
    atomic_int n_exchange; /* exchanges whose request is complete */
    pthread_mutex_t lock;
    job *jobs;               /* guarded: not done */
    size_t n_answer;         /* guarded: not done */
    exchange *waiting;       /* guarded: for models */
    connection *connections; /* guarded */
    nib_batch_counts past;   /* guarded: counts of unloaded models */
    /* bytes of bodies and replies; added by the thread that makes an exchange, subtracted by the one that
     * frees it */
    atomic_uint_least64_t n_body, n_reply;
    atomic_uint_least64_t n_value; /* bytes of parsed bodies and prompts of jobs */
    uint64_t n_embedding;          /* guarded: bytes of unanswered embeddings */
    uint64_t n_text;               /* guarded: bytes kept of streams until their clients have read them */
    server_counts counts;
    const server_host *runs; /* while it computes */
};

void server_wake(server *s); /* wakes the computing thread; any thread */
/* Executes one step of the batch and distributes its results. True: there is more to compute. */
bool server_turn(server *s);

#endif

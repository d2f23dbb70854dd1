/* parts.h - the parts of a server; for the files of this folder.
 *
 *     exchange   one request and its answer. Over HTTP it belongs to its connection; libmicrohttpd's thread
 *                makes and frees it. Without HTTP (local.c) it has no connection and is never suspended, and
 *                the thread that computes makes and frees it.
 *     job        the work for an exchange: one or more answers, each one request to the batch. The exchange
 *                refers to it and, until all answers are complete, the computing thread; the last reference
 *                frees it.
 *     dialect    how answers are written: one table of functions for each API.
 *
 * server.lock guards the list of jobs, every field of jobs that is marked as guarded, and whether a
 * connection is suspended. Order: server.lock, then the batch's own. */
#ifndef NIB_SERVER_PARTS_H
#define NIB_SERVER_PARTS_H

#include "server/buffer.h"
#include "server/call.h"
#include "server/connections.h"
#include "server/listen.h"
#include "server/server.h"
#include "server/answer_parser.h"
#include "server/web.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef struct job job;
typedef struct exchange exchange;
typedef struct server server;

/* A model that requests may name. It is loaded while `engine` is set. The computing thread sets and clears
 * it, and clears it only while no reference is held; a holder may use the fields that are not guarded. */
typedef struct served {
    server *s;
    char *name;                              /* in requests and answers */
    char arch[64];                           /* its family */
    const char *container, *format, *digest; /* as in server_model */
    uint64_t n_param, n_byte;
    int64_t n_ctx_train;
    nib_engine *engine;
    nib_batch *batch;
    tool_style tools;     /* its family's form of tool calls */
    bool describes_tools; /* the server describes tools, because the template does not */
    int n_failed;         /* consecutive failed steps; computing thread only */

    /* guarded: */
    int n_hold;    /* references of exchanges and jobs */
    bool wanted;   /* exchanges wait for it */
    double used;   /* time at which it was last held */
    double keep_s; /* seconds for which it stays loaded after that, unless its memory is needed; INFINITY */
    double load_s; /* seconds that the last load took */
    double failed; /* time at which its requests failed, unless a step has succeeded since; 0: never */
    char failed_why[512];
    /* computing thread only: */
    bool too_large; /* for the caps, even with no other model: */
    char too_large_why[512];
} served;

/* The model that is being loaded. The loading thread owns `reserved`, `engine`, `batch` and `err` until
 * `done`; the other fields are the computing thread's. */
typedef struct load {
    served *m; /* NULL: none */
    pthread_t thread;
    bool has_thread;
    double begun;
    server_reserved reserved; /* memory of other models */
    nib_engine *engine;       /* NULL: err has the reason */
    nib_batch *batch;
    nib_error err;
    atomic_bool done;
} load;

typedef struct answer { /* one of a job's answers */
    job *of;
    size_t index;
    int64_t id; /* in the batch */
    size_t n_prompt;
    atomic_size_t n_made; /* tokens so far */
    /* guarded: */
    buffer text;           /* not written yet */
    nib_candidate *likely; /* [n_likely, 1 + call.n_top]: each token and its most likely alternatives */
    size_t n_likely, cap_likely, n_likely_written;
    answer_parser *parser; /* splits the text into parts; NULL: the text is not split */
    bool no_memory;
    bool done;   /* result and how are set */
    bool closed; /* the end is written */
    nib_result result;
    nib_error how;
} answer;

typedef struct dialect {
    const char *stream_type; /* content type of streamed answers */
    bool keep_alive;         /* bodies may say how long the model stays loaded */
    /* Each adds to out; NULL: adds nothing. In order: the beginning of the stream, a piece of an answer's
     * text, the end of an answer, the end of the stream; and a comment that keeps the connection alive. */
    void (*begin)(job *j, buffer *out);
    void (*piece)(job *j, const answer *a, const char *text, size_t n_byte, buffer *out);
    void (*close)(job *j, const answer *a, buffer *out);
    void (*end)(job *j, buffer *out);
    void (*ping)(job *j, buffer *out);
    void (*fail)(job *j, const fault *why, buffer *out); /* an error after some pieces */
    void (*whole)(job *j, buffer *out);                  /* the answer without streaming */
    json_t *(*fault)(const fault *why);                  /* the body of a refusal */
} dialect;

/* A request for /v1/embeddings, until it is answered. */
typedef struct embedding {
    struct call_tokens *texts; /* [n] */
    size_t n, n_token;         /* of all */
    int64_t width;
    float *vectors; /* [n, width] */
    bool base64;
    uint64_t bytes; /* maximum size of the answer */
} embedding;

enum { NO_ITEM = -1 };

struct job {
    server *s;
    served *model;        /* held */
    embedding *embedding; /* NULL: it has answers. Else one, which is not in the batch */
    uint64_t counted;     /* of it, in the server's n_embedding */
    uint64_t n_text;      /* guarded: bytes of a stream's text in the server's n_text */
    const dialect *how;
    call call;
    uint64_t client; /* the exchange's */
    char id[40];     /* a part of the answer's */
    int64_t created;
    atomic_int refs;
    size_t n_answer, n_prompt; /* tokens of all prompts; one that is shared by n answers counts once */
    answer *answers;
    /* guarded: */
    job *next;     /* in the list of those that are not done */
    exchange *at;  /* NULL: nobody waits for the answer any more */
    size_t n_left; /* answers that are not done */
    fault why;     /* computing failed */
    buffer out;    /* written, not sent */
    bool begun, ended;
    int n_event; /* written, where a dialect counts them */
    /* where a dialect has an answer in items, a text, a thought or a call each: */
    json_t *items;     /* those that are whole; NULL: none yet */
    buffer said;       /* text of the open item */
    int open;          /* kind of the open item (answer_part.kind); NO_ITEM */
    double written_at; /* time of the last write */
    bool has_text;     /* some text was written */
    bool held;         /* some text is held back for a moment */
};

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

enum { N_TIME = 12 };
extern const double
    server_times[N_TIME - 1]; /* seconds; bounds of the histogram of times to the first token */

/* Shares of options.request_bytes: divisors for received bodies, connections, and the text of streams that
 * their clients have not read; the probabilities of one request's tokens, or embeddings, have 3/16; the
 * values, text and tokens of the body that is parsed, and replies until they are read, have 3/8. */
enum { SHARE_BODIES = 4, SHARE_CONNECTIONS = 8, SHARE_TEXTS = 16 };
#define LOGPROBS_SHARE(bytes) ((bytes) / 16 * 3)
#define VALUES_SHARE(bytes)   ((bytes) / 8 * 3)

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
    nib_engine *draft; /* the first model's draft model; NULL: none */
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
    uint64_t n_embedding; /* guarded: bytes of unanswered embeddings */
    uint64_t n_text;      /* guarded: bytes of streams that their clients have not read */
    server_counts counts;
    const server_host *runs; /* while it computes */
};

extern const route server_routes[];
extern const size_t server_n_route;
extern const dialect openai_chat, openai_completion, openai_embedding, ollama_embedding, ollama_one_embedding,
    ollama_chat, ollama_generate, anthropic, openai_responses;

void server_wake(server *s); /* wakes the computing thread; any thread */

/* ---- prompts.c ---- */
typedef struct call_tokens {
    int32_t *tokens; /* freed by nib_free */
    size_t n;
    bool thinks; /* the answer begins with reasoning */
} call_tokens;
/* Tokenizes a text; flags and marks (NULL: none) of nib_tokenize_marked. False: *why. The caller frees
 * out->tokens in any case. */
bool prompt_tokenize(const nib_engine *e, const char *text, const uint8_t *marks, size_t n_byte,
                     unsigned flags, call_tokens *out, fault *why);
/* Renders the messages with the model's template. *marks: of nib_chat_render_marked. The caller frees both
 * with nib_free. False: *why. */
bool prompt_render(const served *m, const call *c, char **text, uint8_t **marks, fault *why);
/* Adds the text of an array of token ids; ids that are no tokens have none. False: out of memory. */
bool prompt_ids_text(const nib_engine *e, const json_t *ids, buffer *out);
/* Counts their tokens. False: *why. */
bool prompt_count(const served *m, const call *c, size_t *n, fault *why);
size_t prompts_count(const call *c);
/* Makes prompt `index`, with at least one token and at most the context. False: *why. The caller frees
 * out->tokens in any case. */
bool prompt_make(const served *m, const call *c, size_t index, call_tokens *out, fault *why);

/* Tokens of a text or an array of ids. False: *why names `field`. The caller frees out->tokens in any case.
 */
bool prompt_one(const nib_engine *e, const json_t *given, const char *field, call_tokens *out, fault *why);

/* ---- models.c ---- */
bool models_open(server *s); /* lists the options' models, without loading any; false: out of memory */
void models_close(server *s);
/* Makes what a model needs besides its engine. After an error the engine is closed. Any thread. */
nib_status model_prepare(served *m, nib_engine *engine, nib_batch **out, nib_error *err);
void model_begin(served *m, nib_engine *engine, nib_batch *batch); /* requests can use it from now on */
void model_unload(served *m); /* without references; computing thread, or after it */
typedef enum model_taken {
    MODEL_TAKEN,   /* the exchange holds it */
    MODEL_REFUSED, /* x->why has the reason */
    MODEL_AWAITED  /* the exchange is suspended until the model is loaded; do not touch it until then */
} model_taken;
/* Takes a reference to the model that the body names. */
model_taken model_take(exchange *x);
served *model_by_name(server *s, const char *name, fault *why); /* NULL: *why */
/* The model that a body names, or the first; NULL: *why. */
served *model_named(server *s, const json_t *body, fault *why);
/* The model that was loaded last, or another loaded one; NULL: none. Guarded, or on the computing thread. */
served *model_loaded(const server *s);
void model_hold(served *m); /* adds a reference to a held model */
void model_release(served *m);
void model_resume_waiting(
    served *m, const fault *why); /* guarded: resumes exchanges that wait for it; why: refuses them instead */
/* Computing thread: starts and ends loads of awaited models, and unloads models whose time is over. True: a
 * load has ended. */
bool models_tend(server *s);
/* Milliseconds until models_tend has work, at most max_ms. */
int models_wait_ms(server *s, int max_ms);
void models_drop_waiting(server *s); /* refuses all waiting exchanges */

/* ---- load.c; computing thread ---- */
void load_begin(served *m); /* starts a load; no other may be running */
bool load_end(server *s);   /* if a load has ended, begins to use its model; false: none has */
void load_drop(server *s);  /* waits for a running load, and closes its engine */

/* ---- tools.c ---- */
/* Finds the form of its calls; before requests use it. */
nib_status tools_learn(served *m, const nib_engine *e, nib_error *err);
/* Adds a description of the tools if the template does not, and the grammar for their calls. False: *why. */
bool tools_resolve(const served *m, call *c, fault *why);

/* ---- job.c ---- */
/* Adds the call's answers to the batch as the exchange's job. False: *why. The job owns the call in any case.
 */
bool job_begin(exchange *x, call *c, const dialect *how, fault *why);
/* The same for a body that was parsed to c with this result, in the dialect of the exchange's route. */
void job_begin_parsed(exchange *x, call *c, bool parsed);
void job_release(job *j);
void job_write(job *j);  /* guarded: writes new output to `out` */
void job_charge(job *j); /* guarded: counts what the client of a stream has not read in s->n_text */
void job_cancel(job *j); /* guarded */
/* Tokens of all ended answers: of prompts, reused from the cache; generated. */
size_t job_cached(const job *j);
size_t job_predicted(const job *j);
size_t job_made(const job *j); /* tokens so far; any thread */

/* Begins a job for the embedding, which the job owns in any case. False: *why. */
bool job_begin_embedding(exchange *x, embedding *e, fault *why);

/* ---- jobs.c ---- */
void jobs_take(served *m);                       /* collects ended requests of its batch; computing thread */
void jobs_fail(served *m, const nib_error *err); /* fails all its unfinished jobs */
void jobs_drop(server *s);                       /* ends all jobs, so that no connection stays suspended */
void jobs_watch(server *s); /* cancels jobs of closed connections, and pings waiting clients */
/* Computes one waiting embedding; false: there is none. Computing thread. */
bool jobs_embed(server *s);

/* ---- embed.c ---- */
void embed_ask(exchange *x);
void embedding_free(embedding *e);                    /* NULL is fine */
nib_status embedding_compute(job *j, nib_error *err); /* steps the batch in between */

/* ---- server.c ---- */
/* Executes one step of the batch and distributes its results. True: there is more to compute. */
bool server_turn(server *s);

/* The id of a tool call: nine letters and digits, which every template accepts. */
void job_call_id(const answer *a, const answer_part *p, char out[16]);

/* ---- logprobs.c ---- */
/* A token's bytes [n_byte] (the caller frees *text with mem_free); none if the tokenizer has no such token.
 * False: out of memory. */
bool token_text(const nib_engine *e, int32_t token, char **text, size_t *n_byte);
/* "logprobs" of the answer's tokens from `from` on, in the form of the call's API; null unless requested.
 * NULL: out of memory. */
json_t *tokens_logprobs(const answer *a, size_t from);

/* ---- texts.c, reports.c: each fills x->reply, or x->why ---- */
void texts_tokenize(exchange *x);
void texts_detokenize(exchange *x);
void texts_tokenizer_info(exchange *x);
void texts_apply_template(exchange *x);
void report_health(exchange *x);
void report_models(exchange *x);
void report_model(exchange *x);
void report_metrics(exchange *x);
void report_memory(exchange *x);
void report_slots(exchange *x);
void report_page(exchange *x);
extern const char server_page[]; /* the folder page, as one file */
extern const size_t server_page_size;

void openapi_describe(exchange *x); /* openapi.c */

/* ---- ollama.c, anthropic.c, responses.c ---- */
void ollama_ask_chat(exchange *x);
void ollama_ask_generate(exchange *x);
void ollama_tags(exchange *x);
void ollama_ps(exchange *x);
void ollama_show(exchange *x);
void ollama_pull(exchange *x);
json_t *ollama_refusal(const fault *why); /* the body of a refusal; NULL: out of memory */
/* keep_alive ("5m", 300, -1) in seconds; INFINITY: for ever; NAN: not given. False: *why. */
bool ollama_keep_alive(const json_t *body, double *out, fault *why);
/* Whether the request only loads the model. */
bool ollama_asks_nothing(const json_t *body);
void ollama_version(exchange *x);
void anthropic_ask(exchange *x);
void anthropic_count(exchange *x);
void responses_ask(exchange *x);

/* ---- local.c ---- */
void local_drop(server *s); /* drops all requests of server_ask */

/* ---- admit.c: of a request whose headers have been read ---- */
bool admit_host(const exchange *x); /* false: its Host has no valid form */
/* False: a web page of another site has sent it from a browser on this machine. Its Origin is foreign, or,
 * without keys, its Host is a foreign name that resolves to this machine (DNS rebinding). admit_host is true.
 */
bool admit_origin(const exchange *x);
bool admit_key(exchange *x); /* it has a known key, which also identifies the client */
/* Identifies a client without keys: by its machine, or, on this machine, by the connection. */
uint64_t admit_client(int fd);
uint64_t admit_machine(int fd); /* identifies another machine; 0: this one */

/* ---- exchange.c ---- */
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

/* parts.h - the parts of a server; for the files of this folder.
 *
 *     exchange   one request and its answer over HTTP. It belongs to its connection; libmicrohttpd's thread
 *                makes and frees it.
 *     job        what is computed for an exchange: one or more answers, each of which is one request to the
 *                batch. The exchange refers to it and, until all answers are there, so does the computing
 *                thread; the last reference frees it.
 *     dialect    how answers are written: one table of functions for each API.
 *
 * server.lock guards the list of jobs, every field of jobs that is marked as guarded, and whether a
 * connection is suspended. Order: server.lock, then the batch's own. */
#ifndef NIB_SERVER_PARTS_H
#define NIB_SERVER_PARTS_H

#include "server/buffer.h"
#include "server/call.h"
#include "server/listen.h"
#include "server/server.h"
#include "server/answer_parser.h"
#include "server/web.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct job job;
typedef struct exchange exchange;
typedef struct server server;

/* A model that can be asked for. It is loaded while `engine` is there, which the thread that computes sets
 * and takes away, the latter only while nobody holds it: who does may use what is not guarded. */
typedef struct served {
    server *s;
    char *name, *arch; /* for those who ask; its family */
    uint64_t n_param, n_byte;
    int64_t n_ctx_train;
    nib_engine *engine;
    nib_batch *batch;
    tool_style tools;     /* how its family writes calls of tools */
    bool describes_tools; /* its template does not */
    int n_failed;         /* steps, one after the other; the thread's that computes */

    /* guarded: */
    int n_hold;    /* exchanges and jobs */
    bool wanted;   /* exchanges wait for it */
    double used;   /* when it was last held */
    double keep_s; /* so long it stays after that, unless its memory is needed; INFINITY */
    double load_s; /* what loading took the last time */
    /* the thread's that computes: */
    bool too_large; /* for the caps, with nothing beside it: */
    char too_large_why[512];
} served;

/* The model that is being loaded. The thread that loads it has `reserved`, `engine`, `batch` and `err` until
 * `done`; the rest is the thread's that computes. */
typedef struct load {
    served *m; /* NULL: none is */
    pthread_t thread;
    bool has_thread;
    double begun;
    server_reserved reserved; /* what others take of the caps */
    nib_engine *engine;       /* NULL: err says why */
    nib_batch *batch;
    nib_error err;
    atomic_bool done;
} load;

typedef struct answer { /* one of a job's */
    job *of;
    size_t index;
    int64_t id; /* in the batch */
    size_t n_prompt;
    atomic_size_t n_made; /* tokens so far */
    /* guarded: */
    buffer text;           /* that is not written yet */
    nib_candidate *likely; /* [n_likely, 1 + call.n_top]: each token, and what was likelier */
    size_t n_likely, cap_likely, n_likely_written;
    answer_parser *parser; /* what takes the text apart; NULL: it is given as it comes */
    bool no_memory;
    bool done;   /* result and how are there */
    bool closed; /* its end is written */
    nib_result result;
    nib_error how;
} answer;

typedef struct dialect {
    const char *stream_type; /* of HTTP, for answers that come in pieces */
    bool keep_alive;         /* its bodies say how long a model is to stay */
    /* Each adds to out, where it may be NULL: nothing. What comes before all pieces, a piece of one answer's
     * text, the end of one, the end of all; what is sent when nothing else is known (a comment). */
    void (*begin)(job *j, buffer *out);
    void (*piece)(job *j, const answer *a, const char *text, size_t n_byte, buffer *out);
    void (*close)(job *j, const answer *a, buffer *out);
    void (*end)(job *j, buffer *out);
    void (*ping)(job *j, buffer *out);
    void (*fail)(job *j, const fault *why, buffer *out); /* after some pieces */
    void (*whole)(job *j, buffer *out);                  /* the answer in one piece */
    json_t *(*fault)(const fault *why);                  /* the answer is refused */
} dialect;

/* What /v1/embeddings asks for, until it is answered. */
typedef struct embedding {
    struct call_tokens *texts; /* [n] */
    size_t n, n_token;         /* of all */
    int64_t width;
    float *vectors; /* [n, width] */
    bool base64;
    uint64_t bytes; /* that it may take in the end */
} embedding;

enum { NO_ITEM = -1 };

struct job {
    server *s;
    served *model;        /* held */
    embedding *embedding; /* NULL: it has answers. Else one, which is not in the batch */
    uint64_t counted;     /* of it, in the server's n_embedding */
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
    buffer said;       /* of the one that is open */
    int open;          /* its answer_part kind; NO_ITEM */
    double written_at; /* when something was last written */
    bool has_text;     /* some text was */
    bool held;         /* there is text that waits a moment */
};

typedef enum route_kind {
    ROUTE_OPEN,  /* for those without a key too, at any time */
    ROUTE_LOOK,  /* once models can be asked for */
    ROUTE_MODEL, /* with the model that the body names */
    ROUTE_ANSWER /* the same, and not when the server ends */
} route_kind;

typedef struct route {
    const char *method, *path; /* "{model}" at its end: a name */
    route_kind kind;
    const dialect *how;          /* of ROUTE_ANSWER, and of the faults of others; NULL: OpenAI's */
    void (*handle)(exchange *x); /* on libmicrohttpd's thread: fills reply, or begins a job */
} route;

struct exchange {
    server *s;
    served *model;  /* held; NULL: none is needed */
    served *wanted; /* is to be loaded first */
    served *gone;   /* was to be unloaded, and is not loaded: the reply says so */
    exchange *next; /* guarded: of those that wait for a model */
    double keep_s;  /* of the model; NAN: not said */
    struct MHD_Connection *connection;
    int fd;
    const route *route; /* NULL: there is none */
    fault why;          /* the reply when it is set */
    char named[128];    /* in its path */
    char what[96];      /* "POST /v1/completions", for the log */
    double begun;
    uint64_t client;   /* who asks: a key, or where the connection comes from */
    const char *allow; /* of a 405; NULL: none */
    buffer body, reply;
    uint64_t n_body; /* charged to the server */
    const char *type;
    job *job;
    bool counted; /* in n_exchange */
    bool handled;
    bool suspended; /* guarded */
};

enum { N_TIME = 12 };
extern const double server_times[N_TIME - 1]; /* seconds that divide times until first tokens into classes */

/* The parts of options.request_bytes: bodies that are received, the values, text and tokens of the one that
 * is read, connections, and what the probabilities of one request's tokens take. */
enum { SHARE_BODIES = 4, SHARE_LOGPROBS = 4, SHARE_CONNECTIONS = 8 };
#define VALUES_SHARE(bytes) ((bytes) / 8 * 3)

typedef struct server_counts { /* since the server was opened; guarded */
    uint64_t n_request, n_refused, n_cancelled, n_failed;
    uint64_t prompt_tokens, cached_tokens, predicted_tokens;
    double prompt_s, predicted_s;
    uint64_t first_token[N_TIME];
} server_counts;

struct server {
    server_options options;
    char **keys; /* [options.n_key] */
    char *host, *prefix_cache;
    served *models; /* [n_model] */
    size_t n_model;
    listener listener;
    struct MHD_Daemon *daemon;
    int wake; /* an eventfd: there is something to do */
    time_t opened;
    served *newest; /* guarded: loaded last; NULL: that one is gone */
    load load;
    int n_sequence;
    nib_engine *draft; /* of the first model; NULL: none */
    atomic_bool ready, ending;
    atomic_int n_exchange; /* whose request has come as a whole */
    pthread_mutex_t lock;
    job *jobs;             /* guarded: not done */
    size_t n_answer;       /* guarded: not done */
    exchange *waiting;     /* guarded: for models */
    nib_batch_counts past; /* guarded: of models that were unloaded */
    uint64_t n_body;       /* bytes of bodies; libmicrohttpd's thread's */
    uint64_t n_embedding;  /* guarded: bytes of embeddings that are not answered */
    server_counts counts;
    const server_host *runs; /* while it computes */
};

extern const route server_routes[];
extern const size_t server_n_route;
extern const dialect openai_chat, openai_completion, openai_embedding, ollama_embedding, ollama_chat,
    ollama_generate, anthropic, openai_responses;

void server_wake(server *s);

/* ---- prompts.c ---- */
typedef struct call_tokens {
    int32_t *tokens; /* freed by nib_free */
    size_t n;
    bool thinks; /* the answer begins in the middle of a thought */
} call_tokens;
/* The messages as the model's template has them; the caller frees *text with nib_free. */
bool prompt_render(const nib_engine *e, const call *c, char **text, fault *why);
/* Their tokens. */
bool prompt_count(const nib_engine *e, const call *c, size_t *n, fault *why);
size_t prompts_count(const call *c);
/* The index-th prompt; *out is to be freed in any case. It has tokens, and no more than the context. */
bool prompt_make(const nib_engine *e, const call *c, size_t index, call_tokens *out, fault *why);

/* A text or ids on their own; *out is to be freed in any case, and has as many tokens. */
bool prompt_one(const nib_engine *e, const json_t *given, const char *field, call_tokens *out, fault *why);

/* ---- models.c ---- */
bool models_open(server *s); /* the options' models, none of them loaded; false: no memory */
void models_close(server *s);
/* All that the model needs beside its engine, which is closed where that fails; any thread. */
nib_status model_prepare(served *m, nib_engine *engine, nib_batch **out, nib_error *err);
void model_begin(served *m, nib_engine *engine, nib_batch *batch); /* it can be asked from now on */
void model_unload(served *m); /* that nobody holds; the thread that computes, or when it does no longer */
typedef enum model_taken {
    MODEL_TAKEN,   /* it is the exchange's */
    MODEL_REFUSED, /* x->why says why */
    MODEL_AWAITED  /* the exchange is suspended until it is loaded, and another thread's until then */
} model_taken;
/* The model that the body names. */
model_taken model_take(exchange *x);
served *model_by_name(server *s, const char *name, fault *why); /* NULL: *why */
/* The one that a body means; NULL: *why. */
served *model_named(server *s, const json_t *body, fault *why);
/* The one that was loaded last, or another; NULL: none is. Guarded, or by the thread that computes. */
served *model_loaded(const server *s);
void model_hold(served *m); /* which is held already */
void model_release(served *m);
void model_resume_waiting(served *m,
                          const fault *why); /* guarded: with the model, or where why is set without */
/* The thread that computes: has loaded what is waited for, unloads what was kept for long enough. True: a
 * load has ended. */
bool models_tend(server *s);
/* Until models_tend has something to do; at most max_ms. */
int models_wait_ms(server *s, int max_ms);
void models_drop_waiting(server *s); /* nobody waits any more */

/* ---- load.c; the thread that computes ---- */
void load_begin(served *m); /* while none is being loaded */
bool load_end(server *s);   /* what was loaded meanwhile can be asked; false: nothing has ended */
void load_drop(server *s);  /* what is being loaded is waited for, and closed */

/* ---- tools.c ---- */
void tools_learn(served *m, const nib_engine *e); /* how its family writes calls; before it is asked */
/* The call's tools: described where the template does not, and the grammar that holds the answer to them. */
bool tools_resolve(const served *m, call *c, fault *why);

/* ---- job.c ---- */
/* Adds the call's answers to the batch as the exchange's job. False: *why. The job owns the call in any case.
 */
bool job_begin(exchange *x, call *c, const dialect *how, fault *why);
/* The same for a body that was parsed to c with this result, in the dialect of the exchange's route. */
void job_begin_parsed(exchange *x, call *c, bool parsed);
void job_release(job *j);
void job_write(job *j);  /* guarded: writes new output to `out` */
void job_cancel(job *j); /* guarded */
/* Tokens of the prompts that were reused from the cache, of all answers that have ended. */
size_t job_cached(const job *j);
size_t job_predicted(const job *j);
size_t job_made(const job *j); /* tokens so far; any thread */

/* Makes the embedding the exchange's job, which owns it in any case. */
bool job_begin_embedding(exchange *x, embedding *e, fault *why);

/* ---- jobs.c ---- */
void jobs_take(served *m);                       /* the ended requests of its batch; the computing thread */
void jobs_fail(served *m, const nib_error *err); /* all of its unfinished jobs */
void jobs_drop(server *s);                       /* ends all waiting: no connection stays suspended */
void jobs_watch(server *s); /* cancels jobs of closed connections, and pings waiting clients */
/* Computes one waiting embedding; false: there is none. The computing thread. */
bool jobs_embed(server *s);

/* ---- embed.c ---- */
void embed_ask(exchange *x);
void embedding_free(embedding *e);                    /* NULL is fine */
nib_status embedding_compute(job *j, nib_error *err); /* steps the batch in between */

/* ---- server.c ---- */
/* One step of the batch, and what comes of it. True: something is left to compute. */
bool server_turn(server *s);

/* The id of a tool that is called: nine letters and digits are what every template takes. */
void job_call_id(const answer *a, const answer_part *p, char out[16]);

/* ---- logprobs.c ---- */
/* A token's own bytes (the caller frees *text with mem_free), none where the tokenizer has no such token;
 * false: no memory. */
bool token_text(const nib_engine *e, int32_t token, char **text, size_t *n_byte);
/* "logprobs" of the answer's tokens from `from` on, as chat completions and completions have them; null where
 * they were not asked for. NULL: no memory. */
json_t *tokens_logprobs(const answer *a, size_t from);

/* ---- texts.c, reports.c: a reply each ---- */
void texts_tokenize(exchange *x);
void texts_detokenize(exchange *x);
void texts_apply_template(exchange *x);
void report_health(exchange *x);
void report_models(exchange *x);
void report_model(exchange *x);
void report_metrics(exchange *x);
void report_memory(exchange *x);
void report_slots(exchange *x);
void report_page(exchange *x);
extern const char server_page[]; /* page.html */
extern const size_t server_page_size;

void openapi_describe(exchange *x); /* openapi.c */

/* ---- ollama.c, anthropic.c, responses.c ---- */
void ollama_ask_chat(exchange *x);
void ollama_ask_generate(exchange *x);
void ollama_tags(exchange *x);
void ollama_ps(exchange *x);
void ollama_show(exchange *x);
json_t *ollama_refusal(const fault *why); /* its faults */
/* "5m", 300, -1: seconds, INFINITY for ever; NAN where it is not said. False: *why. */
bool ollama_keep_alive(const json_t *body, double *out, fault *why);
/* Whether nothing is asked of the model but that it is there. */
bool ollama_asks_nothing(const json_t *body);
void ollama_version(exchange *x);
void anthropic_ask(exchange *x);
void anthropic_count(exchange *x);
void responses_ask(exchange *x);

/* ---- exchange.c ---- */
enum { EXCHANGE_CONNECTION_BYTES = 16 << 10 }; /* of each: headers, and what is sent at a time */
struct MHD_Daemon *exchange_listen(server *s);
void exchange_suspend(exchange *x);             /* guarded */
void exchange_resume(exchange *x);              /* guarded */
void exchange_json(exchange *x, json_t *value); /* the reply; takes the reference */

#endif

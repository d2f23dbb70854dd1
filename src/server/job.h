/* job.h - converts a checked call to requests of the batch, and pieces of answers to bytes to send.
 *
 * A job has one or more answers, each one request to the batch. Its exchange refers to it and, until all
 * answers are complete, the computing thread; the last reference frees it. */
#ifndef NIB_SERVER_JOB_H
#define NIB_SERVER_JOB_H

#include "server/answer_parser.h"
#include "server/call.h"
#include "server/dialect.h"
#include "server/exchange.h"
#include "server/models.h"

#include <stdatomic.h>

typedef struct embedding embedding;

struct answer { /* one of a job's answers */
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
};

enum { NO_ITEM = -1 };

struct job {
    server *s;
    served *model;        /* held */
    embedding *embedding; /* NULL: it has answers. Else one, which is not in the batch */
    uint64_t counted;     /* of it, in the server's n_embedding */
    uint64_t n_text;      /* guarded: bytes of a stream in the server's n_text */
    int64_t n_kept;       /* guarded: bytes of values that writing a stream has kept: items, parsers */
    uint64_t n_value;     /* in the server's n_value */
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

/* Adds the call's answers to the batch as the exchange's job. False: *why. The job owns the call in any case.
 */
bool job_begin(exchange *x, call *c, const dialect *how, fault *why);
/* The same for a body that was parsed to c with this result, in the dialect of the exchange's route. */
void job_begin_parsed(exchange *x, call *c, bool parsed);
void job_release(job *j);
void job_write(job *j);              /* guarded: writes new output to `out` */
uint64_t job_buffered(const job *j); /* guarded: bytes of its buffers of text */
void job_charge(
    job *j); /* guarded: counts what is kept of a stream until its client has read it in s->n_text */
void job_cancel(job *j); /* guarded */
/* Tokens of all ended answers: of prompts, reused from the cache; generated. */
size_t job_cached(const job *j);
size_t job_predicted(const job *j);
size_t job_made(const job *j); /* tokens so far; any thread */

/* Begins a job for the embedding, which the job owns in any case. False: *why. */
bool job_begin_embedding(exchange *x, embedding *e, fault *why);

/* The id of a tool call: nine letters and digits, which every template accepts. */
void job_call_id(const answer *a, const answer_part *p, char out[16]);

#endif

/* models.h - the models of a server: which are loaded, and who uses them. */
#ifndef NIB_SERVER_MODELS_H
#define NIB_SERVER_MODELS_H

#include "server/answer_parser.h"
#include "server/fault.h"
#include "server/parts.h"

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

#endif

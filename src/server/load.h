/* load.h - loads one model at a time, on a thread of its own. */
#ifndef NIB_SERVER_LOAD_H
#define NIB_SERVER_LOAD_H

#include "server/server.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct served served;

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

/* Computing thread: */
void load_begin(served *m); /* starts a load; no other may be running */
bool load_end(server *s);   /* if a load has ended, begins to use its model; false: none has */
void load_drop(server *s);  /* waits for a running load, and closes its engine */

#endif

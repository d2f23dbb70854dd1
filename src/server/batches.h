/* batches.h - /v1/batches: files of requests, answered beside the requests of clients.
 *
 *     validating --> in_progress --> completed
 *         |              |-----> cancelling --> cancelled
 *         '---> failed <-'
 *
 * A batch is FOLDER/batch_ID.json (files.h), written at each change of its state. Its answers grow line by
 * line in its output file; the lines that are there tell, after any interruption, which requests are answered
 * (batch_file.h). So a server that is started again continues its batches, and no answer is lost or doubled.
 *
 * One batch runs at a time, the oldest first, on the computing thread. It leaves places free for clients. */
#ifndef NIB_SERVER_BATCHES_H
#define NIB_SERVER_BATCHES_H

#include "server/exchange.h"

typedef struct batches batches;

nib_status batches_open(server *s, nib_error *err); /* with a folder for files */
void batches_close(server *s);
/* Asks requests of the running batch, and writes its answers. Computing thread, between two steps. True: it
 * has made progress. */
bool batches_tend(server *s);

/* ---- routes ---- */
void batches_create(exchange *x);
void batches_list(exchange *x);
void batches_get(exchange *x);
void batches_cancel(exchange *x); /* /v1/batches/ID/cancel */

#endif

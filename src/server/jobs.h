/* jobs.h - all jobs of a server: their results, clients that left, and waiting embeddings. */
#ifndef NIB_SERVER_JOBS_H
#define NIB_SERVER_JOBS_H

#include "server/models.h"

void jobs_take(served *m);                       /* collects ended requests of its batch; computing thread */
void jobs_fail(served *m, const nib_error *err); /* fails all its unfinished jobs */
void jobs_drop(server *s);                       /* ends all jobs, so that no connection stays suspended */
void jobs_watch(server *s); /* cancels jobs of closed connections, and pings waiting clients */
/* Computes one waiting embedding; false: there is none. Computing thread. */
bool jobs_embed(server *s);

#endif

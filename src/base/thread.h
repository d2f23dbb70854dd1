/* thread.h - a pool of threads for kernels, with barriers that spin briefly and then sleep. The calling
 * thread is thread 0; the others are pinned, each to a core of its own, when there is one thread for each
 * core of a machine that nothing keeps from this process. One thread at a time may call pool_run. */
#ifndef NIB_BASE_THREAD_H
#define NIB_BASE_THREAD_H

#include "base/status.h"

typedef struct pool pool;

nib_status pool_open(int n_thread, pool **out, nib_error *err); /* n_thread >= 1; 1 makes no thread */
void pool_close(pool *p);                                       /* NULL is fine */
int pool_size(const pool *p);

/* Runs fn(arg, thread, n_thread) on every thread of the pool and returns when all are done. */
typedef void (*pool_fn)(void *arg, int thread, int n_thread);
void pool_run(pool *p, pool_fn fn, void *arg);

/* Until pool_unpin_caller the calling thread too keeps to a core of its own, where the others do, and where
 * it may run everywhere: for a number of pool_runs, between which and in which it waits for others (the
 * disk). The system wakes a thread where it likes, and leaves two of them on one core for milliseconds while
 * another core has nothing to do. Threads that are made in between would inherit the core. Not nested. */
void pool_pin_caller(pool *p);
void pool_unpin_caller(pool *p);

/* Inside a pool_fn: waits until every thread of this pool_run has come here. */
void pool_barrier(pool *p);

/* The part [*begin, *end) of n items, in units of `unit`, that belongs to one thread: contiguous, fixed. */
void pool_split(int64_t n, int64_t unit, int thread, int n_thread, int64_t *begin, int64_t *end);

/* The calling thread will do little at a time, and others wait for it: it asks to be let in as soon as it
 * wakes, before those that compute. Linux 6.12 and later know how; elsewhere nothing happens. */
void thread_short_slices(void);

int thread_physical_cores(void); /* that this process may run on, at least 1 */
double time_now(void);           /* seconds, monotonic */
double time_thread(void);        /* seconds that the calling thread has computed */

#endif

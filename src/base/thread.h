/* thread.h - a pool of threads for kernels, with barriers that spin briefly and then sleep. The calling
 * thread is thread 0; the others are pinned, each to a core of its own, if there is one thread for each core
 * of the machine and no affinity mask or quota restricts the process. One thread at a time may call pool_run.
 */
#ifndef NIB_BASE_THREAD_H
#define NIB_BASE_THREAD_H

#include "base/status.h"

typedef struct pool pool;

nib_status pool_open(int n_thread, pool **out, nib_error *err); /* n_thread >= 1; 1 makes no thread */
void pool_close(pool *p);                                       /* NULL is fine */
int pool_size(const pool *p);

/* Runs fn(arg, thread, n_thread) on every thread of the pool and returns when all are done. */
typedef void (*pool_fn)(void *arg, int thread, int n_thread);
void pool_run(pool *p, pool_fn fn, void *arg); /* never fails */

/* Pins the calling thread to a core of its own until pool_unpin_caller, if the other threads are pinned and
 * the caller may run everywhere. For a series of pool_run calls with waiting (for the disk) between them: the
 * system may wake a thread on another one's core, and both share it for milliseconds while another core is
 * idle. Threads that are created meanwhile inherit the core. Not nested. */
void pool_pin_caller(pool *p);
void pool_unpin_caller(pool *p);

/* Inside a pool_fn: a barrier of all threads of this pool_run. */
void pool_barrier(pool *p);

/* The part [*begin, *end) of n items, in units of `unit`, that belongs to one thread. Parts are contiguous
 * and depend on the arguments only. */
void pool_split(int64_t n, int64_t unit, int thread, int n_thread, int64_t *begin, int64_t *end);

/* Requests short time slices for the calling thread, which works briefly while others wait for it: it then
 * runs as soon as it wakes, before computing threads. Needs Linux 6.12; has no effect elsewhere. */
void thread_short_slices(void);

void thread_relax(void);         /* a short pause of the core, in a loop that waits */
int thread_physical_cores(void); /* that this process may run on, at least 1 */
double time_now(void);           /* seconds, monotonic */
double time_thread(void);        /* processor time of the calling thread, in seconds */

#endif

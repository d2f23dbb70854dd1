/* thread.c - see thread.h. All waiting goes through a gate: a word that only changes when a waiter may
 * continue. A waiter spins for some microseconds, because the next piece of work usually comes at once, then
 * sleeps on a condition variable. Each gate learns how long to spin: a wait that ended in sleep halves it
 * (another thread needs the processor, and spinning delays the one that is waited for; or the caller waits
 * for the disk before it has work again). A wait that ended while spinning lengthens it again. */
#include "base/thread.h"
#include "base/cgroup.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CACHE_LINE 64
/* Maximum and minimum iterations of a spinning wait. The maximum is 40 to 200 microseconds: longer than a gap
 * between two ops, shorter than a time slice. */
enum { MAX_SPIN = 4000, MIN_SPIN = 60 };

typedef struct gate {
    alignas(CACHE_LINE) atomic_uint word;
    atomic_int sleepers;
    atomic_int spin_limit; /* iterations of the next wait; 0: always sleep at once */
    pthread_mutex_t mutex;
    pthread_cond_t opened;
} gate;

typedef struct worker {
    pool *owner;
    int index;
    pthread_t thread;
} worker;

struct pool {
    gate start, done, barrier;
    alignas(CACHE_LINE) atomic_int working; /* threads besides the caller that still run fn */
    alignas(CACHE_LINE) atomic_int arrived; /* at the barrier */
    alignas(CACHE_LINE) pool_fn fn;         /* NULL: the threads are to end */
    void *arg;
    int n_thread, n_started;
    worker *workers;  /* [n_thread - 1] */
    int home;         /* the caller's core; -1: no thread is pinned */
    bool stays;       /* the caller is pinned to `home` */
    cpu_set_t before; /* the caller's affinity mask when it is not pinned */
};

void thread_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int gate_init(gate *g) {
    atomic_init(&g->word, 0);
    atomic_init(&g->sleepers, 0);
    atomic_init(&g->spin_limit, 0);
    if (pthread_mutex_init(&g->mutex, NULL))
        return -1;
    if (pthread_cond_init(&g->opened, NULL)) {
        pthread_mutex_destroy(&g->mutex);
        return -1;
    }
    return 0;
}

static void gate_deinit(gate *g) {
    pthread_cond_destroy(&g->opened);
    pthread_mutex_destroy(&g->mutex);
}

static void learn(gate *g, int now) {
    atomic_store_explicit(&g->spin_limit,
                          now < MIN_SPIN   ? MIN_SPIN
                          : now > MAX_SPIN ? MAX_SPIN
                                           : now,
                          memory_order_relaxed); /* a guess that threads may overwrite for each other */
}

/* Waits until the gate's word differs from `old`. */
static void gate_wait(gate *g, unsigned old) {
    const int spin = atomic_load_explicit(&g->spin_limit, memory_order_relaxed);
    for (int i = 0; i < spin; i++) {
        if (atomic_load_explicit(&g->word, memory_order_acquire) != old) {
            if (spin < MAX_SPIN)
                learn(g, spin + MAX_SPIN / 16);
            return;
        }
        thread_relax();
    }
    if (spin > 0)
        learn(g, spin / 2);
    pthread_mutex_lock(&g->mutex);
    /* Sequentially consistent on both sides: either we see the new word, or gate_open sees a sleeper. */
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->word) == old)
        pthread_cond_wait(&g->opened, &g->mutex);
    atomic_fetch_sub(&g->sleepers, 1);
    pthread_mutex_unlock(&g->mutex);
}

static void gate_open(gate *g) {
    atomic_fetch_add(&g->word, 1);
    if (atomic_load(&g->sleepers) == 0)
        return;
    pthread_mutex_lock(&g->mutex);
    pthread_cond_broadcast(&g->opened);
    pthread_mutex_unlock(&g->mutex);
}

static void *work(void *arg) {
    worker *w = arg;
    pool *p = w->owner;
    for (unsigned turn = 0;; turn++) {
        gate_wait(&p->start, turn);
        if (!p->fn)
            return NULL;
        p->fn(p->arg, w->index, p->n_thread);
        if (atomic_fetch_sub_explicit(&p->working, 1, memory_order_acq_rel) == 1)
            gate_open(&p->done);
    }
}

static void pin(pthread_t thread, int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread, sizeof set, &set); /* only a matter of speed */
}

/* The first hardware thread of cpu's core, from "0,64" or "0-1"; cpu itself when the system does not say. */
static int core_of(int cpu) {
    char path[96];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    int first = cpu;
    FILE *f = fopen(path, "re");
    if (f) {
        if (fscanf(f, "%d", &first) != 1 || first < 0 || first > cpu)
            first = cpu;
        fclose(f);
    }
    return first;
}

/* Lists the CPUs that this process may use, first one for each core; returns their number. *n_core: number of
 * cores. */
static int list_cpus(int cpus[CPU_SETSIZE], int *n_core) {
    cpu_set_t mask, seen;
    CPU_ZERO(&seen);
    *n_core = 0;
    if (sched_getaffinity(0, sizeof mask, &mask))
        return 0;
    int n = 0, second[CPU_SETSIZE] = {0}, n_second = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &mask))
            continue;
        int core = core_of(cpu);
        if (CPU_ISSET(core, &seen))
            second[n_second++] = cpu;
        else
            cpus[n++] = cpu;
        CPU_SET(core, &seen);
    }
    *n_core = n;
    for (int i = 0; i < n_second; i++)
        cpus[n++] = second[i];
    return n;
}

/* A container's share of time, in whole CPUs; 0: no limit. */
static int cgroup_cpus(void) {
    cgroup_limits limits;
    cgroup_limits_read(&limits);
    return limits.n_cpu;
}

int thread_physical_cores(void) {
    int cpus[CPU_SETSIZE] = {0}, n_core;
    int n = list_cpus(cpus, &n_core) > 0 ? n_core : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int share = cgroup_cpus();
    if (share > 0 && share < n)
        n = share;
    return n > 0 ? n : 1;
}

/* With one thread for each core of the whole machine, each thread has its own core, and moving it cannot
 * help. With fewer threads, or under a restriction, another process (or another engine in this one) might pin
 * its threads to the same few cores, so the scheduler decides. */
static bool may_pin(const pool *p, int n_cpu, int n_core) {
    return p->n_thread == n_core && n_cpu == (int)sysconf(_SC_NPROCESSORS_ONLN) && cgroup_cpus() == 0;
}

static nib_status start_threads(pool *p, nib_error *err) {
    int cpus[CPU_SETSIZE] = {0}, n_core;
    int n_cpu = list_cpus(cpus, &n_core), share = cgroup_cpus();
    /* With more threads than CPUs, spinning takes time from the thread that is waited for. */
    bool enough = p->n_thread <= n_cpu && (share == 0 || p->n_thread <= share);
    bool pinned = may_pin(p, n_cpu, n_core);
    gate *gates[] = {&p->start, &p->done, &p->barrier};
    for (int i = 0; i < 3; i++)
        atomic_store(&gates[i]->spin_limit, enough ? MAX_SPIN : 0);
    for (int i = 1; i < p->n_thread; i++) {
        worker *w = &p->workers[i - 1];
        w->owner = p;
        w->index = i;
        int code = pthread_create(&w->thread, NULL, work, w);
        if (code)
            return nib_fail(err, NIB_E_FAILED, "expected %d threads, the system gave %d: %s", p->n_thread, i,
                            strerror(code));
        p->n_started++;
        if (pinned)
            pin(w->thread, cpus[i]);
    }
    p->home = pinned ? cpus[0] : -1;
    return NIB_OK;
}

nib_status pool_open(int n_thread, pool **out, nib_error *err) {
    if (n_thread < 1 || n_thread > CPU_SETSIZE)
        return nib_fail(err, NIB_E_USAGE, "threads: expected 1 to %d, found %d", CPU_SETSIZE, n_thread);
    pool *p = mem_alloc_aligned(CACHE_LINE, sizeof *p);
    if (!p)
        return nib_fail_nomem(err, sizeof *p, "threads");
    memset(p, 0, sizeof *p);
    p->n_thread = n_thread;
    p->workers = mem_calloc((size_t)n_thread, sizeof *p->workers);
    if (!p->workers) {
        mem_free(p);
        return nib_fail_nomem(err, (size_t)n_thread * sizeof *p->workers, "threads");
    }
    gate *gates[] = {&p->start, &p->done, &p->barrier};
    for (int i = 0; i < 3; i++)
        if (gate_init(gates[i])) {
            while (i-- > 0)
                gate_deinit(gates[i]);
            mem_free(p->workers);
            mem_free(p);
            return nib_fail(err, NIB_E_FAILED, "the system gave no mutex for threads");
        }
    nib_status status = start_threads(p, err);
    if (status != NIB_OK) {
        pool_close(p);
        return status;
    }
    *out = p;
    return NIB_OK;
}

void pool_close(pool *p) {
    if (!p)
        return;
    p->fn = NULL;
    gate_open(&p->start);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    gate_deinit(&p->start);
    gate_deinit(&p->done);
    gate_deinit(&p->barrier);
    mem_free(p->workers);
    mem_free(p);
}

int pool_size(const pool *p) {
    return p->n_thread;
}

void pool_run(pool *p, pool_fn fn, void *arg) {
    if (p->n_thread == 1) {
        fn(arg, 0, 1);
        return;
    }
    unsigned done = atomic_load_explicit(&p->done.word, memory_order_relaxed);
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->working, p->n_thread - 1, memory_order_relaxed);
    gate_open(&p->start);
    fn(arg, 0, p->n_thread);
    gate_wait(&p->done, done);
}

/* Thread 0 is the caller: pool_unpin_caller restores its affinity. */
void pool_pin_caller(pool *p) {
    p->stays = p->home >= 0 && p->n_thread > 1 && sched_getaffinity(0, sizeof p->before, &p->before) == 0 &&
               CPU_COUNT(&p->before) == (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (p->stays)
        pin(pthread_self(), p->home);
}

void pool_unpin_caller(pool *p) {
    if (p->stays)
        pthread_setaffinity_np(pthread_self(), sizeof p->before, &p->before);
    p->stays = false;
}

void pool_barrier(pool *p) {
    if (p->n_thread == 1)
        return;
    unsigned phase = atomic_load_explicit(&p->barrier.word, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->n_thread - 1) {
        atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
        gate_open(&p->barrier);
    } else {
        gate_wait(&p->barrier, phase);
    }
}

void pool_split(int64_t n, int64_t unit, int thread, int n_thread, int64_t *begin, int64_t *end) {
    int64_t units = n / unit + (n % unit != 0);
    int64_t each = units / n_thread, extra = units % n_thread;
    int64_t first = each * thread + (thread < extra ? thread : extra);
    int64_t last = first + each + (thread < extra);
    *begin = first * unit < n ? first * unit : n;
    *end = last * unit < n ? last * unit : n;
}

/* The shortest time slice that the scheduler accepts; it lets threads with short slices run first. */
void thread_short_slices(void) {
#ifdef SYS_sched_setattr
    enum { SLICE_NS = 100000 };
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } of = {.size = sizeof of, .policy = SCHED_OTHER, .runtime = SLICE_NS}; /* struct sched_attr */
    errno = 0;
    const int nice = getpriority(PRIO_PROCESS, 0); /* of this thread: it is kept */
    of.nice = nice;
    if (!errno && sched_getscheduler(0) == SCHED_OTHER)
        syscall(SYS_sched_setattr, 0, &of, 0); /* only a matter of speed */
#endif
}

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double time_now(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double time_thread(void) {
    return read_clock(CLOCK_THREAD_CPUTIME_ID);
}

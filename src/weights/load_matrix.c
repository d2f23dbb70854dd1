/* load_matrix.c - see load_matrix.h. Every thread has a pipe, and takes the next rows when its pipe has a
 * free buffer. */
#include "weights/load_matrix.h"

#include "base/mem.h"
#include "base/num.h"
#include "weights/load_pipe.h"

#include <pthread.h>

enum {
    RAW = 256 << 10,
    MIN_RAW = 64 << 10,
    DEPTH = 3,
    MAX_STAGING = 6 << 20 /* bytes of all threads' reads */
};

static uint64_t raw_of(int n_thread) {
    const uint64_t each = (uint64_t)MAX_STAGING / ((uint64_t)n_thread * DEPTH);
    return NUM_MAX(NUM_MIN(each, (uint64_t)RAW), (uint64_t)MIN_RAW);
}

typedef struct work {
    load_list list;
    const weight *w;
    void *dst;
    load_pipe *pipes;
    int n_pipe;
    const canceller *cancel;
    pthread_mutex_t lock; /* everything below */
    int64_t next;         /* next row to be loaded */
    bool stop;
    nib_status status;
    nib_error error;
} work;

static bool next_rows(load_list *l, load_job *out) {
    work *k = l->user;
    pthread_mutex_lock(&k->lock);
    const int64_t first = k->next, left = k->w->n - first;
    const int64_t n = NUM_MIN(left, loader_rows_at_once(k->w, &k->pipes[0].buffer));
    const bool some = !k->stop && left > 0;
    k->next += some ? n : 0;
    pthread_mutex_unlock(&k->lock);
    if (some)
        *out = (load_job){.w = k->w, .first = first, .n_row = n, .to = {k->dst, k->w->n, first}};
    return some;
}

static nib_status finished(load_list *l, const load_job *job, nib_error *err) {
    const work *k = l->user;
    (void)job;
    return cancel_check(k->cancel, err);
}

static void run(void *arg, int thread, int n_thread) {
    work *k = arg;
    nib_error error;
    (void)n_thread;
    const nib_status status = load_pipe_run(&k->pipes[thread], &k->list, &error);
    if (status == NIB_OK)
        return;
    pthread_mutex_lock(&k->lock);
    if (k->status == NIB_OK) {
        k->status = status;
        k->error = error;
    }
    k->stop = true;
    pthread_mutex_unlock(&k->lock);
}

uint64_t load_matrix_bytes(const layout *lay, int n_thread) {
    return load_pipe_bytes(lay, raw_of(n_thread), DEPTH) * (uint64_t)n_thread;
}

static nib_status open_pipes(work *k, const layout *lay, const loader *ld, int n_thread, int depth,
                             nib_error *err) {
    k->pipes = mem_calloc((size_t)n_thread, sizeof *k->pipes);
    if (!k->pipes)
        return nib_fail_nomem(err, (size_t)n_thread * sizeof *k->pipes, "staging");
    for (; k->n_pipe < n_thread; k->n_pipe++)
        NIB_TRY(load_pipe_open(&k->pipes[k->n_pipe], ld, lay, raw_of(n_thread), depth, NULL, NULL, 0, err));
    return NIB_OK;
}

static nib_status load(work *k, const layout *lay, pool *threads, nib_error *err) {
    loader *ld;
    const bool direct = !loader_is_cached(layout_model(lay));
    NIB_TRY(loader_open(layout_model(lay), direct, &ld, err));
    nib_status status = open_pipes(k, lay, ld, pool_size(threads), direct ? DEPTH : 0, err);
    if (status == NIB_OK) {
        pool_run(threads, run, k);
        status = k->status;
        if (status != NIB_OK && err)
            *err = k->error;
    }
    for (int i = 0; i < k->n_pipe; i++)
        load_pipe_close(&k->pipes[i]);
    mem_free(k->pipes);
    loader_close(ld);
    return status;
}

nib_status load_matrix(const layout *lay, const weight *w, void *dst, pool *threads, ledger *l,
                       const canceller *cancel, uint64_t *n_read, nib_error *err) {
    const uint64_t staging = load_matrix_bytes(lay, pool_size(threads));
    work k = {.w = w, .dst = dst, .cancel = cancel};
    k.list = (load_list){.next = next_rows, .finished = finished, .user = &k};
    NIB_TRY(ledger_charge(l, PLACE_RAM, NIB_OWNER_STAGING, staging, err));
    pthread_mutex_init(&k.lock, NULL);
    const nib_status status = load(&k, lay, threads, err);
    pthread_mutex_destroy(&k.lock);
    ledger_release(l, PLACE_RAM, NIB_OWNER_STAGING, staging);
    *n_read = loader_row_bytes(w) * (uint64_t)w->n;
    return status;
}

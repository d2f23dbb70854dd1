/* pager_load.c - the resident weights, read and packed by all threads of the pool.
 *
 * The work is cut into jobs of some hundred KiB of one weight, in the order of the blocks; each thread takes
 * the next job, reads it into its own staging buffer and packs it into its place. Reading and packing overlap
 * because different threads are at different stages; the system is told ahead what will be read, so that a
 * cold file streams at the disk's rate. */
#include "tiers/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

enum {
    RAW = 256 << 10, /* of each thread: stays in its second-level cache between reading and packing */
    AHEAD_JOBS = 64, /* how many jobs ahead the system is told to read: 16 MiB */
    TELL_EVERY = 16
};

typedef struct job {
    const weight *w;
    int64_t first, n_row; /* rows of w */
    load_target to;
} job;

typedef struct load {
    pager *p;
    const pager_options *options;
    job *jobs;
    size_t n_job, cap_job;
    load_buffer *buffers;
    _Atomic size_t next;
    _Atomic uint64_t done;
    uint64_t total;
    _Atomic bool stop;
    pthread_mutex_t lock;
    nib_status status;
    nib_error error;
} load;

uint64_t pager_load_staging(const model *m, int n_thread) {
    return load_buffer_bytes(m, RAW) * (uint64_t)n_thread;
}

static uint64_t file_bytes(const weight *w, int64_t n_row) {
    uint64_t each = 0;
    type_row_bytes(w->type, w->vector ? 1 : w->k, &each);
    return each * (uint64_t)(w->vector ? w->k : n_row);
}

static bool add_jobs(load *l, const weight *w, int64_t first, int64_t n_row, uint8_t *dst) {
    int64_t at_once = w->vector ? n_row : loader_rows_at_once(w, &l->buffers[0]);
    for (int64_t i = 0; i < n_row; i += at_once) {
        if (mem_grow((void **)&l->jobs, &l->cap_job, l->n_job + 1, sizeof *l->jobs) != 0)
            return false;
        int64_t n = NUM_MIN(at_once, n_row - i);
        l->jobs[l->n_job++] = (job){w, first + i, n, {dst, n_row, i}};
        l->total += file_bytes(w, n);
    }
    return true;
}

/* Group parts' weights have no place of their own; parts of rows come after. */
static bool plan_jobs(load *l) {
    pager *p = l->p;
    for (int b = 0; b < p->n_block; b++) {
        const block *blk = model_block(p->m, b);
        for (int i = 0; i < blk->n_weight; i++) {
            const weight *w = &blk->weights[i];
            const place *at = &p->places[p->first_weight[b] + i];
            uint8_t *dst = at->resident;
            if (w->shared_block >= 0 || at->n_part > 0)
                continue;
            if (!dst && at->grouped && p->parts[p->group[b]].resident)
                dst = p->parts[p->group[b]].resident + at->offset;
            if (dst && !add_jobs(l, w, 0, w->vector ? 1 : w->n, dst))
                return false;
        }
    }
    for (int i = 0; i < p->n_part; i++) {
        const weight_part *at = &p->parts[i];
        if (at->w >= 0 && at->resident &&
            !add_jobs(l, &model_block(p->m, at->block)->weights[at->w], at->first_row, at->n_row,
                      at->resident))
            return false;
    }
    return true;
}

static void fail(load *l, nib_status status, const nib_error *error) {
    pthread_mutex_lock(&l->lock);
    if (l->status == NIB_OK) {
        l->status = status;
        l->error = *error;
    }
    pthread_mutex_unlock(&l->lock);
    atomic_store(&l->stop, true);
}

static void tell_ahead(const load *l, size_t i) {
    if (i % TELL_EVERY != 0)
        return;
    size_t begin = i == 0 ? 0 : i + AHEAD_JOBS, end = NUM_MIN(i + AHEAD_JOBS + TELL_EVERY, l->n_job);
    for (size_t j = begin; j < end; j++)
        loader_will_need(l->p->loader, l->jobs[j].w, l->jobs[j].first, l->jobs[j].n_row);
}

static void work(void *arg, int thread, int n_thread) {
    load *l = arg;
    (void)n_thread;
    while (!atomic_load(&l->stop)) {
        size_t i = atomic_fetch_add(&l->next, 1);
        if (i >= l->n_job)
            return;
        const job *j = &l->jobs[i];
        nib_error error = {NIB_OK, ""};
        tell_ahead(l, i);
        nib_status status =
            j->w->vector
                ? loader_vector(l->p->loader, j->w, j->to.dst, &l->buffers[thread], &error)
                : loader_matrix(l->p->loader, j->w, j->first, j->n_row, &j->to, &l->buffers[thread], &error);
        if (status != NIB_OK) {
            fail(l, status, &error);
            return;
        }
        uint64_t done = atomic_fetch_add(&l->done, file_bytes(j->w, j->n_row)) + file_bytes(j->w, j->n_row);
        if (thread == 0 && l->options->progress &&
            !l->options->progress(l->options->user, "load", done, l->total)) {
            nib_fail(&error, NIB_E_CANCELLED, "loading was cancelled");
            fail(l, NIB_E_CANCELLED, &error);
        }
    }
}

static nib_status run(load *l, int n_thread, nib_error *err) {
    for (int i = 0; i < n_thread; i++)
        NIB_TRY(load_buffer_init(&l->buffers[i], l->p->m, RAW, err));
    if (!plan_jobs(l))
        return nib_fail_nomem(err, (l->n_job + 1) * sizeof *l->jobs, "the list of what to load");
    pool_run(l->options->threads, work, l);
    atomic_fetch_add(&l->p->bytes_read, atomic_load(&l->done));
    if (l->status != NIB_OK && err)
        *err = l->error;
    return l->status;
}

nib_status pager_load_resident(pager *p, const pager_options *options, nib_error *err) {
    int n_thread = pool_size(options->threads);
    uint64_t staging = pager_load_staging(p->m, n_thread);
    load l = {.p = p, .options = options, .status = NIB_OK};
    NIB_TRY(ledger_charge(p->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, staging, err));
    l.buffers = mem_calloc((size_t)n_thread, sizeof *l.buffers);
    nib_status status = NIB_OK;
    if (!l.buffers) {
        status = nib_fail_nomem(err, (size_t)n_thread * sizeof *l.buffers, "staging");
    } else {
        pthread_mutex_init(&l.lock, NULL);
        status = run(&l, n_thread, err);
        pthread_mutex_destroy(&l.lock);
        for (int i = 0; i < n_thread; i++)
            load_buffer_deinit(&l.buffers[i]);
    }
    mem_free(l.buffers);
    mem_free(l.jobs);
    ledger_release(p->ledger, NIB_TIER_RAM, NIB_OWNER_STAGING, staging);
    return status;
}

nib_status pager_read_part(pager *p, const weight_part *which, uint8_t *dst, load_buffer *b, nib_error *err) {
    const block *blk = model_block(p->m, which->block);
    NIB_TRY(loader_check_unchanged(p->loader, err));
    if (which->w >= 0) {
        const weight *w = &blk->weights[which->w];
        load_target to = {dst, which->n_row, 0};
        NIB_TRY(loader_matrix(p->loader, w, which->first_row, which->n_row, &to, b, err));
        atomic_fetch_add(&p->bytes_read, file_bytes(w, which->n_row));
        return NIB_OK;
    }
    for (int i = 0; i < blk->n_weight; i++) {
        const weight *w = &blk->weights[i];
        const place *at = &p->places[p->first_weight[which->block] + i];
        if (!at->grouped)
            continue;
        load_target to = {dst + at->offset, w->n, 0};
        NIB_TRY(loader_matrix(p->loader, w, 0, w->n, &to, b, err));
        atomic_fetch_add(&p->bytes_read, file_bytes(w, w->n));
    }
    return NIB_OK;
}

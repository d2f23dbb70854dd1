/* pager_load.c - loads the resident weights on all threads of the pool. The work is cut into jobs of one read
 * each: rows in the order of the model's files (load_runs.h), which are packed, or units of the packed file
 * in its order, which are read directly to their place. Each thread takes the next job when its pipe has a
 * free buffer, and packs or checks what has arrived. So enough reads are in flight for the disk while the
 * threads work. Weights that are not in the list of runs follow one by one. */
#include "weights/pager_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum {
    RAW_CACHED = 256 << 10, /* fits the L2 cache between copying and packing */
    MAX_RAW = 1 << 20,      /* larger reads gain nothing (docs/optimisation-log.md) */
    MIN_RAW = 64 << 10,
    MAX_UNITS = 4 << 20,  /* read size for the packed file, which needs no staging */
    DEPTH = 4,            /* reads of a thread: it packs two while two are in flight */
    SLACK = 4 << 20,      /* bytes of jobs in progress when the next one has to wait */
    MAX_STAGING = 6 << 20 /* of all threads: whole huge pages, which reads fill twice as fast */
};

load_shape pager_load_shape(int n_thread, bool direct, uint64_t max) {
    if (!direct)
        return (load_shape){RAW_CACHED, 0};
    uint64_t each = NUM_MIN(max, (uint64_t)MAX_STAGING) / ((uint64_t)n_thread * DEPTH);
    return (load_shape){NUM_MAX(NUM_MIN(each, (uint64_t)MAX_RAW), (uint64_t)MIN_RAW), DEPTH};
}

/* ---- loading on all threads ---- */

typedef struct load {
    load_list list;
    pager *p;
    load_crew *crew;
    const load_request *request;
    pthread_t caller;     /* only this thread reports progress */
    uint64_t held_from;   /* bytes from here on (of request->total) are not given out before the side task has
                             ended */
    load_runs runs;       /* empty: the packed file is read, or pages are packed for it */
    pthread_mutex_t lock; /* everything below */
    pthread_cond_t went;  /* signalled when the side task has ended */
    bool side_task;       /* the side task is running */
    load_spot spot;       /* next row in runs */
    int block, weight;    /* the next vector */
    uint64_t vector_unit; /* or, from the packed file, the next unit of vectors */
    int page;             /* the page whose jobs are given out */
    page_jobs in_page;    /* its jobs; dst NULL: none */
    uint64_t given;       /* bytes of request->total that were given out */
    uint64_t reached;     /* end, in the map, of the units that were given out */
    uint64_t touched;     /* offset in the map: bytes before it are resident, or are being made resident */
    uint64_t done;
    bool stop, damaged;
    nib_status status;
    nib_error error;
} load;

static bool next_vector(load *l, load_job *out) {
    pager *p = l->p;
    uint8_t *base = l->request->vectors;
    if (!base)
        return false;
    if (p->packed) {
        const uint64_t at = l->vector_unit * PAGE_UNIT, all = p->layout.vector_bytes;
        if (at >= all)
            return false;
        *out = pager_unit_job(p, at, NUM_MIN(all - at, (uint64_t)PAGE_UNIT), l->vector_unit++, base + at);
        return true;
    }
    for (; l->block < p->layout.n_block; l->block++, l->weight = 0) {
        const block *blk = layout_block(p->layout.of, l->block);
        while (l->weight < blk->n_weight) {
            const weight *w = &blk->weights[l->weight];
            uint64_t offset = p->layout.places[p->layout.first_weight[l->block] + l->weight++].offset;
            if (!w->vector || w->shared_block >= 0 || (l->runs.n && load_runs_has(w)))
                continue;
            *out = (load_job){.w = w, .n_row = w->k, .to = {base + offset, 1, 0}};
            return true;
        }
    }
    return false;
}

/* Destination of page i; NULL: the request does not contain it. */
static uint8_t *wanted_at(const pager *p, const load_request *request, int i) {
    if (!request->pages)
        return pager_own(p, i);
    return request->pages + (p->layout.pages[i].image - p->layout.pages[request->first].image);
}

/* The next job: one read of pages that are adjacent in the packed file and in the map. */
static bool next_units(load *l, load_job *out) {
    const page_layout *lay = &l->p->layout;
    const page_state *state = l->p->state;
    while (l->page < lay->n_page && !pager_own(l->p, l->page))
        l->page++;
    if (l->page == lay->n_page)
        return false;
    const uint64_t unit = page_layout_vector_units(lay) + (uint64_t)l->page;
    uint64_t n_byte = lay->pages[l->page].bytes, n = 1;
    uint8_t *dst = state[l->page].resident;
    for (int i = l->page + 1; i < lay->n_page && state[i].resident == dst + n_byte; i++, n++) {
        if (n_byte + lay->pages[i].bytes > MAX_UNITS)
            break;
        n_byte += lay->pages[i].bytes;
    }
    *out = pager_unit_job(l->p, lay->pages[l->page].image, n_byte, unit, dst);
    out->n_unit = n;
    l->page += (int)n;
    return true;
}

/* The next job: rows of a matrix that is not in runs. */
static bool next_in_pages(load *l, load_job *out) {
    const pager *p = l->p;
    const int end = l->request->pages ? l->request->first + l->request->n : p->layout.n_page;
    for (; l->page < end; l->page++, l->in_page.dst = NULL) {
        if (!l->in_page.dst)
            l->in_page = (page_jobs){.page = l->page, .dst = wanted_at(p, l->request, l->page)};
        while (l->in_page.dst && pager_page_next(p, &l->in_page, &l->crew->pipes[0].buffer, out))
            if (!l->runs.n || !load_runs_has(out->w))
                return true;
    }
    return false;
}

/* A load_place_fn. */
static bool place_rows(void *user, const load_run *run, int64_t row, load_target *to, int64_t *n_row) {
    const load *l = user;
    const page_layout *lay = &l->p->layout;
    const weight_place *at = &lay->places[lay->first_weight[run->block] + run->index];
    if (run->w->vector) {
        *n_row = run->n_row;
        *to = (load_target){l->request->vectors ? l->request->vectors + at->offset : NULL, 1, 0};
        return to->dst != NULL;
    }
    const int i = at->first_page + (int)(row / at->page_rows);
    const weight_page *page = &lay->pages[i];
    uint8_t *dst = pager_own(l->p, i);
    if (page->w < 0) {
        *n_row = run->w->n - row;
        *to = (load_target){dst ? dst + at->offset : NULL, run->w->n, row};
    } else {
        *n_row = page->first_row + page->n_row - row;
        *to = (load_target){dst, page->n_row, row - page->first_row};
    }
    return dst != NULL;
}

static bool next_in_runs(load *l, load_job *out) {
    load_span span;
    if (!l->runs.n || !load_runs_next(&l->runs, l->p->loader, place_rows, l,
                                      l->crew->pipes[0].buffer.raw_bytes, &l->spot, &span))
        return false;
    *out = (load_job){.in_runs = true, .span = span};
    return true;
}

static void pack_runs(load_list *list, const load_job *j, const uint8_t *raw, const load_buffer *b) {
    load *l = list->user;
    load_runs_pack(&l->runs, place_rows, l, &j->span, raw, b);
}

static bool next_of_all(load *l, load_job *out) {
    return next_in_runs(l, out) || next_vector(l, out) ||
           (l->p->packed ? next_units(l, out) : next_in_pages(l, out));
}

static bool next_job(load_list *list, load_job *out) {
    load *l = list->user;
    pthread_mutex_lock(&l->lock);
    while (l->side_task && !l->stop && l->given >= l->held_from)
        pthread_cond_wait(&l->went, &l->lock);
    bool found = !l->stop && next_of_all(l, out);
    l->given += found ? pager_job_bytes(out) : 0;
    if (found && l->p->packed)
        l->reached = (uint64_t)((uint8_t *)out->to.dst - l->p->map);
    pthread_mutex_unlock(&l->lock);
    return found;
}

/* The system zeroes a page at its first touch. For reads directly into the map, waiting threads touch pages a
 * little ahead of the reads. (Packing touches pages itself, because zeroed bytes are then still in the
 * cache.) The whole map is charged. */
static bool touch_ahead(load_list *list) {
    enum { STEP = 2 << 20, AHEAD = 16 * STEP };
    load *l = list->user;
    pager *p = l->p;
    pthread_mutex_lock(&l->lock);
    const uint64_t max =
        l->side_task ? l->held_from : p->map_bytes; /* with a packed file, the total is the map's size */
    const uint64_t at = l->touched, end = NUM_MIN(max, l->reached + AHEAD);
    const bool some = !l->stop && at < end;
    l->touched = some ? at + STEP : at;
    pthread_mutex_unlock(&l->lock);
    if (!some)
        return false;
    if (mem_touch(p->map + at, (size_t)NUM_MIN(p->map_bytes - at, (uint64_t)STEP)))
        return true;
    pthread_mutex_lock(&l->lock);
    l->touched = UINT64_MAX; /* the system does not support it: stop trying */
    pthread_mutex_unlock(&l->lock);
    return false;
}

static bool check_units(const pager *p, const load_job *j) {
    const uint64_t first_page = page_layout_vector_units(&p->layout);
    const uint8_t *at = j->to.dst;
    uint64_t left = j->bytes.n_byte;
    for (uint64_t unit = j->unit; unit < j->unit + j->n_unit; unit++) {
        const uint64_t n = j->n_unit == 1 ? left : p->layout.pages[unit - first_page].bytes;
        if (!packed_check(p->packed, unit, at, n))
            return false;
        at += n;
        left -= n;
    }
    return true;
}

static nib_status finished(load_list *list, const load_job *j, nib_error *err) {
    load *l = list->user;
    const bool good = j->w || j->in_runs || check_units(l->p, j);
    pthread_mutex_lock(&l->lock);
    uint64_t done = l->done += pager_job_bytes(j);
    l->damaged = l->damaged || !good;
    pthread_mutex_unlock(&l->lock);
    if (!good)
        return nib_fail(err, NIB_E_MODEL, "%s: damaged", packed_name(l->p->packed));
    const load_request *request = l->request;
    NIB_TRY(cancel_check(request->cancel, err));
    if (request->progress && pthread_equal(pthread_self(), l->caller) &&
        !request->progress(request->user, "load", done, request->total))
        return nib_fail(err, NIB_E_CANCELLED, "loading was cancelled");
    return NIB_OK;
}

static nib_status do_beside(load *l, nib_error *err) {
    const pager_options *o = l->request->side_task;
    if (!o)
        return NIB_OK;
    const nib_status status = *l->request->side_status = o->side_task(o->side_user, err);
    pthread_mutex_lock(&l->lock);
    l->side_task = false;
    l->stop = l->stop || status != NIB_OK;
    pthread_cond_broadcast(&l->went);
    pthread_mutex_unlock(&l->lock);
    return status;
}

static void note_failure(load *l, nib_status status, const nib_error *error) {
    if (status == NIB_OK)
        return;
    pthread_mutex_lock(&l->lock);
    if (l->status == NIB_OK) {
        l->status = status;
        l->error = *error;
    }
    l->stop = true;
    pthread_mutex_unlock(&l->lock);
}

static void work(void *arg, int thread, int n_thread) {
    load *l = arg;
    nib_error error = {NIB_OK, ""};
    (void)n_thread;
    note_failure(l, load_pipe_run(&l->crew->pipes[thread], &l->list, &error), &error);
}

static void *run_side_task(void *arg) {
    load *l = arg;
    nib_error error = {NIB_OK, ""};
    note_failure(l, do_beside(l, &error), &error);
    return NULL;
}

/* The side task has its own thread, because loading leaves much of the processor idle; on a pool thread it
 * would delay that thread's reads. If no thread can be created, the side task runs first. */
static void work_with_all(load *l) {
    pthread_t helper;
    const bool wanted = l->side_task, helped = wanted && pthread_create(&helper, NULL, run_side_task, l) == 0;
    if (wanted && !helped)
        run_side_task(l);
    pool_run(l->crew->threads, work, l);
    if (helped)
        pthread_join(helper, NULL);
}

nib_status load_crew_run(load_crew *crew, pager *p, const load_request *request, bool *damaged,
                         nib_error *err) {
    load l = {.p = p, .crew = crew, .request = request, .caller = pthread_self()};
    *damaged = false;
    l.page = request->pages ? request->first : 0;
    l.side_task = request->side_task != NULL;
    if (l.side_task && p->map_bytes > request->side_task->side_bytes + SLACK) {
        const uint64_t held = p->map_bytes - request->side_task->side_bytes - SLACK;
        l.held_from = (uint64_t)((double)held / (double)p->map_bytes * (double)request->total);
    }
    if (!p->packed && !request->pages) /* pages for the packed file are too few for sorting to pay */
        NIB_TRY(load_runs_open(&l.runs, p->layout.of, err));
    l.list = (load_list){next_job, finished, pack_runs, p->packed ? touch_ahead : NULL, &l};
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.went, NULL);
    work_with_all(&l);
    pthread_cond_destroy(&l.went);
    pthread_mutex_destroy(&l.lock);
    load_runs_close(&l.runs);
    p->bytes_loaded += l.done;
    *damaged = l.damaged;
    if (l.status != NIB_OK && err)
        *err = l.error;
    return l.status;
}

uint64_t load_crew_bytes(const layout *lay, int n_thread, load_shape shape) {
    return load_pipe_bytes(lay, shape.raw, shape.depth) * (uint64_t)n_thread + load_runs_bytes(lay);
}

/* Uses the same memory for more reads: units need no staging, unless the file turns out to be damaged. */
static load_shape shape_of_units(const layout *lay, load_shape shape) {
    const uint64_t all = load_raw_bytes(lay, shape.raw) * (uint64_t)shape.depth;
    const uint64_t n = all / load_raw_bytes(lay, MIN_RAW);
    return (load_shape){MIN_RAW, (int)NUM_MAX(NUM_MIN(n, (uint64_t)MAX_READ_QUEUE), (uint64_t)shape.depth)};
}

nib_status load_crew_open(load_crew *crew, pager *p, pool *threads, load_shape shape, nib_error *err) {
    int n_thread = pool_size(threads);
    uint64_t bytes = load_crew_bytes(p->layout.of, n_thread, shape);
    memset(crew, 0, sizeof *crew);
    if (p->packed && shape.depth > 0)
        shape = shape_of_units(p->layout.of, shape);
    NIB_TRY(ledger_charge(p->ledger, PLACE_RAM, NIB_OWNER_STAGING, bytes, err));
    crew->ledger = p->ledger;
    crew->threads = threads;
    crew->charged = bytes;
    const uint64_t each = load_raw_bytes(p->layout.of, shape.raw) * (uint64_t)NUM_MAX(shape.depth, 1);
    crew->raws_bytes = each * (uint64_t)n_thread;
    crew->raws = mem_map(crew->raws_bytes);
    crew->pipes = mem_calloc((size_t)n_thread, sizeof *crew->pipes);
    nib_status status = crew->raws && crew->pipes ? NIB_OK : nib_fail_nomem(err, bytes, "staging");
    for (; crew->n < n_thread && status == NIB_OK; crew->n++)
        status = load_pipe_open(&crew->pipes[crew->n], p->loader, p->layout.of, shape.raw, shape.depth,
                                crew->raws + each * (uint64_t)crew->n, p->packed ? p->map : NULL, 0, err);
    if (status == NIB_OK && crew->pipes[0].queue && !read_queue_is_ring(crew->pipes[0].queue))
        log_line(p->log, "io_uring is not available: the weights are read by threads");
    if (status != NIB_OK)
        load_crew_close(crew);
    return status;
}

void load_crew_close(load_crew *crew) {
    for (int i = 0; i < crew->n; i++)
        load_pipe_close(&crew->pipes[i]);
    mem_free(crew->pipes);
    if (crew->raws)
        mem_unmap(crew->raws, crew->raws_bytes);
    if (crew->ledger)
        ledger_release(crew->ledger, PLACE_RAM, NIB_OWNER_STAGING, crew->charged);
    memset(crew, 0, sizeof *crew);
}

/* ---- everything resident ---- */

/* Bytes of the model's files that are read for the resident pages. */
static uint64_t resident_file_bytes(const pager *p) {
    const page_layout *l = &p->layout;
    uint64_t total = 0;
    for (int b = 0; b < l->n_block; b++)
        for (int i = 0; i < layout_block(p->layout.of, b)->n_weight; i++) {
            const weight *w = pager_weight(p, b, i);
            const weight_place *at = &l->places[l->first_weight[b] + i];
            load_job rows = {.w = w, .n_row = w->vector && w->shared_block < 0 ? w->k : 0};
            for (int j = 0; j < at->n_page; j++)
                if (pager_own(p, at->first_page + j))
                    rows.n_row += NUM_MIN(at->page_rows, w->n - j * at->page_rows);
            total += pager_job_bytes(&rows);
        }
    return total;
}

nib_status pager_load_resident(pager *p, const pager_options *o, load_shape shape, nib_error *err) {
    load_crew crew;
    bool damaged;
    nib_error why = {NIB_OK, ""};
    nib_status side_status = NIB_OK;
    load_request request = {.vectors = p->map,
                            .progress = o->progress,
                            .cancel = o->cancel,
                            .user = o->user,
                            .side_task = o->side_task ? o : NULL,
                            .side_status = &side_status};
    NIB_TRY(load_crew_open(&crew, p, o->threads, shape, err));
    request.total = p->packed ? p->map_bytes : resident_file_bytes(p);
    nib_status status = load_crew_run(&crew, p, &request, &damaged, &why);
    if (p->packed && status != NIB_OK && status != NIB_E_CANCELLED && side_status == NIB_OK) {
        pager_packed_drop(p, damaged);
        log_line(o->log, "the packed file is not used: %s", why.message);
        memset(p->map, 0, p->map_bytes); /* padding that packing does not write must be zero */
        request.total = resident_file_bytes(p);
        request.side_task = NULL;
        status = load_crew_run(&crew, p, &request, &damaged, &why);
    }
    load_crew_close(&crew);
    if (status != NIB_OK && err)
        *err = why;
    return status;
}

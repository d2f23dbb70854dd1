/* gpu.c - measures three rates of the GPU: copies from page-locked host memory, in pieces as large as a
 * layer's matrices; reading its own memory; products with the rows of a prompt. The first is timed by the
 * host's clock, the others by the GPU's. */
#include "measure/gpu.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/place.h"
#include "base/status.h"
#include "base/thread.h"
#include "kernels/cuda_load.h"

enum {
    PIECE = 32 << 20,
    PASSES = 6,
    READ = 256 << 20, /* bytes: more than any GPU's caches hold */
    READS = 4,
    ROWS = 512,         /* of a prompt */
    LENGTH = 4096,      /* of a row */
    OUTPUTS_EACH = 256, /* outputs for each multiprocessor: blocks have 128 outputs and 256 rows, so each gets
                           four, as in the products of a prompt */
    TIMES = 3
};

typedef struct gpu_job {
    const cuda_kernels *k;
    cuda_device_info info;
    void *host;
    bool pinned;
    cuda_stream stream;
    cuda_event from, to;
    void *there[4]; /* allocations on the GPU */
    int n_there;
} gpu_job;

static int take(gpu_job *j, size_t bytes, void **out) {
    int e = j->k->alloc(out, bytes);
    if (e)
        return e;
    j->there[j->n_there++] = *out;
    return j->k->fill(*out, 0, bytes, j->stream);
}

static void give_all(gpu_job *j) {
    while (j->n_there > 0)
        j->k->release(j->there[--j->n_there]);
}

static int copy_all(gpu_job *j, double *best) {
    void *there = NULL;
    int e = j->k->pin(j->host, PIECE);
    j->pinned = !e;
    e = e ? e : take(j, PIECE, &there);
    for (int i = 0; i <= PASSES && !e; i++) { /* the first one warms up */
        const double start = time_now();
        e = j->k->to_device(there, j->host, PIECE, j->stream);
        e = e ? e : j->k->stream_sync(j->stream);
        if (i > 0 && !e)
            *best = NUM_MAX(*best, PIECE / (time_now() - start));
    }
    return e;
}

/* Measures the rate of `fn`, which queues `work` units of work, by the time between two events. */
static int time_it(gpu_job *j, int (*fn)(gpu_job *j, void *user), void *user, double work, double *best) {
    int e = fn(j, user); /* warms up */
    for (int i = 0; i < TIMES && !e; i++) {
        float ms = 0;
        e = j->k->event_record(j->from, j->stream);
        e = e ? e : fn(j, user);
        e = e ? e : j->k->event_record(j->to, j->stream);
        e = e ? e : j->k->stream_sync(j->stream);
        e = e ? e : j->k->event_ms(&ms, j->from, j->to);
        if (!e && ms > 0)
            *best = NUM_MAX(*best, work / ((double)ms * 1e-3));
    }
    return e;
}

typedef struct reading {
    void *data, *sink;
} reading;

static int read_once(gpu_job *j, void *user) {
    const reading *r = user;
    int e = 0;
    for (int i = 0; i < READS && !e; i++)
        e = j->k->read_all(r->data, READ, r->sink, j->stream);
    return e;
}

static int read_memory(gpu_job *j, double *best) {
    reading r;
    int e = take(j, READ, &r.data);
    e = e ? e : take(j, 256, &r.sink);
    return e ? e : time_it(j, read_once, &r, (double)READ * READS, best);
}

static int multiply_once(gpu_job *j, void *user) {
    const cuda_linear *a = user;
    return a->n_row > CUDA_MAX_ROWS ? j->k->wide(a, j->stream) : j->k->linear(a, j->stream);
}

/* Fills `bytes`, at most PIECE, with floats between -1 and 1. */
static int scatter(gpu_job *j, void *to, size_t bytes) {
    float *x = j->host;
    uint32_t r = 1;
    for (size_t i = 0; i < bytes / sizeof *x; i++) {
        r = r * 1664525 + 1013904223;
        x[i] = (float)(int32_t)r * 0x1p-31f;
    }
    return j->k->to_device(to, x, bytes, j->stream);
}

/* Multiplies random numbers: with zeros a GPU takes less power, and its clock is higher. */
static int multiply(gpu_job *j, double *best) {
    const bool wide = j->k->has_wide();
    const int64_t n = (int64_t)OUTPUTS_EACH * NUM_MAX(j->info.n_sm, 1) / PACK_PANEL * PACK_PANEL;
    cuda_linear a = {.n_w = 1, .n_row = wide ? ROWS : CUDA_MAX_ROWS, .ldx = LENGTH, .ldy = {n}};
    uint64_t bytes = 0;
    void *w = NULL, *x = NULL, *y = NULL;
    a.w[0].n = n;
    a.w[0].k = LENGTH;
    if (!pack_from_name("u4g32", LENGTH, &a.w[0].format) || !pack_bytes(&a.w[0].format, n, LENGTH, &bytes))
        return 0;
    const size_t scratch =
        wide ? j->k->wide_scratch(a.n_row, LENGTH) : j->k->linear_scratch(a.n_row, LENGTH, false);
    int e = take(j, (size_t)bytes, &w);
    e = e ? e : take(j, (size_t)(a.n_row * LENGTH) * sizeof(float), &x);
    e = e ? e : take(j, (size_t)(a.n_row * n) * sizeof(float), &y);
    e = e ? e : take(j, scratch, &a.scratch);
    a.w[0].data = w;
    e = e ? e : j->k->random_matrix(&a.w[0], 0.01f, 1, j->stream);
    e = e ? e : scatter(j, x, (size_t)(a.n_row * LENGTH) * sizeof(float));
    e = e ? e : j->k->stream_sync(j->stream);
    a.x = x;
    a.y[0] = y;
    return e ? e : time_it(j, multiply_once, &a, (double)a.n_row * (double)n * LENGTH, best);
}

static int measure(gpu_job *j, gpu_rates *out) {
    int e = j->k->stream_new(&j->stream);
    e = e ? e : j->k->event_new(&j->from);
    e = e ? e : j->k->event_new(&j->to);
    e = e ? e : copy_all(j, &out->link);
    give_all(j);
    e = e ? e : read_memory(j, &out->read);
    give_all(j);
    e = e ? e : multiply(j, &out->macs);
    give_all(j);
    return e;
}

static void close_all(const gpu_job *j) {
    if (j->from)
        j->k->event_free(j->from);
    if (j->to)
        j->k->event_free(j->to);
    if (j->stream)
        j->k->stream_free(j->stream);
    if (j->pinned)
        j->k->unpin(j->host);
    mem_unmap(j->host, PIECE);
}

void gpu_rates_measure(gpu_rates *out) {
    gpu_job j = {0};
    *out = (gpu_rates){0};
    if (cuda_load(&j.k, NULL) != NIB_OK || j.k->device_open(PLACE_GPU_INDEX, &j.info))
        return;
    j.host = mem_map(PIECE);
    if (j.host)
        measure(&j, out); /* after an error the remaining rates are 0 (unknown) */
    close_all(&j);
}

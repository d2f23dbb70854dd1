/* trial.c - see trial.h: rotating weights, and the time of one sample. */
#include "measure/trial_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/dpr.h"
#include "numbers/tile.h"

#include <stdio.h>
#include <string.h>

enum {
    READ_BYTES = 8 << 20, /* bytes that a thread reads in one chunk of plain reading */
    LOOK_WORDS = 1 << 20, /* words of weights that are generated between two polls of the canceller */
    SCALE_BYTE = 0x1c     /* an ordinary number in every format: 0.004 as f16, 28 as int8, 2^-100 as e8m0 */
};
#define TOGETHER 0.8 /* minimum busy share of a sample's time for threads that ran in parallel */

static trial_span begin_span(void) {
    const double now = time_now();
    return (trial_span){time_thread(), now, now};
}

static void end_span(trial_span *s) {
    s->busy = time_thread() - s->busy;
    s->end = time_now();
}

static void run_sample(void *arg, int thread, int n_thread) {
    const trial_sample *s = arg;
    linear_args a = s->args;
    view w = *a.w;
    int64_t n0, n1;
    a.w = &w;
    a.scratch = s->t->scratch[thread];
    pool_split(s->n, PACK_PANEL, thread, n_thread, &n0, &n1);
    s->t->spans[thread] = begin_span();
    for (int64_t i = 0; i < s->n_call && n0 < n1; i++) {
        w.data = s->t->data + (uint64_t)((s->first_copy + i) % s->n_copy) * s->copy_bytes;
        s->strategy->run(&a, n0, n1);
    }
    end_span(&s->t->spans[thread]);
}

/* The processor time of the slowest thread; by_clock: at least about the wall-clock time. */
static double slowest(const trial *t) {
    double max = 1e-9, begin = t->spans[0].begin, end = t->spans[0].end;
    for (int i = 0; i < t->n_thread; i++) {
        max = NUM_MAX(max, t->spans[i].busy);
        begin = NUM_MIN(begin, t->spans[i].begin);
        end = NUM_MAX(end, t->spans[i].end);
    }
    return t->by_clock && t->n_thread > 1 ? NUM_MAX(max, TOGETHER * (end - begin)) : max;
}

double trial_time_sample(trial_sample *s, const strategy *by, int64_t n_call) {
    trial *t = s->t;
    s->strategy = by;
    s->n_call = n_call;
    s->first_copy = (int64_t)num_div_up(t->at, s->copy_bytes) % s->n_copy;
    pool_run(t->threads, run_sample, s);
    t->at = (uint64_t)((s->first_copy + n_call) % s->n_copy) * s->copy_bytes;
    return slowest(t) / (double)n_call * (double)t->shape.n / (double)s->n;
}

static void run_read(void *arg, int thread, int n_thread) {
    trial *t = arg;
    const uint64_t all = t->chunk * (uint64_t)n_thread, n_place = t->n_byte / all, first = t->at / all;
    t->spans[thread] = begin_span();
    for (uint64_t i = 0; i < (uint64_t)t->n_chunk; i++) {
        const char *data = t->data + (first + i) % n_place * all + (uint64_t)thread * t->chunk;
        t->sums[thread] += rate_read(data, t->chunk, t->pattern);
    }
    end_span(&t->spans[thread]);
}

double trial_time_read(trial *t, double seconds) {
    const uint64_t all = t->chunk * (uint64_t)t->n_thread, n_place = t->n_byte / all;
    t->n_chunk = (int)NUM_MAX(t->read_rate * seconds / (double)all, 1);
    t->at = num_div_up(t->at, all) % n_place * all;
    pool_run(t->threads, run_read, t);
    t->at = (t->at / all + (uint64_t)t->n_chunk) % n_place * all;
    return t->read_rate = (double)all * t->n_chunk / slowest(t);
}

static double try_pattern(void *arg, int pattern) {
    trial *t = arg;
    t->pattern = pattern;
    return trial_time_read(t, SAMPLE_SECONDS / 2);
}

/* ---- weights ---- */

static void fill_codes(void *arg, int thread, int n_thread) {
    trial *t = arg;
    int64_t begin, end;
    pool_split((int64_t)(t->n_byte / 8), 512, thread, n_thread, &begin, &end);
    uint64_t x = UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)(thread + 1);
    uint64_t *words = (uint64_t *)(void *)t->data;
    for (int64_t i = begin; i < end; i++) {
        if (i % LOOK_WORDS == 0 && cancel_asked(t->cancel))
            return;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

/* Random bits are not valid scales (NaN, subnormals), so all scales become ordinary numbers. */
static void fill_scales(void *arg, int thread, int n_thread) {
    trial *t = arg;
    const pack_format *f = &t->shape.format;
    const int64_t k = t->shape.k, n_tile = tile_count(k);
    const int64_t panel = tile_panel_bytes(f, k), tail = tile_tail_at(f, k);
    int64_t begin, end;
    pool_split((int64_t)t->n_byte / panel, 1, thread, n_thread, &begin, &end);
    for (int64_t p = begin; p < end && !cancel_asked(t->cancel); p++) {
        char *at = t->data + p * panel;
        memset(at + tail, SCALE_BYTE, (size_t)(panel - tail));
        for (int64_t done = 0; done < n_tile; done += TILE_CHUNK) {
            const int64_t n = NUM_MIN(n_tile - done, (int64_t)TILE_CHUNK), codes = n * tile_code_bytes(f);
            memset(at + codes, SCALE_BYTE, (size_t)(tile_chunk_bytes(f, n) - codes));
            at += tile_chunk_bytes(f, n);
        }
    }
}

/* Sets the scales. Formats with scales at the same places (one format in parts and in planes) need that only
 * once. */
static void set_scales(trial *t) {
    const pack_format *f = &t->shape.format;
    const int64_t k = t->shape.k, places[] = {tile_count(k), tile_panel_bytes(f, k), tile_tail_at(f, k),
                                              tile_code_bytes(f), tile_chunk_bytes(f, TILE_CHUNK)};
    if (memcmp(t->filled, places, sizeof places))
        pool_run(t->threads, fill_scales, t);
    memcpy(t->filled, places, sizeof places);
}

nib_status trial_open(const kernel_table *table, pool *threads, uint64_t n_byte, const canceller *cancel,
                      trial **out, nib_error *err) {
    if (n_byte < (uint64_t)1 << 20 || n_byte / 4096 < (uint64_t)pool_size(threads))
        return nib_fail(err, NIB_E_USAGE,
                        "expected at least 1 MiB of weights to rotate, and 4 KiB a thread, found %llu bytes",
                        (unsigned long long)n_byte);
    trial *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "timing kernels");
    t->table = table;
    t->threads = threads;
    t->cancel = cancel;
    t->n_thread = pool_size(threads);
    t->n_byte = n_byte / 4096 * 4096;
    t->chunk = NUM_MIN(t->n_byte / (uint64_t)t->n_thread / 4096 * 4096, (uint64_t)READ_BYTES);
    t->scratch = mem_calloc((size_t)t->n_thread, sizeof *t->scratch);
    t->spans = mem_calloc((size_t)t->n_thread, sizeof *t->spans);
    t->sums = mem_calloc((size_t)t->n_thread, sizeof *t->sums);
    t->data = mem_map(t->n_byte + RATE_SLACK);
    bool whole = t->scratch && t->spans && t->sums && t->data;
    for (int i = 0; whole && i < t->n_thread; i++)
        whole = (t->scratch[i] = mem_alloc_aligned(64, linear_scratch_bytes(false))) != NULL;
    if (!whole) {
        trial_close(t);
        return nib_fail_nomem(err, n_byte, "timing kernels");
    }
    pool_run(threads, fill_codes, t);
    const nib_status status = cancel_check(cancel, err);
    if (status != NIB_OK) {
        trial_close(t);
        return status;
    }
    t->pattern = rate_fastest(try_pattern, t);
    t->n_unit = dpr_measure(t->units, DPR_MAX_UNIT);
    *out = t;
    return NIB_OK;
}

void trial_use(trial *t, pool *threads) {
    t->threads = threads;
    t->n_thread = pool_size(threads);
    t->chunk = NUM_MIN(t->n_byte / (uint64_t)t->n_thread / 4096 * 4096, (uint64_t)READ_BYTES);
    t->at = 0;
    t->read_rate = 0;
}

void trial_by_clock(trial *t, bool on) {
    t->by_clock = on;
}

void trial_close(trial *t) {
    if (!t)
        return;
    for (int i = 0; t->scratch && i < t->n_thread; i++)
        mem_free(t->scratch[i]);
    if (t->data)
        mem_unmap(t->data, t->n_byte + RATE_SLACK);
    mem_free(t->scratch);
    mem_free(t->spans);
    mem_free(t->sums);
    mem_free(t);
}

nib_status trial_set(trial *t, const trial_shape *shape, nib_error *err) {
    uint64_t bytes;
    if (shape->format.layout != PACK_TILE || !pack_bytes(&shape->format, PACK_PANEL, shape->k, &bytes) ||
        bytes > t->n_byte / 4)
        return nib_fail(err, NIB_E_USAGE,
                        "expected rows short enough to be timed in %llu bytes, found %lld elements",
                        (unsigned long long)t->n_byte, (long long)shape->k);
    t->shape = *shape;
    set_scales(t);
    return cancel_check(t->cancel, err);
}

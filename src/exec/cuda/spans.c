/* spans.c - records the timeline of one pass on the GPU, by an event before and one after every launch and
 * copy. While it is recorded, launches are queued one by one, so that events come between them; a replayed
 * graph is faster. Layers that the processor computes are added by the host's clock, which is synchronised
 * with the device's by one wait at the beginning.
 *
 * Queueing a launch with its events takes the host a few microseconds, as long as a short launch takes the
 * device. Then times would include waiting for the host. So the device first reads memory while the host
 * queues. It does so once, which is enough for a pass of few rows; a pass of many rows takes the device
 * longer than the host anyway. If layers are streamed or computed in place, the host waits within the pass,
 * so it cannot queue ahead.
 *
 * Memory and events are allocated before the first span, so a timed pass allocates nothing. When the list is
 * full, further launches are counted and run untimed. */
#include "base/mem.h"
#include "base/num.h"
#include "exec/cuda/cuda.h"
#include "memory/device_cuda.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    READS = 3 /* times that all weights are read; the fastest counts */,
    EMPTY = 32,
    MAX_AHEAD = 512 /* maximum of queued reads */
};
#define AHEAD_SECONDS 3e-3 /* 500 launches with their events take the host about 2 ms */

struct spans {
    nib_span *list;         /* [max] */
    cuda_event (*pairs)[2]; /* [max]: events of list[i], unless it is a span of the host */
    size_t n, max, n_made;  /* n_made: pairs that exist */
    size_t n_dropped;
    bool is_open;
    cuda_event zero;
    double host_zero;
};

static bool is_full(spans *s) {
    if (s->n < s->max)
        return false;
    s->n_dropped++;
    return true;
}

int spans_open(const cuda *c, const nib_span *of, cuda_stream on) {
    spans *s = c->spans;
    if (!s || is_full(s))
        return 0;
    s->list[s->n] = *of;
    s->is_open = true;
    return c->k->event_record(s->pairs[s->n][0], on);
}

int spans_close(const cuda *c, cuda_stream on) {
    spans *s = c->spans;
    if (!s || !s->is_open)
        return 0;
    s->is_open = false;
    return c->k->event_record(s->pairs[s->n++][1], on);
}

nib_status spans_copy(const cuda *c, const char *what, device_lane lane, void *to, const void *from,
                      uint64_t n_byte, nib_error *err) {
    device *d = c->base.device;
    if (!c->spans)
        return d->kind->copy(d, lane, to, from, n_byte, err);
    nib_span span = {.lane = NIB_LANE_COMPUTE, .link = true, .bytes = (double)n_byte};
    snprintf(span.what, sizeof span.what, "%s", what);
    NIB_TRY(device_cuda_ok(d, spans_open(c, &span, c->stream), what, err));
    NIB_TRY(d->kind->copy(d, lane, to, from, n_byte, err));
    return device_cuda_ok(d, spans_close(c, c->stream), what, err);
}

void spans_of_host(const cuda *c, const char *what, double start) {
    spans *s = c->spans;
    if (!s || is_full(s))
        return;
    nib_span *x = &s->list[s->n++];
    *x = (nib_span){
        .lane = NIB_LANE_HOST, .start_s = start - s->host_zero, .end_s = time_now() - s->host_zero};
    snprintf(x->what, sizeof x->what, "%s", what);
}

/* ---- the rates that the figures are compared with ---- */

static nib_status seconds_between(const cuda *c, cuda_event from, cuda_event to, double *out,
                                  nib_error *err) {
    float ms = 0;
    NIB_TRY(device_cuda_ok(c->base.device, c->k->event_ms(&ms, from, to), "a time", err));
    *out = (double)ms * 1e-3;
    return NIB_OK;
}

/* Reads the resident weights, one region after the other, at most `max` regions. The sink is in the residual
 * stream: it is written only if all bytes are equal, and each pass sets the stream anew. */
static int read_weights(const cuda *c, int max, uint64_t *bytes, int *n) {
    int e = 0;
    *bytes = 0;
    *n = 0;
    for (int b = 0; !e && *n < max && b < layout_n_block(c->setup.layout); b++) {
        uint64_t whole;
        const void *at = device_store_memory(c->base.store, b, &whole);
        whole = whole / 16 * 16;
        if (whole == 0)
            continue;
        e = c->k->read_all(at, whole, (unsigned *)(void *)c->mem.reg[REG_X], c->stream);
        *bytes += whole;
        ++*n;
    }
    return e;
}

/* Times the reading of the weights. *bytes 0: there was nothing to read, and the time is that of two
 * events. */
static nib_status time_reading(const cuda *c, bool reads, uint64_t *bytes, double *out, nib_error *err) {
    const cuda_event *pair = c->spans->pairs[0];
    int n, e = c->k->event_record(pair[0], c->stream);
    *bytes = 0;
    if (reads && !e)
        e = read_weights(c, INT_MAX, bytes, &n);
    e = e ? e : c->k->event_record(pair[1], c->stream);
    e = e ? e : c->k->stream_sync(c->stream);
    NIB_TRY(device_cuda_ok(c->base.device, e, "reading memory", err));
    return seconds_between(c, pair[0], pair[1], out, err);
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static nib_status measure_scale(const cuda *c, nib_span_scale *out, nib_error *err) {
    double empty[EMPTY], took;
    uint64_t bytes;
    for (int i = 0; i < EMPTY; i++)
        NIB_TRY(time_reading(c, false, &bytes, &empty[i], err));
    qsort(empty, EMPTY, sizeof *empty, by_size);
    out->empty_s = empty[EMPTY / 2];
    for (int i = 0; i < READS; i++) {
        NIB_TRY(time_reading(c, true, &bytes, &took, err));
        if (took > 0)
            out->read_rate = NUM_MAX(out->read_rate, (double)bytes / took);
    }
    return NIB_OK;
}

/* Queues reads, so that the device is busy while the host queues the pass. */
static nib_status read_ahead(const cuda *c, double rate, nib_error *err) {
    uint64_t bytes;
    int n, e = 0, left = MAX_AHEAD;
    if (rate <= 0 || device_store_n_coming(c->base.store) > 0 || c->in_place.n > 0)
        return NIB_OK;
    for (double seconds = 0; !e && left > 0 && seconds < AHEAD_SECONDS; left -= n) {
        e = read_weights(c, left, &bytes, &n);
        seconds += (double)bytes / rate;
    }
    return device_cuda_ok(c->base.device, e, "reading memory", err);
}

/* ---- start and stop ---- */

void spans_drop(cuda *c) {
    if (c->base.store)
        device_store_set_watch(c->base.store, NULL);
    kv_stage_set_watch(c->staged.stage, NULL);
    spans *s = c->spans;
    if (!s)
        return;
    for (size_t i = 0; i < s->n_made; i++) {
        c->k->event_free(s->pairs[i][0]);
        c->k->event_free(s->pairs[i][1]);
    }
    if (s->zero)
        c->k->event_free(s->zero);
    mem_free(s->pairs);
    mem_free(s->list);
    mem_free(s);
    c->spans = NULL;
}

static int make_events(const cuda *c) {
    spans *s = c->spans;
    int e = c->k->event_new(&s->zero);
    for (; !e && s->n_made < s->max; s->n_made += !e) {
        cuda_event *pair = s->pairs[s->n_made];
        e = c->k->event_new(&pair[0]);
        if (!e && (e = c->k->event_new(&pair[1])) != 0)
            c->k->event_free(pair[0]);
    }
    return e;
}

static nib_status begin(cuda *c, size_t max, nib_span_scale *scale, nib_error *err) {
    spans *s = c->spans;
    s->list = mem_array(max, sizeof *s->list);
    s->pairs = mem_array(max, sizeof *s->pairs);
    if (!s->list || !s->pairs)
        return nib_fail_nomem(err, max * (sizeof *s->list + sizeof *s->pairs), "the trace");
    s->max = max;
    NIB_TRY(device_cuda_ok(c->base.device, make_events(c), "an event", err));
    NIB_TRY(measure_scale(c, scale, err));
    int e = c->k->event_record(s->zero, c->stream);
    e = e ? e : c->k->stream_sync(c->stream);
    s->host_zero = time_now();
    NIB_TRY(device_cuda_ok(c->base.device, e, "an event", err));
    return read_ahead(c, scale->read_rate, err);
}

/* ---- copies of weights, keys and values, which their owners make ---- */

static nib_status watch_begin(void *user, const char *what, device_lane lane, bool link, uint64_t bytes,
                              nib_error *err) {
    const cuda *c = user;
    nib_span span = {.lane = lane == DEVICE_ARRANGE_WEIGHTS ? NIB_LANE_SIDE : NIB_LANE_COPY,
                     .link = link,
                     .bytes = (double)bytes};
    cuda_stream s;
    snprintf(span.what, sizeof span.what, "%s", what);
    NIB_TRY(device_cuda_lane(c->base.device, lane, &s, err));
    return device_cuda_ok(c->base.device, spans_open(c, &span, s), what, err);
}

static nib_status watch_end(void *user, device_lane lane, nib_error *err) {
    const cuda *c = user;
    cuda_stream s;
    NIB_TRY(device_cuda_lane(c->base.device, lane, &s, err));
    return device_cuda_ok(c->base.device, spans_close(c, s), "a span", err);
}

nib_status spans_start(cuda *c, size_t max, nib_span_scale *scale, nib_error *err) {
    spans_drop(c);
    *scale = (nib_span_scale){0};
    NIB_TRY(device_cuda_enter(c->base.device, err));
    c->spans = mem_calloc(1, sizeof *c->spans);
    if (!c->spans)
        return nib_fail_nomem(err, sizeof *c->spans, "the trace");
    const device_watch watch = {watch_begin, watch_end, c};
    const nib_status status = begin(c, NUM_MAX(max, (size_t)1), scale, err);
    device_store_set_watch(c->base.store, &watch);
    kv_stage_set_watch(c->staged.stage, &watch);
    if (status != NIB_OK)
        spans_drop(c);
    return status;
}

/* Waits for all streams, because weights for the next pass may still be in flight. */
static int wait_for_all(const cuda *c) {
    int e = c->k->stream_sync(c->stream);
    for (device_lane lane = DEVICE_COMPUTE + 1; !e && lane < DEVICE_N_LANE; lane++) {
        cuda_stream s;
        if (device_cuda_lane(c->base.device, lane, &s, NULL) == NIB_OK)
            e = c->k->stream_sync(s);
    }
    if (!e && c->fetches.side)
        e = c->k->stream_sync(c->fetches.side);
    return e;
}

static nib_status read_times(const cuda *c, nib_span *out, nib_error *err) {
    const spans *s = c->spans;
    NIB_TRY(device_cuda_ok(c->base.device, wait_for_all(c), "computing", err));
    for (size_t i = 0; i < s->n; i++) {
        out[i] = s->list[i];
        if (out[i].lane == NIB_LANE_HOST)
            continue;
        NIB_TRY(seconds_between(c, s->zero, s->pairs[i][0], &out[i].start_s, err));
        NIB_TRY(seconds_between(c, s->zero, s->pairs[i][1], &out[i].end_s, err));
    }
    return NIB_OK;
}

nib_status spans_stop(cuda *c, nib_span *out, size_t *n, size_t *n_dropped, nib_error *err) {
    *n = *n_dropped = 0;
    if (!c->spans)
        return nib_fail(err, NIB_E_USAGE, "expected spans that were started");
    NIB_TRY(device_cuda_enter(c->base.device, err));
    const nib_status status = read_times(c, out, err);
    if (status == NIB_OK) {
        *n = c->spans->n;
        *n_dropped = c->spans->n_dropped;
    }
    spans_drop(c);
    return status;
}

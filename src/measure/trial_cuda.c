/* trial_cuda.c - see trial_cuda.h. */
#include "measure/trial_cuda.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_SAMPLES = 31,
    FEW_SAMPLES = 5,
    MAX_CALLS = 64, /* maximum launches of a graph */
    PRUNED = 2, /* a strategy is not timed if its unit's rate alone makes it this much slower than the rule's
                   choice */
    MAX_ROUNDS = 1 << 20, /* maximum rounds of measuring a unit */
    BLOCK = 1 << 22       /* bytes of random codes that are repeated */
};
#define GRAPH_SECONDS 3e-4 /* duration of one sample: far longer than an event or a graph launch takes */

struct trial_cuda {
    const gpu_kernels *gpu;
    const cuda_kernels *k;
    const canceller *cancel;
    cuda_stream stream;
    cuda_event before, after;
    uint8_t *data; /* rotating weights */
    uint64_t n_byte;
    unsigned *sink;
    dpr_unit units[DPR_MAX_UNIT];
    int n_unit;
    trial_shape shape; /* the current shape, and memory for it: */
    uint64_t copy_bytes;
    int64_t n_copy, at; /* number of copies of the weights; index of the next one */
    float *x, *y;
    void *scratch;
};

static nib_status ok(const trial_cuda *t, int error, const char *what, nib_error *err) {
    return error ? nib_fail(err, NIB_E_DEVICE, "timing kernels, %s: %s", what, t->k->error_text(error))
                 : NIB_OK;
}

static nib_status take(const trial_cuda *t, uint64_t n_byte, void *out, nib_error *err) {
    return ok(t, t->k->alloc(out, n_byte), "memory", err);
}

/* ---- timing ---- */

/* *seconds: time between the two events. */
static nib_status time_between(const trial_cuda *t, double *seconds, nib_error *err) {
    float ms = 0;
    NIB_TRY(ok(t, t->k->stream_sync(t->stream), "running", err));
    NIB_TRY(ok(t, t->k->event_ms(&ms, t->before, t->after), "events", err));
    *seconds = NUM_MAX((double)ms * 1e-3, 1e-9);
    return NIB_OK;
}

static nib_status run_unit(const trial_cuda *t, const cuda_unit *u, int rounds, double *seconds,
                           nib_error *err) {
    NIB_TRY(ok(t, t->k->event_record(t->before, t->stream), "events", err));
    NIB_TRY(ok(t, u->run(rounds, t->sink, t->stream), u->name, err));
    NIB_TRY(ok(t, t->k->event_record(t->after, t->stream), "events", err));
    return time_between(t, seconds, err);
}

/* Measures the rates of the units: doubles the rounds until they take long enough, and takes the best of
 * three. */
static nib_status measure_units(trial_cuda *t, nib_error *err) {
    int n;
    const cuda_unit *all = t->k->units(&n);
    for (int i = 0; i < n && t->n_unit < DPR_MAX_UNIT; i++) {
        double best = 0;
        if (10 * t->gpu->info.major + t->gpu->info.minor < all[i].since)
            continue;
        for (int rounds = 256, good = 0; good < 3;) {
            double s;
            NIB_TRY(run_unit(t, &all[i], rounds, &s, err));
            if (s < GRAPH_SECONDS && rounds < MAX_ROUNDS) {
                rounds *= 2;
                continue;
            }
            best = NUM_MAX(best, (double)all[i].products * rounds / s / NUM_MAX(t->gpu->info.n_sm, 1));
            good++;
        }
        t->units[t->n_unit++] =
            (dpr_unit){all[i].w_bits, all[i].a_bits, t->gpu->table.isa, all[i].name, best};
    }
    return NIB_OK;
}

/* One launch of a strategy with the next copy of the weights. */
static int launch_next(trial_cuda *t, const strategy *by, int64_t n_row) {
    const cuda_linear a = {
        .w = {{t->data + (uint64_t)t->at * t->copy_bytes, t->shape.format, t->shape.n, t->shape.k}},
        .n_w = 1,
        .n_row = n_row,
        .x = t->x,
        .ldx = t->shape.k,
        .act_bits = t->shape.act_bits,
        .y = {t->y},
        .ldy = {t->shape.n},
        .scratch = t->scratch};
    t->at = (t->at + 1) % t->n_copy;
    return gpu_strategy(by)->launch(&a, t->stream);
}

/* Queues one launch; by NULL: plain reading of the copy. */
static int queue_one(trial_cuda *t, const strategy *by, int64_t n_row) {
    if (by)
        return launch_next(t, by, n_row);
    const uint8_t *from = t->data + (uint64_t)t->at * t->copy_bytes;
    t->at = (t->at + 1) % t->n_copy;
    return t->k->read_all(from, t->copy_bytes / 16 * 16, t->sink, t->stream);
}

/* A candidate, or plain reading, as a graph of n_call launches; graph NULL: it is timed launch by launch. */
typedef struct contender {
    const strategy *by;
    cuda_graph graph;
    int n_call;
    double samples[MAX_SAMPLES + 1];
} contender;

static nib_status time_one(trial_cuda *t, const contender *c, int64_t n_row, double *seconds,
                           nib_error *err) {
    NIB_TRY(ok(t, t->k->event_record(t->before, t->stream), "events", err));
    for (int i = 0; i < (c->graph ? 1 : c->n_call); i++)
        NIB_TRY(ok(t, c->graph ? t->k->graph_launch(c->graph, t->stream) : queue_one(t, c->by, n_row),
                   c->by ? c->by->name : "reading", err));
    NIB_TRY(ok(t, t->k->event_record(t->after, t->stream), "events", err));
    NIB_TRY(time_between(t, seconds, err));
    *seconds /= c->n_call;
    return NIB_OK;
}

/* Makes the graph of a contender, one launch of which takes about `seconds`. With many rows the cost of a
 * launch is negligible, so no graph is made. */
static nib_status make_graph(trial_cuda *t, contender *c, int64_t n_row, double seconds, nib_error *err) {
    int e = 0;
    c->n_call = (int)NUM_MIN(NUM_MAX(GRAPH_SECONDS / seconds, 1), (double)MAX_CALLS);
    if (n_row > CUDA_MAX_ROWS)
        return NIB_OK;
    NIB_TRY(ok(t, t->k->graph_begin(t->stream), "recording", err));
    for (int i = 0; i < c->n_call && !e; i++)
        e = queue_one(t, c->by, n_row);
    const int end = t->k->graph_end(t->stream, &c->graph); /* also after an error */
    if (e && !end)
        t->k->graph_free(c->graph);
    if (e || end)
        c->graph = NULL;
    return ok(t, e ? e : end, "recording", err);
}

/* ---- opening ---- */

static nib_status fill_codes(const trial_cuda *t, nib_error *err) {
    uint64_t *words = mem_array(BLOCK / 8, sizeof *words), x = UINT64_C(0x9e3779b97f4a7c15);
    if (!words)
        return nib_fail_nomem(err, BLOCK, "timing kernels");
    for (int i = 0; i < BLOCK / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
    nib_status status = NIB_OK;
    for (uint64_t at = 0; at < t->n_byte && status == NIB_OK; at += BLOCK)
        status =
            ok(t, t->k->to_device(t->data + at, words, NUM_MIN((uint64_t)BLOCK, t->n_byte - at), t->stream),
               "weights", err);
    if (status == NIB_OK)
        status = ok(t, t->k->stream_sync(t->stream), "weights", err);
    mem_free(words);
    return status;
}

static nib_status open_parts(trial_cuda *t, uint64_t cap, nib_error *err) {
    size_t left, all;
    NIB_TRY(ok(t, t->k->stream_new(&t->stream), "a stream", err));
    NIB_TRY(ok(t, t->k->event_new(&t->before), "events", err));
    NIB_TRY(ok(t, t->k->event_new(&t->after), "events", err));
    NIB_TRY(ok(t, t->k->memory_now(&left, &all), "memory", err));
    t->n_byte = NUM_MAX((uint64_t)1 << 30, 8 * (uint64_t)t->gpu->info.l2);
    t->n_byte = NUM_MIN(NUM_MIN(t->n_byte, left / 2), cap) / 4096 * 4096;
    if (t->n_byte < (uint64_t)64 << 20)
        return nib_fail(err, NIB_E_NOFIT, "VRAM: expected space for 64 MiB of weights");
    NIB_TRY(take(t, t->n_byte, &t->data, err));
    NIB_TRY(take(t, 256, &t->sink, err));
    NIB_TRY(fill_codes(t, err));
    return measure_units(t, err);
}

nib_status trial_cuda_open(const gpu_kernels *gpu, uint64_t cap, const canceller *cancel, trial_cuda **out,
                           nib_error *err) {
    trial_cuda *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "timing kernels");
    t->gpu = gpu;
    t->k = gpu->cuda;
    t->cancel = cancel;
    const nib_status status = open_parts(t, cap, err);
    if (status != NIB_OK) {
        trial_cuda_close(t);
        return status;
    }
    *out = t;
    return NIB_OK;
}

static void drop_rows(trial_cuda *t) {
    void *const all[] = {t->x, t->y, t->scratch};
    for (size_t i = 0; i < NUM_COUNT(all); i++)
        if (all[i])
            t->k->release(all[i]);
    t->x = t->y = NULL;
    t->scratch = NULL;
}

void trial_cuda_close(trial_cuda *t) {
    if (!t)
        return;
    drop_rows(t);
    if (t->data)
        t->k->release(t->data);
    if (t->sink)
        t->k->release(t->sink);
    if (t->before)
        t->k->event_free(t->before);
    if (t->after)
        t->k->event_free(t->after);
    if (t->stream)
        t->k->stream_free(t->stream);
    mem_free(t);
}

uint64_t trial_cuda_bytes(const trial_cuda *t) {
    return t->n_byte;
}

int trial_cuda_units(const trial_cuda *t, dpr_unit out[DPR_MAX_UNIT]) {
    memcpy(out, t->units, sizeof t->units);
    return t->n_unit;
}

/* ---- a shape ---- */

/* Allocates rows for the largest bucket that any strategy can compute. */
static nib_status take_rows(trial_cuda *t, nib_error *err) {
    const int64_t max_rows = t->k->has_wide() ? trial_rows_of(ROW_BUCKETS - 1) : CUDA_MAX_ROWS;
    const int64_t k = t->shape.k, n_x = max_rows * k;
    const size_t wide = t->k->has_wide() ? t->k->wide_scratch(max_rows, k) : 0;
    float *x = mem_array((size_t)n_x, sizeof *x);
    if (!x)
        return nib_fail_nomem(err, (size_t)n_x * sizeof *x, "timing kernels");
    for (int64_t i = 0; i < n_x; i++)
        x[i] = (float)((i * 37 + i / k * 101 + i % 509 * (i % 509) * 11) % 255 - 127);
    nib_status status = take(t, (uint64_t)n_x * sizeof *x, &t->x, err);
    if (status == NIB_OK)
        status = take(t, (uint64_t)(max_rows * t->shape.n) * sizeof(float), &t->y, err);
    if (status == NIB_OK)
        status = take(t, NUM_MAX(wide, t->k->linear_scratch(CUDA_MAX_ROWS, k, false)), &t->scratch, err);
    if (status == NIB_OK)
        status = ok(t, t->k->to_device(t->x, x, (size_t)n_x * sizeof *x, t->stream), "rows", err);
    if (status == NIB_OK)
        status = ok(t, t->k->stream_sync(t->stream), "rows", err);
    mem_free(x);
    return status;
}

static nib_status cuda_set(void *of, const trial_shape *shape, nib_error *err) {
    trial_cuda *t = of;
    uint64_t bytes;
    if (!pack_bytes(&shape->format, shape->n, shape->k, &bytes) || 2 * bytes > t->n_byte)
        return nib_fail(err, NIB_E_NOFIT,
                        "VRAM: two matrices of %lld x %lld need more than the %llu bytes for weights",
                        (long long)shape->n, (long long)shape->k, (unsigned long long)t->n_byte);
    drop_rows(t);
    t->shape = *shape;
    t->copy_bytes = (bytes + 255) / 256 * 256;
    t->n_copy = (int64_t)(t->n_byte / t->copy_bytes);
    t->n_copy = NUM_MAX(t->n_copy, 1);
    t->at = 0;
    NIB_TRY(take_rows(t, err));
    return cancel_check(t->cancel, err);
}

/* ---- one number of rows ---- */

/* Removes candidates that cannot compute this product on this device. */
static nib_status drop_unable(trial_cuda *t, int64_t n_row, trial_result *out, nib_error *err) {
    const strategy *rule = out->times[out->rule].strategy;
    int n = 0;
    for (int i = 0; i < out->n; i++) {
        const int e = launch_next(t, out->times[i].strategy, n_row);
        if (e == CUDA_UNSUPPORTED)
            continue;
        NIB_TRY(ok(t, e, out->times[i].strategy->name, err));
        if (out->times[i].strategy == rule)
            out->rule = n;
        out->times[n++] = out->times[i];
    }
    NIB_TRY(ok(t, t->k->stream_sync(t->stream), "running", err));
    if (!n)
        return nib_fail(err, NIB_E_DEVICE, "no kernel of the GPU computes products of this format");
    out->n = n;
    return NIB_OK;
}

/* Lower bound of the seconds, by the measured rate of the unit that the family multiplies with; 0: unknown.
 */
static double floor_of(const trial_cuda *t, const strategy *s, int64_t n_row) {
    char family[32];
    snprintf(family, sizeof family, "%.*s", (int)strcspn(s->name, "."), s->name);
    const double each =
        dpr_floor(t->units, t->n_unit, t->gpu->table.isa, family, t->shape.format.bits, t->shape.act_bits);
    return each * (double)t->shape.n * (double)t->shape.k * (double)n_row / NUM_MAX(t->gpu->info.n_sm, 1);
}

/* Makes the graphs of the contenders that are worth timing, and of plain reading, which is the last one. */
static nib_status make_graphs(trial_cuda *t, contender *list, int64_t n_row, trial_result *out,
                              nib_error *err) {
    contender one = {.by = out->times[out->rule].strategy, .n_call = 1};
    double rule = 0, s;
    for (int i = 0; i < 3; i++) {
        NIB_TRY(time_one(t, &one, n_row, &s, err));
        rule = i == 0 ? s : NUM_MIN(rule, s);
    }
    for (int i = 0; i <= out->n; i++) {
        contender *c = &list[i];
        c->by = i < out->n ? out->times[i].strategy : NULL;
        if (c->by) {
            out->times[i].pruned = i != out->rule && floor_of(t, c->by, n_row) > PRUNED * rule;
            if (out->times[i].pruned)
                continue;
        }
        one.by = c->by;
        NIB_TRY(time_one(t, &one, n_row, &s, err));
        NIB_TRY(time_one(t, &one, n_row, &s, err));
        NIB_TRY(make_graph(t, c, n_row, s, err));
    }
    return NIB_OK;
}

static void judge_all(contender *list, int n, trial_result *out) {
    contender *read = &list[out->n];
    double rates[MAX_SAMPLES];
    for (int i = 0; i <= n; i++)
        read->samples[i] = out->bytes / read->samples[i];
    for (int i = 0; i < out->n; i++) {
        trial_time *time = &out->times[i];
        if (time->pruned)
            continue;
        for (int k = 0; k < n; k++)
            rates[k] = out->bytes / list[i].samples[k];
        time->n_sample = n;
        time->share = rate_share_of(rates, read->samples, n);
        trial_judge(list[i].samples, n, &time->best, &time->spread);
    }
    for (int i = 0; i <= n; i++)
        read->samples[i] = 1 / read->samples[i];
    trial_judge(read->samples, n + 1, &out->read, &out->read_spread);
    out->read = 1 / out->read;
    trial_choose(out);
}

/* Rounds of samples, one of each contender, between samples of reading. */
static nib_status take_samples(trial_cuda *t, contender *list, int64_t n_row, double seconds,
                               trial_result *out, nib_error *err) {
    contender *read = &list[out->n];
    const double end = time_now() + seconds;
    int n = 0;
    NIB_TRY(time_one(t, read, n_row, &read->samples[0], err));
    for (; n < MAX_SAMPLES && (n < FEW_SAMPLES || time_now() < end); n++) {
        for (int turn = 0; turn < out->n; turn++) {
            const int i = n % 2 ? out->n - 1 - turn : turn;
            NIB_TRY(cancel_check(t->cancel, err));
            if (!out->times[i].pruned)
                NIB_TRY(time_one(t, &list[i], n_row, &list[i].samples[n], err));
        }
        NIB_TRY(time_one(t, read, n_row, &read->samples[n + 1], err));
    }
    judge_all(list, n, out);
    return NIB_OK;
}

static nib_status cuda_rows(void *of, int64_t n_row, double seconds, trial_result *out, nib_error *err) {
    trial_cuda *t = of;
    uint64_t bytes = 0;
    memset(out, 0, sizeof *out);
    pack_bytes(&t->shape.format, t->shape.n, t->shape.k, &bytes);
    out->bytes = (double)bytes;
    trial_candidates(&t->gpu->table, &t->shape.format, n_row, out);
    if (!out->n)
        return nib_fail(err, NIB_E_DEVICE, "no kernel of the GPU computes %lld rows of this format",
                        (long long)n_row);
    NIB_TRY(drop_unable(t, n_row, out, err));
    contender *list = mem_calloc((size_t)out->n + 1, sizeof *list);
    if (!list)
        return nib_fail_nomem(err, ((size_t)out->n + 1) * sizeof *list, "timing kernels");
    const int n = out->n;
    nib_status status = make_graphs(t, list, n_row, out, err);
    if (status == NIB_OK)
        status = take_samples(t, list, n_row, seconds, out, err);
    for (int i = 0; i <= n; i++)
        if (list[i].graph)
            t->k->graph_free(list[i].graph);
    mem_free(list);
    return status;
}

const trial_kind trial_cuda_kind = {cuda_set, cuda_rows};

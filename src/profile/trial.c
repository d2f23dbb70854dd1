/* trial.c - see trial.h. */
#include "profile/trial.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/dpr.h"
#include "quant/tile.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_SAMPLES = 128,
    FEW_SAMPLES = 5,
    QUICK_ROWS = 16,       /* of activations, at the quick look */
    PRUNED = 2,            /* times what the rule's choice takes: by its unit's rate alone, for which the
                              probe's mix of instructions is not each kernel's. Not timed at all */
    FAR = 12,              /* times the fastest: dropped after the quick look */
    HOPELESS = 3,          /* times the fastest: dropped after the first look */
    SLICE_WORK = 60000000, /* multiply-adds of one product and thread that are enough to time it */
    READ_BYTES = 8 << 20,  /* of one chunk of plain reading and thread */
    LOOK_WORDS = 1 << 20,  /* of weights that are made between two looks at whether it is cancelled */
    PANELS_PER_THREAD = 8, /* the least of a slice */
    SCALE_BYTE = 0x1c      /* as half 0.004, as int8 28, as e8m0 2^-100: ordinary numbers all */
};
#define SLOW_CALL 0.01
#define TOGETHER  0.8 /* of a sample's time, what threads that ran side by side were busy */
/* Candidates further behind the fastest get no more samples, after FEW_SAMPLES and so many. */
static const struct {
    int after;
    double behind;
} narrowing[] = {{0, 1.25}, {10, 1.12}, {30, 1.06}};
#define SAMPLE_SECONDS 0.002 /* of one sample, at least: longer than the clock's and the pool's own noise */

/* What one thread did of a sample. */
typedef struct span {
    double busy;       /* seconds of processor time */
    double begin, end; /* by the clock */
} span;

struct trial {
    const kernel_table *table;
    pool *threads;
    const canceller *cancel;
    int n_thread;
    char *data; /* rotating weights */
    uint64_t n_byte;
    trial_shape shape;
    void **scratch; /* [n_thread] */
    span *spans;    /* [n_thread] */
    bool by_clock;  /* trial_by_clock */
    uint64_t *sums; /* [n_thread] keeps the plain reader honest */
    uint64_t at;    /* where the rotation stands, of weights and reading alike: nothing is read again soon */
    uint64_t chunk; /* bytes that a thread reads at one place */
    int n_chunk;    /* of this pass */
    int pattern;    /* of reading */
    double read_rate;             /* of the last pass, bytes a second */
    dpr_unit units[DPR_MAX_UNIT]; /* of this machine, measured when it is opened: DPR's set H */
    int n_unit;
    int64_t filled[5]; /* where fill_scales has put scales; zeros: nowhere */
};

/* ---- what is timed ---- */

typedef struct sample {
    trial *t;
    const strategy *strategy;
    linear_args args;
    int64_t n; /* rows of the weights: all, or a slice */
    int64_t n_copy, first_copy, n_call;
    uint64_t copy_bytes;
} sample;

static span begin_span(void) {
    const double now = time_now();
    return (span){time_thread(), now, now};
}

static void end_span(span *s) {
    s->busy = time_thread() - s->busy;
    s->end = time_now();
}

static void run_sample(void *arg, int thread, int n_thread) {
    const sample *s = arg;
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

/* The slowest thread's processor time; with a clock, not much less than what that says. */
static double slowest(const trial *t) {
    double max = 1e-9, begin = t->spans[0].begin, end = t->spans[0].end;
    for (int i = 0; i < t->n_thread; i++) {
        max = NUM_MAX(max, t->spans[i].busy);
        begin = NUM_MIN(begin, t->spans[i].begin);
        end = NUM_MAX(end, t->spans[i].end);
    }
    return t->by_clock && t->n_thread > 1 ? NUM_MAX(max, TOGETHER * (end - begin)) : max;
}

/* Seconds of one product (of the slice, scaled to the whole). */
static double time_sample(sample *s, const strategy *by, int64_t n_call) {
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

/* Bytes a second of plain reading for about `seconds`, one chunk at least. */
static double time_read(trial *t, double seconds) {
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
    return time_read(t, SAMPLE_SECONDS / 2);
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

/* Random bits make no sane scales (NaN, subnormals): all become ordinary ones. */
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

/* Formats whose scales stand at the same places (a format in parts and in planes) need them only once. */
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
        return nib_fail(err, NIB_E_USAGE, "a row of %lld is too long to be timed in %llu bytes",
                        (long long)shape->k, (unsigned long long)t->n_byte);
    t->shape = *shape;
    set_scales(t);
    return cancel_check(t->cancel, err);
}

/* ---- one shape and number of rows ---- */

/* As many rows of the weights as are worth timing: the time is proportional beyond that. */
static int64_t slice_rows(const trial *t, int64_t n_row) {
    const double work = (double)SLICE_WORK * t->n_thread / (double)t->shape.k / (double)n_row;
    const int64_t min = (int64_t)PACK_PANEL * PANELS_PER_THREAD * t->n_thread;
    const int64_t panel = tile_panel_bytes(&t->shape.format, t->shape.k);
    const int64_t fit = (int64_t)(t->n_byte / 2) / panel * PACK_PANEL; /* two copies at least */
    int64_t n = NUM_MAX((int64_t)work, min) / PACK_PANEL * PACK_PANEL;
    n = NUM_MIN(n, t->shape.n);
    return NUM_MIN(n, NUM_MAX(fit, PACK_PANEL));
}

typedef struct rows_memory {
    float *x, *y;
    char *q;
} rows_memory;

static void free_rows(rows_memory *r) {
    mem_free(r->x);
    mem_free(r->y);
    mem_free(r->q);
}

static nib_status make_rows(const trial *t, int64_t n_row, int64_t n, act_format f, rows_memory *r,
                            nib_error *err) {
    const int64_t k = t->shape.k;
    const size_t each = act_row_bytes(f, k);
    r->x = mem_array((size_t)k, sizeof *r->x);
    r->y = mem_array((size_t)(n_row * num_round_up(n, PACK_PANEL)), sizeof *r->y);
    r->q = mem_alloc_aligned(64, each * (size_t)n_row);
    if (!r->x || !r->y || !r->q) {
        free_rows(r);
        return nib_fail_nomem(err, (size_t)n_row * (each + (size_t)n * sizeof *r->y), "timing kernels");
    }
    for (int64_t m = 0; m < n_row; m++) {
        for (int64_t i = 0; i < k; i++)
            r->x[i] = (float)((i * 37 + m * 101 + i * i * 11) % 255 - 127);
        t->table->act_quantize(f, r->x, k, r->q + (size_t)m * each);
    }
    return NIB_OK;
}

/* One call of each that is kept, or the better of two; those `behind` times the fastest are not kept. */
static double look(sample *s, const trial_result *out, int n_call, double behind, bool *keep) {
    double first[KERNELS_MAX_STRATEGY] = {0}, fastest = 1e30;
    for (int i = 0; i < out->n; i++) {
        if (!keep[i])
            continue;
        first[i] = 1e30;
        for (int call = 0; call < n_call && !cancel_asked(s->t->cancel); call++)
            first[i] = NUM_MIN(first[i], time_sample(s, out->times[i].strategy, 1));
        fastest = NUM_MIN(fastest, first[i]);
    }
    for (int i = 0; i < out->n; i++)
        keep[i] = keep[i] && (i == out->rule || first[i] < behind * fastest);
    return fastest;
}

/* Seconds of a product of so many rows of weights, at the least, by the measured rates of the units that the
 * strategy's family multiplies with; 0: not known. */
static double floor_of(const sample *s, const trial_time *t, int64_t n) {
    char family[32];
    const trial *of = s->t;
    snprintf(family, sizeof family, "%.*s", (int)strcspn(t->strategy->name, "."), t->strategy->name);
    const double each =
        dpr_floor(of->units, of->n_unit, t->isa, family, of->shape.format.bits, of->shape.act_bits);
    return each * (double)n * (double)of->shape.k * (double)s->args.n_row / of->n_thread;
}

/* The schemes of kernels/dpr.h decide which strategies are worth timing. */
static void prune(sample *s, trial_result *out, bool keep[KERNELS_MAX_STRATEGY]) {
    bool rule_only[KERNELS_MAX_STRATEGY] = {false};
    rule_only[out->rule] = true;
    const double rule = look(s, out, 2, HOPELESS, rule_only);
    for (int i = 0; i < out->n; i++) {
        out->times[i].pruned = i != out->rule && floor_of(s, &out->times[i], s->n) > PRUNED * rule;
        keep[i] = !out->times[i].pruned;
    }
}

/* Few rows of the weights; before that a quick look with few rows of activations, too, since a scalar kernel
 * needs seconds for many. */
static double first_look(sample *s, trial_result *out, bool keep[KERNELS_MAX_STRATEGY]) {
    const int64_t n = s->n, n_row = s->args.n_row;
    bool can = n_row > QUICK_ROWS;
    s->n = NUM_MIN(n, (int64_t)PACK_PANEL * 2 * s->t->n_thread);
    prune(s, out, keep);
    for (int i = 0; i < out->n; i++)
        can = can && (!keep[i] || out->times[i].strategy->can(&s->t->shape.format, QUICK_ROWS));
    if (can) {
        s->args.n_row = s->args.q.n_row = QUICK_ROWS;
        look(s, out, 1, FAR, keep);
        s->args.n_row = s->args.q.n_row = n_row;
    }
    const double fastest = look(s, out, 2, HOPELESS, keep);
    s->n = n;
    return fastest * (double)n / (double)s->t->shape.n; /* of one call on the slice */
}

/* Candidates that are far behind the best of the samples so far need no more of them: the time that is left
 * goes to the choices that are close. */
static void narrow(double (*samples)[MAX_SAMPLES], int n, int n_candidate, double behind, bool *keep) {
    double max[KERNELS_MAX_STRATEGY], fastest = 1e30;
    for (int i = 0; i < n_candidate; i++) {
        max[i] = 1e30;
        for (int k = 0; k < n && keep[i]; k++)
            max[i] = NUM_MIN(max[i], samples[i][k]);
        fastest = NUM_MIN(fastest, max[i]);
    }
    for (int i = 0; i < n_candidate; i++)
        keep[i] = keep[i] && max[i] < behind * fastest;
}

/* samples: seconds of one product of so many bytes. reads: one more. */
static void judge_times(double (*samples)[MAX_SAMPLES], const int *taken, double *reads, int n,
                        trial_result *out) {
    double rates[MAX_SAMPLES];
    for (int i = 0; i < out->n; i++) {
        trial_time *t = &out->times[i];
        t->n_sample = taken[i];
        if (!taken[i])
            continue;
        for (int k = 0; k < taken[i]; k++) /* a candidate that was dropped has the first rounds */
            rates[k] = out->bytes / samples[i][k];
        t->share = rate_share_of(rates, reads, taken[i]);
        trial_judge(samples[i], taken[i], &t->best, &t->spread);
    }
    for (int k = 0; k <= n; k++)
        reads[k] = 1 / reads[k];
    trial_judge(reads, n + 1, &out->read, &out->read_spread);
    out->read = 1 / out->read;
}

/* Rounds of samples until the time is used up: one of each candidate, in turning order so that each is as
 * near to the passes of reading that stand between the rounds. */
static void take_samples(sample *s, bool keep[KERNELS_MAX_STRATEGY], double call, double seconds,
                         trial_result *out) {
    double samples[KERNELS_MAX_STRATEGY][MAX_SAMPLES], reads[MAX_SAMPLES + 1];
    int taken[KERNELS_MAX_STRATEGY] = {0};
    const int64_t n_call = NUM_MAX((int64_t)(SAMPLE_SECONDS / call), 1);
    const double read_for = s->args.n_row <= TRIAL_PAIRED_ROWS ? call * (double)n_call : 0;
    const double start = time_now();
    int n = 0;
    reads[0] = time_read(s->t, read_for);
    for (; n < MAX_SAMPLES && (n < FEW_SAMPLES || time_now() - start < seconds); n++) {
        for (size_t i = 0; i < NUM_COUNT(narrowing); i++)
            if (n == FEW_SAMPLES + narrowing[i].after)
                narrow(samples, n, out->n, narrowing[i].behind, keep);
        for (int turn = 0; turn < out->n; turn++) {
            const int i = n % 2 ? out->n - 1 - turn : turn;
            if (cancel_asked(s->t->cancel))
                return;
            if (keep[i])
                samples[i][taken[i]++] = time_sample(s, out->times[i].strategy, n_call);
        }
        reads[n + 1] = time_read(s->t, read_for);
    }
    judge_times(samples, taken, reads, n, out);
}

nib_status trial_rows(trial *t, int64_t n_row, double seconds, trial_result *out, nib_error *err) {
    const act_format f = act_format_for(&t->shape.format, t->shape.act_bits);
    const int64_t n = slice_rows(t, n_row);
    rows_memory r = {0};
    uint64_t copy_bytes = 0, whole = 0;
    bool keep[KERNELS_MAX_STRATEGY];
    memset(out, 0, sizeof *out);
    pack_bytes(&t->shape.format, n, t->shape.k, &copy_bytes);
    pack_bytes(&t->shape.format, t->shape.n, t->shape.k, &whole);
    out->bytes = (double)whole;
    NIB_TRY(make_rows(t, n_row, n, f, &r, err));
    const view w = {.data = t->data, .format = t->shape.format, .n = n, .k = t->shape.k};
    sample s = {.t = t, .n = n, .copy_bytes = copy_bytes, .n_copy = (int64_t)(t->n_byte / copy_bytes)};
    s.args = (linear_args){.w = &w, .q = {r.q, n_row, t->shape.k, f}, .y = r.y, .ldy = n, .n_row = n_row};
    trial_candidates(t->table, &t->shape.format, n_row, out);
    double call = first_look(&s, out, keep);
    while (call > SLOW_CALL && s.n >= 4 * PACK_PANEL * t->n_thread) { /* nothing fast can do it: fewer rows */
        s.n = num_round_up(s.n / 2, (int64_t)PACK_PANEL);
        call /= 2;
    }
    take_samples(&s, keep, call, seconds, out);
    trial_choose(out);
    free_rows(&r);
    return cancel_check(t->cancel, err);
}

/* trial_rows.c - see trial.h: times the strategies of one product in turns, and drops slow ones early. */
#include "measure/trial_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/act8.h"
#include "numbers/tile.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_SAMPLES = 128,
    FEW_SAMPLES = 5,
    QUICK_ROWS = 16, /* rows of activations in the quick look */
    PRUNED = 2, /* a strategy is not timed if its unit's rate alone makes it this much slower than the rule's
                   choice. The factor allows for kernels whose mix of instructions differs from the probe's */
    FAR = 12,   /* this much slower than the fastest: dropped after the quick look */
    HOPELESS = 3,          /* this much slower than the fastest: dropped after the first look */
    TIMED_WORK = 60000000, /* multiply-adds of a thread that suffice to time a product */
    PANELS_PER_THREAD = 8  /* minimum panels of a thread */
};
#define SLOW_CALL    0.01
#define SHORT_SAMPLE 0.0003 /* seconds: the shortest sample */
/* After these numbers of samples, candidates that are slower than the fastest by more than `behind` get no
 * more. */
static const struct {
    int after;
    double behind;
} narrowing[] = {{0, 1.25}, {10, 1.12}, {30, 1.06}};

/* Number of rows of the weights that are timed: for more rows the time is proportional. */
static int64_t timed_rows(const trial *t, int64_t n_row) {
    const double work = (double)TIMED_WORK * t->n_thread / (double)t->shape.k / (double)n_row;
    const int64_t min = (int64_t)PACK_PANEL * PANELS_PER_THREAD * t->n_thread;
    const int64_t panel = tile_panel_bytes(&t->shape.format, t->shape.k);
    const int64_t fit = (int64_t)(t->n_byte / 2) / panel * PACK_PANEL; /* at least two copies */
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

/* Times one call (or the better of two) of each kept candidate, and drops those that are `behind` times
 * slower than the fastest. */
static double look(trial_sample *s, const trial_result *out, int n_call, double behind, bool *keep) {
    double first[KERNELS_MAX_STRATEGY] = {0}, fastest = 1e30;
    for (int i = 0; i < out->n; i++) {
        if (!keep[i])
            continue;
        first[i] = 1e30;
        for (int call = 0; call < n_call && !cancel_asked(s->t->cancel); call++)
            first[i] = NUM_MIN(first[i], trial_time_sample(s, out->times[i].strategy, 1));
        fastest = NUM_MIN(fastest, first[i]);
    }
    for (int i = 0; i < out->n; i++)
        keep[i] = keep[i] && (i == out->rule || first[i] < behind * fastest);
    return fastest;
}

/* Lower bound of the seconds of a product with n rows of weights, by the measured rate of the unit that the
 * strategy's family multiplies with; 0: unknown. */
static double floor_of(const trial_sample *s, const trial_time *t, int64_t n) {
    char family[32];
    const trial *of = s->t;
    snprintf(family, sizeof family, "%.*s", (int)strcspn(t->strategy->name, "."), t->strategy->name);
    const double each =
        dpr_floor(of->units, of->n_unit, t->isa, family, of->shape.format.bits, of->shape.act_bits);
    return each * (double)n * (double)of->shape.k * (double)s->args.n_row / of->n_thread;
}

/* Drops strategies that the schemes of kernels/dpr.h exclude. */
static void prune(trial_sample *s, trial_result *out, bool keep[KERNELS_MAX_STRATEGY]) {
    bool rule_only[KERNELS_MAX_STRATEGY] = {false};
    rule_only[out->rule] = true;
    const double rule = look(s, out, 2, HOPELESS, rule_only);
    for (int i = 0; i < out->n; i++) {
        out->times[i].pruned = i != out->rule && floor_of(s, &out->times[i], s->n) > PRUNED * rule;
        keep[i] = !out->times[i].pruned;
    }
}

/* Times all candidates with few rows of weights, after a quick look with few rows of activations too, because
 * a scalar kernel needs seconds for many. */
static double first_look(trial_sample *s, trial_result *out, bool keep[KERNELS_MAX_STRATEGY]) {
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
    return fastest * (double)n / (double)s->t->shape.n; /* seconds of one call on these rows */
}

/* Drops candidates whose samples are far slower than the best, so that the remaining time goes to close
 * choices. */
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

/* Computes best times, spreads and shares. samples: seconds of one product, by candidate and round. reads:
 * rates of plain reading, one more than rounds. */
static void judge_times(double (*samples)[MAX_SAMPLES], const int *taken, double *reads, int n,
                        trial_result *out) {
    double rates[MAX_SAMPLES];
    for (int i = 0; i < out->n; i++) {
        trial_time *t = &out->times[i];
        t->n_sample = taken[i];
        if (!taken[i])
            continue;
        for (int k = 0; k < taken[i]; k++) /* a dropped candidate has the first rounds only */
            rates[k] = out->bytes / samples[i][k];
        t->share = rate_share_of(rates, reads, taken[i]);
        trial_judge(samples[i], taken[i], &t->best, &t->spread);
    }
    for (int k = 0; k <= n; k++)
        reads[k] = 1 / reads[k];
    trial_judge(reads, n + 1, &out->read, &out->read_spread);
    out->read = 1 / out->read;
}

/* Seconds of one sample: less than SAMPLE_SECONDS where the first rounds would take more than `seconds`. */
static double sample_seconds(const trial_result *out, const bool *keep, double seconds) {
    int n = 1; /* a pass of reading */
    for (int i = 0; i < out->n; i++)
        n += keep[i];
    return NUM_MIN(SAMPLE_SECONDS, NUM_MAX(seconds / (FEW_SAMPLES * n), SHORT_SAMPLE));
}

/* Takes rounds of samples until the time is used up: one of each candidate, in rotating order, so that all
 * have the same distance to the reading passes between the rounds. */
static void take_samples(trial_sample *s, bool keep[KERNELS_MAX_STRATEGY], double call, double seconds,
                         trial_result *out) {
    double samples[KERNELS_MAX_STRATEGY][MAX_SAMPLES], reads[MAX_SAMPLES + 1];
    int taken[KERNELS_MAX_STRATEGY] = {0};
    const int64_t n_call = NUM_MAX((int64_t)(sample_seconds(out, keep, seconds) / call), 1);
    const double read_for = s->args.n_row <= TRIAL_PAIRED_ROWS ? call * (double)n_call : 0;
    const double start = time_now();
    int n = 0;
    reads[0] = trial_time_read(s->t, read_for);
    for (; n < MAX_SAMPLES && (n < FEW_SAMPLES || time_now() - start < seconds); n++) {
        for (size_t i = 0; i < NUM_COUNT(narrowing); i++)
            if (n == FEW_SAMPLES + narrowing[i].after)
                narrow(samples, n, out->n, narrowing[i].behind, keep);
        for (int turn = 0; turn < out->n; turn++) {
            const int i = n % 2 ? out->n - 1 - turn : turn;
            if (cancel_asked(s->t->cancel))
                return;
            if (keep[i])
                samples[i][taken[i]++] = trial_time_sample(s, out->times[i].strategy, n_call);
        }
        reads[n + 1] = trial_time_read(s->t, read_for);
    }
    judge_times(samples, taken, reads, n, out);
}

nib_status trial_rows(trial *t, int64_t n_row, double seconds, trial_result *out, nib_error *err) {
    const act_format f = act_format_for(&t->shape.format, t->shape.act_bits, 0);
    const int64_t n = timed_rows(t, n_row);
    rows_memory r = {0};
    uint64_t copy_bytes = 0, whole = 0;
    bool keep[KERNELS_MAX_STRATEGY];
    memset(out, 0, sizeof *out);
    pack_bytes(&t->shape.format, n, t->shape.k, &copy_bytes);
    pack_bytes(&t->shape.format, t->shape.n, t->shape.k, &whole);
    out->bytes = (double)whole;
    NIB_TRY(make_rows(t, n_row, n, f, &r, err));
    const view w = {.data = t->data, .format = t->shape.format, .n = n, .k = t->shape.k};
    trial_sample s = {.t = t, .n = n, .copy_bytes = copy_bytes, .n_copy = (int64_t)(t->n_byte / copy_bytes)};
    s.args = (linear_args){.w = &w, .q = {r.q, n_row, t->shape.k, f}, .y = r.y, .ldy = n, .n_row = n_row};
    trial_candidates(t->table, &t->shape.format, n_row, out);
    double call = first_look(&s, out, keep);
    while (call > SLOW_CALL &&
           s.n >= 4 * PACK_PANEL * t->n_thread) { /* only slow strategies can compute it: time fewer rows */
        s.n = num_round_up(s.n / 2, (int64_t)PACK_PANEL);
        call /= 2;
    }
    take_samples(&s, keep, call, seconds, out);
    trial_choose(out);
    free_rows(&r);
    return cancel_check(t->cancel, err);
}

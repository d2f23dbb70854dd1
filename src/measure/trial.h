/* trial.h - times the strategies of one product against each other, for kernel maps.
 *
 * Weights are cold, as in generation: random codes rotate through a buffer of several times the last cache.
 * Strategies take turns in short samples, so that other load affects all of them. The time is the processor
 * time of the slowest thread, so that a preempted thread loses nothing. The best sample is the time of a
 * strategy; the distance of the lower quartile of the samples from it is its spread.
 *
 * The share of memory's read rate is measured separately, because best samples are of different moments:
 * plain reading takes turns with the strategies by the same clock, before and after every round, with up to
 * TRIAL_PAIRED_ROWS rows for as long as a sample. The share is the median over the rounds of the ratio within
 * a round (rate_share_of). */
#ifndef NIB_MEASURE_TRIAL_H
#define NIB_MEASURE_TRIAL_H

#include "base/cancel.h"
#include "base/thread.h"
#include "kernels/kernel_map.h"
#include "model/model.h"
#include "base/rate.h"

/* The products of a model that have the same shape and format. */
typedef struct trial_shape {
    int64_t n, k;
    pack_format format; /* PACK_TILE */
    int act_bits;
    int count; /* number of them in a token */
} trial_shape;
enum { TRIAL_MAX_SHAPES = 64 };
/* Returns their number; shapes beyond TRIAL_MAX_SHAPES are left out. */
int trial_shapes_of(const model *m, trial_shape out[TRIAL_MAX_SHAPES]);

typedef struct trial_time {
    const strategy *strategy;
    const char *isa;
    double best;   /* seconds of one product; 0: dropped, because it is far too slow */
    bool pruned;   /* never timed, because the measured rate of its arithmetic unit alone makes it too slow
                      (dpr.h) */
    double spread; /* (lower quarter - best) / best */
    int n_sample;
    rate_share share; /* of the read rate, paired; zero if best is 0 */
} trial_time;

/* With more rows memory is not the bound, so the reading passes between samples are short. */
enum { TRIAL_PAIRED_ROWS = 4 };

/* The measurements of one shape and number of rows. */
typedef struct trial_result {
    int n;
    trial_time times[KERNELS_MAX_STRATEGY];
    int rule;           /* index of the rule's choice */
    int chosen;         /* index of the map's choice: the rule's, unless another one beats it (trial_beats) */
    int fastest;        /* index of the best time */
    double bytes;       /* of the weights, scales included */
    double read;        /* bytes a second of plain reading meanwhile, the best pass; 0: not measured */
    double read_spread; /* spread of `read`, as in trial_time */
} trial_result;

typedef struct trial trial;

/* n_byte: of rotating weights, at least 1 MiB and 4 KiB for each thread. The pool is borrowed. Finds the
 * fastest pattern of reading (0.1 s). cancel NULL: none; all calls below poll it too, and a trial that was
 * cancelled can only be closed. */
nib_status trial_open(const kernel_table *t, pool *threads, uint64_t n_byte, const canceller *cancel,
                      trial **out, nib_error *err);
void trial_close(trial *t); /* NULL is fine */
/* Uses this pool from now on; it has at most as many threads as the first one. */
void trial_use(trial *t, pool *threads);
/* on: a sample counts at least about its wall-clock time. Threads that took turns on one core had the memory
 * to themselves, so their processor times alone would give up to twice the true rate. For absolute rates;
 * other load then adds noise. Off after opening. */
void trial_by_clock(trial *t, bool on);
/* The bytes to rotate: several times the last cache, at least 1 GiB, within the free memory and the cap
 * (NIB_AUTO: none). 0: too little memory. */
uint64_t trial_bytes(uint64_t l3, uint64_t ram_free, uint64_t cap);

/* Prepares the weights of a shape. To be called before trial_rows for it. */
nib_status trial_set(trial *t, const trial_shape *shape, nib_error *err);
/* Times every strategy that can compute the whole bucket of n_row, for about `seconds`. */
nib_status trial_rows(trial *t, int64_t n_row, double seconds, trial_result *out, nib_error *err);

/* Whether times[challenger] is lower than times[holder] by at least 1 %, and by more than the uncertainty of
 * both: the best of n samples is about 4 / n of the spread too high. */
bool trial_beats(const trial_result *r, int challenger, int holder);

/* Best and spread of n >= 1 samples, which are sorted. */
void trial_judge(double *samples, int n, double *best, double *spread);
/* Sets chosen and fastest from the times and the rule. */
void trial_choose(trial_result *out);
/* Lists the strategies of a table that can compute n_row's whole bucket, and the rule's choice among them. */
void trial_candidates(const kernel_table *t, const pack_format *f, int64_t n_row, trial_result *out);

/* The functions that time a grid of shapes: those of `trial`, or of a GPU (trial_cuda.h). */
typedef struct trial_kind {
    nib_status (*set)(void *t, const trial_shape *shape, nib_error *err);
    nib_status (*rows)(void *t, int64_t n_row, double seconds, trial_result *out, nib_error *err);
} trial_kind;

/* Whether some strategy for planes computes a product that no strategy for parts computes. */
bool trial_has_planes(const kernel_table *t, const trial_shape *s);

/* The number of rows that is measured for a bucket: its largest, or 512 for the last bucket. */
int64_t trial_rows_of(int bucket);

#endif

/* trial.h - times the strategies of one product against each other, for kernel maps.
 *
 * Cold: weights with random codes rotate through a buffer of several times the last cache, as in generation.
 * Strategies take turns in short samples, so that other load affects all of them. The time is the processor
 * time of the slowest thread, so that a preempted thread loses nothing. The best sample is the time of a
 * strategy; the distance of the lower quartile of the samples from it is its spread.
 *
 * The share of memory's read rate is measured separately, because best samples are of different moments:
 * plain reading takes turns with the strategies by the same clock, before and after every round, with up to
 * TRIAL_PAIRED_ROWS rows for as long as a sample. The share is the median over the rounds of the ratio within
 * a round (rate_share_of). */
#ifndef NIB_PROFILE_TRIAL_H
#define NIB_PROFILE_TRIAL_H

#include "base/cancel.h"
#include "base/thread.h"
#include "kernels/policy.h"
#include "model/model.h"
#include "base/rate.h"

/* The products of a model that have the same shape and format. */
typedef struct trial_shape {
    int64_t n, k;
    pack_format format; /* PACK_TILE */
    int act_bits;
    int count; /* how many a token needs */
} trial_shape;
enum { TRIAL_MAX_SHAPES = 64 };
/* Returns how many; those beyond TRIAL_MAX_SHAPES are left out. */
int trial_shapes_of(const model *m, trial_shape out[TRIAL_MAX_SHAPES]);

typedef struct trial_time {
    const strategy *strategy;
    const char *isa;
    double best;   /* seconds of one product; 0: dropped as hopeless */
    bool pruned;   /* never timed: by what its unit was measured to multiply, it cannot come near (dpr.h) */
    double spread; /* (lower quarter - best) / best */
    int n_sample;
    rate_share share; /* of the read rate, paired; zero where best is */
} trial_time;

/* With more rows memory is not the bound, so the passes of reading between them are short. */
enum { TRIAL_PAIRED_ROWS = 4 };

/* What was measured for one shape and number of rows. */
typedef struct trial_result {
    int n;
    trial_time times[KERNELS_MAX_STRATEGY];
    int rule;     /* index of the rule's choice */
    int chosen;   /* of what the map is to say: the rule's, unless another beats it (trial_beats) */
    int fastest;  /* of the best time */
    double bytes; /* of the weights, scales included */
    double read;  /* bytes a second of plain reading meanwhile, the best pass; 0: not measured */
    double read_spread;
} trial_result;

typedef struct trial trial;

/* n_byte: of rotating weights, at least 1 MiB and 4 KiB for each thread. The pool is the caller's. Finds out
 * which pattern reads fastest here (0.1 s). cancel NULL: none; it is asked by everything below, too, and
 * nothing can be done with a trial that was cancelled but to close it. */
nib_status trial_open(const kernel_table *t, pool *threads, uint64_t n_byte, const canceller *cancel,
                      trial **out, nib_error *err);
void trial_close(trial *t);
/* From now on with this pool, of no more threads than the one it was opened with. */
void trial_use(trial *t, pool *threads);
/* Whether a sample takes at least about what the clock says: threads that took turns on one core had the
 * memory to themselves, and by their processor times together get twice what it gives. For rates that are to
 * be true by themselves, at the price of noise where others are busy. At first not. */
void trial_by_clock(trial *t, bool on);
/* How many bytes to rotate here: several times the last cache, at least 1 GiB, within what is free and
 * within cap (NIB_AUTO: none). 0: too little memory. */
uint64_t trial_bytes(uint64_t l3, uint64_t ram_free, uint64_t cap);

/* Prepares the weights of a shape. To be called before trial_rows for it. */
nib_status trial_set(trial *t, const trial_shape *shape, nib_error *err);
/* Times every strategy that can do the whole bucket of n_row, for about `seconds`. */
nib_status trial_rows(trial *t, int64_t n_row, double seconds, trial_result *out, nib_error *err);

/* Whether times[challenger] beats times[holder] by more than how far both bests may be off, and by 1 % at
 * least. The best of n samples whose lower quarter lies within the spread is about 4 / n of the spread too
 * high. */
bool trial_beats(const trial_result *r, int challenger, int holder);

/* Best and spread of n >= 1 samples, which are sorted. */
void trial_judge(double *samples, int n, double *best, double *spread);
/* chosen and fastest, from the times and the rule. */
void trial_choose(trial_result *out);
/* The strategies of a table that can do n_row's whole bucket, and which of them is the rule's. */
void trial_candidates(const kernel_table *t, const pack_format *f, int64_t n_row, trial_result *out);

/* What times a grid of shapes: `trial` itself, or a GPU's (trial_cuda.h). */
typedef struct trial_kind {
    nib_status (*set)(void *t, const trial_shape *shape, nib_error *err);
    nib_status (*rows)(void *t, int64_t n_row, double seconds, trial_result *out, nib_error *err);
} trial_kind;

/* Whether some strategy computes the same product in planes that none computes in parts. */
bool trial_has_planes(const kernel_table *t, const trial_shape *s);

/* The rows that stand for a bucket: its last, 512 for the last bucket. */
int64_t trial_rows_of(int bucket);

#endif

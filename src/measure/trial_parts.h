/* trial_parts.h - shared by trial.c and trial_rows.c only. */
#ifndef NIB_MEASURE_TRIAL_PARTS_H
#define NIB_MEASURE_TRIAL_PARTS_H

#include "kernels/dpr.h"
#include "measure/trial.h"

#define SAMPLE_SECONDS 0.002 /* minimum duration of a sample: far above the clock's and the pool's noise */

/* One thread's part of a sample. */
typedef struct trial_span {
    double busy;       /* seconds of processor time */
    double begin, end; /* by the clock */
} trial_span;

struct trial {
    const kernel_table *table;
    pool *threads;
    const canceller *cancel;
    int n_thread;
    char *data; /* rotating weights */
    uint64_t n_byte;
    trial_shape shape;
    void **scratch;    /* [n_thread] */
    trial_span *spans; /* [n_thread] */
    bool by_clock;     /* trial_by_clock */
    uint64_t *sums;    /* [n_thread]: results of plain reading, so that the compiler keeps the reads */
    uint64_t at;       /* position of the rotation; products and plain reading share it, so that bytes are not
                          reread from a cache */
    uint64_t chunk;    /* bytes that a thread reads at one place */
    int n_chunk;       /* chunks of this pass */
    int pattern;       /* of plain reading (base/rate.h) */
    double read_rate;  /* of the last pass, bytes a second */
    dpr_unit units[DPR_MAX_UNIT]; /* of this machine, measured when it is opened: DPR's set H */
    int n_unit;
    int64_t filled[5]; /* where fill_scales has written scales; zeros: nowhere */
};

/* A product that is timed. */
typedef struct trial_sample {
    trial *t;
    const strategy *strategy;
    linear_args args;
    int64_t n; /* rows of the weights that are computed: all, or the first ones */
    int64_t n_copy, first_copy, n_call;
    uint64_t copy_bytes;
} trial_sample;

/* Mean seconds of one product over n_call calls (of the timed rows, scaled to the whole matrix). */
double trial_time_sample(trial_sample *s, const strategy *by, int64_t n_call);
/* Bytes a second of plain reading for about `seconds`, at least one chunk. */
double trial_time_read(trial *t, double seconds);

#endif

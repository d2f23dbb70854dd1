/* trials.h - stores the base pass of a comparison: the residual stream before every block, and the logits. A
 * trial repeats the pass with a change, from the first changed block on. */
#ifndef NIB_MEASURE_TRIALS_H
#define NIB_MEASURE_TRIALS_H

#include "measure/prompt_rows.h"

typedef struct measure_base {
    const engine_parts *e;
    prompt_rows rows;
    memory_region memory;
    float *stream;       /* [n_block - 1, n_row, d_model]: before blocks 1, 2, ... */
    float *logits;       /* [n_head, n_vocab] */
    double *kl;          /* [n_head]: divergence of each row in the last trial, nats */
    int64_t *first_head; /* [n_segment]: index of the segment's first row among the rows with logits */
} measure_base;

/* Bytes that measure_base_open charges, the cache included. */
nib_status measure_base_bytes(const engine_parts *e, const calibration *c, int64_t max, int64_t n_score,
                              uint64_t *bytes, nib_error *err);
/* Runs the base pass. max, n_score: as in prompt_rows_open. watch: its probe; NULL: none. */
nib_status measure_base_open(measure_base *b, const engine_parts *e, const calibration *c, int64_t max,
                             int64_t n_score, const probe *watch, nib_error *err);
void measure_base_close(measure_base *b); /* zeroed is fine */

typedef struct trial_cost {
    double kl;    /* mean over rows with logits, nats; every row's in base->kl */
    double error; /* of the first changed block's output: root of the mean over rows of |difference|^2 /
                     |row|^2; -1: that block was left out */
} trial_cost;
/* Runs a trial. first: the first block that `change` affects. */
nib_status measure_trial(measure_base *b, int first, const pass_change *change, trial_cost *out,
                         nib_error *err);

#endif

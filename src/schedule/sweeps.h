/* sweeps.h - the order of passes: which sequences are computed in each sweep over the blocks, and when the
 * next ones enter. The order in a sweep is that of schedule/visits.h; together they are FlexGen's schedules
 * (Sheng et al. 2023, sections 4.2 and A.2):
 *
 *   row      one batch of the device after the other, all of its tokens
 *   block    several batches begin together and end together (the zig-zag block schedule)
 *   refill   a sequence enters as soon as another one has ended (continuous batching). Where memory holds
 *            fewer sequences at their end than together in the mean, they enter evenly in time, so that a
 *            sweep has every number of tokens equally often: the paper's diagonal schedule
 *
 * The batch (session/batch_slots.c) admits requests by sweeps_admits. The counter walks the same sweeps and
 * visits for equal sequences; plans are compared with it. Pure. */
#ifndef NIB_SCHEDULE_SWEEPS_H
#define NIB_SCHEDULE_SWEEPS_H

#include "schedule/visits.h"

typedef enum sweep_kind { SWEEP_REFILL, SWEEP_BLOCK, SWEEP_ROW, SWEEP_N_KIND } sweep_kind;

typedef struct sweeps {
    sweep_kind kind;
    int64_t width;   /* maximum sequences of a sweep */
    int64_t spacing; /* refill: tokens of an answer over which the entries are spread; 0: they are not */
    /* State; initially 0. */
    int64_t n_sweep; /* sweeps that have ended since the first entry */
    int64_t n_begun; /* sequences that have entered */
    bool filling;    /* block, row: sequences of the next block are entering */
} sweeps;

/* Whether the next sequence enters before the next sweep, beside n_running others. */
bool sweeps_admits(sweeps *s, int64_t n_running);
/* To be called when a sequence has entered. */
void sweeps_enter(sweeps *s);
/* To be called before the entries of each sweep, with the sequences that run then. */
void sweeps_next(sweeps *s, int64_t n_running);

const char *sweep_name(sweep_kind k);
/* False: there is no kind of that name. */
bool sweep_find(const char *name, sweep_kind *out);

/* Equal sequences: batches of rows, each with a prompt and n_gen tokens, through n_layer equal layers. */
typedef struct sweep_work {
    int64_t n_batch, n_prompt, n_gen;
    int n_layer;
} sweep_work;

/* What the schedule moves, in layers and positions of a batch (a position of a layer is a unit). */
typedef struct sweep_counts {
    int64_t n_cell; /* visits of layers by a batch */
    int64_t n_load; /* times a layer's weights come: its visits that do not follow one of the same layer */
    int64_t kv_read, kv_written;
    int64_t stream_rows; /* rows of the residual stream that go through a layer */
    int64_t max_kv;      /* positions that are held at the same time, in all layers */
} sweep_counts;

/* Counts the visits of all sweeps. The fields of s that are not state are set. NIB_E_NOMEM. */
nib_status sweeps_count(const sweeps *s, const sweep_work *w, sweep_counts *out, nib_error *err);
/* Loads of weights that no order can do without, where `capacity` positions are held in all layers together
 * (A.2.2). */
double sweeps_least_loads(const sweep_work *w, double capacity);

#endif

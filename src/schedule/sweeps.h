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
 * The batch (session/batch_slots.c) admits requests by sweeps_admits; tests/test_schedule_sweeps.c walks the
 * same sweeps and visits and compares what they move with the paper's figures. Pure. */
#ifndef NIB_SCHEDULE_SWEEPS_H
#define NIB_SCHEDULE_SWEEPS_H

#include "schedule/visits.h"

typedef enum sweep_kind { SWEEP_REFILL, SWEEP_BLOCK, SWEEP_ROW } sweep_kind;

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

#endif

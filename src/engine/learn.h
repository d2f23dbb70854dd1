/* learn.h - stores the times of runs for later predictions (profile/learned.h), if nib_engine_options.learn
 * is set. Nothing here fails: without stored times a prediction is the formula's. */
#ifndef NIB_ENGINE_LEARN_H
#define NIB_ENGINE_LEARN_H

#include "engine/core.h"
#include "plan/planner.h"
#include "profile/learned.h"

#include <stdatomic.h>

/* The measured time of generations so far. */
typedef struct learning {
    atomic_int n_running; /* generations that are running */
    atomic_bool mixed;    /* several were running at once: their times are not used */
    int64_t n_token;
    double seconds, positions; /* summed over the tokens */
} learning;

/* Adds a generation that ended with this many positions. */
void learn_add(learning *l, const engine_core *e, int64_t n_position, const nib_result *r);
/* Whether the times are usable; *n_position: mean number of positions. */
bool learn_positions(const learning *l, const engine_core *e, int64_t *n_position);
/* Writes the times to the file; run: the run with its predicted time. */
void learn_keep(const learning *l, const engine_core *e, learned_run *run);

/* Adds the engine's disks to the question: runs from other disks are not used. */
void learn_disks(const engine_core *e, plan_question *q);
/* Loads the file into *out, which the caller owns, and sets the question's pointer to it. */
void learn_load(const engine_core *e, plan_question *q, learned *out);

#endif

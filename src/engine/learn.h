/* learn.h - stores the times of runs for later predictions (profile/learned.h), if nib_engine_options.learn
 * is set. Nothing here fails: without stored times a prediction is the formula's. */
#ifndef NIB_ENGINE_LEARN_H
#define NIB_ENGINE_LEARN_H

#include "engine/core.h"
#include "plan/planner.h"
#include "profile/learned.h"

#include <stdatomic.h>

/* What generating took so far. */
typedef struct learning {
    atomic_int n_running; /* generations now */
    atomic_bool mixed;    /* several were running at once: none of them says what a token takes */
    int64_t n_token;
    double seconds, positions; /* summed over the tokens */
} learning;

/* A generation that left so many positions. */
void learn_add(learning *l, const engine_core *e, int64_t n_position, const nib_result *r);
/* Whether it says something about a run: with how many positions on average. */
bool learn_positions(const learning *l, const engine_core *e, int64_t *n_position);
/* To the file: `run` is what was expected of it. */
void learn_keep(const learning *l, const engine_core *e, learned_run *run);

/* Which disks the engine reads from, into the question: runs from others say nothing about it. */
void learn_disks(const engine_core *e, plan_question *q);
/* What the file has: *out, which is the caller's, and the question's pointer to it. */
void learn_load(const engine_core *e, plan_question *q, learned *out);

#endif

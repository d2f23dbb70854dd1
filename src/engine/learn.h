/* learn.h - what runs took is kept for the next prediction (profile/learned.h), when nib_engine_options.learn
 * says so. Nothing here fails: a prediction without it is the formula's. */
#ifndef NIB_ENGINE_LEARN_H
#define NIB_ENGINE_LEARN_H

#include "engine/state.h"
#include "engine/planning.h"

/* Around a generation: while others go on at the same time, their times are not one sequence's. */
void learn_begin(nib_engine *e);
void learn_end(nib_engine *e);
/* Between them: a generation that left so many positions. */
void learn_generation(nib_engine *e, int64_t n_position, const nib_result *r);

/* To the file, when there were enough tokens to say something. */
void learn_keep(nib_engine *e);

/* Which disks the engine reads from, into f->q: runs from others say nothing about it. */
void learn_disks(const nib_engine *e, planning *f);
/* What the file has, into f->q.learned. */
void learn_load(const nib_engine *e, planning *f);

#endif

/* planning.h - the facts that a plan or a prediction is made of, gathered from an engine. */
#ifndef NIB_ENGINE_PLANNING_H
#define NIB_ENGINE_PLANNING_H

#include "plan/policy.h"
#include "engine/state.h"

/* Rows of a pass and of a cell. */
typedef struct planning_rows {
    int64_t n_pass, n_cell;
} planning_rows;

typedef struct planning {
    plan_question q;         /* points into the rest */
    const engine_want *want; /* NULL: nothing */
    plan_block_facts *blocks;
    pager_page *pages;
    learned learned;
    planning_rows base, streamed; /* with everything resident, and where weights are streamed */
    uint64_t workspace;           /* of base */
    uint64_t workspace_touched;   /* of it, by the workload */
    char model[PLAN_NAME], content[CONTENT_KEY], prompts[40];
} planning;

/* Of a model as it is now, without profiles of its weights: each block has one choice. 0 for n_prompt, n_gen:
 * the defaults. What earlier runs took is not in it (learn_load). To be closed in any case. */
nib_status planning_gather(planning *f, const nib_engine *e, int64_t n_prompt, int64_t n_gen, nib_error *err);
nib_status planning_gather_for(planning *f, const nib_engine *e, const engine_want *want, int64_t n_prompt,
                               int64_t n_gen, nib_error *err);
void planning_close(planning *f);

/* ---- predict.c: an open engine as one run, with its cache filled up to n_position ---- */
nib_status planning_run(const nib_engine *e, int64_t n_position, learned_run *out, nib_error *err);

/* ---- planning_memory.c, for planning_gather: f->q.need, the sizes and the workload are settled ---- */
/* The caches that there could be, the engine's own first. */
nib_status planning_caches(planning *f, const nib_engine *e, nib_error *err);
/* Fewer rows where the cap does not hold more (in which case it holds no whole model either), once what else
 * is held is known. */
void planning_fewer_rows(planning *f, const nib_engine *e);
/* What the ledger has now, and what the engine will promise before it opens the pager. */
nib_status planning_held(planning *f, const nib_engine *e, nib_error *err);

#endif

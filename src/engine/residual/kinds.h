/* kinds.h - the kinds of products for which residuals are tuned (QDEC, paper 4.4): the products of
 * one input of a layer are one kind in all layers: q, k and v; o; gate and up; down. */
#ifndef NIB_ENGINE_RESIDUAL_KINDS_H
#define NIB_ENGINE_RESIDUAL_KINDS_H

#include "exec/residuals.h"
#include "model/layout.h"
#include "plan/plan.h"
#include "plan/tune.h"

typedef struct residual_kinds {
    tune_kind kinds[TUNE_MAX_KIND];
    char names[TUNE_MAX_KIND][PLAN_NAME]; /* "q+k+v" */
    int n;
    int n_weight; /* of all blocks */
    int8_t *of;   /* [n_weight]: the kind of a weight, block by block; -1: it gets no residual */
} residual_kinds;

/* Whether weight w of block b can have a residual. */
bool residual_is_of(const block *b, const weight *w);
/* Lists the kinds of the layout's products. If there are more than TUNE_MAX_KIND kinds, the last one contains
 * all others. */
nib_status residual_kinds_open(residual_kinds *out, const layout *lay, nib_error *err);
void residual_kinds_close(residual_kinds *k); /* zeroed is fine */
/* Sets the choice of a plan, by name; kinds that it does not name get no channels. NIB_E_MODEL: unknown kind.
 */
nib_status residual_kinds_choose(const residual_kinds *k, const plan_residual *list, int n, tune_choice *out,
                                 nib_error *err);
/* Weights without channels in the choice get no residual. */
void residual_kinds_drop(residual_kinds *k, const tune_choice *c);

#endif

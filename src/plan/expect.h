/* expect.h - predicts the speed of a decision: the cost formula, corrected by the measured times of earlier
 * runs on this machine. Decisions use the formula alone (decide.c), so earlier runs change predictions and
 * never decisions (docs/budget.md). */
#ifndef NIB_PLAN_EXPECT_H
#define NIB_PLAN_EXPECT_H

#include "plan/planner.h"

/* The decision as a run, without measured seconds. */
void plan_run_of(const plan_question *q, const plan_decision *d, learned_run *out);

/* The factor from the formula's time to the expected time of such a run: the mean (in logarithms) of the
 * ratios of measured to formula over the kinds of runs, each weighted by its similarity and its age. *n_run
 * is the number of runs that count. Without similar runs it is 0, and the factor is 1. The factor stays
 * between 1/4 and 4, or between 1/32 and 32 without a hardware profile. */
double plan_correction(const learned *l, const plan_rates *r, const learned_run *now, int *n_run);

/* Corrects the prediction of plan_predict: tok_s by the learned factor, ttft_s too if the disk is the
 * bottleneck; n_run is set. */
void plan_expect(const plan_question *q, const plan_decision *d, plan_prediction *p);

#endif

/* expect.h - how fast a decision will be: what the cost formula says, corrected by what runs of this machine
 * took. Decisions are made with the formula alone (decide.c), so what was learned changes what is expected
 * and never what is done: docs/budget.md. */
#ifndef NIB_PLAN_EXPECT_H
#define NIB_PLAN_EXPECT_H

#include "plan/planner.h"

/* The run that the decision is, without seconds. */
void plan_run_of(const plan_question *q, const plan_decision *d, learned_run *out);

/* How many times longer than the formula says such a run takes, by what was learned: the mean of the ratios
 * of the kinds of runs (in logarithms), each weighted by how near it is and how new. 1, and *n_run 0, when
 * nothing near was learned; else *n_run is the number of runs that count. Within 1/4 and 4: beyond that the
 * hardware profile is believed (within 1/32 and 32 where there is none). */
double plan_correction(const learned *l, const plan_rates *r, const learned_run *now, int *n_run);

/* Of what plan_predict said, tok_s becomes what is expected, with what does not overlap and what was learned;
 * ttft_s is corrected too where the disk binds; n_run is set. */
void plan_expect(const plan_question *q, const plan_decision *d, plan_prediction *p);

#endif

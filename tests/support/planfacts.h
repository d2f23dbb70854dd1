/* planfacts.h - literal facts for the planner: a model with round numbers, so that tests can be checked by
 * hand. */
#ifndef NIB_TESTS_PLANFACTS_H
#define NIB_TESTS_PLANFACTS_H

#include "plan/planner.h"

#define MIB (UINT64_C(1) << 20)

enum { FACTS_N = 6 }; /* embed, 4 layers, head */

typedef struct facts {
    plan_block_facts blocks[FACTS_N];
    plan_question q; /* points into it */
} facts;

/* A model of 4 layers of 60 MiB each, memory of 5 GB/s and a disk of 1 GB/s. */
void facts_make(facts *f);
void facts_add_choice(plan_block_facts *x, const char *format, int bits, uint64_t bytes, double kl);
/* Three more formats for each block except the embedding, with their losses. */
void facts_measured(facts *f);

/* Makes the plan by plan_make; fails the test on an error. Freed by plan_clear. */
plan facts_plan(const plan_question *q);
/* Bytes of a plan's slices in a tier. */
uint64_t facts_kept(const plan *p, int tier);
/* Checks that the plan's memory is within the cap, and that its JSON can be written. */
void facts_check(const plan_question *q, const plan *p);

#endif

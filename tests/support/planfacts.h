/* planfacts.h - literal facts for the planner: a model that a test can compute with in its head. */
#ifndef NIB_TESTS_PLANFACTS_H
#define NIB_TESTS_PLANFACTS_H

#include "plan/planner.h"

#define MIB (UINT64_C(1) << 20)

enum { FACTS_N = 6 }; /* embed, 4 layers, head */

typedef struct facts {
    plan_block_facts blocks[FACTS_N];
    plan_question q; /* points into it */
} facts;

/* A model of 4 layers with 60 MiB each in its file, and 5 GB/s and 1 GB/s below it. */
void facts_make(facts *f);
void facts_add_choice(plan_block_facts *x, const char *format, int bits, uint64_t bytes, double kl);
/* Three more formats for each block but the embedding, with what they lose. */
void facts_measured(facts *f);

/* The plan, by plan_make; fails the test when there is none. plan_clear. */
plan facts_plan(const plan_question *q);
/* Bytes of a plan's slices in a tier. */
uint64_t facts_kept(const plan *p, int tier);
/* What the plan says is what it decided: promised memory is within the cap, and JSON can hold it. */
void facts_check(const plan_question *q, const plan *p);

#endif

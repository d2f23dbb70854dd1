/* tinyplan.h - plans for a model of the tests. */
#ifndef NIB_TESTS_TINYPLAN_H
#define NIB_TESTS_TINYPLAN_H

#include "plan/plan.h"

enum { TINY_PLAN_BLOCKS = 16 };

/* Nothing of it is freed. p.blocks points into it: set it again in a copy. */
typedef struct tiny_plan {
    plan p;
    plan_block blocks[TINY_PLAN_BLOCKS];
} tiny_plan;

/* A plan in mode a for the model in `path`: its blocks in these n recipes in turn, activations of 8 bits;
 * first and second are the tiers of first and second slices. Fails the test when the model has more blocks.
 */
void tiny_plan_make(tiny_plan *h, const char *path, const char *const *recipes, int n, int first, int second);

/* The same for a fixture, whose file that says which activations have 4 and which 8 bits it makes, and
 * returns (tinymodel.h): activations ax. */
const char *tiny_plan_make_mixed(tiny_plan *h, const char *fixture, const char *const *recipes, int n);

/* A plan in mode b that leaves out a layer (-1: the embedding, which no plan may leave out). */
void tiny_plan_leave_out(tiny_plan *h, int layer);

#endif

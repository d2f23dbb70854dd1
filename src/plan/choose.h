/* choose.h - one of several ways for each block, so that together they are fastest within a loss, or lose
 * least within a time: a multiple-choice knapsack.
 *
 * The fastest tier holds tiers[0].capacity bytes; what is beyond tiers[t].capacity comes over the link of
 * tier t: over_t = max(0, bytes - tiers[t].capacity). Links and computing work at the same time, so a
 * token takes T = max(max_t link_s_t * over_t, time + fixed_s + sum_t busy_s_t * over_t) seconds, where time
 * is the sum of the chosen ways' times.
 *
 * Method: Lagrangian relaxation of both limits (max(a, b) >= w a + (1 - w) b for any w in 0...1, for each
 * link beside computing) gives a lower bound that is a sum of minima over the blocks, with one link as strong
 * as the linear program's; its multipliers are found by golden sections, since the bound is concave in them.
 * Branch and bound with these bounds then finds the best and proves it; when that takes more than max_node
 * steps, what was found is returned with the bound, and the gap between the two says how far from the best it
 * can be. */
#ifndef NIB_PLAN_CHOOSE_H
#define NIB_PLAN_CHOOSE_H

#include "base/status.h"

/* What one way adds to the sums. All are finite and 0 or more. */
typedef struct choose_way {
    double time, bytes, loss;
} choose_way;

enum { CHOOSE_MAX_TIER = 3 };

/* A tier behind the fastest one. */
typedef struct choose_tier {
    double capacity; /* capacity of all tiers before it together; not below that of the tier before */
    double link_s;   /* seconds a byte takes over its link */
    double busy_s;   /* seconds of computing that a byte takes besides */
} choose_tier;

typedef struct choose_problem {
    const choose_way *ways; /* block by block */
    const int *first;       /* [n_block + 1]: a block's first way; each block has at least one */
    int n_block;
    choose_tier tiers[CHOOSE_MAX_TIER];
    int n_tier; /* 0: everything is on the fastest one */
    double fixed_s;
    double max_bytes; /* INFINITY: no such limit */
    double max_loss;
    double max_time; /* INFINITY: the fastest within max_loss; else what loses least of those whose T is at
                         most this, and of several such the fastest */
    int64_t max_node;
} choose_problem;

typedef struct choose_result {
    bool found;
    double time;  /* T */
    double bytes; /* summed */
    double loss;
    double bound;  /* no choice is better than this: of T, or of the loss when max_time was given */
    bool proved;   /* the choice is the best */
    int64_t nodes; /* steps of the search */
} choose_result;

/* choice[n_block] gets the way of each block, counted from its first, when found. NIB_E_NOMEM only. */
nib_status choose(const choose_problem *p, int *choice, choose_result *out, nib_error *err);

/* T of given sums. */
double choose_time(const choose_problem *p, double time, double bytes);

#endif

/* choose.h - one of several ways for each block, so that together they are fastest within a loss, or lose
 * least within a time: a multiple-choice knapsack.
 *
 * A token takes T = max(disk_s * over, time + fixed_s + over_s * over) seconds, where time is the sum of the
 * chosen ways' times and over = max(0, bytes - room) is what has to be streamed.
 *
 * Method: Lagrangian relaxation of both limits (max(a, b) >= w a + (1 - w) b for any w in 0...1) gives a
 * lower bound that is a sum of minima over the blocks, as strong as the linear program's; its multipliers are
 * found by golden sections, since the bound is concave in them. Branch and bound with that bound then finds
 * the best and proves it; when that takes more than max_node steps, what was found is returned with the
 * bound, and the gap between the two says how far from the best it can be. */
#ifndef NIB_PLAN_CHOOSE_H
#define NIB_PLAN_CHOOSE_H

#include "base/status.h"

/* What one way adds to the sums. All are finite and 0 or more. */
typedef struct choose_way {
    double time, bytes, loss;
} choose_way;

typedef struct choose_problem {
    const choose_way *ways; /* block by block */
    const int *first;       /* [n_block + 1]: a block's first way; each block has at least one */
    int n_block;
    double room, disk_s, over_s, fixed_s;
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

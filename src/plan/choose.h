/* choose.h - chooses one of several options for each block: the fastest choice within a loss, or the
 * choice with the least loss within a time. This is a multiple-choice knapsack.
 *
 * The fastest tier holds tiers[0].capacity bytes; bytes beyond tiers[t].capacity come over the link of tier
 * t: over_t = max(0, bytes - tiers[t].capacity). Links take l = max_t link_s_t * over_t seconds, and
 * computing c = time + fixed_s + sum_t busy_s_t * over_t, where time is the sum of the chosen options' times.
 * They overlap, except for a share `apart` of the shorter one: T = max(l, c) + apart * min(l, c).
 * Before the token there may be another phase of the same kind, a prompt: the bytes beyond each tier come
 * `before_reads` times, and computing takes the sum of the options' `before`; these two overlap completely.
 * The two phases do not overlap, so T is their sum. Times of the prompt are shares of one token.
 *
 * Method: Lagrangian relaxation of both limits (max(a, b) >= w a + (1 - w) b for any w in 0...1, for each
 * link beside computing, in each phase) gives a lower bound that is a sum of minima over the blocks. With one
 * link and one phase it is as strong as the linear program's. Its multipliers are found by golden sections,
 * because the bound is concave in them. Branch and bound with these bounds finds the best choice and proves
 * it. If that takes more than max_node steps, the best choice so far is returned with the bound; their
 * difference bounds its distance from the optimum. */
#ifndef NIB_PLAN_CHOOSE_H
#define NIB_PLAN_CHOOSE_H

#include "base/status.h"

/* One option's contribution to the sums: seconds, bytes, nats. All are finite and 0 or more. */
typedef struct choose_option {
    double time, bytes, loss;
    double before; /* computing time of the phase before */
} choose_option;

enum { CHOOSE_MAX_TIER = 3 };

/* A slower tier than the fastest one. */
typedef struct choose_tier {
    double capacity; /* bytes that all faster tiers hold together; does not decrease from tier to tier */
    double link_s;   /* seconds for a byte over its link */
    double busy_s;   /* additional computing seconds for a byte */
} choose_tier;

typedef struct choose_problem {
    const choose_option *options; /* block by block */
    const int *first;             /* [n_block + 1]: a block's first option; each block has at least one */
    int n_block;
    choose_tier tiers[CHOOSE_MAX_TIER];
    int n_tier; /* 0: everything is on the fastest one */
    double fixed_s;
    double apart;        /* 0...1 */
    double before_reads; /* how often bytes beyond a tier come over its link in the phase before */
    double max_bytes;    /* INFINITY: no such limit */
    double max_loss;
    double max_time; /* INFINITY: minimize T within max_loss; else minimize the loss where T is at most this,
                        then T */
    int64_t max_node;
} choose_problem;

typedef struct choose_result {
    bool found;
    double time;  /* T */
    double bytes; /* sum over the chosen options */
    double loss;
    double bound; /* a lower bound of T, or of the loss if max_time is finite */
    bool proved;  /* the choice is the best */
} choose_result;

/* If found, choice[n_block] gets the option of each block, counted from its first. The only error is
 * NIB_E_NOMEM. */
nib_status choose(const choose_problem *p, int *choice, choose_result *out, nib_error *err);

/* Returns T for given sums. */
double choose_time(const choose_problem *p, const choose_option *sum);

#endif

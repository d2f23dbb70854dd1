/* tune.h - finds how many channels residuals restore, and with how many blocks of a GPU they are fetched, for
 * a requested slowdown (QDEC, paper 4.4 and appendix A). Pure, except for the caller's measurements.
 *
 * Every candidate is measured as a whole: all products of a token with their fetches, in the order in which a
 * token has them. Times of single products do not add up, because the fetch of one product delays the next.
 *
 * First it chooses the number of blocks. For each upper limit, up to half of the multiprocessors, every kind
 * of product takes its largest viable number of blocks, and all kinds get as many channels (of each 1,024) as
 * the target allows. The limit with the most channels is used. If no limit allows a channel, the kind with
 * the smallest matrix gets none, and the search begins again. Then it raises the channels of single kinds, in
 * steps that become smaller, the cheapest step first, while the whole stays within the target. Finally it
 * measures the choice and no residuals in turns, makes the choice smaller while it is too slow, and then
 * raises single kinds again while more than a tenth of the target is left. */
#ifndef NIB_PLAN_TUNE_H
#define NIB_PLAN_TUNE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TUNE_MAX_KIND = 8, TUNE_MAX_BLOCKS = 128, TUNE_SEGMENT = 256 /* outputs that are fetched together */ };

/* Products of one input that are one launch: q, k and v; gate and up. */
typedef struct tune_kind {
    int64_t k, n; /* input channels; outputs of all its matrices */
} tune_kind;

/* Whether all n_tb blocks have work: in selecting channels (a chunk of 1,024 each), or in fetching, if fewer
 * blocks would each have more segments. */
bool tune_is_viable(const tune_kind *kind, int n_tb);
/* The largest viable number up to `max`, at least 1. */
int tune_blocks(const tune_kind *kind, int max);

/* The choice for each kind. */
typedef struct tune_choice {
    int64_t k_chunk[TUNE_MAX_KIND]; /* 0: no residuals */
    int n_tb[TUNE_MAX_KIND];        /* at least 1 */
} tune_choice;

typedef struct tune_problem {
    const tune_kind *kinds; /* [n_kind] */
    int n_kind;
    int max_blocks; /* half of the multiprocessors, at most TUNE_MAX_BLOCKS; 1: the number of blocks is fixed
                     */
    int64_t max_k;  /* maximum k_chunk */
    double target;  /* 0.05: at most 5 % slower */
    /* Measures *seconds of all products of a token with this choice. */
    nib_status (*time)(void *user, const tune_choice *choice, double *seconds, nib_error *err);
    /* Called for each choice within the target that is better than all before; base: seconds without
     * residuals. NULL: none. */
    void (*step)(void *user, const tune_choice *choice, double seconds, double base);
    void *user;
} tune_problem;

typedef struct tuned {
    tune_choice choice;
    double base, seconds; /* without residuals, and with the choice: seconds <= base * (1 + target) */
    int n_timed;          /* number of calls of `time` */
} tuned;

/* NIB_E_USAGE: a value is out of range; and the errors of `time`. */
nib_status tune(const tune_problem *problem, tuned *out, nib_error *err);

#endif

/* tune.h - how many channels residuals give back, and with how many blocks they are fetched, for a slowdown
 * that is asked for (QDEC, paper 4.4 and appendix A). Pure but for the times, which somebody measures.
 *
 * Every candidate is measured as a whole: all products of a token with their fetches, in the order in which a
 * token has them. Times of single products do not add up, since the fetch of one product delays the next.
 *
 * First the number of blocks: for each upper limit, up to half of the multiprocessors, every kind of product
 * takes its largest viable number, and all kinds get as many channels (of each 1,024) as stay within the
 * target; the limit that gets furthest stays. Where none gets anywhere, the kind with the smallest matrix
 * goes without, and the search begins anew. Then the channels: kinds get more in steps that become smaller,
 * those first whose step costs least, as long as all together stay within the target. At the end the choice
 * and the time without residuals are measured anew, one after the other; while the choice is too slow, it is
 * made smaller. */
#ifndef NIB_PLAN_TUNE_H
#define NIB_PLAN_TUNE_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum { TUNE_MAX_KIND = 8, TUNE_MAX_BLOCKS = 128, TUNE_SEGMENT = 256 /* outputs that are fetched together */ };

/* Products of one input that are one launch: q, k and v; gate and up. */
typedef struct tune_kind {
    const char *name;
    int64_t k, n; /* input channels; outputs of all its matrices */
} tune_kind;

/* Whether n_tb blocks are all of use: in choosing (a chunk of 1,024 each) or in fetching, where no fewer of
 * them would have as much to do each. */
bool tune_is_viable(const tune_kind *kind, int n_tb);
/* The largest viable number up to `max`, at least 1. */
int tune_blocks(const tune_kind *kind, int max);

/* Of each kind. */
typedef struct tune_choice {
    int64_t k_chunk[TUNE_MAX_KIND]; /* 0: no residuals */
    int n_tb[TUNE_MAX_KIND];        /* at least 1 */
} tune_choice;

typedef struct tune_ask {
    const tune_kind *kinds; /* [n_kind] */
    int n_kind;
    int max_blocks; /* half of the multiprocessors, at most TUNE_MAX_BLOCKS; 1: blocks mean nothing here */
    int64_t max_k;  /* of k_chunk */
    double target;  /* 0.05: at most 5 % slower */
    /* Seconds of all products of a token. */
    nib_status (*time)(void *user, const tune_choice *choice, double *seconds, nib_error *err);
    /* A choice within the target, better than those before; seconds beside `base`. NULL: not told. */
    void (*step)(void *user, const tune_choice *choice, double seconds, double base);
    void *user;
} tune_ask;

typedef struct tuned {
    tune_choice choice;
    int max_blocks;       /* the limit that was chosen */
    double base, seconds; /* without, and with what was chosen: seconds <= base * (1 + target) */
    int n_timed;          /* how often `time` was asked */
} tuned;

/* NIB_E_USAGE: what is asked is out of range; or what `time` returns. */
nib_status tune(const tune_ask *ask, tuned *out, nib_error *err);

#endif

/* tune.h - how many channels residuals give back, and with how many blocks they are fetched, for a slowdown
 * that is asked for (QDEC, paper 4.4 and appendix A). Pure but for the times, which somebody measures.
 *
 * First the number of blocks: for each upper limit, up to half of the multiprocessors, every kind of product
 * takes its largest viable number, and all kinds get one channel more (of each 1,024) as long as the sum of
 * their times stays within the target; the limit that gets furthest stays. Where none gets anywhere, the kind
 * with the smallest matrix goes without, and the search begins anew. Then the channels: kinds get one more
 * each, those first whose time grows least, as long as that stays within the target. */
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

typedef struct tune_ask {
    const tune_kind *kinds; /* [n_kind] */
    int n_kind;
    int max_blocks; /* half of the multiprocessors; at most TUNE_MAX_BLOCKS */
    int64_t max_k;  /* of k_chunk */
    double target;  /* 0.05: at most 5 % slower */
    /* Seconds of a kind's products with residuals of k_chunk channels; 0: without. Asked once for each. */
    nib_status (*time)(void *user, int kind, int64_t k_chunk, int n_tb, double *seconds, nib_error *err);
    /* Phase 2: kind has k_chunk now, all together take so many seconds. NULL: not told. */
    void (*step)(void *user, int kind, int64_t k_chunk, double seconds);
    void *user;
} tune_ask;

typedef struct tuned {
    int64_t k_chunk[TUNE_MAX_KIND]; /* 0: no residuals */
    int n_tb[TUNE_MAX_KIND];
    int max_blocks;       /* the limit that was chosen */
    double base, seconds; /* of all kinds without, and with what was chosen */
} tuned;

/* NIB_E_USAGE: what is asked is out of range; NIB_E_NOMEM, or what `time` returns. */
nib_status tune(const tune_ask *ask, tuned *out, nib_error *err);

#endif

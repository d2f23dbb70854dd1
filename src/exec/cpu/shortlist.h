/* shortlist.h - the sketch of exec/shortlist.h on the processor, and the state of a search among its
 * estimates. */
#ifndef NIB_EXEC_CPU_SHORTLIST_H
#define NIB_EXEC_CPU_SHORTLIST_H

#include "base/cancel.h"
#include "base/thread.h"
#include "exec/shortlist.h"
#include "tiers/region.h"

/* A panel on disk, and what the largest of its logits may be at the most. */
typedef struct shortlist_panel {
    int32_t panel;
    float upper;
} shortlist_panel;

typedef struct shortlist {
    int n_best; /* 0: none; every logit is computed */
    view sketch;
    float *step; /* [n_vocab, rounded up to panels]: standard deviation of a row's error for |x| = 1 */
    float *best; /* [n_thread, n_best]: the largest bounds, then logits, that a thread has seen */
    shortlist_panel *missing;             /* [panels]: to be read; thread t's from its first panel on */
    int *n_seen, *n_missing, *n_computed; /* [n_thread]: of best; of missing; panels that are in memory */
    uint64_t n_row, n_exact; /* rows of logits so far; panels that were computed exactly for them */
    tier_region memory;
} shortlist;

/* What shortlist_open charges (to weights), and what else it charges while it works. False: the model's head
 * cannot have one. */
bool shortlist_bytes(const layout *lay, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging);
/* Charges, and reads the head's rows into the sketch, which takes the threads of a pool. The model's head is
 * OP_SHORTLIST by then (layout_with_shortlist). *n_read: bytes of the model's files. */
nib_status shortlist_open(shortlist *s, const layout *lay, pool *threads, ledger *l, int n_best,
                          const canceller *cancel, uint64_t *n_read, nib_error *err);
void shortlist_close(shortlist *s); /* zeroed is fine */

#endif

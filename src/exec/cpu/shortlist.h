/* shortlist.h - the sketch of exec/shortlist.h on the processor, and the state of a search over its
 * estimates. */
#ifndef NIB_EXEC_CPU_SHORTLIST_H
#define NIB_EXEC_CPU_SHORTLIST_H

#include "base/cancel.h"
#include "base/thread.h"
#include "exec/shortlist.h"
#include "memory/region.h"

/* A panel on disk, and an upper bound of its logits. */
typedef struct shortlist_panel {
    int32_t panel;
    float upper;
} shortlist_panel;

typedef struct shortlist {
    int n_best; /* 0: there is no sketch, and every logit is computed */
    view sketch;
    float *step; /* [n_vocab, rounded up to panels]: standard deviation of a row's error for |x| = 1 */
    float *best; /* [n_thread, n_best]: the largest lower bounds of a thread, later its largest logits */
    shortlist_panel *missing; /* [panels]: panels to read; those of thread t begin at its first panel */
    int *n_seen, *n_missing, *n_computed; /* [n_thread]: entries of best; entries of missing; computed panels
                                             that were in memory */
    uint64_t n_row, n_exact; /* rows of logits so far; panels that were computed exactly for them */
    memory_region memory;
} shortlist;

/* Gives the bytes that shortlist_open charges to weights, and the bytes that it charges only while it works
 * (staging). false: the model's head cannot have a sketch. */
bool shortlist_bytes(const layout *lay, int n_thread, int n_best, uint64_t *bytes, uint64_t *staging);
/* Charges the memory, reads the head's rows and rounds them to the sketch on the threads of a pool. Blocks.
 * The layout's head must have OP_SHORTLIST (layout_with_shortlist). *n_read: bytes read from the model's
 * files. */
nib_status shortlist_open(shortlist *s, const layout *lay, pool *threads, ledger *l, int n_best,
                          const canceller *cancel, uint64_t *n_read, nib_error *err);
void shortlist_close(shortlist *s); /* s may be zeroed */

#endif

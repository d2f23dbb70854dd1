/* pager.h - weights by block: pinned where the kernels can read them, wherever they live.
 *
 * The pager owns every weight byte. Blocks it decides to keep are read and packed at open and stay; the
 * others are read block by block, round the page cache, ahead of use, into a ring of slots (the order of a
 * dense model is known, so the next block is always known: clairvoyant, Belady). pin/unpin are a contract:
 * between them the views stay valid, and a pinned slot is never reused. One thread pins; a reader thread
 * fills. */
#ifndef NIB_TIERS_PAGER_H
#define NIB_TIERS_PAGER_H

#include "base/log.h"
#include "base/thread.h"
#include "model/model.h"
#include "tiers/ledger.h"

typedef struct pager pager;

typedef struct pager_options {
    bool stream;              /* blocks that do not fit may be streamed; false: they must fit */
    uint64_t keep_free;       /* RAM bytes under the cap that others (KV, activations) will still charge */
    pool *threads;            /* packs while loading */
    nib_progress_fn progress; /* may be NULL */
    const logger *log;
    void *user;
} pager_options;

nib_status pager_open(const model *m, ledger *l, const pager_options *options, pager **out, nib_error *err);
void pager_close(pager *p);

/* The block's views, one for each of its weights in order; waits when the block is still being read. A read
 * error, or a file that changed, comes out here. */
nib_status pager_pin(pager *p, int block, const view **views, nib_error *err);
void pager_unpin(pager *p, int block); /* prefetch goes on with what comes next */

typedef struct pager_stats {
    uint64_t resident_bytes; /* packed weights kept */
    uint64_t ring_bytes;     /* slots and staging for the streamed ones */
    uint64_t bytes_read;     /* from disk, since open */
    double wait_s;           /* pager_pin's waiting for the reader */
    int n_resident, n_streamed;
} pager_stats;
void pager_get_stats(const pager *p, pager_stats *out);

#endif

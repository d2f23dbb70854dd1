/* pager.h - weights by block: pinned where the kernels can read them, wherever they live.
 *
 * The pager owns every weight byte. Blocks it decides to keep are read and packed at open and stay; the
 * others are read block by block, round the page cache, ahead of use, into a ring of slots (the order of a
 * dense model is known, so the next block is always known: clairvoyant, Belady). pin/unpin are a contract:
 * between them the views stay valid, and a pinned slot is never reused. One thread pins; a reader thread
 * fills.
 *
 * Vectors (norms, biases) are always resident. A matrix that is too large for a slot - the output head -
 * comes in parts of rows that are pinned one after the other. A table that is only looked up by row (the
 * embedding) is not streamed at all: its rows are read when they are asked for. */
#ifndef NIB_TIERS_PAGER_H
#define NIB_TIERS_PAGER_H

#include "base/log.h"
#include "base/thread.h"
#include "model/model.h"
#include "tiers/ledger.h"

typedef struct pager pager;

/* The unit of placement, in the order of the image (page_layout.h). */
typedef struct pager_page {
    int block;      /* that owns it; a tied output head's pages belong to the embedding */
    uint64_t bytes; /* packed */
    bool table;     /* only looked up by row: not read for every token when it is not kept */
} pager_page;
/* Pure: opens nothing and charges nothing. Caller frees *pages with mem_free. */
nib_status pager_pages(const model *m, pager_page **pages, int *n_page, nib_error *err);

/* What pager_open will charge to RAM, by owner, besides the pages that it keeps when something is streamed.
 */
typedef struct pager_need {
    uint64_t image;   /* weights: vectors, all pages and tables, when everything fits */
    uint64_t vectors; /* weights: what of it always stays */
    uint64_t ring;    /* staging, when something is streamed: slots, and reads in flight */
    uint64_t row;     /* staging, likewise: for rows that are looked up on disk */
    uint64_t staging; /* staging while an image that fits is loaded, at most; given back afterwards */
    uint64_t
        stream_staging; /* the same when something is streamed; given back before ring and row are taken */
    uint64_t tables;    /* tables: the list of pages and where each is */
    uint64_t sums;      /* tables: checksums, while a packed file is read */
    uint64_t page_most; /* the largest page that is streamed */
} pager_need;
/* Pure, as pager_pages. The peak is tables + image + max(staging, what the session adds), or, streamed,
 * tables + vectors + kept pages + max(stream_staging, ring + row + what the session adds), and sums with a
 * packed file. */
nib_status pager_needs(const model *m, int n_thread, pager_need *out, nib_error *err);

typedef struct pager_options {
    bool stream;          /* blocks that do not fit may be streamed; false: they must fit */
    const uint64_t *kept; /* [n_block]: packed bytes of each block's pages that stay, the first ones in the
                             image's order, rounded down to whole pages; NULL: as many as fit, spread evenly.
                             NIB_E_NOFIT when the cap cannot hold them */
    uint64_t keep_free;   /* RAM bytes under the cap that others (KV, activations) will still charge */
    pool *threads;        /* packs while loading */
    const char *packed;   /* folder of packed files; NULL: they are neither used nor written */
    bool write_packed;    /* one that is not there is written, within the disk tier's cap */
    nib_progress_fn progress; /* may be NULL */
    const logger *log;
    void *user;
} pager_options;

nib_status pager_open(const model *m, ledger *l, const pager_options *options, pager **out, nib_error *err);
void pager_close(pager *p);

/* The block's views, one for each of its weights in order (a shared weight's too); waits when the block is
 * still being read. A read error, or a file that changed, comes out here, and the block is then not pinned; a
 * later pin tries again. data is NULL for a matrix that comes in parts (pager_n_part > 1) or is looked up by
 * row (pager_read_row). */
nib_status pager_pin(pager *p, int block, const view **views, nib_error *err);
void pager_unpin(pager *p, int block); /* prefetch goes on with what comes next */

/* Parts of weight w of a block, in order: rows [*first_row, *first_row + view->n). To be pinned one at a
 * time, in order, while the block itself is pinned. */
int pager_n_part(const pager *p, int block, int w);
nib_status pager_pin_part(pager *p, int block, int w, int part, const view **v, int64_t *first_row,
                          nib_error *err);
void pager_unpin_part(pager *p, int block, int w, int part);

/* Packed bytes of a block's own weight w, without what rounds its place up to pages, by where they are: kept,
 * or on disk and read when needed. Both 0 for a weight that another block owns. */
void pager_where(const pager *p, int block, int w, uint64_t *kept, uint64_t *on_disk);

/* Row r of a matrix as k floats, the same bits wherever it lives; reads the file when it is not resident. */
nib_status pager_read_row(pager *p, int block, int w, int64_t r, float *out, nib_error *err);

/* How often the last block (the head) will be pinned in the pass that begins: what the reader reads ahead. */
void pager_expect(pager *p, int n_head);

typedef struct pager_stats {
    uint64_t resident_bytes;    /* packed weights kept */
    uint64_t ring_bytes;        /* slots and staging for the streamed ones */
    uint64_t bytes_read;        /* from disk, since open */
    double wait_s;              /* pager_pin's waiting for the reader */
    int n_resident, n_streamed; /* parts: blocks, or row ranges of a head */
} pager_stats;
void pager_get_stats(const pager *p, pager_stats *out);

#endif

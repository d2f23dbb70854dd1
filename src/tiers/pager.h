/* pager.h - weights by page: where the kernels can read them, wherever they live.
 *
 * The pager owns every weight byte. A page is a few small matrices of a block, or some rows of a large one
 * (page_layout.h). Pages that it is told to keep are read and packed at open and stay; the others are read
 * round the page cache, ahead of use, into a ring of slots (the order of a pass is known, visits.h, so the
 * next page is always known: clairvoyant, Belady). fetch/release are a contract: between them the bytes stay
 * valid, and a slot that is fetched is never reused. One thread fetches; a reader thread fills.
 *
 * Vectors (norms, biases) are always resident. A table that is only looked up by row (an embedding, or a head
 * of which only the best rows are computed) is not streamed at all: its rows are read when they are asked
 * for. */
#ifndef NIB_TIERS_PAGER_H
#define NIB_TIERS_PAGER_H

#include "base/cancel.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/layout.h"
#include "tiers/ledger.h"
#include "tiers/visits.h"

typedef struct pager pager;

/* Where a page or a block is, seen from one tier. */
typedef enum page_where { PAGE_ABSENT, PAGE_ARRIVING, PAGE_HERE } page_where;

/* The unit of placement, in the order of the image (page_layout.h). */
typedef struct pager_page {
    int block;      /* that owns it; a tied output head's pages belong to the embedding */
    uint64_t bytes; /* packed */
    bool table;     /* only looked up by row: not read for every token when it is not kept */
    bool second;    /* of second slices (model/layout.h), which stand behind all first ones */
    bool head;      /* a table's: the output head of which every token wants rows */
} pager_page;
/* Pure: opens nothing and charges nothing. Caller frees *pages with mem_free. */
nib_status pager_pages(const layout *lay, pager_page **pages, int *n_page, nib_error *err);

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
    uint64_t tables;    /* tables: where each page is; the list of pages is the layout's */
    uint64_t sums;      /* tables: checksums, while a packed file is read */
    uint64_t max_page;  /* the largest page that is streamed */
    uint64_t part;      /* of it, what is read at a time from the model's files: all, or some rows */
    int n_slot;         /* of the ring: pages */
    bool block_in_ring; /* the ring holds any block: it is read once for all visits in a row */
} pager_need;
/* Pure, as pager_pages. The peak is tables + image + max(staging, what the session adds), or, streamed,
 * tables + vectors + kept pages + max(stream_staging, ring + row + what the session adds), and sums with a
 * packed file. */
pager_need pager_needs(const layout *lay, int n_thread);

/* Whether `folder` has a packed file of the model as it is now (its content is looked at when it is opened).
 */
bool pager_packed_exists(const layout *lay, const char *folder);

typedef struct pager_options {
    pool *threads;            /* packs while loading */
    const char *packed;       /* folder of packed files; NULL: they are neither used nor written */
    bool write_packed;        /* one that is not there is written, within the disk tier's cap */
    nib_progress_fn progress; /* may be NULL */
    const canceller *cancel;  /* of opening; NULL: none */
    const logger *log;
    void *user;
    /* Done once while the weights are read, by a thread of its own: what needs a processor meanwhile. An
     * error ends the opening. NULL: nothing */
    nib_status (*side_task)(void *user, nib_error *err);
    void *side_user;
    uint64_t side_bytes; /* that it gives back: so much of what stays is read after it, not at its peak */
} pager_options;

/* Opening takes two calls, or three where pages are streamed: pager_open, pager_source, pager_load. The first
 * charges the tables and reads nothing. What options point to is there until pager_load has returned. */
nib_status pager_open(const layout *lay, ledger *l, const pager_options *options, pager **out,
                      nib_error *err);
/* Its pages, as pager_pages gives them, and its needs. */
nib_status pager_list(const pager *p, pager_page **pages, int *n_page, pager_need *need, nib_error *err);
/* Where the pages that are not in RAM are streamed from: a packed file that is found, or written where that
 * is wanted; else the model's files. Its checksums are charged; a packed file of which they take more than
 * `free_bytes` of RAM is not used. */
nib_status pager_source(pager *p, uint64_t free_bytes, nib_error *err);
/* Loads what stays. tier_of [n_page]: NIB_TIER_RAM or, after pager_source, NIB_TIER_DISK. NIB_E_NOFIT: the
 * ledger has no room for it. */
nib_status pager_load(pager *p, const uint8_t *tier_of, nib_error *err);
void pager_close(pager *p);

/* A pass begins: all its visits. Pages are read ahead in their order, and what was read ahead before and
 * agrees with it stays. The list's segments stay valid until pager_end: the pass is over, or given up.
 * Another one over the same blocks is then foreseen. Without a pass, pages are read as they are asked for. */
void pager_begin(pager *p, const visits *pass);
void pager_end(pager *p);

/* The memory of what is kept, all of it, which does not move. */
void *pager_resident(const pager *p, uint64_t *bytes);
/* The block's views, one for each of its weights in order (a shared weight's too). data is NULL for a matrix
 * that is not resident as a whole: products fetch it, and a table is looked up by row (pager_read_row). */
const view *pager_views(const pager *p, int block);
/* The views of a visit's block, for fetching from it; rest: the visits behind it. One visit at a time. */
void pager_pin(pager *p, const visit *at, const visits *rest, const view **views);
void pager_unpin(pager *p);
/* Whether a device has all that is streamed of the block: nobody fetches it then, so it is not read ahead.
 * Between two passes, or in the block's visit. */
void pager_set_elsewhere(pager *p, int block, bool elsewhere);

/* A matrix that is not resident as a whole, in pieces of rows, to be fetched and released one after the other
 * and in order, while its block is pinned. */
int pager_n_piece(const pager *p, int block, int w);
typedef struct pager_piece {
    view v;            /* its rows */
    int64_t first_row; /* of the matrix */
} pager_piece;
/* Waits when the piece is still being read. A read error, or a file that changed, comes out here, and nothing
 * is then fetched; a later call tries again. While a page with several whole matrices is fetched, their views
 * have data. */
nib_status pager_fetch(pager *p, int block, int w, int piece, pager_piece *out, nib_error *err);
/* What is fetched, if anything. Prefetching goes on with what comes next. */
void pager_release(pager *p);

/* Packed bytes of a block's own weight w, without what rounds its place up to pages, by where they are: kept,
 * or on disk and read when needed. Both 0 for a weight that another block owns. */
void pager_where(const pager *p, int block, int w, uint64_t *kept, uint64_t *on_disk);

/* Row r of a matrix as k floats, the same bits wherever it lives; reads the file when it is not resident. */
nib_status pager_read_row(pager *p, int block, int w, int64_t r, float *out, nib_error *err);
/* The same of a resident row, from any thread; false: it is not resident. */
bool pager_read_resident_row(const pager *p, int block, int w, int64_t r, float *out);

/* Panels (16 rows that are packed together) of a matrix that is looked up by row: where it is in memory, or
 * false when it is not. */
bool pager_panel(const pager *p, int block, int w, int32_t panel, view *out);
/* Reads n of them, in the order of the matrix, from the model's files, several at a time, and gives each to
 * `each` on this thread as soon as it is there, in any order; the view is valid during that call. */
typedef void (*pager_panel_fn)(void *user, int32_t panel, const view *rows);
nib_status pager_read_panels(pager *p, int block, int w, const int32_t *panels, int n, pager_panel_fn each,
                             void *user, nib_error *err);

/* Whether some matrices are not resident as a whole, so that passes fetch them. */
bool pager_streams(const pager *p);

typedef struct pager_stats {
    uint64_t resident_bytes; /* packed weights kept, vectors included */
    uint64_t bytes_loaded;   /* from disk, by pager_open */
    uint64_t bytes_streamed; /* from disk since then, rows of tables included */
    uint64_t pass_bytes;     /* from disk for a pass with one row, without rows of tables */
    double wait_s;           /* of pager_fetch for the reader */
    bool packed;             /* what is streamed comes from the packed file */
} pager_stats;
void pager_get_stats(const pager *p, pager_stats *out);

#endif

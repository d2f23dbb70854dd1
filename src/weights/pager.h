/* pager.h - gives kernels the weights in memory, page by page, from whatever tier they are on.
 *
 * The pager owns every weight byte. A page is a few small matrices of a block, or some rows of a large one
 * (page_layout.h). Resident pages are read and packed at open and never move, except those of experts, which
 * leave for experts that a router chooses (expert_table.h). The others are prefetched
 * around the page cache into a ring of slots. The order of a pass is known (visits.h), so the next page is
 * always known (clairvoyant paging, Belady). Between fetch and release the bytes stay valid and the slot is
 * not reused. One thread fetches; a reader thread fills the slots.
 *
 * Vectors (norms, biases) are always resident. A table that is only looked up by row (an embedding, or a head
 * with a shortlist) is not streamed: its rows are read on demand. */
#ifndef NIB_WEIGHTS_PAGER_H
#define NIB_WEIGHTS_PAGER_H

#include "base/cancel.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/layout.h"
#include "weights/expert_table.h"
#include "memory/ledger.h"
#include "schedule/visits.h"

typedef struct pager pager;

/* The unit of placement, in the order of the image (page_layout.h). */
typedef struct pager_page {
    int block;      /* the owner; a tied output head's pages belong to the embedding */
    uint64_t bytes; /* packed */
    bool table;     /* only looked up by row: not read in every pass when not resident */
    bool second;    /* of second slices (model/layout.h), which follow all first slices */
    bool head;      /* a table that is the output head, of which every token reads rows */
    bool chosen;    /* a matrix of an expert of the block: read when a router has chosen it */
    bool leads;     /* the first one of its expert */
    int expert;     /* chosen: which expert */
    int rank;       /* chosen: its place among the experts of its block that get memory first */
    int other;      /* chosen: the page of the same expert's next matrix; 0: none */
} pager_page;
/* Pure: opens nothing and charges nothing. Caller frees *pages with mem_free. */
nib_status pager_pages(const layout *lay, pager_page **pages, int *n_page, nib_error *err);

/* The bytes that pager_open will charge to RAM, by owner; with streaming, without the resident pages. */
typedef struct pager_need {
    uint64_t image;          /* weights: vectors, all pages and tables, when everything fits */
    uint64_t vectors;        /* weights: the part of the image that is always resident */
    uint64_t ring;           /* staging, with streaming: slots, and reads in flight */
    uint64_t row;            /* staging, with streaming: for rows that are looked up on disk */
    uint64_t staging;        /* staging while a whole image is loaded, at most; released afterwards */
    uint64_t stream_staging; /* the same with streaming; released before ring and row are allocated */
    uint64_t tables;         /* tables: the state of each page; the layout owns the list of pages */
    uint64_t sums;           /* tables: checksums, while a packed file is read */
    uint64_t max_page;       /* the largest streamed page */
    uint64_t part;      /* bytes of a page that are read at once from the model's files: all, or some rows */
    int n_slot;         /* slots of the ring */
    bool block_in_ring; /* the ring holds any block, so it is read once for consecutive visits */
} pager_need;
/* Pure, like pager_pages. The peak is tables + image + max(staging, session), or, with streaming, tables +
 * vectors + resident pages + max(stream_staging, ring + row + session), plus sums with a packed file. */
pager_need pager_needs(const layout *lay, int n_thread);

/* Whether `folder` has a packed file for the current model (its content is checked when it is opened). */
bool pager_packed_exists(const layout *lay, const char *folder);

typedef struct pager_options {
    pool *threads;       /* packs while loading */
    const char *packed;  /* folder of packed files; NULL: they are neither used nor written */
    const pager *lender; /* of the same files, loaded, open until this one is closed: whole matrices that both
                            have in the same form are in its memory, and cost none here. NULL: none. Without a
                            folder of packed files, which hold the whole image */
    bool write_packed;   /* write a missing packed file, within the disk tier's cap */
    nib_progress_fn progress; /* may be NULL */
    const canceller *cancel;  /* of opening; NULL: none */
    const logger *log;
    void *user;
    /* Called once on another thread while the weights are read: other processor work of opening. An error
     * ends the opening. NULL: none */
    nib_status (*side_task)(void *user, nib_error *err);
    void *side_user;
    uint64_t side_bytes; /* bytes that the side task frees when it ends: this much of the weights is read
                            after it, so that both peaks do not coincide */
} pager_options;

/* Opening takes two calls, or three with streaming: pager_open, pager_source, pager_load. The first charges
 * the tables and reads nothing. The objects that options point to must exist until pager_load has returned.
 */
nib_status pager_open(const layout *lay, ledger *l, const pager_options *options, pager **out,
                      nib_error *err);
/* The results of pager_pages and pager_needs for an open pager; pages in a lender's memory have 0 bytes.
 * Caller frees *pages with mem_free. */
nib_status pager_list(const pager *p, pager_page **pages, int *n_page, pager_need *need, nib_error *err);
/* Selects the source of streamed pages: an existing packed file, or a new one if options allow writing, else
 * the model's files. The packed file's checksums are charged; if they need more than `free_bytes` of RAM, the
 * file is not used. */
nib_status pager_source(pager *p, uint64_t free_bytes, nib_error *err);
/* Loads the resident pages. home_of [n_page]: PLACE_RAM or, after pager_source, PLACE_DISK; of pages in a
 * lender's memory either.
 * NIB_E_NOFIT: they exceed the ledger's free bytes. */
nib_status pager_load(pager *p, const uint8_t *home_of, nib_error *err);
/* The share of rows that chose an expert in a measurement: what the pager supposes until it knows better. To
 * be called before the first pass. */
void pager_expect_expert(pager *p, int block, int expert, float share);
/* Counts rows that chose an expert of a block, and were to be multiplied by its matrix in w. One thread. */
void pager_count_expert(pager *p, int block, int w, int expert, int64_t n_row);
/* The rows that chose an expert, as far as they were counted: the most of one of its matrices. */
int64_t pager_expert_rows(const pager *p, int block, int expert);
void pager_close(pager *p); /* NULL is fine */

/* Begins a pass with all its visits. Pages are prefetched in their order; earlier prefetches that agree with
 * it stay. The list's segments must stay valid until pager_end, when the pass has ended, also early. The
 * predicted next pass goes over the same blocks. Outside a pass, pages are read on demand. */
void pager_begin(pager *p, const visits *pass);
void pager_end(pager *p);

/* Resident pages of a block: those that are marked in `pages` [all pages], or with `in` false the others;
 * pages NULL: all. */
typedef struct page_filter {
    int block;
    const bool *pages;
    bool in;
} page_filter;
/* Iterates over the byte ranges of such pages, which never move. *i starts at 0; false: no more ranges. */
bool pager_resident(const pager *p, page_filter of, int *i, void **at, uint64_t *bytes);
/* Frees the RAM of such pages, because a device has copies of them. They are not read until pager_restore,
 * after which the caller writes them again. Returns their bytes, which stay charged to the ledger. To be
 * called between two passes, or in the block's visit. */
uint64_t pager_drop(pager *p, page_filter of);
void pager_restore(pager *p, page_filter of);
/* The memory of weight w of a restored block; NULL: it is not resident as a whole. */
void *pager_restored(pager *p, int block, int w);
/* The block's views, one for each of its weights in order (shared weights too). data is NULL for a matrix
 * that is not wholly resident: products fetch it, and tables are looked up by row (pager_read_row). */
const view *pager_views(const pager *p, int block);
/* The views of a visit's block, to fetch from it; rest: the visits after it. One visit at a time. */
void pager_pin(pager *p, const visit *at, const visits *rest, const view **views);
void pager_unpin(pager *p);
/* Whether passes read pages of block b from disk. */
bool pager_reads(const pager *p, int block);
/* copied: a device has what products read of this weight's pages, so they are not fetched and not prefetched.
 * To be called between two passes, or in the block's visit. */
void pager_set_copied(pager *p, int block, int w, bool copied);

/* A matrix that is not wholly resident, in pieces of rows, which are fetched and released one after the other
 * in order, while its block is pinned. */
int pager_n_piece(const pager *p, int block, int w);
typedef struct pager_piece {
    view v;            /* its rows */
    int64_t first_row; /* of the matrix */
} pager_piece;
/* Waits while the piece is being read. Returns the error of a failed read or of a changed file; nothing is
 * fetched then, and a later call tries again. While a page with several whole matrices is fetched, their
 * views have data. */
nib_status pager_fetch(pager *p, int block, int w, int piece, pager_piece *out, nib_error *err);
/* Releases the fetched page, if any. Prefetching continues. */
void pager_release(pager *p);
/* The same while a copy of the page is queued in a device's lane for weights: the page is not overwritten
 * before that copy has ended, and nobody waits for it as long as half of the ring is left. */
nib_status pager_release_to(pager *p, device *on, nib_error *err);
/* The memory that pages of the ring are in; false: there is no ring. */
bool pager_ring_memory(const pager *p, void **at, uint64_t *bytes);

/* ---- experts that come and go: of a stack whose view has no data, a visit uses what its router has chosen
 * ---- While the block is pinned: ask once, then take and end until none is left. */
/* Asks for experts of the block, each once: those that are not in memory begin to be read. n_row: of the
 * visit. in_order: they are taken in the order of asking; otherwise first those that are in memory. */
nib_status pager_ask_experts(pager *p, const expert_use *uses, int n_use, int64_t n_row, bool in_order,
                             nib_error *err);
/* Takes the next experts, as many as are in memory, at most `max`; waits for the first, and uses the threads
 * of the engine to pack what has arrived. *n 0: all were taken. What was taken must be ended before the next
 * call. */
nib_status pager_take_experts(pager *p, int32_t *taken, int max, int *n, nib_error *err);
void pager_end_experts(pager *p, const int32_t *taken, int n);
/* Matrix w of an expert that was taken. */
view pager_expert(const pager *p, int block, int w, int32_t expert);

/* Packed bytes of a block's own weight w, without padding to pages: resident ones, those on disk, and those
 * of pages that are marked in `copied` [all pages] (NULL: none), which are part of neither. 0 for a weight
 * that another block owns. */
typedef struct pager_bytes {
    uint64_t kept, on_disk, copied;
} pager_bytes;
pager_bytes pager_where(const pager *p, int block, int w, const bool *copied);

/* Row r of a matrix as k floats, with the same bits on every tier; reads the file if it is not resident. */
nib_status pager_read_row(pager *p, int block, int w, int64_t r, float *out, nib_error *err);
/* The same for a resident row, from any thread; false: it is not resident. */
bool pager_read_resident_row(const pager *p, int block, int w, int64_t r, float *out);

/* A panel (16 rows that are packed together) of a matrix that is looked up by row; false: it is not in
 * memory.
 */
bool pager_panel(const pager *p, int block, int w, int32_t panel, view *out);
/* Reads n panels, ascending, from the model's files, several at a time. Calls `each` on this thread for each
 * completed panel, in any order; the view is valid during that call. */
typedef void (*pager_panel_fn)(void *user, int32_t panel, const view *rows);
nib_status pager_read_panels(pager *p, int block, int w, const int32_t *panels, int n, pager_panel_fn each,
                             void *user, nib_error *err);

/* Whether some matrices are not resident as a whole, so that passes fetch them. */
bool pager_streams(const pager *p);
/* NIB_E_IO: weights are streamed from a file that has changed since, or is gone. Any thread. */
nib_status pager_check_files(const pager *p, nib_error *err);

typedef struct pager_stats {
    uint64_t bytes_loaded;               /* read from disk while opening */
    uint64_t bytes_streamed;             /* read from disk afterwards, rows of tables included */
    uint64_t pass_bytes;                 /* read from disk for a pass with one row, without rows of tables */
    uint64_t n_expert_use, n_expert_hit; /* experts that visits used, and those of them that were in memory; 0
                                            and 0: all are resident */
    double wait_s;                       /* seconds that fetching pages and taking experts have waited */
    double read_s;                       /* seconds in which their reads were in flight */
    bool packed;                         /* pages are streamed from the packed file */
} pager_stats;
void pager_get_stats(const pager *p, pager_stats *out); /* not during a pass */

#endif

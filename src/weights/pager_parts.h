/* pager_parts.h - shared by the pager's own files. No other file includes it. */
#ifndef NIB_WEIGHTS_PAGER_PARTS_H
#define NIB_WEIGHTS_PAGER_PARTS_H

#include "weights/load_pipe.h"
#include "weights/load_reads.h"
#include "weights/packed_file.h"
#include "model/page_layout.h"
#include "weights/page_ring.h"
#include "weights/pager.h"
#include "memory/region.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct reader reader;
typedef struct experts experts;

/* The rows that the latest read under a tag has left in its part of `raw`. */
typedef struct panel_rows {
    load_extent extent;
    int64_t first, n; /* n 0: none */
} panel_rows;

/* For panels that are looked up on disk (pager_panels.c). */
typedef struct panel_reader {
    const weight *w; /* the matrix that is looked up */
    read_queue *queue;
    panel_rows came[MAX_READ_QUEUE]; /* by tag */
    uint8_t *raw;                    /* one part for each read in flight */
    uint8_t *packed;                 /* one packed panel */
    uint64_t raw_each, packed_each;
    uint64_t file_each; /* bytes of a panel in the file */
} panel_reader;

/* The page that is fetched now, at most one, and its place in the pass. */
typedef struct fetched {
    bool pinned;
    visit at;       /* the visit whose block is pinned */
    visits rest;    /* the visits after it */
    int use;        /* index into pager.streamed of the fetched page; -1: none, or a resident one */
    int next;       /* the expected next use */
    int page;       /* page whose matrices have data in the views; -1: none */
    int32_t expert; /* fetched as a piece of a stack; -1: none */
} fetched;

struct pager {
    pager_options options; /* valid while the pager is opened */
    ledger *ledger;
    loader *loader;
    const logger *log;
    page_layout layout;   /* the layout's, borrowed */
    page_state *state;    /* [n_page] */
    view *views;          /* [n_weight] */
    visit_pages streamed; /* the pages of layout.uses that are not resident */
    atomic_bool *copied;  /* [n_page]: the array of streamed.copied */
    memory_region resident;
    uint8_t *map; /* memory of `resident`: vectors, then the resident pages; if all are resident, the image */
    uint64_t map_bytes;
    uint64_t tables; /* heap bytes of the arrays, charged */
    reader *reader;
    experts *experts;       /* NULL: all are resident, or the model has none */
    uint64_t staging;       /* charged for the row buffer */
    load_buffer row_buffer; /* for rows looked up on disk */
    uint8_t *row_packed;
    uint64_t row_packed_bytes;
    panel_reader panels; /* zeroed: the model looks none up */
    packed *packed; /* the packed file in use; NULL: none. While streaming, the reader thread uses it, or, if
                       there is none, the experts */
    packed_what packed_is;             /* its required content */
    char *packed_path;                 /* NULL: packed files have no folder */
    uint64_t packed_bytes;             /* charged to the disk tier for it */
    uint64_t packed_tables;            /* charged to RAM for its checksums */
    _Atomic bool packed_lost;          /* it failed while streaming, which has not been logged yet */
    uint64_t bytes_loaded, pass_bytes; /* as in pager_stats */
    _Atomic uint64_t bytes_streamed;
    double wait_s;
    fetched now;
};

static inline const weight *pager_weight(const pager *p, int b, int w) {
    return &layout_block(p->layout.of, b)->weights[w];
}

/* ---- pager_place.c: residency and places ---- */
/* Sets the places of resident pages in p->map, after the vectors; the views; and the order of the streamed
 * pages. */
void pager_place(pager *p, const uint8_t *home_of);

/* ---- pager_lent.c ---- */
/* Makes whole matrices that both pagers have in the same form resident in the memory of the other one. */
void pager_borrow(pager *p, const pager *from);
/* The place of a resident page in this pager's own memory; NULL: it has none. */
uint8_t *pager_own(const pager *p, int page);

/* ---- pager_need.c ---- */
uint64_t pager_row_bytes(const layout *lay);      /* of the longest row that is looked up, packed */
uint64_t pager_state_bytes(const page_layout *l); /* heap bytes of the pager's own arrays */
pager_need pager_need_of(const page_layout *l, int n_thread);

/* ---- pager_panels.c ---- */
const weight *pager_looked_up(const layout *lay); /* the matrix of a shortlist; NULL: none */
uint64_t panel_reader_bytes(const layout *lay); /* to be charged before it is opened; 0: none are looked up */
nib_status panel_reader_open(panel_reader *r, const layout *lay, nib_error *err);
void panel_reader_close(panel_reader *r); /* zeroed is fine */
/* Packs row r of a matrix to `out` if one of the latest reads of panels has it: the sampled token is among
 * those whose logits were computed, and is embedded next, often by the same matrix. */
bool panel_reader_row(const pager *p, const weight *w, int64_t r, uint8_t *out);

/* ---- pager_load.c ---- */
/* The shape of reads: bytes of one, and the number that a thread has in flight (0: synchronous reads through
 * the page cache). */
typedef struct load_shape {
    uint64_t raw;
    int depth;
} load_shape;
load_shape pager_load_shape(int n_thread, bool direct, uint64_t max);

/* One pipe for each thread of a pool, charged. */
typedef struct load_crew {
    ledger *ledger;
    pool *threads;
    load_pipe *pipes;
    int n;
    uint8_t *raws; /* read buffers of all pipes */
    uint64_t raws_bytes, charged;
} load_crew;
uint64_t load_crew_bytes(const layout *lay, int n_thread, load_shape shape);
nib_status load_crew_open(load_crew *crew, pager *p, pool *threads, load_shape shape, nib_error *err);
void load_crew_close(load_crew *crew); /* zeroed is fine */

/* The work of a crew: vectors in the order of the image, and either all resident pages or pages [first, first
 * + n) in the order of the image. */
typedef struct load_request {
    uint8_t *vectors; /* destination of the vectors; NULL: they are not loaded */
    uint8_t *pages;   /* destination of pages [first, first + n); NULL: the resident pages, to their places */
    int first, n;
    nib_progress_fn progress;
    const canceller *cancel; /* NULL: none */
    void *user;
    uint64_t total;                 /* bytes, for progress */
    const pager_options *side_task; /* whose side task runs meanwhile; NULL: none */
    nib_status *side_status;
} load_request;
/* Loads all that is requested; blocks. *damaged: the error is a damaged packed file. */
nib_status load_crew_run(load_crew *crew, pager *p, const load_request *request, bool *damaged,
                         nib_error *err);

/* Reads and packs all vectors and resident pages, on all threads; blocks. */
nib_status pager_load_resident(pager *p, const pager_options *options, load_shape shape, nib_error *err);

/* ---- pager_page.c ---- */
/* Iterates over the jobs that load one page to dst, from the packed file if there is one, else from the
 * model's files. */
typedef struct page_jobs {
    int page;
    uint8_t *dst;
    int i;       /* of a page with several matrices: the current weight */
    int64_t row; /* next row of that weight, or of the page */
    bool given;  /* from the packed file: its only job was given out */
} page_jobs;
/* buffer: gives the size of reads. */
bool pager_page_next(const pager *p, page_jobs *l, const load_buffer *buffer, load_job *out);
uint64_t pager_job_bytes(const load_job *j); /* bytes of the file */
/* A job that reads n_byte bytes of the packed file's image at offset `image`, with checksum `unit`, to dst.
 */
load_job pager_unit_job(const pager *p, uint64_t image, uint64_t n_byte, uint64_t unit, uint8_t *dst);
/* The reads of page i from the model's files, and the bytes of a buffer for them. False: it takes too many,
 * or the files have it transposed. Uses only the model and the layout of p. */
bool pager_page_reads(const pager *p, int i, load_reads *out, uint64_t *bytes);
/* Packs a page from the bytes that these reads have put to `from`: part `part` of n_part, of whole panels. */
void pager_page_pack(const pager *p, int i, const load_reads *reads, const uint8_t *from, uint8_t *to,
                     const load_buffer *scratch, int part, int n_part);
/* Reads and packs it row by row, in turn. */
nib_status pager_page_in_turn(const pager *p, int i, uint8_t *to, load_buffer *buffer, nib_error *err);
uint64_t pager_page_file_bytes(const pager *p, int i);
uint64_t pager_pass_bytes(const pager *p); /* bytes read from files for a pass with one row */

/* ---- pager_packed.c ---- */
/* A problem with a packed file is not an error: it is logged, and the model's files are read instead. Writing
 * returns only NIB_E_CANCELLED.
 * Finds the packed file of this model; p->packed stays NULL without one. */
void pager_packed_find(pager *p, const pager_options *options, bool streams);
/* Writes it if allowed: from the map of a whole image, or from the model's files (and opens it). */
nib_status pager_packed_write_map(pager *p, const pager_options *options, nib_error *err);
nib_status pager_packed_write_pages(pager *p, const pager_options *options, load_shape shape, nib_error *err);
void pager_packed_drop(
    pager *p, bool remove);       /* it is no longer used; remove: it is deleted, so that it is made again */
void pager_packed_shut(pager *p); /* everything in it is resident; it stays charged */
void pager_packed_close(pager *p);

/* ---- pager_ring.c, pager_reader.c: the ring of streamed pages and the prefetching thread ---- */
enum { READER_DEPTH = MAX_READ_QUEUE }; /* maximum number of reads in flight */
/* The shape of the ring; a pure function. More slots keep the disk busier but leave less memory for resident
 * pages. The ring has a fortieth of the model, or about 8 pages of a small one, in whole huge pages. There is
 * one buffer more than slots. A buffer fits any streamed page in the files' form, and packed. If the files'
 * form is much larger than the packed one, it fits only a panel of rows, and such pages are read piece by
 * piece. */
typedef struct ring_shape {
    uint64_t each;  /* bytes of a buffer */
    uint64_t bytes; /* of all buffers, and the unused rest of the last huge page */
    uint64_t part;  /* bytes of a page that are read at once from the model's files */
    int n_slot;
} ring_shape;
ring_shape ring_shape_of(const page_layout *l);
nib_status reader_open(pager *p, reader **out, nib_error *err);
void reader_close(reader *r); /* NULL is fine */
/* As pager_begin and pager_end. */
void reader_begin(reader *r, const visits *pass);
void reader_end(reader *r);
/* Seconds in which its reads were in flight. Any thread. */
double reader_busy(reader *r);
/* Pins the page of at->i and returns its data; blocks until it has arrived. The pages after it in the list
 * are read next. *wait_s grows by the seconds waited. */
nib_status reader_pin(reader *r, const page_cursor *at, uint8_t **data, double *wait_s, nib_error *err);
/* Releases the page that reader_pin gave for this cursor. on: a copy of it is queued in this device's lane
 * for weights, and the page leaves until that has ended; NULL: none. */
nib_status reader_unpin(reader *r, const page_cursor *at, device *on, nib_error *err);
/* The memory of the ring. */
void reader_memory(const reader *r, void **at, uint64_t *bytes);

/* ---- pager_experts.c: experts that are read when they are chosen ---- */
bool experts_stream(const pager *p);                              /* whether some are not resident */
uint64_t experts_bytes(const page_layout *l, int n_thread);       /* staging, to be charged; 0: no experts */
uint64_t experts_table_bytes(const page_layout *l);               /* heap, to be charged */
nib_status experts_open(pager *p, experts **out, nib_error *err); /* charges its staging */
void experts_close(experts *x);                                   /* NULL is fine */
/* As pager_ask_experts, pager_take_experts, pager_end_experts and pager_expert. */
nib_status experts_ask(experts *x, int b, const expert_use *uses, int n_use, int64_t n_row, bool in_order,
                       nib_error *err);
void experts_expect(experts *x, int b, int e, float share); /* as pager_expect_expert */
nib_status experts_take(experts *x, int b, int32_t *out, int max, int *n, nib_error *err);
void experts_end(experts *x, int b, const int32_t *taken, int n);
view experts_view(const experts *x, int b, int w, int32_t e);
const expert_table *experts_counts(const experts *x);
double experts_busy(const experts *x); /* as reader_busy; not during a pass */
void experts_forget(experts *x);       /* the visit has ended, also early */

#endif

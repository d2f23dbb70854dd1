/* pager_parts.h - what the pager's own files share. No other file includes it. */
#ifndef NIB_TIERS_PAGER_PARTS_H
#define NIB_TIERS_PAGER_PARTS_H

#include "tiers/load_pipe.h"
#include "tiers/packed.h"
#include "tiers/page_layout.h"
#include "tiers/pager.h"

#include <pthread.h>
#include <stdatomic.h>

/* What is read, kept or streamed as one: all linear matrices of a block, or a range of rows of one matrix.
 * Parts lie in the *image* - all packed weights in a row, as the packed file has them and as they are in
 * memory when everything is resident - each at a multiple of FILE_ALIGN. */
typedef struct weight_part {
    int block, w; /* of the weight's owner; w < 0: the block's group of matrices */
    int64_t first_row, n_row;
    uint64_t bytes;    /* packed, a multiple of FILE_ALIGN */
    uint64_t image;    /* where it begins there */
    uint64_t unit;     /* the number of its first unit: what the packed file has checksums for */
    uint8_t *resident; /* NULL: streamed, or a table */
    int order;         /* its place in the reader's order; -1: not streamed */
    bool checked;      /* streamed from the packed file before, and as it was written; the reader's */
    bool table;        /* of a matrix that is only looked up by row: resident with everything else, or not */
} weight_part;

/* Where one own weight's packed bytes are. */
typedef struct place {
    uint8_t *resident;      /* the whole matrix or vector; NULL: in a group, in parts or on disk */
    uint64_t offset;        /* in its block's group; of a vector: in the image */
    bool grouped;           /* belongs to its block's group */
    int first_part, n_part; /* a matrix in parts of rows; n_part 0: not */
    bool by_row;            /* only looked up by row, not resident */
} place;

/* What the pager knows of a page beside its place in the image. */
typedef struct page_state {
    uint8_t *resident; /* NULL: on disk */
    bool checked;      /* read from the packed file before, and as it was written; the reader's */
} page_state;

typedef struct reader reader;

struct pager {
    const model *m;
    ledger *ledger;
    loader *loader;
    const logger *log;
    int n_block;
    int *first_weight; /* [n_block + 1]: index of a block's first weight in the arrays below */
    place *places;
    view *views;
    int *group; /* [n_block]: the part that is the block's group, -1: none */
    weight_part *parts;
    int n_part;
    int *streamed;              /* parts in the order the reader visits them */
    int n_streamed, first_head; /* streamed[first_head...] belong to the last block */
    bool *head_use;             /* scratch of the layout: own weight used by the last block's products */
    uint64_t slot_bytes;        /* of the largest part that may be streamed */
    uint64_t vector_bytes;      /* of all vectors: the image's beginning */
    uint64_t image_bytes, n_unit;
    uint8_t *map; /* everything resident: the image, or its vectors and the parts that stay */
    uint64_t map_bytes;
    uint64_t tables; /* heap bytes of the arrays, charged */
    reader *reader;
    uint64_t ring_bytes;    /* charged for the ring, its staging and the row buffer */
    load_buffer row_buffer; /* for rows looked up on disk */
    uint8_t *row_packed;
    uint64_t row_packed_bytes;
    packed *packed;           /* the packed file in use; NULL: none. While streaming the reader's */
    packed_what packed_is;    /* what it has to be */
    char *packed_path;        /* NULL: no folder for it */
    uint64_t packed_bytes;    /* charged for it to the disk tier */
    uint64_t packed_tables;   /* and to RAM, for its checksums */
    _Atomic bool packed_lost; /* it failed while streaming, and that was not told yet */
    _Atomic uint64_t bytes_read;
    double wait_s;
    view part_view;
};

static inline uint64_t pager_round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}
enum { PAGER_UNIT = 1 << 20 }; /* parts, and the vectors, are checked in pieces of this size */
static inline uint64_t pager_n_unit(uint64_t n_byte) {
    return (n_byte + PAGER_UNIT - 1) / PAGER_UNIT;
}
static inline uint64_t pager_round_page(uint64_t n) {
    return (n + FILE_ALIGN - 1) & ~(uint64_t)(FILE_ALIGN - 1);
}

/* ---- pager_layout.c ---- */
nib_status pager_make_tables(pager *p, nib_error *err);
/* Cuts the weights into parts and lays the image out. The same for every budget. */
nib_status pager_cut(pager *p, nib_error *err);
place *pager_place(const pager *p, int b, int w);   /* of the weight that owns the bytes */
void pager_resolve(const pager *p, int *b, int *w); /* to that weight */
/* Gives every weight its place in a map of the whole image. */
void pager_place_all(pager *p);
/* Marks the parts that stay within `budget` bytes; returns their bytes. pager_place_parts then gives them
 * places behind the vectors, and the others their order. */
uint64_t pager_choose_resident(pager *p, uint64_t budget);
void pager_place_parts(pager *p);
uint64_t pager_row_scratch(const pager *p); /* bytes of the longest row that is looked up on disk, packed */

/* ---- pager_need.c ---- */
uint64_t pager_row_bytes(const model *m);         /* of the longest row that is looked up, packed */
uint64_t pager_state_bytes(const page_layout *l); /* heap bytes of the pager's own arrays */
pager_need pager_need_of(const page_layout *l, int n_thread);

/* ---- pager_load.c ---- */
/* How reads are cut: bytes of one, and how many a thread has in flight (0: in turn, through the page cache).
 */
typedef struct load_shape {
    uint64_t raw;
    int depth;
} load_shape;
load_shape pager_load_shape(int n_thread, bool direct, uint64_t most);

/* One pipe for each thread of a pool, charged. */
typedef struct load_crew {
    ledger *ledger;
    pool *threads;
    load_pipe *pipes;
    int n;
    uint64_t charged;
} load_crew;
uint64_t load_crew_bytes(const model *m, int n_thread, load_shape shape);
nib_status load_crew_open(load_crew *crew, pager *p, pool *threads, load_shape shape, nib_error *err);
void load_crew_close(load_crew *crew); /* zeroed is fine */

/* What a crew is to bring: vectors as the image has them, and one part or every part with a resident place.
 */
typedef struct load_wish {
    uint8_t *vectors;        /* NULL: none */
    const weight_part *only; /* NULL: the resident ones */
    uint8_t *dst;            /* of `only` */
    nib_progress_fn progress;
    void *user;
    uint64_t done_before, total; /* for progress */
} load_wish;
/* *damaged: the packed file is what is wrong. */
nib_status pager_load(pager *p, load_crew *crew, const load_wish *wish, bool *damaged, nib_error *err);

/* Reads and packs everything that has a resident place, on all threads. */
nib_status pager_load_resident(pager *p, const pager_options *options, load_shape shape, nib_error *err);

/* The jobs of one part into dst, from the packed file when there is one, else from the model. */
typedef struct part_list {
    load_list list;
    pager *p;
    const weight_part *part;
    uint8_t *dst;
    const load_buffer *shape; /* the reads' size */
    int i;                    /* of a group: the weight */
    int64_t row;
    uint64_t unit; /* of the packed file: the next one */
    bool damaged;  /* the packed file is */
} part_list;
bool pager_part_next(part_list *l, load_job *out);
uint64_t pager_job_bytes(const load_job *j); /* of the file */
/* One part, by one pipe; when the packed file fails it is dropped, and the model's files are read. */
nib_status pager_read_part(pager *p, weight_part *which, uint8_t *dst, load_pipe *pipe, nib_error *err);

/* ---- pager_packed.c ---- */
/* Nothing here is an error of the model: what goes wrong is said in the log, and the model's files are read.
 * Finds the packed file of this model; p->packed stays NULL when there is none. */
void pager_packed_find(pager *p, const pager_options *options);
/* Writes it when that is wanted: from a map of the whole image, or from the model's files (and finds it). */
void pager_packed_write_map(pager *p, const pager_options *options);
void pager_packed_write_parts(pager *p, const pager_options *options, load_shape shape);
void pager_packed_drop(pager *p, bool remove); /* it is no longer used; remove: so that it is made anew */
void pager_packed_shut(pager *p);              /* everything in it is resident; it stays charged */
void pager_packed_close(pager *p);

/* ---- pager_reader.c: the reader thread and its ring ---- */
enum { READER_SLOTS = 2, READER_DEPTH = 3 };
uint64_t reader_bytes(const model *m, uint64_t slot_bytes);
nib_status reader_open(pager *p, reader **out, nib_error *err);
void reader_close(reader *r); /* NULL is fine */
/* The slot that holds a streamed part, pinned; waits. */
nib_status reader_pin(reader *r, int part, uint8_t **data, double *wait_s, nib_error *err);
void reader_unpin(reader *r, int part);
void reader_expect(reader *r, int n_head);

#endif

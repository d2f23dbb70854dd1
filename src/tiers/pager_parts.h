/* pager_parts.h - what pager.c, pager_load.c and pager_reader.c share. No other file includes it. */
#ifndef NIB_TIERS_PAGER_PARTS_H
#define NIB_TIERS_PAGER_PARTS_H

#include "tiers/loader.h"
#include "tiers/pager.h"

#include <pthread.h>
#include <stdatomic.h>

/* What is read, kept or streamed as one: all linear matrices of a block, or a range of rows of one matrix. */
typedef struct weight_part {
    int block, w; /* of the weight's owner; w < 0: the block's group of matrices */
    int64_t first_row, n_row;
    uint64_t bytes;    /* packed */
    uint8_t *resident; /* NULL: streamed */
    int order;         /* its place in the reader's order; -1: resident */
} weight_part;

/* Where one own weight's packed bytes are. */
typedef struct place {
    uint8_t *resident;      /* the whole matrix or vector; NULL: in a group, in parts or on disk */
    uint64_t offset;        /* in its block's group */
    bool grouped;           /* belongs to its block's group */
    int first_part, n_part; /* a matrix in parts of rows; n_part 0: not */
    bool by_row;            /* only looked up by row, not resident */
} place;

typedef struct reader reader;

struct pager {
    const model *m;
    ledger *ledger;
    loader *loader;
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
    uint64_t slot_bytes;
    uint8_t *map; /* everything resident */
    uint64_t map_bytes;
    uint64_t tables; /* heap bytes of the arrays, charged */
    reader *reader;
    uint64_t ring_bytes;    /* charged for the ring, its staging and the row buffer */
    load_buffer row_buffer; /* for rows looked up on disk */
    uint8_t *row_packed;
    uint64_t row_packed_bytes;
    _Atomic uint64_t bytes_read;
    double wait_s;
    view part_view;
};

static inline uint64_t pager_round64(uint64_t n) {
    return (n + 63) & ~UINT64_C(63);
}

/* Reads and packs everything that has a resident place, on all threads. */
nib_status pager_load_resident(pager *p, const pager_options *options, nib_error *err);
uint64_t pager_load_staging(const model *m, int n_thread);

/* One part into dst (slot_bytes or more). */
nib_status pager_read_part(pager *p, const weight_part *which, uint8_t *dst, load_buffer *b, nib_error *err);

/* The reader thread and its ring. */
enum { READER_SLOTS = 2, READER_RAW = 1 << 20 };
uint64_t reader_bytes(const model *m, uint64_t slot_bytes);
nib_status reader_open(pager *p, reader **out, nib_error *err);
void reader_close(reader *r); /* NULL is fine */
/* The slot that holds a streamed part, pinned; waits. */
nib_status reader_pin(reader *r, int part, uint8_t **data, double *wait_s, nib_error *err);
void reader_unpin(reader *r, int part);
void reader_expect(reader *r, int n_head);

#endif

/* load_reads.h - joins runs of rows to few reads: runs that are adjacent or close in a file share one read.
 * Used for a page (page_layout.h), whose matrices may be anywhere in the model's files. */
#ifndef NIB_WEIGHTS_LOAD_READS_H
#define NIB_WEIGHTS_LOAD_READS_H

#include "weights/loader.h"

enum { MAX_LOAD_READS = 12 };

typedef struct load_read {
    int file;            /* of the container */
    uint64_t begin, end; /* byte range of the file */
    uint64_t useful;     /* bytes of rows in that range; the others are gaps */
    uint64_t at;         /* offset in the buffer of the FILE_ALIGN unit that contains `begin` */
} load_read;

typedef struct load_reads {
    int n;
    load_read list[MAX_LOAD_READS];
} load_reads;

/* Adds rows [first, first + n_row) of matrix w. False: too many reads are needed, or the matrix is
 * transposed or computed from other tensors; the list is then unusable. */
bool load_reads_add(load_reads *r, const weight *w, int64_t first, int64_t n_row);
/* Places the reads one after the other in the buffer; returns the bytes needed. */
uint64_t load_reads_place(load_reads *r);
/* The extent of read i, aligned for direct files, to be read to buffer + r->list[i].at. */
load_extent load_reads_extent(const load_reads *r, int i, const loader *ld);
/* Packs added rows from the buffer with all reads, as loader_pack. */
void load_reads_pack(const load_reads *r, const weight *w, int64_t first, int64_t n_row,
                     const load_target *to, const uint8_t *buffer, const load_buffer *b);

#endif

/* load_reads.h - joins several runs of rows to few reads: runs that are adjacent in a file, or nearly, share
 * one read. For a page (page_layout.h), whose matrices may be anywhere in the model's files. */
#ifndef NIB_TIERS_LOAD_READS_H
#define NIB_TIERS_LOAD_READS_H

#include "tiers/loader.h"

enum { MAX_LOAD_READS = 12 };

typedef struct load_read {
    int file;            /* of the container */
    uint64_t begin, end; /* bytes of it that are wanted */
    uint64_t useful;     /* of those, rows: the others lie between */
    uint64_t at;         /* in the buffer: where the page of the file with `begin` goes */
} load_read;

typedef struct load_reads {
    int n;
    load_read list[MAX_LOAD_READS];
} load_reads;

/* Adds rows [first, first + n_row) of matrix w. False: that takes too many reads, or the matrix is
 * transposed; the list is then of no use. */
bool load_reads_add(load_reads *r, const weight *w, int64_t first, int64_t n_row);
/* Places the reads one after the other in the buffer; returns the bytes needed. */
uint64_t load_reads_place(load_reads *r);
/* Read i as it is to be made, into buffer + r->list[i].at; aligned for direct files. */
load_extent load_reads_extent(const load_reads *r, int i, const loader *ld);
/* loader_pack of added rows, from the buffer with all reads. */
void load_reads_pack(const load_reads *r, const weight *w, int64_t first, int64_t n_row,
                     const load_target *to, const uint8_t *buffer, const load_buffer *b);

#endif

/* load_runs.h - the rows of a model's weights in the order in which its files have them, cut into few large
 * reads.
 *
 * Kernels need q, k, v, ... adjacent in memory, in the order of their use; a disk is fastest when a file is
 * read from start to end in pieces of a megabyte. A run is consecutive rows of one weight in a file. One read
 * contains parts of as many runs as fit, and each part is packed to its own place.
 *
 * Weights without runs (transposed, several pieces that share a panel of rows, vectors in several pieces,
 * vectors that are not floats) are not in the list; they are read by weight (load_pipe.h). A list is
 * read-only after opening and may be used by any thread. */
#ifndef NIB_WEIGHTS_LOAD_RUNS_H
#define NIB_WEIGHTS_LOAD_RUNS_H

#include "weights/loader.h"

typedef struct load_run {
    const weight *w;
    int block, index;     /* of the weight */
    int file;             /* of the container */
    uint64_t begin;       /* in the file: of the first row */
    int64_t first, n_row; /* rows of w; for a vector 0 and its number of elements */
} load_run;

typedef struct load_runs {
    load_run *all; /* by file and place in it */
    int n;
} load_runs;

bool load_runs_has(const weight *w);         /* whether the list contains its rows */
uint64_t load_runs_bytes(const layout *lay); /* bytes of heap, to be charged before opening */
nib_status load_runs_open(load_runs *r, const layout *lay, nib_error *err);
void load_runs_close(load_runs *r); /* zeroed is fine */

/* Row `row`, counted in run `run`. */
typedef struct load_spot {
    int run;
    int64_t row;
} load_spot;

/* Returns the destination of row `row` of run->w, and of at most *n_row rows from it on, in *to and *n_row;
 * false: these rows are not needed. *n_row is a multiple of 16, or the rest of the weight; for a vector all.
 * The same call must always give the same answer. */
typedef bool (*load_place_fn)(void *user, const load_run *run, int64_t row, load_target *to, int64_t *n_row);

/* One read, and the needed rows in it: [at, end). */
typedef struct load_span {
    load_extent from;
    load_spot at, end;
    uint64_t useful; /* bytes of those rows */
} load_span;

/* The next read of at most `max` bytes (as much as a load_buffer's raw_bytes) for needed rows from *at on,
 * which moves past them. False: none left. */
bool load_runs_next(const load_runs *r, const loader *ld, load_place_fn place, void *user, uint64_t max,
                    load_spot *at, load_span *out);
/* Packs the bytes of a span, which were read to raw. Uses b's scratch only. */
void load_runs_pack(const load_runs *r, load_place_fn place, void *user, const load_span *span,
                    const uint8_t *raw, const load_buffer *b);

#endif

/* loader.h - reads rows of a weight from the files and packs them, through a small staging buffer.
 *
 * A loader is a set of open files. It is read-only, so several threads may use it, each with its own
 * load_buffer. All extents were checked against the file's size when the model opened. A file that has become
 * shorter gives an error here, never an invalid read. */
#ifndef NIB_WEIGHTS_LOADER_H
#define NIB_WEIGHTS_LOADER_H

#include "model/layout.h"

typedef struct loader loader;

/* direct: opens the files again, bypassing the page cache; otherwise the container's own files are used. */
nib_status loader_open(const model *m, bool direct, loader **out, nib_error *err);
void loader_close(loader *ld);         /* NULL is fine */
bool loader_is_cached(const model *m); /* the page cache holds (nearly) all bytes of the model's files */

/* NIB_E_IO if a file's size or modification time differs from that at open: memory and file may then belong
 * to two different models. */
nib_status loader_check_unchanged(const loader *ld, nib_error *err);

/* A 128-bit hash of the sizes and modification times that loader_check_unchanged compares; false: the system
 * does not report them. */
bool loader_identity(const loader *ld, uint64_t out[2]);

typedef struct load_buffer {
    uint8_t *raw;        /* [depth] of raw_bytes each, page-aligned: rows as in the file */
    uint64_t raw_bytes;  /* a multiple of FILE_ALIGN */
    uint8_t *transposed; /* one panel of a transposed matrix, transposed back */
    void *scratch;       /* pack_panel's */
    uint64_t bytes;      /* of `map`: everything, or everything except raw */
    void *map;
} load_buffer;

/* Bytes of each of `depth` reads that a buffer for this model's weights holds: raw_target, enlarged to hold
 * one panel of any weight. */
uint64_t load_raw_bytes(const layout *lay, uint64_t raw_target);
/* Bytes that the buffer needs, those of its reads included. */
uint64_t load_buffer_bytes(const layout *lay, uint64_t raw_target, int depth);
/* raw: memory for its reads that stays the caller's, page-aligned; NULL: it has its own. Reads are fastest
 * into huge pages, so the read memory of several buffers should be adjacent. */
nib_status load_buffer_init(load_buffer *b, const layout *lay, uint64_t raw_target, int depth, uint8_t *raw,
                            nib_error *err);
void load_buffer_deinit(load_buffer *b); /* zeroed is fine */

/* The destination of packed rows: rows [dst_first, ...) of a packed matrix of dst_n rows whose storage starts
 * at dst. dst_first is a multiple of 16. */
typedef struct load_target {
    void *dst;
    int64_t dst_n, dst_first;
} load_target;
/* Reads and packs rows [first, first + n_row) of matrix w; blocks. NIB_E_IO, NIB_E_MODEL. */
nib_status loader_matrix(const loader *ld, const weight *w, int64_t first, int64_t n_row,
                         const load_target *to, load_buffer *b, nib_error *err);

/* Reads a vector as k floats, with its `add` applied. */
nib_status loader_vector(const loader *ld, const weight *w, float *out, load_buffer *b, nib_error *err);
nib_status loader_check_vector(const weight *w,
                               nib_error *err); /* NIB_E_MODEL: its type cannot be converted to floats */

/* Bytes of one row in the file (of a transposed matrix: of one transposed row; of a vector: of one element).
 */
uint64_t loader_row_bytes(const weight *w);

/* Bytes of a row in the file before the first column of the matrix. */
uint64_t loader_skipped_bytes(const weight *w);

/* The piece that contains row r of w (NULL: none), the row's index in the piece's tensor, and the number of
 * rows of the piece from r on. */
const weight_piece *loader_piece(const weight *w, int64_t r, int64_t *row_in_tensor, int64_t *n_left);
file *loader_file(const loader *ld, int i); /* the container's file i, as this loader opened it */

/* Rows of w that fit one read of the buffer at once, a multiple of 16, at least 16, at most
 * LOADER_MAX_ROWS: their pointers are on the stack. */
enum { LOADER_MAX_ROWS = 1024 };
int64_t loader_rows_at_once(const weight *w, const load_buffer *b);

/* The same in two steps, for asynchronous reads: loader_extent gives the one read that contains rows [first,
 * first + n_row) of a matrix, or all elements of a vector, aligned for direct files. False: more than one
 * read or more than `max` bytes are needed. */
typedef struct load_extent {
    file *f;
    uint64_t offset, n_byte;
    uint64_t min; /* bytes that must arrive: the file may end within the last page */
} load_extent;
bool loader_extent(const loader *ld, const weight *w, int64_t first, int64_t n_row, uint64_t max,
                   load_extent *out);
/* Packs the bytes of such a read from raw (a vector: to->dst is its k floats). Uses b's scratch only. */
void loader_pack(const weight *w, int64_t first, int64_t n_row, const load_target *to,
                 const load_extent *from, const uint8_t *raw, const load_buffer *b);

/* Packs rows[0..n), n <= LOADER_MAX_ROWS, as rows at, at + 1, ... of the target; uses b's scratch only. */
void loader_pack_rows(const weight *w, const void *const *rows, int64_t at, int64_t n, const load_target *to,
                      const load_buffer *b);

#endif

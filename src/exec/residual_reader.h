/* residual_reader.h - reads the chosen channels of residuals whose codes are in a file (exec/residuals.h). A
 * reader belongs to one thread; all reads of a piece are in flight together.
 *
 * A piece is a range of outputs of all channels that some rows have chosen. A channel that several rows have
 * chosen is read once. Channels that are close to each other in the file are one read. A requested piece is
 * read while the thread computes something else, and is complete after residual_reader_wait. */
#ifndef NIB_EXEC_RESIDUAL_READER_H
#define NIB_EXEC_RESIDUAL_READER_H

#include "base/file.h"
#include "kernels/salient.h"
#include "numbers/residual.h"

typedef struct residual_reader residual_reader;

/* Bytes of memory of one reader, if a row of k channels chooses at most n_channel. */
uint64_t residual_reader_bytes(int64_t n_channel, int64_t k);
/* memory: residual_reader_bytes() bytes, 64-byte aligned, borrowed. NIB_E_NOMEM, or an error of the read
 * queue. */
nib_status residual_reader_open(file *f, void *memory, int64_t n_channel, int64_t k, residual_reader **out,
                                nib_error *err);
void residual_reader_close(residual_reader *r); /* waits for reads in flight; r may be NULL */

/* The rows of a product, of which pieces can be requested. */
typedef struct residual_rows {
    const residual *of;    /* `rows` is ignored */
    uint64_t at;           /* offset of the codes in the file */
    const salient *chosen; /* [n_row, max_chosen]: the chosen channels of each row, ascending */
    const int32_t *n_chosen;
    int64_t max_chosen, n_row;
} residual_rows;

/* Requests a piece: as many of the outputs [n0, n1) and of the rows from `row` on as fit, at least one of
 * each. No other piece may be in flight. Does not block. */
void residual_reader_request(residual_reader *r, const residual_rows *rows, int64_t row, int64_t n0,
                             int64_t n1);

/* A piece that was requested. */
typedef struct residual_piece {
    int64_t row, end_row, n0, end; /* rows [row, end_row), outputs [n0, end) */
    int64_t base;                  /* the first output of `part`, at most n0 */
    residual part; /* the residuals; residual_reader_local gives the numbers of their channels */
} residual_piece;

/* Waits for the whole piece. *out is valid until the next request; it is also set after an error. */
nib_status residual_reader_wait(residual_reader *r, residual_piece *out, nib_error *err);
/* The chosen channels of one of the piece's rows, as numbers in residual_piece.part. Valid until the next
 * call. */
const salient *residual_reader_local(residual_reader *r, const salient *chosen, int32_t n);

typedef struct residual_read {
    uint64_t n, n_byte; /* number of reads, and their bytes */
    double wait_s;      /* seconds that threads waited for reads */
} residual_read;
/* Adds the reader's counts to *sum. */
void residual_reader_count(const residual_reader *r, residual_read *sum);

#endif

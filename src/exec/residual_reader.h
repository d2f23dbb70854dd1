/* residual_reader.h - reads the chosen channels of residuals whose codes are in a file (exec/residuals.h):
 * one thread's reads, all reads of a piece in flight together.
 *
 * A piece is some outputs of the channels that some rows have chosen. Rows of a piece share the channels that
 * they have in common. Channels that are close to each other in the file are one read. A requested piece is
 * read while the thread computes something else, and is complete after the wait. */
#ifndef NIB_EXEC_RESIDUAL_READER_H
#define NIB_EXEC_RESIDUAL_READER_H

#include "base/file.h"
#include "kernels/salient.h"
#include "quant/residual.h"

typedef struct residual_reader residual_reader;

/* Memory of one reader, if a row of k channels chooses at most n_channel. */
uint64_t residual_reader_bytes(int64_t n_channel, int64_t k);
/* memory: so many bytes, 64-byte aligned, borrowed. */
nib_status residual_reader_open(file *f, void *memory, int64_t n_channel, int64_t k, residual_reader **out,
                                nib_error *err);
void residual_reader_close(residual_reader *r); /* waits for what is in flight; NULL is fine */

/* What may be asked for: the rows of a product. */
typedef struct residual_rows {
    const residual *of;   /* `rows` is not looked at */
    uint64_t at;          /* where its codes begin in the file */
    const salient *picks; /* [n_row, max_pick], ascending channels of each row */
    const int32_t *n_pick;
    int64_t max_pick, n_row;
} residual_rows;

/* Requests a piece: as many of the outputs [n0, n1) and of the rows from `row` on as fit, at least one of
 * each. No other piece is in flight. */
void residual_reader_ask(residual_reader *r, const residual_rows *rows, int64_t row, int64_t n0, int64_t n1);

/* What was asked for. */
typedef struct residual_piece {
    int64_t row, end_row, n0, end; /* rows [row, end_row), outputs [n0, end) */
    int64_t base;                  /* the output that `part` begins with, at most n0 */
    residual part;                 /* its channels' numbers are those that _near gives */
} residual_piece;

/* Waits for the whole piece. *out is valid until the next request; it is set after an error too. */
nib_status residual_reader_wait(residual_reader *r, residual_piece *out, nib_error *err);
/* The channels of one of the piece's rows as numbers in its part; valid until the next call. */
const salient *residual_reader_near(residual_reader *r, const salient *picks, int32_t n);

typedef struct residual_read {
    uint64_t n, n_byte; /* reads, and what they brought */
    double wait_s;      /* a thread had nothing to do meanwhile */
} residual_read;
void residual_reader_count(const residual_reader *r, residual_read *sum); /* adds what there was so far */

#endif

/* rows.h - converts the rows of one tensor from the file's format to another one, a few at a time, so that
 * memory does not grow with the tensor. The caller's thread reads and writes; the pool's threads round. */
#ifndef NIB_QUANTIZE_ROWS_H
#define NIB_QUANTIZE_ROWS_H

#include "base/cancel.h"
#include "base/thread.h"
#include "model/as_gguf.h"
#include "numbers/rotation.h"

/* Scratch memory for rows; allocated once, for the longest row, and reused for each tensor. It owns
 * its arrays. */
typedef struct row_scratch {
    int64_t n_value;     /* capacity in values */
    uint8_t *raw;        /* [n_value], up to 8 bytes each: values as the file has them */
    uint8_t *spare;      /* the same size, to reorder rows; NULL: no tensor needs it */
    float *x;            /* [n_value] */
    uint8_t *out;        /* [n_value], up to 4 bytes each: values as they are written */
    float *back;         /* [n_thread, longest]: a row dequantized again, to measure its error */
    int64_t longest;     /* values of the longest row */
    double *error, *all; /* [n_thread]: partial sums of row_task.error and all */
    uint64_t n_byte;     /* row_scratch_bytes */
} row_scratch;

/* The requirements of a scratch. */
typedef struct row_needs {
    int64_t longest; /* values of the longest row */
    int64_t n_value; /* minimum of values that are converted together; below the default: 2^18, or one row if
                        that is longer */
    bool reorders;   /* some tensors are transposed, or their rows are reordered */
    int n_thread;
} row_needs;

uint64_t row_scratch_bytes(const row_needs *n); /* memory that row_scratch_open allocates */
/* NIB_E_NOMEM; nothing is to be closed then. */
nib_status row_scratch_open(row_scratch *r, const row_needs *n, nib_error *err);
void row_scratch_close(row_scratch *r); /* zeroed is fine */

/* The conversion of one tensor. Everything that it points to is borrowed. */
typedef struct row_task {
    const container *c;
    const gguf_tensor *tensor;
    type_id to;
    const float *imatrix; /* [n, k]: importance of each column, 0 or more; NULL: all the same */
    int64_t imatrix_rows; /* rows of the tensor that have the same one; 0: all, n is 1 */
    const float *times;   /* [k]: factors of columns before rounding; NULL: none */
    const float *over; /* [rows]: divisors of rows before rounding, for tensors whose rows keep their order;
                          NULL: none */
    int64_t first, n;  /* only these rows; n 0: all */
    const rotation *turn_rows; /* multiplied by groups of that many rows, of which `first` begins one and n is
                                  a multiple; the scratch holds at least a group. NULL: none */
    const rotation *turn_cols; /* multiplied by groups of that many columns, after `times`; NULL: none */
    const int32_t *rows, *cols; /* [rows], [k]: row (column) i is the tensor's row rows[i]; NULL: their order.
                                   times, over and imatrix have the new order of columns, over that of rows */
    /* Rounds rows x [n, k] to `out`, n <= n_together. NULL: encode_row. Threads call it at the same time,
     * each with its number; `by` is its context. */
    void (*round)(const void *by, int thread, const float *x, int64_t n, void *out);
    const void *by;
    int n_together; /* with `round`: each call begins at a multiple of it, and n is smaller only at the
                       tensor's end. The scratch holds at least this many rows */
    pool *threads;
    const canceller *cancel;
    /* Receives the converted rows in order, on the caller's thread. An error ends the conversion. */
    nib_status (*put)(void *user, const void *rows, size_t n_byte, nib_error *err);
    void *user;
    double error, all; /* the conversion adds sums of squares, weighted by `imatrix`: of the rounding errors,
                          and of the values */
} row_task;

/* Converts the tensor; blocks until it is done. NIB_E_MODEL: a value is not finite, or rows are not whole
 * blocks; NIB_E_IO; NIB_E_CANCELLED; and the errors of `put`. */
nib_status row_task_run(row_task *t, row_scratch *scratch, nib_error *err);

/* Columns (the innermost dimension) and rows (the product of all others) of a tensor. A vector is one row. */
int64_t tensor_columns(const container_tensor *t);
int64_t tensor_rows(const container_tensor *t);
/* Reads rows [first, first + n) of an output tensor, in the input's type (t->from), joined from the pieces
 * that the files have and reordered. n: at most as many rows as the scratch holds. NIB_E_IO; NIB_E_MODEL: the
 * pieces do not have such a row. */
nib_status gguf_tensor_read(const container *c, const gguf_tensor *t, int64_t first, int64_t n,
                            const row_scratch *scratch, uint8_t *out, nib_error *err);
/* Reads a row of a tensor of the files to out [k] in f32. raw: memory for the row in the file's type.
 * NIB_E_IO. */
nib_status tensor_read(const container *c, const container_tensor *t, int64_t row, void *raw, float *out,
                       nib_error *err);

#endif

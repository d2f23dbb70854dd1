/* rows.h - converts the rows of one tensor from the file's format to another one, a few at a time. */
#ifndef NIB_QUANTIZE_ROWS_H
#define NIB_QUANTIZE_ROWS_H

#include "base/cancel.h"
#include "base/thread.h"
#include "model/as_gguf.h"

/* Scratch memory for rows; allocated once, for the longest row. */
typedef struct row_scratch {
    int64_t n_value; /* values that it holds */
    uint8_t *raw;    /* as the file has them */
    uint8_t *spare;  /* as many, while they are put in order; NULL: files have all in order */
    float *x;        /* the values */
    uint8_t *out;    /* what becomes of them */
    float *back;     /* [n_thread, longest]: a row as it can be read again */
    int64_t longest;
    double *error, *all; /* [n_thread] */
    uint64_t n_byte;     /* of everything */
} row_scratch;

/* turned: for tensors that are transposed or whose rows move, too. */
uint64_t row_scratch_bytes(int64_t longest, bool turned, int n_thread);
nib_status row_scratch_open(row_scratch *r, int64_t longest, bool turned, int n_thread, nib_error *err);
void row_scratch_close(row_scratch *r); /* zeroed is fine */

/* What one tensor becomes. */
typedef struct row_task {
    const container *c;
    const gguf_tensor *tensor;
    type_id to;
    const float *columns; /* [k], how much each matters; NULL: all the same */
    const float *times;   /* [k]: values are first multiplied by it; NULL: not */
    const float *over;    /* [rows]: rows are first divided by it; NULL: not. Not of rows that move */
    /* Rounds a row; x may be changed. NULL: encode_row. Threads call it at the same time. */
    void (*round)(const void *by, int thread, float *x, void *out);
    const void *by;
    pool *threads;
    const canceller *cancel;
    /* Gets the rows in order, n_byte bytes at a time. */
    nib_status (*put)(void *user, const void *rows, size_t n_byte, nib_error *err);
    void *user;
    double error, all; /* sums of weighted squares are added: of the differences, and of the values */
} row_task;

/* NIB_E_MODEL: a value that is not finite; NIB_E_CANCELLED. */
nib_status row_task_run(row_task *t, row_scratch *scratch, nib_error *err);

/* Rows and columns of a tensor: everything but the innermost dimension counts as rows. */
int64_t tensor_columns(const container_tensor *t);
int64_t tensor_rows(const container_tensor *t);
/* Rows [first, first + n) of what is written, in the type that the files have; at most as many as the scratch
 * holds. A vector is one row. */
nib_status gguf_tensor_read(const container *c, const gguf_tensor *t, int64_t first, int64_t n,
                            const row_scratch *scratch, uint8_t *out, nib_error *err);
/* Rows [first, first + n) of a file's tensor as floats; raw: memory for them as the file has them. */
nib_status tensor_read(const container *c, const container_tensor *t, int64_t first, int64_t n, void *raw,
                       float *out, nib_error *err);

#endif

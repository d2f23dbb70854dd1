/* check.h - the smallest back end: the scalar reference, one row after the other, on one thread, in its own
 * memory.
 *
 * It exists for comparisons. Its answers have the bits of the processor with NIBBLE_ISA=ref, but its method
 * differs: it has no fused ops, no division of work, and no blocks of rows. Weights are copied through the
 * device's copy lane. Keys and values are in pages of its device (memory.h). Reads return a copy that becomes
 * NaN at the next call. Registers are NaN before a row enters a block. */
#ifndef NIB_EXEC_CHECK_CHECK_H
#define NIB_EXEC_CHECK_CHECK_H

#include "exec/backend.h"

typedef struct check {
    backend base;
    backend_setup setup;
    const kernel_table *ref;
    memory_region rows, host;
    memory_region replaced; /* weights that are not the pager's */

    /* in `rows`, memory of the device */
    float *reg[REG_MAX];   /* REG_X has n_pass rows, REG_LOGITS n_head, every other register one */
    float *row, *residual; /* rows of any width: `row` was looked up, `residual` is the residual of a
                               product's quantized input */
    float *expert;         /* an expert's output */
    float *part;           /* a product that is added to another, or a column of one */
    float *cos_sin, *inv_freq;
    uint8_t *codes; /* a quantized row */
    void *scratch;  /* scratch of kernels */
    /* in `host`: copies for the caller */
    float *stream, *logits, *seen;

    view *views;     /* the block's weights in the device's memory; data NULL: missing */
    uint8_t **pages; /* host addresses of one sequence's pages */
    size_t max_pages;
    backend_pass pass;
    backend_run run;
    probe_places places; /* points of the run's program */
} check;

static inline int64_t check_width(const check *c, reg r) {
    return model_reg_width(layout_model(c->setup.layout), r);
}

/* ---- ops.c ---- */
/* Runs the block's program on row r of the run. */
nib_status check_row(check *c, int64_t r, nib_error *err);

#endif

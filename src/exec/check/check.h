/* check.h - the smallest back end: the scalar reference, one row after the other, on one thread, in memory of
 * its own.
 *
 * It exists for comparisons. Its answers are those of the processor with NIBBLE_ISA=ref, bit by bit, but it
 * shares no method with it: no fused ops, no shared work, no rows together. Weights are copied through the
 * device's lane, keys and values are pages of its device (memory.h), and reads return a copy that becomes NaN
 * at the next call. Registers are NaN before a row enters a block. */
#ifndef NIB_EXEC_CHECK_CHECK_H
#define NIB_EXEC_CHECK_CHECK_H

#include "exec/backend.h"

typedef struct check {
    backend base;
    backend_setup setup;
    const kernel_table *ref;
    tier_region rows, host;
    device_pages blocks;
    tier_region replaced; /* weights that are not the pager's */

    /* in `rows`, of the device */
    float *reg[REG_COUNT];  /* REG_X has n_pass rows, REG_LOGITS n_head, every other register one */
    float *row, *left_over; /* of any width: one that was looked up, or what is left of a product's input */
    float *part;            /* a product that is added to another, or a column of one */
    float *cos_sin, *inv_freq;
    uint8_t *codes; /* a row as integers */
    void *scratch;  /* of kernels */
    /* in `host`: copies for others */
    float *stream, *logits, *seen;

    view *views;     /* the block's weights in the device's memory; data NULL: not there */
    uint8_t **pages; /* of one sequence: where they really are */
    size_t max_pages;
    backend_pass pass;
    backend_run run;
    probe_places places; /* of the run's program */
} check;

static inline int64_t check_width(const check *c, reg r) {
    return model_reg_width(layout_model(c->setup.layout), r);
}

/* ---- ops.c ---- */
/* Row r of the run goes through the block's program. */
nib_status check_row(check *c, int64_t r, nib_error *err);

#endif

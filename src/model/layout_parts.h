/* layout_parts.h - shared by layout.c and stack.c: a layout under construction. */
#ifndef NIB_MODEL_LAYOUT_PARTS_H
#define NIB_MODEL_LAYOUT_PARTS_H

#include "model/internal.h"
#include "model/layout.h"
#include "model/page_layout.h"

/* A block's arrays where they differ from the model's; NULL: they are the model's. */
typedef struct layout_arrays {
    weight *weights;
    op *ops;
} layout_arrays;

struct layout {
    arena mem; /* everything below */
    const model *m;
    block *blocks;        /* [n_block] */
    layout_arrays *own;   /* [n_block]: the copied arrays that blocks[b] points to */
    bool stacks;          /* copied blocks have capacity for second slices */
    page_layout pages;    /* pages of the final blocks */
    layout_place *places; /* [n_block]; NULL: none */
    uint8_t *home_of;     /* [pages.n_page], allocated; NULL: none */
};

/* Must be called before a block's weights or ops are written: copies them, unless it has done so. */
nib_status layout_own(layout *l, int block, nib_error *err);
/* Marks the ops of a changed program that may be executed together. */
void layout_fuse(layout *l, int block);

/* ---- page_layout.c ---- */
/* Cuts the pages of a layout whose blocks are final. NIB_E_MODEL: sizes overflow. */
nib_status page_layout_open(page_layout *l, const layout *lay, nib_error *err);
/* Copies the pages of another layout whose weights have the same sizes. */
nib_status page_layout_copy(page_layout *l, const page_layout *from, const layout *lay, nib_error *err);
void page_layout_close(page_layout *l); /* zeroed is fine */

/* ---- stack.c ---- */
/* The number of weights and ops that second slices add to a block. */
void stack_counts(const block *b, int *more_weight, int *more_op);
/* Gives all matrices of block `owner`, wherever they are used, a second slice in this format. */
nib_status stack_add(layout *l, int owner, const pack_format *second, nib_error *err);

#endif

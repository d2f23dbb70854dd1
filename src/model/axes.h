/* axes.h - which rows and columns of a model's tensors are the same channels. An *axis* is one order of
 * channels: that of the residual stream, of one feed-forward's hidden layer, of the values and the output of
 * one layer's attention, of the vocabulary. Two tensors
 * share an axis if some program combines their channels one by one. So the channels of an axis may be put in
 * any order, in all tensors together, and the model computes the same function (COMET, section 3.2, and "Pool
 * and Yu 2021"), unless the axis is fixed: an op depends on the channels' numbers (rotary pairs, heads,
 * groups of a norm, tokens, recurrent states). Found in the blocks' programs, so it holds for every
 * architecture.
 *
 * The channels of some axes may even be multiplied by any orthogonal matrix (QuaRot, arXiv 2404.00456,
 * section 4): if every op on them is linear, or a norm by the root mean square whose weights can be moved
 * into the columns of the products that read it. Heads of values only each within itself, and all by the same
 * matrix.
 *
 * Pure: a function of the model. One thread. */
#ifndef NIB_MODEL_AXES_H
#define NIB_MODEL_AXES_H

#include "model/model.h"

/* The axes of a weight; a vector has columns only, and a stack of experts has the rows of one expert. */
typedef struct axis_pair {
    int row, col;
} axis_pair;

/* A vector of a model: weight w of block b; w -1: none. */
typedef struct axis_norm {
    int b, w;
} axis_norm;

/* What forbids an orthogonal matrix: an op of block b, and its weight or -1; what NULL: nothing. */
typedef struct axis_bar {
    const char *what;
    int b, w;
} axis_bar;

typedef struct model_axes {
    int n;         /* axes */
    int64_t *size; /* [n]: channels; of values those of the first weight */
    bool *fixed;   /* [n]: their order counts */
    int64_t *mix;  /* [n]: so many adjacent channels an orthogonal matrix may mix: all, or those of a head; 0:
                      none */
    axis_bar *bar; /* [n]: why mix is 0; what NULL: the order counts */
    axis_norm *norm;        /* of every weight: the norm whose weights multiply its columns */
    int *first;             /* [n_block + 1] into of: a block's first weight */
    axis_pair *of;          /* of every weight */
    struct axis_node *node; /* internal: while axes are joined */
    int n_node;
} model_axes;

/* NIB_E_NOMEM. */
nib_status axes_open(model_axes *a, const model *m, nib_error *err);
void axes_close(model_axes *a); /* zeroed is fine */
/* The axes of weight w of block b. */
static inline axis_pair axes_of(const model_axes *a, int b, int w) {
    return a->of[a->first[b] + w];
}

#endif

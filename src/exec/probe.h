/* probe.h - reads the data at points of the layers while a pass is computed, for profiles of a model.
 *
 * A layer's points are found in its program by the function of its ops, not by the model family. Fused
 * projections, parallel residuals and norms after a sub-layer change the position of a point, but not its
 * meaning. While a probe is set, ops are executed one by one (with the same bits), and the calling thread
 * reads the data between two of them. Without a probe nothing changes. */
#ifndef NIB_EXEC_PROBE_H
#define NIB_EXEC_PROBE_H

#include "model/program.h"

typedef enum probe_point {
    PROBE_INPUT,  /* the residual stream before the layer [d_model] */
    PROBE_Q,      /* of attention: Q x: the query product's output, bias included [n_head * d_head] */
    PROBE_V,      /* of attention: V x: the value product's [n_kv_head * d_head] */
    PROBE_CHOSEN, /* of a router: the ids of the chosen experts, then their weights [2 * n_used] */
    PROBE_HIDDEN, /* the feed-forward part's neurons: the input of its last product [d_ff] */
    PROBE_FFN,    /* the feed-forward part's output, its post-norm and scale included [d_model] */
    PROBE_OUTPUT, /* the residual stream after the layer [d_model] */
    PROBE_N
} probe_point;

/* The data of a cell's rows at a point. Valid during the call. */
typedef struct probe_data {
    probe_point point;
    int block;          /* its index in the model */
    int segment;        /* number of the segment in the pass */
    int64_t row, n_row; /* rows of the segment */
    const float *x;     /* [n_row, width] */
    int64_t width;
    float scale; /* the value of the point is x times this */
} probe_data;

/* The rows that a product is about to read. Valid during the call. */
typedef struct probe_input {
    int block, w; /* block, and number of the matrix in the block's program */
    int64_t n_row;
    const float *x; /* [n_row, k] */
    int64_t k;
} probe_input;

/* Each function may be NULL. */
typedef struct probe {
    void (*point)(void *user, const probe_data *seen);
    void (*input)(void *user, const probe_input *in);
    /* Rows that matrix `expert` of a stack is about to read, one by one. */
    void (*expert)(void *user, const probe_input *in, int64_t expert);
    void *user;
} probe;

/* Receives the last hidden states (after the final norm) instead of logits, for embeddings. Then the head's
 * product is not computed; a probe still sees its input. x is valid during the call. */
typedef struct hidden_receiver {
    /* Rows [row, row + n_row) among the head rows of the pass: x [n_row, width]. */
    void (*receive)(void *user, int64_t row, int64_t n_row, const float *x, int64_t width);
    void *user;
} hidden_receiver;
/* The op of the head's program that reads the hidden states, which is the first one that writes logits. */
const op *probe_head_product(const program *p);

/* The positions of the points in a program. A point is after op at[point] (-1 for PROBE_INPUT: before the
 * first op), in register from[point]. at is -2 for a missing point; blocks that are not layers have no
 * points. */
typedef struct probe_places {
    int at[PROBE_N];
    reg from[PROBE_N];
} probe_places;
enum { PROBE_NOWHERE = -2, PROBE_BEFORE = -1 };
void probe_find(const program *p, probe_places *out);

#endif

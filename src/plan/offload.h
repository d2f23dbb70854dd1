/* offload.h - layers whose weights have no room on a GPU. A pass of few rows is limited by how fast weights
 * are read: some layers are computed by the processor where they are, and meanwhile others come over the
 * link, so that memory and link are both at work. A pass of many rows is limited by products: all of them
 * come. Pure. */
#ifndef NIB_PLAN_OFFLOAD_H
#define NIB_PLAN_OFFLOAD_H

#include "plan/planner.h"

/* One of those layers; they are taken as alike. */
typedef struct offload_layer {
    uint64_t bytes; /* of its matrices */
    uint64_t macs;  /* of one row */
    int bits;       /* of its weights; 0: floats */
    bool two;       /* 16-bit activations */
} offload_layer;

typedef struct offload {
    int n_come;       /* of the layers, those that come for every pass; the others are computed in place */
    int64_t max_rows; /* of a pass that computes in place, at most; more: all come. 0: none does */
    double seconds;   /* of one row through all these layers */
} offload;

/* max_rows: what the processor has room for. */
void offload_choose(const plan_rates *r, const offload_layer *each, int n_layer, int64_t max_rows,
                    offload *out);
typedef enum offload_place {
    OFFLOAD_STAYS,   /* on the GPU */
    OFFLOAD_COMES,   /* for every pass */
    OFFLOAD_IN_PLACE /* computed by the processor in passes of few rows; in others it comes */
} offload_place;

/* Each layer's place, into out[n_layer]; n_stay + n_come <= n_layer. Layers that come stand evenly among
 * those that are computed meanwhile; behind each of them, where the GPU has the pass anyway, stands its share
 * of those that stay: so the link has work in passes of many rows too. */
void offload_place_all(int n_layer, int n_stay, int n_come, offload_place *out);

#endif

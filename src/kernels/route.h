/* route.h - the router of a mixture of experts: from the logits of a row to the chosen experts and their
 * weights. It is plain C for all back ends in host memory, because a row has a few hundred logits. */
#ifndef NIB_KERNELS_ROUTE_H
#define NIB_KERNELS_ROUTE_H

#include "model/program.h"

/* o: an OP_ROUTE. logits [o->k]; bias [o->k] is added to the scores for the choice only, and an expert's
 * weight is multiplied by its entry of times [o->k]; NULL: none. listed [n_used]: the experts of the row's
 * token, so that nothing is chosen; NULL: they are chosen by their scores. Writes
 * out [2 * n_used]: the ids of the chosen experts in ascending order, then their weights. Among equal scores
 * the expert with the lower id is chosen. A NaN counts as the lowest score of a choice; the weights that are
 * computed from it are NaN. */
void route_row(const op *o, const float *logits, const float *bias, const float *times, const float *listed,
               float *out);

/* The factor that the one-column gate of an OP_ADD gives its second input. gate NULL: 1. */
float add_gate(const float *gate);

static inline int64_t route_expert(const float *chosen, int64_t i) {
    return (int64_t)chosen[i];
}
static inline float route_weight(const op *experts, const float *chosen, int64_t i) {
    return chosen[experts->u.experts.n_used + i];
}

#endif

/* decide.h - what is decided for all ranks of a pipeline, from the whole model's headers. */
#ifndef NIB_CLUSTER_DECIDE_H
#define NIB_CLUSTER_DECIDE_H

#include "cluster/pipeline.h"

typedef struct cluster_decision {
    int n_rank;
    nib_engine_options options; /* of all ranks; sizes and formats are resolved */
    cluster_rank ranks[CLUSTER_MAX_RANK];
    cluster_stage_cost costs[CLUSTER_MAX_RANK];
    uint64_t caps[CLUSTER_MAX_RANK]; /* bytes of weights, keys and values; UINT64_MAX: no bound */
    bool measured[CLUSTER_MAX_RANK]; /* the rank's rates are; false: guesses */
    bool on_gpu;
    int64_t n_sequence, n_row; /* sequences together, and rows of a pass */
    char kv_layers[1024], name[64];
    char first[CLUSTER_MAX_RANK][32], last[CLUSTER_MAX_RANK][32]; /* names of the blocks */
    char *model;                                                  /* its path, from the root */
    int64_t width;                                                /* of the residual stream */
    uint64_t content[2];                                          /* with hosts; else 0 */
} cluster_decision;

/* Reads the options' devices or hosts. NIB_E_USAGE names what is wrong. */
nib_status cluster_read_places(const nib_engine_options *o, cluster_places *out, nib_error *err);
/* Cuts the model. ranks: starts the other ranks, whose rates are asked if they are on other hosts, and which
 * the caller closes in any case; NULL: nothing is started if this machine's rates or files have all. *out is
 * zeroed by the caller, who clears it in any case. NIB_E_USAGE: options that ranks do not have. */
nib_status cluster_decide(const char *name, const nib_engine_options *options, const cluster_places *places,
                          pipeline **ranks, cluster_decision *out, nib_error *err);
void cluster_decision_clear(cluster_decision *d);

#endif

/* cut.h - which blocks each rank of a pipeline computes. */
#ifndef NIB_CLUSTER_CUT_H
#define NIB_CLUSTER_CUT_H

#include "model/layout.h"
#include "plan/rates.h"

typedef struct cluster_stage {
    int first, end; /* blocks [first, end) */
} cluster_stage;

/* What a stage takes of its rank. */
typedef struct cluster_stage_cost {
    double seconds; /* of a pass of n_row rows */
    double one_row; /* of a pass of one row */
    double held;    /* bytes of weights, and of keys and values */
    double kv;      /* of these, those of keys and values */
    double over;    /* of `held`, those beyond the rank's cap */
} cluster_stage_cost;

typedef struct cluster_cut_question {
    const layout *layout; /* of the whole model */
    int n_rank;
    const uint64_t *caps; /* [n_rank]: bytes of weights and of keys and values that a rank holds; UINT64_MAX:
                             no bound */
    const plan_rates *rates; /* [n_rank], of the rank's machine with its threads */
    int64_t n_row;           /* rows of a pass: an answer each, and a token that rank 0 draws */
    int64_t n_position;      /* that a row attends to */
    uint64_t kv;             /* bytes of the keys and values of all layers */
    bool on_gpu;  /* GPUs compute, and what is beyond a cap comes over their links; else from disk */
    bool streams; /* processors may read weights from disk for each pass */
} cluster_cut_question;

/* Cuts the blocks into n_rank stages. A row passes all stages. When ranks work on different rows at the same
 * time, the slowest stage is the bound: the search makes it as fast as it can be, by the rates at which each
 * rank reads weights and multiplies. The last rank also computes the head and sends logits; the first one
 * receives them and draws tokens. The network is not counted. costs [n_rank]: of the stages;
 * NULL: not wanted. NIB_E_USAGE: the model cannot be cut into so many. */
nib_status cluster_cut(const cluster_cut_question *q, cluster_stage *out, cluster_stage_cost *costs,
                       nib_error *err);

#endif

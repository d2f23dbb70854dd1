/* cut.h - which blocks each rank of a pipeline computes. */
#ifndef NIB_CLUSTER_CUT_H
#define NIB_CLUSTER_CUT_H

#include "model/layout.h"

typedef struct cluster_stage {
    int first, end; /* blocks [first, end) */
} cluster_stage;

typedef struct cluster_cut_question {
    const layout *layout; /* of the whole model */
    int n_rank;
    const uint64_t *caps; /* [n_rank]: bytes of weights and of keys and values that a rank holds; UINT64_MAX:
                             no bound */
    uint64_t kv;          /* bytes of the keys and values of all layers */
} cluster_cut_question;

/* Cuts the blocks into n_rank stages. A row passes all stages. When ranks work on different rows at the
 * same time, the slowest stage is the bound: the search makes the largest stage as small as it can be. A
 * stage costs the bytes of weights that a generated row reads, those beyond the cap many times as much,
 * because they come over a link or from disk. NIB_E_USAGE: the model cannot be cut into so many. */
nib_status cluster_cut(const cluster_cut_question *q, cluster_stage *out, nib_error *err);

#endif

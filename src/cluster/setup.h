/* setup.h - the first message: the engine's options, and each rank's stage and place. */
#ifndef NIB_CLUSTER_SETUP_H
#define NIB_CLUSTER_SETUP_H

#include "cluster/cut.h"
#include "cluster/message.h"
#include "cluster/places.h"

typedef struct cluster_rank {
    cluster_stage stage;
    cluster_place place;
} cluster_rank;

typedef struct cluster_setup {
    const char *model;          /* its path on the first host */
    nib_engine_options options; /* without callbacks, plans and residuals */
    int n_rank;
    const cluster_rank *ranks;
    uint64_t content[2]; /* of the model's files (container_content_hash), for other hosts */
    const char *sums; /* of ranks that share every layer: the path of their memory (shared.h); NULL: none */
    int64_t width;    /* of the rows that they add */
} cluster_setup;

/* Sends it to rank 1. */
nib_status setup_send(const rank_link *to, const cluster_setup *s, nib_error *err);
/* Reads it; everything is in the message's body. NIB_E_FAILED: the body is not one. */
nib_status setup_read(const message *m, cluster_setup *out, nib_error *err);

#endif

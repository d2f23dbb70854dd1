/* setup.h - the first messages: the rates of the ranks, then the engine's options, and each rank's stage and
 * place. */
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

enum { CLUSTER_READ = 1 << 20 }; /* bytes of a read from disk, whose rate counts */

/* A rank's part of the first message. */
typedef struct cluster_rates {
    int32_t n_thread, n_beside; /* of the options, and of its place */
    plan_rates rates;           /* the rank's answer */
    uint64_t free;              /* bytes of its share of the RAM that is free there */
} cluster_rates;

/* Sends the questions of all ranks to rank 1. */
nib_status rates_send(const rank_link *to, const cluster_rates *all, int n_rank, nib_error *err);
/* The parts of such a message, in its body. NIB_E_FAILED: the body is not one of n_rank ranks. */
nib_status rates_read(const message *m, int n_rank, cluster_rates **out, nib_error *err);

/* Sends it to rank 1. */
nib_status setup_send(const rank_link *to, const cluster_setup *s, nib_error *err);
/* Reads it; everything is in the message's body. NIB_E_FAILED: the body is not one. */
nib_status setup_read(const message *m, cluster_setup *out, nib_error *err);

#endif

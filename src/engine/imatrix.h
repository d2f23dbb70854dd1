/* imatrix.h - maps the inputs of products (model/sites.h) to the mean squares of their channels
 * (profile/imatrix.h). */
#ifndef NIB_ENGINE_IMATRIX_H
#define NIB_ENGINE_IMATRIX_H

#include "profile/imatrix.h"
#include "engine/core.h"
#include "exec/probe.h"
#include "model/sites.h"

/* Bytes of the statistics of all channels. */
nib_status imatrix_model_bytes(const model *m, uint64_t *bytes, nib_error *err);

/* Collects statistics from the probe of a pass in which the same rows go through all blocks. */
typedef struct imatrix_watch {
    const layout *layout;
    ledger *ledger;
    uint64_t charged;
    model_sites sites;
    model_imatrix *sums; /* owned by the caller; means after imatrix_watch_finish */
    int64_t *n_row;      /* [n_site + stacks * n_expert] */
    int64_t n_expert;
    probe probe; /* for the pass; points to this struct, which must not move */
} imatrix_watch;
/* Charges and zeroes *sums, which the caller clears. */
nib_status imatrix_watch_open(imatrix_watch *w, const layout *lay, ledger *l, model_imatrix *sums,
                              nib_error *err);
void imatrix_watch_finish(imatrix_watch *w);
void imatrix_watch_close(imatrix_watch *w); /* zeroed is fine */
/* Mean squares of the input channels of weight i of block b; NULL: no product reads it, or it is a stack. */
const float *imatrix_watch_of(const imatrix_watch *w, int b, int i);

/* Sets the imatrix of every matrix whose format uses one (u4g64w), for these prompts ("": the
 * latest), from the profile in the cache. They are charged and stay until the engine is closed.
 * NIB_E_NOTFOUND, NIB_E_MODEL: no such profile, or no usable one. */
nib_status imatrix_attach(engine_core *e, const char *prompts, nib_error *err);

#endif

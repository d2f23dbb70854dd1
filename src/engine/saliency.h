/* saliency.h - maps products to their inputs, and inputs to statistics of their channels
 * (profile/channel_stats.h). */
#ifndef NIB_ENGINE_SALIENCY_H
#define NIB_ENGINE_SALIENCY_H

#include "profile/channel_stats.h"
#include "engine/core.h"
#include "exec/probe.h"

/* The inputs of a model's products, in the order of a pass, independent of a plan's left-out layers and
 * stacks. */
typedef struct saliency_sites {
    int n_site;
    int64_t *k; /* [n_site]: channels */
    int *first; /* [n_block + 1] into of: a block's first weight */
    int *of;    /* the site of each weight: that of the first product that reads it; -1: none. A shared weight
                   has its entry with its owner */
} saliency_sites;
nib_status saliency_sites_open(saliency_sites *s, const model *m, nib_error *err);
void saliency_sites_close(saliency_sites *s); /* zeroed is fine */
/* The site of weight w of block b; -1: none. */
int saliency_site(const saliency_sites *s, const layout *lay, int b, int w);

/* Bytes of the statistics of all channels. */
nib_status saliency_bytes(const model *m, uint64_t *bytes, nib_error *err);

/* Collects statistics from the probe of a pass in which the same rows go through all blocks. */
typedef struct saliency_watch {
    const layout *layout;
    ledger *ledger;
    uint64_t charged;
    saliency_sites sites;
    channel_stats *sums; /* owned by the caller; means after saliency_watch_finish */
    int64_t *n_row;      /* [n_site] */
    probe probe;         /* for the pass; points to this struct, which must not move */
} saliency_watch;
/* Charges and zeroes *sums, which the caller clears. */
nib_status saliency_watch_open(saliency_watch *w, const layout *lay, ledger *l, channel_stats *sums,
                               nib_error *err);
void saliency_watch_finish(saliency_watch *w);
void saliency_watch_close(saliency_watch *w); /* zeroed is fine */
/* Mean squares of the input channels of weight i of block b; NULL: no product reads it. */
const float *saliency_watch_of(const saliency_watch *w, int b, int i);

/* Sets the column weights of every matrix whose format has the suffix w (u4g64w), for these prompts ("": the
 * latest), from the profile in the cache. They are charged and stay until the engine is closed.
 * NIB_E_NOTFOUND, NIB_E_MODEL: no such profile, or no usable one. */
nib_status saliency_attach(engine_core *e, const char *prompts, nib_error *err);

#endif

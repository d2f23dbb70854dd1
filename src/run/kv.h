/* kv.h - one session's cached keys and values: every layer's for n_ctx positions, in one mapping that becomes
 * resident as positions are written. Promised to the ledger whole, reported as it is touched.
 *
 * A sequence goes on at the end of what was written, or at the end of a shorter prefix of it. In f16 and f32
 * any prefix will do; with kv8 and kv4 (kernels.h) the newest positions must still be there in f16, else it
 * goes on at the beginning of that prefix's last block. kv_cache_keep says where. */
#ifndef NIB_RUN_KV_H
#define NIB_RUN_KV_H

#include "kernels/kernels.h"
#include "model/model.h"
#include "tiers/region.h"

typedef struct kv_cache {
    int n_layer;
    kv_view *layers;
    tier_region memory;    /* resident as far as positions have been written */
    int64_t n_ctx, n_seen; /* the most positions written at one time */
    bool coded;            /* kv8 or kv4 */
    int64_t held;          /* kv8, kv4: from here on positions are there in f16; a multiple of KV_BLOCK */
} kv_cache;

/* Bytes for n_ctx positions; NIB_E_NOFIT when they overflow. */
nib_status kv_cache_bytes(const model *m, type_id type, int64_t n_ctx, uint64_t *bytes, nib_error *err);
/* What of it the first n positions make resident, as kv_cache_reach reports it. */
uint64_t kv_cache_touched(const model *m, type_id type, int64_t n_ctx, int64_t n);
nib_status kv_cache_open(kv_cache *kv, const model *m, ledger *l, type_id type, int64_t n_ctx,
                         nib_error *err);
/* One layer's memory for all of them: for passes that begin at position 0 and need nothing of a layer when
 * they have left it. */
nib_status kv_cache_one_bytes(const model *m, type_id type, int64_t n_ctx, uint64_t *bytes, nib_error *err);
nib_status kv_cache_open_one(kv_cache *kv, const model *m, ledger *l, type_id type, int64_t n_ctx,
                             nib_error *err);
void kv_cache_close(kv_cache *kv);                     /* zeroed is fine */
void kv_cache_reach(kv_cache *kv, int64_t n_position); /* positions [0, n) are about to be written */
/* How many of the first n positions stay when the sequence goes on there: n, or fewer than KV_BLOCK less. */
int64_t kv_cache_keep(kv_cache *kv, int64_t n);

#endif

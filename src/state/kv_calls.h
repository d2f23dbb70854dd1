/* kv_calls.h - the calls that change page tables and pools, so that all ranks of a pipeline make the same.
 *
 * Each rank has pools and tables of its own, with memory for its own blocks. Which page a sequence has, which
 * positions it keeps, and whose pages it shares follow from the calls alone: kv_pool.c and kv_table.c decide
 * by counts and tokens, never by addresses, bytes or time. So the first rank makes its calls through the
 * functions below, which record them if the pool has a log, and the other ranks repeat the records in the
 * same order. No rank but the first has a rule of its own.
 *
 * What depends on one rank's memory is not recorded: pages in RAM behind a device, pages on disk, content
 * that is kept beyond the reserved pages, a second recurrent state. An engine whose pools have a log does
 * without.
 *
 * Thread-safe, in the order in which the calls are made: a log has one lock for all its pools. */
#ifndef NIB_STATE_KV_CALLS_H
#define NIB_STATE_KV_CALLS_H

#include "state/kv_table.h"

/* ---- the first rank ---- */

typedef struct kv_log kv_log;

nib_status kv_log_open(kv_log **out, nib_error *err);
void kv_log_close(kv_log *log); /* NULL is fine; its pools are closed */
/* To be called before the pool is used. */
nib_status kv_log_watch(kv_log *log, kv_pool *pool, nib_error *err);
/* Appends the records since the last call to *bytes, which grows. NIB_E_NOMEM: also if a record was lost. */
nib_status kv_log_take(kv_log *log, void **bytes, size_t *cap, size_t *n_byte, nib_error *err);

nib_status kv_call_reserve(kv_pool *pool, kv_amount n, nib_error *err);
void kv_call_unreserve(kv_pool *pool, kv_amount n);
nib_status kv_call_open(kv_table *t, kv_pool *pool, const layout *lay, device *d, ledger *l, int64_t n_ctx,
                        const kv_amount *reserved, nib_error *err);
void kv_call_close(kv_table *t);
int64_t kv_call_keep(kv_table *t, int64_t n);
nib_status kv_call_reach(kv_table *t, int64_t first, int64_t end, int64_t proposed, bool generated,
                         nib_error *err);
nib_status kv_call_fill(kv_table *t, int64_t end, nib_error *err);
void kv_call_settle(kv_table *t);
int64_t kv_call_advance(kv_table *t, int64_t n);
void kv_call_learn(kv_table *t, const int32_t *tokens, int64_t first, int64_t end);
int64_t kv_call_adopt(kv_table *t, const int32_t *tokens, int64_t n_held, int64_t n);
void kv_call_share(kv_table *t, const kv_table *from, int64_t n_page);

/* ---- the other ranks ---- */

/* Memory for tables of these formats, as of the rank's engine. */
typedef struct kv_call_memory {
    kv_pool *pool;
    const layout *layout;
    device *device;
    ledger *ledger;
} kv_call_memory;

typedef struct kv_repeat kv_repeat;

/* memory: finds the memory of formats, which are borrowed during the call. */
nib_status kv_repeat_open(nib_status (*memory)(void *user, kv_formats formats, kv_call_memory *out,
                                               nib_error *err),
                          void *user, kv_repeat **out, nib_error *err);
void kv_repeat_close(kv_repeat *r); /* closes all tables; NULL is fine */
/* Repeats records. NIB_E_FAILED: they are damaged, or a call had another result than on the first rank.
 * Otherwise the errors of the calls. Nothing may be repeated after an error. */
nib_status kv_repeat_calls(kv_repeat *r, const void *bytes, size_t n_byte, nib_error *err);
/* The table of a record's number (kv_table.number); NULL: none. */
kv_table *kv_repeat_table(const kv_repeat *r, int32_t number);

#endif

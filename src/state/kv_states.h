/* kv_states.h - checkpoints of recurrent states: copies of a sequence's state where one of its pages ends, so
 * that another sequence with the same tokens, or this one when it goes back, continues there.
 *
 * A checkpoint is found by the serial number of its page (kv_pool.h). Content that is replaced gets a new
 * number, so an outdated checkpoint is never found; its memory is reused like that of the least recently used
 * one. Memory is charged when it is reserved, one state for each table.
 *
 * Thread-safe, except that one pass at a time writes to a taken checkpoint. */
#ifndef NIB_STATE_KV_STATES_H
#define NIB_STATE_KV_STATES_H

#include "memory/region.h"

#include <pthread.h>

typedef struct kv_state kv_state; /* the memory of one checkpoint */

typedef struct kv_states {
    device *device;
    ledger *ledger;
    uint64_t bytes; /* of a state; 0: the model has none */
    pthread_mutex_t lock;
    kv_state *first; /* all, the most recently used one first */
} kv_states;

void kv_states_init(kv_states *s, uint64_t bytes, device *d, ledger *l);
void kv_states_deinit(kv_states *s);
/* Adds memory for one more checkpoint, or frees that of one. NIB_E_NOFIT, NIB_E_NOMEM. */
nib_status kv_states_reserve(kv_states *s, nib_error *err);
void kv_states_unreserve(kv_states *s);

/* Takes memory for a new checkpoint, which cannot be found before kv_states_put: that of page `replaced`, if
 * it still has one, else the least recently used. NULL: none is reserved, or a pass has taken all. */
kv_state *kv_states_take(kv_states *s, uint64_t replaced);
void *kv_state_at(const kv_state *c); /* its memory, of the device */
/* The checkpoint is complete and belongs to this page. serial 0: it is not, and the memory is free again. */
void kv_states_put(kv_states *s, kv_state *c, uint64_t serial);
/* The memory of the page's checkpoint; NULL: it has none. It stays valid until the next kv_states_take. */
const void *kv_states_find(kv_states *s, uint64_t serial);

#endif

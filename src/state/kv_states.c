/* kv_states.c - see kv_states.h. The list is short: one entry for each sequence. */
#include "state/kv_states.h"

#include "base/mem.h"

#include <string.h>

struct kv_state {
    kv_state *next;
    memory_region memory;
    uint64_t serial; /* of its page; 0: none */
    bool taken;
};

void kv_states_init(kv_states *s, uint64_t bytes, device *d, ledger *l) {
    *s = (kv_states){.device = d, .ledger = l, .bytes = bytes};
    pthread_mutex_init(&s->lock, NULL);
}

static void free_one(kv_state *c) {
    memory_region_close(&c->memory);
    mem_free(c);
}

void kv_states_deinit(kv_states *s) {
    for (kv_state *c; (c = s->first);) {
        s->first = c->next;
        free_one(c);
    }
    pthread_mutex_destroy(&s->lock);
}

nib_status kv_states_reserve(kv_states *s, nib_error *err) {
    kv_state *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "a checkpoint");
    const nib_status status = memory_region_open(&c->memory, s->device, s->ledger, NIB_OWNER_KV, s->bytes,
                                                 true, "a checkpoint of a recurrent state", err);
    if (status != NIB_OK) {
        mem_free(c);
        return status;
    }
    pthread_mutex_lock(&s->lock);
    c->next = s->first;
    s->first = c;
    pthread_mutex_unlock(&s->lock);
    return NIB_OK;
}

/* The place of the last entry that is not taken, preferably one without a page; NULL: all are taken. */
static kv_state **oldest(kv_states *s) {
    kv_state **found = NULL;
    for (kv_state **at = &s->first; *at; at = &(*at)->next)
        if (!(*at)->taken && (!found || (*found)->serial || !(*at)->serial))
            found = at;
    return found;
}

static kv_state **place_of(kv_states *s, uint64_t serial) {
    for (kv_state **at = &s->first; *at && serial; at = &(*at)->next)
        if ((*at)->serial == serial && !(*at)->taken)
            return at;
    return NULL;
}

static kv_state *remove_at(kv_state **at) {
    kv_state *c = *at;
    *at = c->next;
    return c;
}

static void add_first(kv_states *s, kv_state *c) {
    c->next = s->first;
    s->first = c;
}

void kv_states_unreserve(kv_states *s) {
    pthread_mutex_lock(&s->lock);
    kv_state **at = oldest(s);
    kv_state *c = at ? remove_at(at) : NULL;
    pthread_mutex_unlock(&s->lock);
    if (c)
        free_one(c);
}

kv_state *kv_states_take(kv_states *s, uint64_t replaced) {
    pthread_mutex_lock(&s->lock);
    kv_state **at = place_of(s, replaced);
    at = at ? at : oldest(s);
    kv_state *c = at ? remove_at(at) : NULL;
    if (c) {
        c->serial = 0;
        c->taken = true;
        add_first(s, c);
        memory_region_touch(&c->memory, s->bytes);
    }
    pthread_mutex_unlock(&s->lock);
    return c;
}

void *kv_state_at(const kv_state *c) {
    return c->memory.at;
}

void kv_states_put(kv_states *s, kv_state *c, uint64_t serial) {
    pthread_mutex_lock(&s->lock);
    kv_state **same = place_of(s, serial);
    if (same)
        (*same)->serial = 0;
    c->serial = serial;
    c->taken = false;
    pthread_mutex_unlock(&s->lock);
}

const void *kv_states_find(kv_states *s, uint64_t serial) {
    pthread_mutex_lock(&s->lock);
    kv_state **at = place_of(s, serial);
    kv_state *c = at ? remove_at(at) : NULL;
    if (c)
        add_first(s, c);
    pthread_mutex_unlock(&s->lock);
    return c ? c->memory.at : NULL;
}

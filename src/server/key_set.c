/* key_set.c - see key_set.h: open addressing with linear probing. */
#include "server/key_set.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <xxhash.h>

enum { FLAG = 1, MIN_SLOTS = 1024 };

/* Number of slots for n keys, at most three quarters of them in use. */
static uint64_t slots_for(uint64_t n) {
    uint64_t cap = MIN_SLOTS;
    while (cap / 4 * 3 < n)
        cap *= 2;
    return cap;
}

uint64_t key_set_bytes(uint64_t n) {
    return slots_for(n) * 3 * sizeof(uint64_t);
}

bool key_set_open(key_set *s, uint64_t n, bool fixed) {
    *s = (key_set){.cap = slots_for(n), .seed = seed_secret(), .fixed = fixed};
    s->slots = mem_calloc(s->cap, sizeof *s->slots);
    return s->slots != NULL;
}

void key_set_close(key_set *s) {
    mem_free(s->slots);
    *s = (key_set){0};
}

/* Hashes a key; the result is never zero. */
static void hash(const key_set *s, char kind, const char *text, size_t n_byte, uint64_t out[2]) {
    const XXH128_hash_t h = XXH3_128bits_withSeed(text, n_byte, s->seed + (unsigned char)kind);
    out[0] = h.high64 & ~(uint64_t)FLAG;
    out[1] = h.low64 | 1;
}

/* The key's slot, or the free one where it belongs. */
static size_t find(const key_set *s, const uint64_t key[2]) {
    size_t i = key[1] >> 8 & (s->cap - 1);
    while (s->slots[i][1] && ((s->slots[i][0] & ~(uint64_t)FLAG) != key[0] || s->slots[i][1] != key[1]))
        i = (i + 1) & (s->cap - 1);
    return i;
}

static bool grow(key_set *s) {
    key_set larger = *s;
    larger.cap = s->cap * 2;
    larger.slots = s->fixed ? NULL : mem_calloc(larger.cap, sizeof *larger.slots);
    if (!larger.slots)
        return false;
    for (size_t i = 0; i < s->cap; i++) {
        const uint64_t key[2] = {s->slots[i][0] & ~(uint64_t)FLAG, s->slots[i][1]};
        if (!key[1])
            continue;
        uint64_t *to = larger.slots[find(&larger, key)];
        to[0] = s->slots[i][0];
        to[1] = s->slots[i][1];
        to[2] = s->slots[i][2];
    }
    mem_free(s->slots);
    *s = larger;
    return true;
}

uint64_t key_set_value(const key_set *s, char kind, const char *text, size_t n_byte, bool *seen) {
    uint64_t key[2];
    hash(s, kind, text, n_byte, key);
    const uint64_t *slot = s->slots[find(s, key)];
    *seen = slot[0] & FLAG;
    return slot[2];
}

/* The key's slot, which is made if there is none. NULL: out of memory, or the set is full. */
static uint64_t *slot_of(key_set *s, char kind, const char *text, size_t n_byte) {
    uint64_t key[2];
    hash(s, kind, text, n_byte, key);
    if (s->n >= s->cap / 4 * 3 && !s->slots[find(s, key)][1] && !grow(s))
        return NULL;
    uint64_t *to = s->slots[find(s, key)];
    s->n += to[1] == 0;
    to[0] = key[0] | (to[0] & FLAG);
    to[1] = key[1];
    return to;
}

bool key_set_put(key_set *s, char kind, const char *text, size_t n_byte, uint64_t value) {
    uint64_t *slot = slot_of(s, kind, text, n_byte);
    if (slot)
        slot[2] = value;
    return slot != NULL;
}

bool key_set_see(key_set *s, char kind, const char *text, size_t n_byte) {
    uint64_t *slot = slot_of(s, kind, text, n_byte);
    if (slot)
        slot[0] |= FLAG;
    return slot != NULL;
}

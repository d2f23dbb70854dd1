/* key_set.c - see key_set.h: open addressing with linear probing. */
#include "cli/key_set.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <xxhash.h>

enum { FLAGS = 3, MIN_SLOTS = 1024 };

/* Number of slots for n keys, at most three quarters of them in use. */
static uint64_t slots_for(uint64_t n) {
    uint64_t cap = MIN_SLOTS;
    while (cap / 4 * 3 < n)
        cap *= 2;
    return cap;
}

uint64_t key_set_bytes(uint64_t n) {
    return slots_for(n) * 2 * sizeof(uint64_t);
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
    out[0] = h.high64 & ~(uint64_t)FLAGS;
    out[1] = h.low64 | 1;
}

/* The key's slot, or the free one where it belongs. */
static size_t find(const key_set *s, const uint64_t key[2]) {
    size_t i = key[1] >> 8 & (s->cap - 1);
    while (s->slots[i][1] && ((s->slots[i][0] & ~(uint64_t)FLAGS) != key[0] || s->slots[i][1] != key[1]))
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
        const uint64_t key[2] = {s->slots[i][0] & ~(uint64_t)FLAGS, s->slots[i][1]};
        if (!key[1])
            continue;
        uint64_t *to = larger.slots[find(&larger, key)];
        to[0] = s->slots[i][0];
        to[1] = s->slots[i][1];
    }
    mem_free(s->slots);
    *s = larger;
    return true;
}

unsigned key_set_flags(const key_set *s, char kind, const char *text, size_t n_byte) {
    uint64_t key[2];
    hash(s, kind, text, n_byte, key);
    return (unsigned)(s->slots[find(s, key)][0] & FLAGS);
}

bool key_set_add(key_set *s, char kind, const char *text, size_t n_byte, unsigned flags) {
    uint64_t key[2];
    hash(s, kind, text, n_byte, key);
    if (s->n >= s->cap / 4 * 3 && !s->slots[find(s, key)][1] && !grow(s))
        return false;
    uint64_t *to = s->slots[find(s, key)];
    s->n += to[1] == 0;
    to[0] = key[0] | (to[0] & FLAGS) | flags;
    to[1] = key[1];
    return true;
}

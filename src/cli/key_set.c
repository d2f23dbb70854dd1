/* key_set.c - see key_set.h: open addressing with linear probing. */
#include "cli/key_set.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

enum { FLAGS = 3, MIN_SLOTS = 1024 };

/* At most three quarters are in use. */
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
    *s = (key_set){.cap = slots_for(n), .seeds = {seed_secret(), seed_secret()}, .fixed = fixed};
    s->slots = mem_calloc(s->cap, sizeof *s->slots);
    return s->slots != NULL;
}

void key_set_close(key_set *s) {
    mem_free(s->slots);
    *s = (key_set){0};
}

/* The last step of MurmurHash3: every bit of the result depends on all of x. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 33) * UINT64_C(0xff51afd7ed558ccd);
    x = (x ^ x >> 33) * UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

/* FNV-1a in one lane; the other mixes after every byte, the kind's included, so that keys which differ in a
 * few bits of a few bytes differ in both. Not zero. */
static void hash(const key_set *s, char kind, const char *text, size_t n_byte, uint64_t out[2]) {
    uint64_t a = mix(s->seeds[0] ^ (unsigned char)kind), b = mix(s->seeds[1] + (unsigned char)kind);
    for (size_t i = 0; i < n_byte; i++) {
        a = (a ^ (unsigned char)text[i]) * UINT64_C(0x00000100000001b3);
        b = mix(b + (unsigned char)text[i] + 1);
    }
    out[0] = mix(a + n_byte) & ~(uint64_t)FLAGS;
    out[1] = mix(b ^ n_byte) | 1;
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

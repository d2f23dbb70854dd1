/* vocab.c - see vocab.h. Open addressing with linear probing; ten bits of the hash in each slot avoid nearly
 * all comparisons with other texts. */
#include "tokenizer/vocab.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define ID_BITS 22
#define ID_MASK ((1u << ID_BITS) - 1)

static uint64_t hash_text(const vocab *v, const char *text, size_t n_byte) {
    return XXH3_64bits_withSeed(text, n_byte, v->seed);
}

static uint32_t slots_of(int64_t n) {
    uint32_t n_slot = 16;
    while (n_slot < n + n / 3)
        n_slot *= 2;
    return n_slot;
}

nib_status vocab_init(vocab *v, int64_t n, size_t text_bytes, nib_error *err) {
    memset(v, 0, sizeof *v);
    if (n <= 0 || n >= MAX_VOCAB)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected 1 to %d tokens, found %lld", MAX_VOCAB - 1,
                        (long long)n);
    const uint32_t n_slot = slots_of(n);
    v->n = v->n_model = (int32_t)n;
    v->mask = n_slot - 1;
    v->seed = seed_secret();
    v->cap_blob = text_bytes + 2 * (size_t)n;
    v->blob = mem_alloc(v->cap_blob);
    v->offset = mem_array((size_t)n, sizeof *v->offset);
    v->flags = mem_calloc((size_t)n, 1);
    v->slot = mem_calloc(n_slot, sizeof *v->slot);
    if (!v->blob || !v->offset || !v->flags || !v->slot) {
        vocab_deinit(v);
        return nib_fail_nomem(err, v->cap_blob, "the vocabulary");
    }
    memset(v->offset, 0xFF, (size_t)n * sizeof *v->offset);
    return NIB_OK;
}

void vocab_deinit(vocab *v) {
    mem_free(v->blob);
    mem_free(v->offset);
    mem_free(v->flags);
    mem_free(v->slot);
    memset(v, 0, sizeof *v);
}

const char *vocab_text(const vocab *v, int32_t id, size_t *n_byte) {
    if (id < 0 || id >= v->n || v->offset[id] == VOCAB_HOLE) {
        *n_byte = 0;
        return NULL;
    }
    const char *p = v->blob + v->offset[id];
    uint16_t length;
    memcpy(&length, p, 2);
    *n_byte = length;
    return p + 2;
}

/* The slot of the text, or the free slot for it. */
static uint32_t find_slot(const vocab *v, const char *text, size_t n_byte, uint64_t hash) {
    uint32_t tag = (uint32_t)(hash >> 32) & ~ID_MASK;
    for (uint32_t i = (uint32_t)hash & v->mask;; i = (i + 1) & v->mask) {
        uint32_t slot = v->slot[i];
        if (!slot)
            return i;
        if ((slot & ~ID_MASK) != tag)
            continue;
        size_t length;
        const char *found = vocab_text(v, (int32_t)(slot & ID_MASK) - 1, &length);
        if (length == n_byte && memcmp(found, text, n_byte) == 0)
            return i;
    }
}

int32_t vocab_find(const vocab *v, const char *text, size_t n_byte) {
    if (n_byte > UINT16_MAX)
        return -1;
    uint32_t slot = v->slot[find_slot(v, text, n_byte, hash_text(v, text, n_byte))];
    return (int32_t)(slot & ID_MASK) - 1;
}

nib_status vocab_set(vocab *v, int32_t id, const char *text, size_t n_byte, nib_error *err) {
    if (id < 0 || id >= v->n)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected token ids below %d, found %d", v->n, id);
    if (v->offset[id] != VOCAB_HOLE)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected one token for each id, found two for %d", id);
    if (n_byte > UINT16_MAX)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: token %d: found %zu bytes, expected at most %d", id,
                        n_byte, UINT16_MAX);
    if (v->n_blob + n_byte + 2 >= VOCAB_HOLE)
        return nib_fail(err, NIB_E_MODEL,
                        "tokenizer: expected tokens with at most 4 GiB of texts, found more");
    if (mem_grow((void **)&v->blob, &v->cap_blob, v->n_blob + n_byte + 2, 1))
        return nib_fail_nomem(err, v->n_blob + n_byte + 2, "the vocabulary");
    uint16_t length = (uint16_t)n_byte;
    char *p = v->blob + v->n_blob;
    memcpy(p, &length, 2);
    if (n_byte)
        memcpy(p + 2, text, n_byte);
    uint64_t hash = hash_text(v, p + 2, n_byte);
    v->slot[find_slot(v, p + 2, n_byte, hash)] = ((uint32_t)(hash >> 32) & ~ID_MASK) | (uint32_t)(id + 1);
    v->offset[id] = (uint32_t)v->n_blob;
    v->n_blob += n_byte + 2;
    return NIB_OK;
}

int vocab_byte_value(const char *text, size_t n_byte) {
    if (n_byte != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>')
        return -1;
    return (int)num_hex(text + 3, 2);
}

size_t vocab_heap_bytes(const vocab *v) {
    return v->cap_blob + (size_t)v->n * 5 + ((size_t)v->mask + 1) * 4;
}

uint64_t vocab_bytes(uint64_t n, uint64_t text_bytes) {
    const uint64_t max = NUM_MIN(n, (uint64_t)MAX_VOCAB);
    return text_bytes + 7 * max + (uint64_t)slots_of((int64_t)max) * sizeof(uint32_t);
}

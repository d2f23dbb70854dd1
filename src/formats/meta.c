/* meta.c - see meta.h. */
#include "formats/meta.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum {
    LARGE_ARRAY = 64 << 10, /* bytes; a smaller array does not get its own mapping */
    TEXT_CHUNK = 1 << 20,
    LAST_PAGE = 4096
};
#define NO_ENTRY UINT32_MAX

void meta_table_init(meta_table *t) {
    memset(t, 0, sizeof *t);
    t->seed = seed_secret();
    arena_init(&t->small);
}

static void drop_regions(meta_table *t) {
    for (size_t i = 0; i < t->n_region; i++)
        mem_unmap(t->regions[i].data, t->regions[i].n_byte);
    mem_free(t->regions);
    t->regions = NULL;
    t->n_region = t->cap_region = 0;
    t->text = NULL;
    t->n_text = 0;
}

void meta_table_deinit(meta_table *t) {
    drop_regions(t);
    mem_free(t->entries);
    mem_free(t->index);
    arena_deinit(&t->small);
    memset(t, 0, sizeof *t);
}

static size_t slot_of(const meta_table *t, const char *key, size_t n_key) {
    size_t slot = XXH3_64bits_withSeed(key, n_key, t->seed) & (t->n_slot - 1);
    while (t->index[slot] != NO_ENTRY && strcmp(t->entries[t->index[slot]].key, key))
        slot = (slot + 1) & (t->n_slot - 1);
    return slot;
}

static void fill_index(meta_table *t) {
    memset(t->index, 0xff, t->n_slot * sizeof *t->index);
    for (size_t i = 0; i < t->n; i++)
        t->index[slot_of(t, t->entries[i].key, strlen(t->entries[i].key))] = (uint32_t)i;
}

static nib_status grow(meta_table *t, nib_error *err) {
    if (t->n >= META_MAX_KEYS)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d metadata keys, found more", META_MAX_KEYS);
    if (mem_grow((void **)&t->entries, &t->cap, t->n + 1, sizeof *t->entries))
        return nib_fail_nomem(err, (t->n + 1) * sizeof *t->entries, "metadata");
    if (2 * (t->n + 1) <= t->n_slot)
        return NIB_OK;
    const size_t n_slot = t->n_slot ? 2 * t->n_slot : 64;
    uint32_t *index = mem_array(n_slot, sizeof *index);
    if (!index)
        return nib_fail_nomem(err, n_slot * sizeof *index, "metadata index");
    mem_free(t->index);
    t->index = index;
    t->n_slot = n_slot;
    fill_index(t);
    return NIB_OK;
}

nib_status meta_table_add(meta_table *t, const char *key, size_t n_key, const meta_value *value, bool large,
                          nib_error *err) {
    if (memchr(key, 0, n_key))
        return nib_fail(err, NIB_E_MODEL, "a metadata key holds a NUL byte: '%.*s'", (int)NUM_MIN(n_key, 100),
                        key);
    NIB_TRY(grow(t, err));
    const char *copy = arena_strndup(&t->small, key, n_key);
    if (!copy)
        return nib_fail_nomem(err, n_key, "metadata key");
    const size_t slot = slot_of(t, copy, n_key);
    if (t->index[slot] != NO_ENTRY)
        return nib_fail(err, NIB_E_MODEL, "metadata key '%s' occurs twice", copy);
    t->entries[t->n] = (meta_entry){copy, *value, large};
    t->index[slot] = (uint32_t)t->n++;
    return NIB_OK;
}

const meta_entry *meta_table_find(const meta_table *t, const char *key) {
    if (!t->n)
        return NULL;
    const uint32_t i = t->index[slot_of(t, key, strlen(key))];
    return i == NO_ENTRY ? NULL : &t->entries[i];
}

static void *new_region(meta_table *t, size_t n_byte) {
    if (mem_grow((void **)&t->regions, &t->cap_region, t->n_region + 1, sizeof *t->regions))
        return NULL;
    void *p = mem_map(n_byte);
    if (p)
        t->regions[t->n_region++] = (meta_region){p, n_byte};
    return p;
}

nib_status meta_table_array(meta_table *t, size_t n, size_t each, void **out, bool *large, nib_error *err) {
    if (n > META_MAX_ELEMENTS - t->n_element)
        return nib_fail(err, NIB_E_MODEL, "metadata: expected at most %d elements in all arrays together",
                        META_MAX_ELEMENTS);
    const size_t n_byte = n * each;
    *large = n_byte >= LARGE_ARRAY;
    *out = *large ? new_region(t, n_byte) : arena_alloc(&t->small, n_byte ? n_byte : 1);
    if (!*out)
        return nib_fail_nomem(err, n_byte, "a metadata array");
    t->n_element += n;
    return NIB_OK;
}

bool meta_table_leaves_out(meta_table *t, const char *key, size_t n, size_t each) {
    static const char vocabulary[] = "tokenizer.";
    if (!t->vocabulary || n > META_MAX_ELEMENTS - t->n_element ||
        strncmp(key, vocabulary, sizeof vocabulary - 1))
        return false;
    t->n_element += n;
    t->left_out += n * each + LAST_PAGE;
    t->left_out_large = t->left_out_large || n * each >= LARGE_ARRAY;
    return true;
}

void meta_table_report(meta_table *t, const char *key, meta_type elem, int64_t number, size_t n_text) {
    t->left_out += n_text;
    t->vocabulary->element(t->vocabulary->user, key, elem, number);
}

/* Allows for the unused part of the newest text mapping, and for an arena's doubling chunks. */
uint64_t meta_table_left_out(const meta_table *t) {
    return t->left_out_large ? t->left_out + TEXT_CHUNK : 2 * t->left_out;
}

char *meta_table_text(meta_table *t, size_t n_byte, bool large) {
    if (n_byte == SIZE_MAX)
        return NULL;
    char *p;
    if (!large) {
        p = arena_alloc(&t->small, n_byte + 1);
    } else {
        if (n_byte + 1 > t->n_text) {
            const size_t n_chunk = NUM_MAX(n_byte + 1, (size_t)TEXT_CHUNK);
            p = new_region(t, n_chunk);
            if (!p)
                return NULL;
            t->text = p;
            t->n_text = n_chunk;
        }
        p = t->text;
        t->text += n_byte + 1;
        t->n_text -= n_byte + 1;
    }
    if (p)
        p[n_byte] = 0;
    return p;
}

void meta_table_drop_large(meta_table *t) {
    size_t kept = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (!t->entries[i].large)
            t->entries[kept++] = t->entries[i];
    }
    t->n = kept;
    if (t->index)
        fill_index(t);
    drop_regions(t);
}

uint64_t meta_table_bytes(const meta_table *t) {
    uint64_t n = t->cap * sizeof *t->entries + t->n_slot * sizeof *t->index + t->small.bytes;
    n += t->cap_region * sizeof *t->regions;
    for (size_t i = 0; i < t->n_region; i++)
        n += t->regions[i].n_byte;
    return n;
}

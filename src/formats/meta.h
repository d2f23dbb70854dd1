/* meta.h - the metadata table behind container_meta: a flat, hashed list of keys with typed values.
 *
 * The table owns every byte of its values. Small values are in an arena; large arrays (a vocabulary) have
 * their own mappings, so that meta_table_drop_large can return them to the system. Not thread-safe while it
 * is filled; read-only afterwards. */
#ifndef NIB_FORMATS_META_H
#define NIB_FORMATS_META_H

#include "base/arena.h"
#include "base/status.h"
#include "formats/container.h"

/* The largest real files have some hundred keys, and a vocabulary of 262,144 tokens with scores, types and
 * half a million merges. An element takes 8 to 16 bytes of memory, whatever its size in the file. */
enum { META_MAX_KEYS = 1 << 16, META_MAX_ELEMENTS = 1 << 22 };

typedef struct meta_entry {
    const char *key;
    meta_value value;
    bool large; /* the value is in a mapping of its own */
} meta_entry;

typedef struct meta_region {
    void *data;
    size_t n_byte;
} meta_region;

typedef struct meta_table {
    meta_entry *entries;
    size_t n, cap;
    size_t n_element; /* elements of all arrays so far */
    uint32_t *index;  /* entry numbers by hash, open addressing; UINT32_MAX: free */
    size_t n_slot;    /* a power of two, at least twice n */
    uint64_t seed;
    arena small;
    meta_region *regions;
    size_t n_region, cap_region;
    char *text;    /* the unused part of the newest mapping for text */
    size_t n_text; /* its bytes */
    const container_visitor
        *vocabulary;   /* gets the elements of left-out arrays; NULL: no array is left out */
    uint64_t left_out; /* bytes that they would take, large or small */
    bool left_out_large;
} meta_table;

void meta_table_init(meta_table *t);
void meta_table_deinit(meta_table *t);

/* Copies the key; the value's strings and arrays must come from the two functions below. A duplicate key, or
 * one with a NUL, is NIB_E_MODEL. */
nib_status meta_table_add(meta_table *t, const char *key, size_t n_key, const meta_value *value, bool large,
                          nib_error *err);
const meta_entry *meta_table_find(const meta_table *t, const char *key); /* NULL: not there */

/* Storage for n elements of an array; *large: it is a mapping of its own. More than META_MAX_ELEMENTS in all
 * arrays together is NIB_E_MODEL. */
nib_status meta_table_array(meta_table *t, size_t n, size_t each, void **out, bool *large, nib_error *err);
/* Whether an array of this key is left out and reported to t->vocabulary; its n elements are counted then. */
bool meta_table_leaves_out(meta_table *t, const char *key, size_t n, size_t each);
/* Reports one element of a left-out array; n_text: bytes of its text with a NUL. */
void meta_table_report(meta_table *t, const char *key, meta_type elem, int64_t number, size_t n_text);
uint64_t meta_table_left_out(const meta_table *t); /* upper bound, in bytes, of what was left out */
/* Storage for n bytes of text and a NUL, which is set; large: as the array's storage returned it. NULL: out
 * of memory. */
char *meta_table_text(meta_table *t, size_t n_byte, bool large);

void meta_table_drop_large(meta_table *t);      /* frees the large arrays and forgets their keys */
uint64_t meta_table_bytes(const meta_table *t); /* memory in use */

#endif

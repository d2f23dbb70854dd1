/* content_hash.c - identifies a model by 128 bits; see container_content_hash. */
#include "formats/container_impl.h"
#include "formats/packed_matrix.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static void add_bytes(XXH3_state_t *h, const void *data, size_t n) {
    XXH3_128bits_update(h, data, n);
}

static void add_u64(XXH3_state_t *h, uint64_t v) {
    add_bytes(h, &v, sizeof v);
}

/* The length is hashed too, so that two adjacent texts cannot be confused with two others. */
static void add_text(XXH3_state_t *h, const char *text, size_t n) {
    add_u64(h, n);
    add_bytes(h, text, n);
}

static void add_value(XXH3_state_t *h, const meta_value *v) {
    add_u64(h, (uint64_t)v->type);
    switch (v->type) {
    case META_BOOL: add_u64(h, v->v.b); break;
    case META_INT: add_u64(h, (uint64_t)v->v.i); break;
    case META_FLOAT: add_bytes(h, &v->v.f, sizeof v->v.f); break;
    case META_STRING: add_text(h, v->v.s.data, v->v.s.n_byte); break;
    case META_ARRAY:
        add_u64(h, (uint64_t)v->elem);
        add_u64(h, v->n);
        if (v->elem != META_STRING)
            add_bytes(h, v->v.ints, v->n * sizeof *v->v.ints);
        for (size_t i = 0; v->elem == META_STRING && i < v->n; i++)
            add_text(h, v->v.strings[i].data, v->v.strings[i].n_byte);
    }
}

static bool counts(const meta_entry *e) {
    return !e->large && strncmp(e->key, "tokenizer", 9) && strncmp(e->key, "generation.", 11) &&
           strncmp(e->key, "split.", 6);
}

static int by_key(const void *a, const void *b) {
    return strcmp((*(const meta_entry *const *)a)->key, (*(const meta_entry *const *)b)->key);
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(const container_tensor *const *)a)->name, (*(const container_tensor *const *)b)->name);
}

static nib_status add_meta(XXH3_state_t *h, const meta_table *t, nib_error *err) {
    const meta_entry **sorted = mem_array(t->n, sizeof(void *));
    if (!sorted)
        return nib_fail_nomem(err, t->n * sizeof(void *), "sorting metadata");
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (counts(&t->entries[i]))
            sorted[n++] = &t->entries[i];
    }
    qsort(sorted, n, sizeof(void *), by_key);
    for (size_t i = 0; i < n; i++) {
        add_text(h, sorted[i]->key, strlen(sorted[i]->key));
        add_value(h, &sorted[i]->value);
    }
    mem_free(sorted);
    return NIB_OK;
}

/* Offsets at which the samples of a tensor begin. Returns their number; 0: the tensor is read whole. */
static size_t samples_of(const container_tensor *t, uint64_t from[3]) {
    from[0] = 0;
    from[1] = t->bytes / 2 - CONTENT_SAMPLE / 2;
    from[2] = t->bytes - CONTENT_SAMPLE;
    return t->bytes <= 3 * CONTENT_SAMPLE ? 0 : 3;
}

/* A byte range of one file that the system is advised to read ahead. */
typedef struct wanted {
    file *f;
    uint64_t begin, end;
} wanted;

/* Ranges that are this close are joined: a disk needs as long for 4 KiB as for 36 KiB. */
#define NEAR ((uint64_t)32 << 10)

static void want(wanted *so_far, file *f, uint64_t begin, uint64_t n_byte) {
    if (so_far->f == f && begin >= so_far->begin && begin <= so_far->end + NEAR) {
        so_far->end = NUM_MAX(so_far->end, begin + n_byte);
        return;
    }
    if (so_far->f)
        file_will_need(so_far->f, so_far->begin, so_far->end - so_far->begin);
    *so_far = (wanted){f, begin, begin + n_byte};
}

/* Advises the system of all samples before the first is read: a cold disk then delivers in milliseconds what
 * takes a hundred one read after the other. Neighbouring ranges are joined, because a tensor begins where the
 * one before it ends. */
static void advise_samples(const container *c) {
    wanted so_far = {0};
    for (size_t i = 0; i < c->tensors.n; i++) {
        const container_tensor *t = &c->tensors.all[i];
        file *f = container_file(c, t->file);
        if (!f) /* computed from other tensors, which are advised themselves */
            continue;
        uint64_t from[3];
        size_t n = samples_of(t, from);
        if (n == 0)
            want(&so_far, f, t->offset, t->bytes);
        for (size_t j = 0; j < n; j++)
            want(&so_far, f, t->offset + from[j], CONTENT_SAMPLE);
    }
    want(&so_far, NULL, 0, 0);
}

static nib_status add_tensor(XXH3_state_t *h, const container *c, const container_tensor *t, nib_error *err) {
    if (t->packed)
        t = &t->packed->codes;
    uint8_t sample[3 * CONTENT_SAMPLE];
    file *f = container_file(c, t->file);
    const char *type = type_get(t->type)->name;
    add_text(h, t->name, strlen(t->name));
    add_text(h, type, strlen(type));
    add_u64(h, (uint64_t)t->n_dim);
    add_bytes(h, t->shape, (size_t)t->n_dim * sizeof *t->shape);
    uint64_t from[3];
    if (samples_of(t, from) == 0) {
        NIB_TRY(file_read_at(f, sample, t->offset, t->bytes, err));
        add_bytes(h, sample, (size_t)t->bytes);
        return NIB_OK;
    }
    for (size_t i = 0; i < NUM_COUNT(from); i++)
        NIB_TRY(file_read_at(f, sample + i * CONTENT_SAMPLE, t->offset + from[i], CONTENT_SAMPLE, err));
    add_bytes(h, sample, sizeof sample);
    return NIB_OK;
}

static nib_status add_tensors(XXH3_state_t *h, const container *c, nib_error *err) {
    const container_tensor **sorted = mem_array(c->tensors.n, sizeof(void *));
    if (!sorted)
        return nib_fail_nomem(err, c->tensors.n * sizeof(void *), "sorting tensors");
    for (size_t i = 0; i < c->tensors.n; i++)
        sorted[i] = &c->tensors.all[i];
    qsort(sorted, c->tensors.n, sizeof(void *), by_name);
    advise_samples(c);
    nib_status status = NIB_OK;
    for (size_t i = 0; i < c->tensors.n && status == NIB_OK; i++)
        status = add_tensor(h, c, sorted[i], err);
    mem_free(sorted);
    return status;
}

nib_status container_content_hash(const container *c, uint64_t out[2], nib_error *err) {
    XXH3_state_t h;
    XXH3_128bits_reset(&h);
    NIB_TRY(add_meta(&h, &c->meta, err));
    NIB_TRY(add_meta(&h, &c->nulls, err));
    NIB_TRY(add_tensors(&h, c, err));
    const XXH128_hash_t digest = XXH3_128bits_digest(&h);
    out[0] = digest.high64;
    out[1] = digest.low64;
    return NIB_OK;
}

nib_status container_content_key(const container *c, char out[CONTENT_KEY], nib_error *err) {
    uint64_t hash[2];
    NIB_TRY(container_content_hash(c, hash, err));
    snprintf(out, CONTENT_KEY, "%016llx%016llx", (unsigned long long)hash[0], (unsigned long long)hash[1]);
    return NIB_OK;
}

/* tensors.c - see tensors.h. */
#include "formats/tensors.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define NO_TENSOR UINT32_MAX

void tensor_table_init(tensor_table *t) {
    memset(t, 0, sizeof *t);
    t->seed = seed_secret();
    arena_init(&t->names);
}

void tensor_table_deinit(tensor_table *t) {
    mem_free(t->all);
    mem_free(t->index);
    arena_deinit(&t->names);
    memset(t, 0, sizeof *t);
}

static size_t slot_of(const tensor_table *t, const char *name, size_t n_name) {
    size_t slot = XXH3_64bits_withSeed(name, n_name, t->seed) & (t->n_slot - 1);
    while (t->index[slot] != NO_TENSOR && strcmp(t->all[t->index[slot]].name, name))
        slot = (slot + 1) & (t->n_slot - 1);
    return slot;
}

static nib_status grow(tensor_table *t, nib_error *err) {
    if (t->n >= MAX_TENSORS)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d tensors, found more", MAX_TENSORS);
    if (mem_grow((void **)&t->all, &t->cap, t->n + 1, sizeof *t->all))
        return nib_fail_nomem(err, (t->n + 1) * sizeof *t->all, "tensor table");
    if (2 * (t->n + 1) <= t->n_slot)
        return NIB_OK;
    const size_t n_slot = t->n_slot ? 2 * t->n_slot : 64;
    uint32_t *index = mem_array(n_slot, sizeof *index);
    if (!index)
        return nib_fail_nomem(err, n_slot * sizeof *index, "tensor index");
    mem_free(t->index);
    t->index = index;
    t->n_slot = n_slot;
    memset(index, 0xff, n_slot * sizeof *index);
    for (size_t i = 0; i < t->n; i++)
        index[slot_of(t, t->all[i].name, strlen(t->all[i].name))] = (uint32_t)i;
    return NIB_OK;
}

const char *tensor_shape_text(const container_tensor *t, char *out) {
    int n = sprintf(out, "[");
    for (int i = 0; i < t->n_dim; i++)
        n += sprintf(out + n, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    sprintf(out + n, "]");
    return out;
}

static nib_status measure(container_tensor *tensor, nib_error *err) {
    const type_info *type = type_get(tensor->type);
    const int64_t cols = tensor->n_dim ? tensor->shape[tensor->n_dim - 1] : 1;
    char shape[200];
    bool ok = type_row_bytes(tensor->type, cols, &tensor->bytes);
    for (int i = 0; ok && i < tensor->n_dim - 1; i++)
        ok = tensor->shape[i] >= 0 && num_mul_u64(tensor->bytes, (uint64_t)tensor->shape[i], &tensor->bytes);
    if (!ok)
        return nib_fail(err, NIB_E_MODEL,
                        "tensor '%s' has shape %s, which type %s (blocks of %d elements) cannot have",
                        tensor->name, tensor_shape_text(tensor, shape), type->name, type->block_elems);
    return NIB_OK;
}

nib_status tensor_table_place(tensor_table *t, size_t first, uint64_t data_begin, uint64_t data_end,
                              nib_error *err) {
    for (size_t i = first; i < t->n; i++) {
        container_tensor *a = &t->all[i];
        char shape[200];
        uint64_t begin, end;
        if (!num_add_u64(data_begin, a->offset, &begin) || !num_add_u64(begin, a->bytes, &end) ||
            end > data_end)
            return nib_fail(err, NIB_E_MODEL,
                            "tensor '%s' (%s %s) needs %" PRIu64 " bytes at %" PRIu64 " + %" PRIu64
                            ", but the file ends at %" PRIu64 " (cut off?)",
                            a->name, type_get(a->type)->name, tensor_shape_text(a, shape), a->bytes,
                            data_begin, a->offset, data_end);
        a->offset = begin;
    }
    return NIB_OK;
}

nib_status tensor_table_add(tensor_table *t, const char *name, size_t n_name, const container_tensor *tensor,
                            nib_error *err) {
    if (n_name == 0 || n_name > TENSOR_MAX_NAME || memchr(name, 0, n_name))
        return nib_fail(err, NIB_E_MODEL,
                        "tensor name of %zu bytes '%.*s', expected 1 to %d bytes without NUL", n_name,
                        (int)NUM_MIN(n_name, 100), name, TENSOR_MAX_NAME);
    NIB_TRY(grow(t, err));
    container_tensor *added = &t->all[t->n];
    *added = *tensor;
    added->name = arena_strndup(&t->names, name, n_name);
    if (!added->name)
        return nib_fail_nomem(err, n_name, "tensor name");
    NIB_TRY(measure(added, err));
    const size_t slot = slot_of(t, added->name, n_name);
    if (t->index[slot] != NO_TENSOR)
        return nib_fail(err, NIB_E_MODEL, "tensor '%s' occurs twice", added->name);
    t->index[slot] = (uint32_t)t->n++;
    return NIB_OK;
}

static uint32_t place_of(const tensor_table *t, const char *name) {
    return t->n ? t->index[slot_of(t, name, strlen(name))] : NO_TENSOR;
}

const container_tensor *tensor_table_find(const tensor_table *t, const char *name) {
    const uint32_t i = place_of(t, name);
    return i == NO_TENSOR ? NULL : &t->all[i];
}

bool tensor_table_replace(tensor_table *t, const char *name, const container_tensor *tensor) {
    const uint32_t i = place_of(t, name);
    if (i == NO_TENSOR)
        return false;
    const char *own = t->all[i].name;
    t->all[i] = *tensor;
    t->all[i].name = own;
    return true;
}

static int by_place(const void *a, const void *b) {
    const container_tensor *x = *(const container_tensor *const *)a, *y = *(const container_tensor *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

nib_status tensor_table_check_overlap(const tensor_table *t, nib_error *err) {
    const container_tensor **sorted = mem_array(t->n, sizeof(void *));
    if (!sorted)
        return nib_fail_nomem(err, t->n * sizeof(void *), "tensor extents");
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (t->all[i].bytes && !t->all[i].packed)
            sorted[n++] = &t->all[i];
    }
    qsort(sorted, n, sizeof(void *), by_place);
    nib_status status = NIB_OK;
    for (size_t i = 1; i < n && status == NIB_OK; i++) {
        const container_tensor *a = sorted[i - 1], *b = sorted[i];
        if (a->file == b->file && b->offset < a->offset + a->bytes)
            status =
                nib_fail(err, NIB_E_MODEL,
                         "tensors '%s' and '%s' overlap: bytes %" PRIu64 " to %" PRIu64 ", and from %" PRIu64,
                         a->name, b->name, a->offset, a->offset + a->bytes, b->offset);
    }
    mem_free(sorted);
    return status;
}

uint64_t tensor_table_bytes(const tensor_table *t) {
    return t->cap * sizeof *t->all + t->n_slot * sizeof *t->index + t->names.bytes;
}

/* kernel_map.c - see kernel_map.h. */
#include "kernels/kernel_map.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int64_t first, last;
    const char *name;
} buckets[ROW_BUCKETS] = {
    {1, 1, "1"},         {2, 2, "2"},
    {3, 3, "3"},         {4, 4, "4"},
    {5, 8, "5-8"},       {9, 16, "9-16"},
    {17, 32, "17-32"},   {33, 64, "33-64"},
    {65, 128, "65-128"}, {129, STRATEGY_ANY_ROWS, "129-"},
};

int64_t row_bucket_first(int bucket) {
    return buckets[bucket].first;
}

int64_t row_bucket_last(int bucket) {
    return buckets[bucket].last;
}

const char *row_bucket_name(int bucket) {
    return buckets[bucket].name;
}

int row_bucket_by_name(const char *name) {
    for (int b = 0; b < ROW_BUCKETS; b++)
        if (!strcmp(buckets[b].name, name))
            return b;
    return -1;
}

void kernel_map_clear(kernel_map *p) {
    mem_free(p->shapes);
    memset(p, 0, sizeof *p);
}

static kernel_map_shape *find(const kernel_map *p, int64_t n, int64_t k, const char *format, int act_bits) {
    for (int i = 0; i < p->n_shape; i++) {
        kernel_map_shape *s = &p->shapes[i];
        if (s->n == n && s->k == k && s->act_bits == act_bits && !strcmp(s->format, format))
            return s;
    }
    return NULL;
}

const kernel_map_shape *kernel_map_find(const kernel_map *p, int64_t n, int64_t k, const char *format,
                                        int act_bits) {
    return find(p, n, k, format, act_bits);
}

nib_status kernel_map_add(kernel_map *p, int64_t n, int64_t k, const char *format, int act_bits,
                          kernel_map_shape **out, nib_error *err) {
    kernel_map_shape *s = find(p, n, k, format, act_bits);
    if (!s) {
        if (p->n_shape >= KERNEL_MAP_MAX_SHAPES)
            return nib_fail(err, NIB_E_USAGE, "expected at most %d shapes in a kernel map, found more",
                            KERNEL_MAP_MAX_SHAPES);
        if (mem_grow((void **)&p->shapes, &p->cap, (size_t)p->n_shape + 1, sizeof *p->shapes))
            return nib_fail_nomem(err, ((size_t)p->n_shape + 1) * sizeof *p->shapes, "the kernel map");
        s = &p->shapes[p->n_shape++];
        memset(s, 0, sizeof *s);
        s->n = n;
        s->k = k;
        s->act_bits = act_bits;
        snprintf(s->format, sizeof s->format, "%s", format);
    }
    *out = s;
    return NIB_OK;
}

pack_kind kernel_map_packing(const kernel_map *p, int64_t n, int64_t k, const pack_format *f, int act_bits) {
    char format[PACK_NAME];
    pack_name(f, format);
    const kernel_map_shape *s =
        p && f->packing == PACK_PARTS ? kernel_map_find(p, n, k, format, act_bits) : NULL;
    return s ? s->packing : (pack_kind)f->packing;
}

bool row_bucket_can(const strategy *s, const pack_format *f, int bucket) {
    return s->can(f, buckets[bucket].first) && s->can(f, buckets[bucket].last);
}

const strategy *row_bucket_rule(const kernel_table *t, const pack_format *f, int bucket) {
    const int64_t rows[] = {buckets[bucket].last, buckets[bucket].first};
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        const strategy *s = strategy_by_rule(t, f, rows[i]);
        if (row_bucket_can(s, f, bucket))
            return s;
    }
    int i = 0;
    while (i < t->n_strategy - 1 && !row_bucket_can(t->strategies[i], f, bucket))
        i++;
    return t->strategies[i];
}

void kernel_map_choice(const kernel_map *p, const kernel_table *t, int64_t n, int64_t k, const pack_format *f,
                       int act_bits, kernel_choice *out) {
    char format[PACK_NAME];
    pack_name(f, format);
    const kernel_map_shape *s = p ? kernel_map_find(p, n, k, format, act_bits) : NULL;
    for (int b = 0; b < ROW_BUCKETS; b++) {
        const strategy *chosen = s ? s->by_bucket[b] : NULL;
        out->by_bucket[b] = chosen && row_bucket_can(chosen, f, b) ? chosen : row_bucket_rule(t, f, b);
    }
}

/* policy.c - see policy.h. */
#include "kernels/policy.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

static const struct {
    int64_t first, last;
    const char *name;
} buckets[POLICY_BUCKETS] = {
    {1, 1, "1"},         {2, 2, "2"},
    {3, 3, "3"},         {4, 4, "4"},
    {5, 8, "5-8"},       {9, 16, "9-16"},
    {17, 32, "17-32"},   {33, 64, "33-64"},
    {65, 128, "65-128"}, {129, STRATEGY_ANY_ROWS, "129-"},
};

int64_t policy_bucket_first(int bucket) {
    return buckets[bucket].first;
}

int64_t policy_bucket_last(int bucket) {
    return buckets[bucket].last;
}

const char *policy_bucket_name(int bucket) {
    return buckets[bucket].name;
}

int policy_bucket_by_name(const char *name) {
    for (int b = 0; b < POLICY_BUCKETS; b++)
        if (!strcmp(buckets[b].name, name))
            return b;
    return -1;
}

void policy_clear(policy *p) {
    mem_free(p->shapes);
    memset(p, 0, sizeof *p);
}

static policy_shape *find(const policy *p, int64_t n, int64_t k, const char *format, int act_bits) {
    for (int i = 0; i < p->n_shape; i++) {
        policy_shape *s = &p->shapes[i];
        if (s->n == n && s->k == k && s->act_bits == act_bits && !strcmp(s->format, format))
            return s;
    }
    return NULL;
}

const policy_shape *policy_find(const policy *p, int64_t n, int64_t k, const char *format, int act_bits) {
    return find(p, n, k, format, act_bits);
}

nib_status policy_add(policy *p, int64_t n, int64_t k, const char *format, int act_bits, policy_shape **out,
                      nib_error *err) {
    policy_shape *s = find(p, n, k, format, act_bits);
    if (!s) {
        if (p->n_shape >= POLICY_MAX_SHAPES)
            return nib_fail(err, NIB_E_USAGE, "expected at most %d shapes in a kernel map, found more",
                            POLICY_MAX_SHAPES);
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

pack_kind policy_packing(const policy *p, int64_t n, int64_t k, const pack_format *f, int act_bits) {
    char format[PACK_NAME];
    pack_name(f, format);
    const policy_shape *s = p && f->packing == PACK_PARTS ? policy_find(p, n, k, format, act_bits) : NULL;
    return s ? s->packing : (pack_kind)f->packing;
}

bool policy_can(const strategy *s, const pack_format *f, int bucket) {
    return s->can(f, buckets[bucket].first) && s->can(f, buckets[bucket].last);
}

const strategy *policy_rule(const kernel_table *t, const pack_format *f, int bucket) {
    const int64_t rows[] = {buckets[bucket].last, buckets[bucket].first};
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        const strategy *s = strategy_by_rule(t, f, rows[i]);
        if (policy_can(s, f, bucket))
            return s;
    }
    int i = 0;
    while (i < t->n_strategy - 1 && !policy_can(t->strategies[i], f, bucket))
        i++;
    return t->strategies[i];
}

void policy_choice(const policy *p, const kernel_table *t, int64_t n, int64_t k, const pack_format *f,
                   int act_bits, kernel_choice *out) {
    char format[PACK_NAME];
    pack_name(f, format);
    const policy_shape *s = p ? policy_find(p, n, k, format, act_bits) : NULL;
    for (int b = 0; b < POLICY_BUCKETS; b++) {
        const strategy *chosen = s ? s->by_bucket[b] : NULL;
        out->by_bucket[b] = chosen && policy_can(chosen, f, b) ? chosen : policy_rule(t, f, b);
    }
}

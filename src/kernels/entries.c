/* entries.c - see entries.h. */
#include "kernels/entries.h"

#include "base/num.h"

#include <math.h>
#include <string.h>

/* ---- pooling ---- */

/* Adds x with the logit g to a sum. */
static void add(float *max, float *weight, float *sum, float g, float x) {
    const float top = g > *max ? g : *max, before = expf(*max - top), now = expf(g - top);
    *max = top;
    *weight = *weight * before + now;
    *sum = *sum * before + now * x;
}

static void clear(float *state, int64_t n, int64_t c0, int64_t c1) {
    for (int64_t c = c0; c < c1; c++) {
        state[c] = -INFINITY;
        state[n + c] = state[2 * n + c] = 0;
    }
}

/* An entry begins: it is what the rows before have added to the next one. */
static void begin(const pool_args *a, bool first, int64_t c0, int64_t c1) {
    const int64_t n = a->n;
    float *next = a->state + 3 * n;
    if (a->k == n || first)
        clear(a->state, n, c0, c1);
    else
        for (int64_t i = 0; i < 3; i++)
            memcpy(a->state + i * n + c0, next + i * n + c0, (size_t)(c1 - c0) * sizeof *next);
    if (a->k > n)
        clear(next, n, c0, c1);
}

void entries_pool(const pool_args *a, int64_t c0, int64_t c1) {
    const int64_t n = a->n, own = a->k - n;
    float *s = a->state, *next = s + 3 * n;
    for (int64_t r = 0; r < a->n_row; r++) {
        const int64_t i = (a->position + r) % a->every;
        const float *x = a->x + r * a->k, *g = a->gate + r * a->k, *bias = a->bias + i * a->k;
        if (i == 0)
            begin(a, a->position + r == 0, c0, c1);
        for (int64_t c = c0; c < c1; c++)
            add(&s[c], &s[n + c], &s[2 * n + c], g[own + c] + bias[own + c], x[own + c]);
        for (int64_t c = c0; own > 0 && c < c1; c++)
            add(&next[c], &next[n + c], &next[2 * n + c], g[c] + bias[c], x[c]);
        for (int64_t c = c0; c < c1; c++)
            a->out[r * n + c] = i == a->every - 1 ? s[2 * n + c] / s[n + c] : 0;
    }
}

/* ---- storing ---- */

static int64_t entries_in_page(int64_t every, int64_t n_position) {
    return every >= KV_BLOCK ? n_position / KV_BLOCK : n_position / every;
}

uint64_t entries_page_bytes(type_id type, int64_t every, int64_t width, int64_t n_position) {
    return (uint64_t)(entries_in_page(every, n_position) * width) * (type == TYPE_F32 ? 4 : 2);
}

static uint8_t *entry_at(const kv_view *kv, bool is_index, int64_t entry) {
    const int64_t last = (entry + 1) * kv->every - 1, width = is_index ? kv->d_index : kv->d_head;
    const int64_t slot = kv->every >= KV_BLOCK ? 0 : last % KV_BLOCK / kv->every;
    return kv->entry_pages[last / KV_BLOCK] + (is_index ? kv->index_at : kv->entry_at) +
           slot * width * (kv->type == TYPE_F32 ? 4 : 2);
}

void entries_store(const kv_view *kv, bool is_index, int64_t position, const float *row) {
    const int64_t width = is_index ? kv->d_index : kv->d_head;
    if ((position + 1) % kv->every != 0)
        return;
    void *to = entry_at(kv, is_index, position / kv->every);
    if (kv->type == TYPE_F32)
        memcpy(to, row, (size_t)width * sizeof *row);
    for (int64_t i = 0; kv->type != TYPE_F32 && i < width; i++)
        ((uint16_t *)to)[i] = half_from_float(row[i]);
}

static const float *read_entry(const kv_view *kv, bool is_index, int64_t entry, float *row) {
    const int64_t width = is_index ? kv->d_index : kv->d_head;
    const void *from = entry_at(kv, is_index, entry);
    if (kv->type == TYPE_F32)
        return from;
    for (int64_t i = 0; i < width; i++)
        row[i] = half_to_float(((const uint16_t *)from)[i]);
    return row;
}

/* ---- choosing ---- */

static float dot(const float *x, const float *y, int64_t n) {
    enum { SUMS = 8 }; /* in a fixed order that a compiler may compute side by side */
    float sums[SUMS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int64_t k = 0; k < SUMS; k++)
            sums[k] += x[i + k] * y[i + k];
    for (; i < n; i++)
        sums[i % SUMS] += x[i] * y[i];
    for (int64_t k = 0; k < SUMS; k++)
        sum += sums[k];
    return sum;
}

static float score_of(const op *o, const float *q, const float *w, const float *key) {
    float sum = 0;
    for (int64_t h = 0; h < o->u.select.n_head; h++) {
        const float s = dot(q + h * o->u.select.d_head, key, o->u.select.d_head);
        sum += w[h] * (s > 0 ? s : 0);
    }
    return isnan(sum) ? -INFINITY : sum * o->u.select.scale;
}

/* Chosen entries as a heap with the worst one first: entry id[i] has the score[i]. */
typedef struct heap {
    float *score, *id;
    int64_t n;
} heap;

static bool is_worse(const heap *h, int64_t a, int64_t b) {
    return h->score[a] < h->score[b] || (h->score[a] == h->score[b] && h->id[a] > h->id[b]);
}

static void swap(heap *h, int64_t a, int64_t b) {
    const float score = h->score[a], id = h->id[a];
    h->score[a] = h->score[b];
    h->id[a] = h->id[b];
    h->score[b] = score;
    h->id[b] = id;
}

/* Moves the entry at place i down to its place. */
static void sink(heap *h, int64_t i) {
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && is_worse(h, child + 1, child))
            child++;
        if (!is_worse(h, child, i))
            return;
        swap(h, child, i);
    }
}

static void make_heap(heap *h) {
    for (int64_t i = h->n / 2; i-- > 0;)
        sink(h, i);
}

/* Orders the entries by their numbers: the largest one counts as the worst. */
static void sort(heap *h) {
    for (int64_t i = 0; i < h->n; i++)
        h->score[i] = -h->id[i];
    make_heap(h);
    while (h->n > 1) {
        swap(h, 0, --h->n);
        sink(h, 0);
    }
}

void entries_select(const kv_view *kv, const op *o, int64_t position, const float *q, const float *w,
                    float *scratch, float *out) {
    const int64_t n = entries_seen(kv, position);
    heap h = {.score = scratch, .id = out + 1, .n = NUM_MIN(n, o->u.select.n_used)};
    float *row = scratch + o->u.select.n_used;
    out[0] = (float)h.n;
    for (int64_t i = 0; i < h.n; i++)
        h.id[i] = (float)i;
    if (h.n == n)
        return;
    for (int64_t i = 0; i < h.n; i++)
        h.score[i] = score_of(o, q, w, read_entry(kv, true, i, row));
    make_heap(&h);
    for (int64_t i = h.n; i < n; i++) {
        const float score = score_of(o, q, w, read_entry(kv, true, i, row));
        if (!(score > h.score[0])) /* of equal ones the earlier */
            continue;
        h.score[0] = score;
        h.id[0] = (float)i;
        sink(&h, 0);
    }
    sort(&h);
}

void entries_gather(const kernel_table *t, const kv_view *kv, const float *chosen, int64_t first, int64_t n,
                    float *row, const kv_view *to) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t entry = chosen ? (int64_t)chosen[1 + first + i] : first + i;
        const float *from = read_entry(kv, false, entry, row);
        t->kv_store(to, false, i, from);
    }
}

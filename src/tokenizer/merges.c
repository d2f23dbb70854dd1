/* merges.c - see merges.h. Words are short: with up to SHORT symbols the best pair is found by a linear
 * search. Longer words use a heap of pairs, so a megabyte without a space costs n log n. Ranks are exact in
 * both methods, so both give the same tokens. */
#include "tokenizer/merge_word.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <string.h>

#define SHORT      40
#define HEAP_UNITS 32        /* units of work for a symbol */
#define MAX_MERGES (1 << 21) /* the largest published list has half a million */
#define NO_RANK    UINT32_MAX

static uint32_t pair_slot(const merges *m, uint32_t left, uint32_t right) {
    uint64_t h = (((uint64_t)left << 32 | right) ^ m->seed) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (uint32_t)(((h >> 32) * m->n_slot) >> 32);
}

static uint32_t slots_of(size_t n) {
    return (uint32_t)(n + n / 2 + 16);
}

nib_status merges_init_pairs(merges *m, size_t n, nib_error *err) {
    if (n > MAX_MERGES)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected at most %d merges, found %zu", MAX_MERGES, n);
    m->n_slot = slots_of(n);
    m->seed = seed_secret();
    m->pair = mem_array(m->n_slot, sizeof *m->pair);
    if (!m->pair)
        return nib_fail_nomem(err, m->n_slot * sizeof *m->pair, "the merges");
    memset(m->pair, 0xFF, m->n_slot * sizeof *m->pair);
    return NIB_OK;
}

void merges_deinit(merges *m) {
    mem_free(m->pair);
    mem_free(m->score);
}

static merge_pair *find_pair(const merges *m, uint32_t left, uint32_t right) {
    for (uint32_t i = pair_slot(m, left, right);; i = i + 1 < m->n_slot ? i + 1 : 0) {
        merge_pair *p = &m->pair[i];
        if ((p->left == left && p->right == right) || p->left == MERGE_FREE)
            return p;
    }
}

void merges_put(merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t joined) {
    *find_pair(m, left, right) = (merge_pair){left, right, rank, joined};
}

void merges_find_cuts(merges *m, const vocab *v) {
    memset(m->no_cut, 0, sizeof m->no_cut);
    for (int32_t id = 0; id < v->n; id++) {
        size_t n;
        const char *text = vocab_text(v, id, &n);
        if (!text || v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
            continue;
        for (const char *at = text;
             n >= 4 && (at = memmem(at + 1, (size_t)(text + n - at - 1), "\xE2\x96\x81", 3));) {
            unsigned char before = (unsigned char)at[-1];
            m->no_cut[before >> 3] |= (uint8_t)(1u << (before & 7));
        }
    }
}

size_t merges_heap_bytes(const merges *m) {
    return m->n_slot * sizeof *m->pair;
}

uint64_t merges_bytes(uint64_t n) {
    return n ? (uint64_t)slots_of((size_t)NUM_MIN(n, (uint64_t)MAX_MERGES)) * sizeof(merge_pair) : 0;
}

/* Allocates one block for the six arrays; their old content is lost. */
nib_status merge_reserve(merge_scratch *s, size_t n, nib_error *err) {
    if (n <= s->cap)
        return NIB_OK;
    size_t cap = n < 256 ? 256 : n;
    mem_free(s->id);
    s->cap = 0;
    s->id = mem_array(cap, 6 * sizeof(uint32_t));
    if (!s->id)
        return nib_fail_nomem(err, cap * 6 * sizeof(uint32_t), "encoding a long word");
    s->joined = s->id + cap;
    s->start = (uint32_t *)(s->joined + cap);
    s->next = s->start + cap;
    s->prev = s->next + cap;
    s->rank = s->prev + cap;
    s->cap = cap;
    return NIB_OK;
}

/* Higher scores first: the order of floats as unsigned integers, reversed. */
static uint32_t score_rank(float score) {
    uint32_t bits;
    score += 0.0f; /* makes -0 equal to 0 */
    memcpy(&bits, &score, 4);
    bits = bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
    return bits == NO_RANK ? NO_RANK - 1 : bits;
}

/* The rank of joining two symbols that cover text[begin, end); NO_RANK: they cannot be joined. */
static inline uint32_t pair_rank(const merge_word *w, int32_t left, int32_t right, size_t begin, size_t end,
                                 int32_t *joined) {
    const merges *m = w->m;
    if (m->kind != MERGES_SCORES) {
        const merge_pair *p = find_pair(m, (uint32_t)left, (uint32_t)right);
        *joined = (int32_t)p->joined;
        return p->left == MERGE_FREE ? NO_RANK : p->rank;
    }
    int32_t id = vocab_find(w->v, w->text + begin, end - begin);
    *joined = id;
    if (id < 0 || w->v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
        return NO_RANK;
    return score_rank(m->score[id]);
}

static size_t merge_short(const merge_word *w, size_t n) {
    merge_scratch *s = w->s;
    for (size_t i = 0; i + 1 < n; i++)
        s->rank[i] = pair_rank(w, s->id[i], s->id[i + 1], s->start[i], s->start[i + 2], &s->joined[i]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (s->rank[i] < s->rank[best])
                best = i;
        if (s->rank[best] == NO_RANK)
            break;
        s->id[best] = s->joined[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            s->id[i] = s->id[i + 1];
            s->start[i] = s->start[i + 1];
            s->rank[i] = s->rank[i + 1];
            s->joined[i] = s->joined[i + 1];
        }
        s->start[n] = s->start[n + 1];
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++)
            s->rank[i] = pair_rank(w, s->id[i], s->id[i + 1], s->start[i], s->start[i + 2], &s->joined[i]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t key = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n)
            break;
        if (child + 1 < n && heap[child + 1] < heap[child])
            child++;
        if (heap[child] >= key)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
}

static void sift_up(uint64_t *heap, size_t i) {
    uint64_t key = heap[i];
    while (i && heap[(i - 1) / 2] > key) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = key;
}

/* Sets rank and joined for symbol i and its right neighbour; returns whether they can be joined. */
static bool rate(const merge_word *w, uint32_t i, uint32_t n) {
    merge_scratch *s = w->s;
    uint32_t right = s->next[i];
    s->rank[i] = right >= n ? NO_RANK
                            : pair_rank(w, s->id[i], s->id[right], s->start[i], s->start[s->next[right]],
                                        &s->joined[i]);
    return s->rank[i] != NO_RANK;
}

/* Heap keys are rank << 32 | position. A key whose rank is no longer that of its position is stale. */
static nib_status merge_long(const merge_word *w, size_t *n_symbol, nib_error *err) {
    merge_scratch *s = w->s;
    uint32_t n = (uint32_t)*n_symbol;
    if (!work_take(s->work, (uint64_t)n * HEAP_UNITS))
        return work_over(s->work, "tokenizer: the BPE model", err);
    /* Each merge takes one key and leaves at most two, so there are never more than 2 n. */
    if (s->cap_heap < 2 * (size_t)n) {
        mem_free(s->heap);
        s->cap_heap = 0;
        s->heap = mem_array(2 * (size_t)n, sizeof *s->heap);
        if (!s->heap)
            return nib_fail_nomem(err, 2 * (size_t)n * sizeof *s->heap, "encoding a long word");
        s->cap_heap = 2 * (size_t)n;
    }
    for (uint32_t i = 0; i < n; i++) {
        s->next[i] = i + 1;
        s->prev[i] = i - 1;
    }
    s->next[n] = n + 1;
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++)
        if (rate(w, i, n))
            s->heap[n_heap++] = (uint64_t)s->rank[i] << 32 | i;
    for (size_t i = n_heap / 2; i-- > 0;)
        sift_down(s->heap, n_heap, i);
    while (n_heap) {
        uint64_t top = s->heap[0];
        s->heap[0] = s->heap[--n_heap];
        if (n_heap)
            sift_down(s->heap, n_heap, 0);
        uint32_t i = (uint32_t)top;
        if (s->rank[i] != top >> 32)
            continue;
        uint32_t gone = s->next[i], right = s->next[gone];
        s->id[i] = s->joined[i];
        s->next[i] = right;
        s->rank[gone] = NO_RANK;
        if (right < n)
            s->prev[right] = i;
        uint32_t again[2] = {i, i ? s->prev[i] : n};
        for (int k = 0; k < 2; k++) {
            if (again[k] >= n || !rate(w, again[k], n))
                continue;
            s->heap[n_heap] = (uint64_t)s->rank[again[k]] << 32 | again[k];
            sift_up(s->heap, n_heap++);
        }
    }
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i = s->next[i]) {
        s->id[kept] = s->id[i];
        s->start[kept++] = s->start[i];
    }
    s->start[kept] = s->start[n];
    *n_symbol = kept;
    return NIB_OK;
}

nib_status merge_symbols(const merge_word *w, size_t *n, nib_error *err) {
    if (*n > SHORT)
        return merge_long(w, n, err);
    *n = merge_short(w, *n);
    return NIB_OK;
}

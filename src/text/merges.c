/* merges.c - see merges.h. Words are short: up to SHORT symbols the best pair is found by looking at all of
 * them, above it a heap keeps the pairs in order, so a megabyte without a space costs n log n. Ranks are
 * exact in both ways, so they give the same tokens. */
#include "text/merges.h"
#include "text/state.h"
#include "text/unicode.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"

#include <string.h>

#define SHORT       40
#define MERGES_MOST (1 << 21) /* the largest published list has half a million */
#define NO_RANK     UINT32_MAX
#define CACHE_KEY   16
#define CACHE_IDS   7
#define CACHE_BITS  12

struct merge_cache_entry {
    uint64_t key[CACHE_KEY / 8];
    uint16_t n_byte, n_id;
    int32_t id[CACHE_IDS];
};

/* ---- the table of pairs ---- */

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
    if (n > MERGES_MOST)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected at most %d merges, found %zu", MERGES_MOST, n);
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
    return n ? (uint64_t)slots_of((size_t)NUM_MIN(n, (uint64_t)MERGES_MOST)) * sizeof(merge_pair) : 0;
}

/* ---- the work on one piece ---- */

typedef struct work {
    const merges *m;
    const vocab *v;
    merge_scratch *s;
    const char *text;
} work;

void merge_scratch_deinit(merge_scratch *s) {
    mem_free(s->id);
    mem_free(s->heap);
    mem_free(s->cache);
    memset(s, 0, sizeof *s);
}

nib_status merge_scratch_cache(merge_scratch *s, nib_error *err) {
    s->cache = mem_calloc((size_t)1 << CACHE_BITS, sizeof *s->cache);
    return s->cache ? NIB_OK : nib_fail_nomem(err, sizeof *s->cache << CACHE_BITS, "the word cache");
}

/* One block for the six arrays; what they held is not kept. */
static nib_status reserve(merge_scratch *s, size_t n, nib_error *err) {
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
    score += 0.0f; /* -0 and 0 are equal */
    memcpy(&bits, &score, 4);
    bits = bits >> 31 ? bits : ~bits & 0x7FFFFFFFu;
    return bits == NO_RANK ? NO_RANK - 1 : bits;
}

/* The rank of joining the symbols that cover text[begin, end); NO_RANK: they are no pair. */
static inline uint32_t pair_rank(const work *w, int32_t left, int32_t right, size_t begin, size_t end,
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

static size_t merge_short(const work *w, size_t n) {
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

/* Fills rank and joined for the symbol i and its right neighbour; true when they are a pair. */
static bool rate(const work *w, uint32_t i, uint32_t n) {
    merge_scratch *s = w->s;
    uint32_t right = s->next[i];
    s->rank[i] = right >= n ? NO_RANK
                            : pair_rank(w, s->id[i], s->id[right], s->start[i], s->start[s->next[right]],
                                        &s->joined[i]);
    return s->rank[i] != NO_RANK;
}

/* Heap keys are rank << 32 | position. A key whose rank is no longer that of its position is stale. */
static nib_status merge_long(const work *w, size_t *n_symbol, nib_error *err) {
    merge_scratch *s = w->s;
    uint32_t n = (uint32_t)*n_symbol;
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

static size_t add_symbol(merge_scratch *s, size_t n, int32_t id, size_t start) {
    s->id[n] = id;
    s->start[n] = (uint32_t)start;
    return n + 1;
}

/* Bytes of text[0..n_byte) as symbols, if the vocabulary has a token for each; else n as it was. */
static size_t add_bytes(const merges *m, merge_scratch *s, size_t n, const char *text, size_t start,
                        size_t n_byte) {
    for (size_t i = 0; i < n_byte; i++)
        if (m->byte_id[(unsigned char)text[start + i]] < 0)
            return n;
    for (size_t i = 0; i < n_byte; i++)
        n = add_symbol(s, n, m->byte_id[(unsigned char)text[start + i]], start + i);
    return n;
}

/* A byte that is no token is unknown; without a token for that, it is left out, now or behind the merging. */
static size_t symbols_of_bytes(const work *w, size_t n_byte) {
    const merges *m = w->m;
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n_byte; i++) {
        int32_t id = m->byte_id[(unsigned char)w->text[i]];
        bool unknown = id < 0;
        if (unknown && m->unk >= 0 && !(after_unk && m->fuse_unk))
            id = m->unk;
        if (id >= 0 || m->keeps_unknown)
            n = add_symbol(w->s, n, id, i);
        after_unk = unknown;
    }
    return n;
}

/* Listed pairs: characters that are no token become their bytes or the unknown token before any merging. */
static size_t symbols_of_chars(const work *w, size_t n_byte) {
    const merges *m = w->m;
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0, length; i < n_byte; i += length) {
        length = NUM_MIN(utf8_length((unsigned char)w->text[i]), n_byte - i);
        int32_t id = vocab_find_model(w->v, w->text + i, length);
        size_t before = n;
        if (id >= 0)
            n = add_symbol(w->s, n, id, i);
        else if (m->byte_fallback)
            n = add_bytes(m, w->s, n, w->text, i, length);
        if (n != before) {
            after_unk = false;
        } else if (m->unk >= 0) {
            if (!(after_unk && m->fuse_unk))
                n = add_symbol(w->s, n, m->unk, i);
            after_unk = true;
        }
    }
    return n;
}

/* Scores: characters stay characters while merging; id -1 is one that is no token. */
static size_t symbols_by_score(const work *w, size_t n_byte) {
    size_t n = 0;
    for (size_t i = 0, length; i < n_byte; i += length) {
        length = NUM_MIN(utf8_length((unsigned char)w->text[i]), n_byte - i);
        int32_t id = vocab_find(w->v, w->text + i, length);
        if (id >= 0 && w->v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
            id = -1;
        n = add_symbol(w->s, n, id, i);
    }
    return n;
}

/* A symbol that is no token: its bytes, else the unknown token, else nothing. */
static nib_status push_unknown(const work *w, size_t begin, size_t end, token_list *out, nib_error *err) {
    const merges *m = w->m;
    for (size_t i = begin; i < end; i++) {
        int32_t id = m->byte_id[(unsigned char)w->text[i]];
        if (id < 0) {
            if (m->unk >= 0)
                return token_list_push(out, m->unk, err);
            continue;
        }
        NIB_TRY(token_list_push(out, id, err));
    }
    return NIB_OK;
}

static nib_status push_symbols(const work *w, size_t n, token_list *out, nib_error *err) {
    const merge_scratch *s = w->s;
    for (size_t i = 0; i < n; i++) {
        if (s->id[i] >= 0)
            NIB_TRY(token_list_push(out, s->id[i], err));
        else
            NIB_TRY(push_unknown(w, s->start[i], s->start[i + 1], out, err));
    }
    return NIB_OK;
}

/* The id of a byte-level piece that is a token as a whole; -1: it is none. */
static int32_t whole_token(const merges *m, const vocab *v, const char *text, size_t n_byte) {
    char spelled[256];
    if (m->kind != MERGES_BYTES)
        return vocab_find_model(v, text, n_byte);
    size_t n = 0;
    for (size_t i = 0; i < n_byte; i++) {
        if (n + 4 > sizeof spelled)
            return -1;
        n += utf8_put(byte_to_char((unsigned char)text[i]), spelled + n);
    }
    return vocab_find_model(v, spelled, n);
}

static nib_status encode_word(const work *w, size_t n_byte, token_list *out, nib_error *err) {
    const merges *m = w->m;
    if (m->whole_first) {
        int32_t id = whole_token(m, w->v, w->text, n_byte);
        if (id >= 0)
            return token_list_push(out, id, err);
    }
    NIB_TRY(reserve(w->s, n_byte + 2, err));
    size_t n = m->kind == MERGES_BYTES   ? symbols_of_bytes(w, n_byte)
               : m->kind == MERGES_CHARS ? symbols_of_chars(w, n_byte)
                                         : symbols_by_score(w, n_byte);
    w->s->start[n] = (uint32_t)n_byte;
    if (n <= SHORT)
        n = merge_short(w, n);
    else
        NIB_TRY(merge_long(w, &n, err));
    return push_symbols(w, n, out, err);
}

/* Most of a text is the same few thousand words; they are short. */
static nib_status encode_cached(const work *w, size_t n_byte, token_list *out, nib_error *err) {
    merge_scratch *s = w->s;
    if (!s->cache || n_byte > CACHE_KEY)
        return encode_word(w, n_byte, out, err);
    uint64_t key[2] = {0, 0};
    memcpy(key, w->text, n_byte);
    uint64_t h = (key[0] ^ (key[1] * 0x9E3779B97F4A7C15u) ^ n_byte) * 0xBF58476D1CE4E5B9u;
    struct merge_cache_entry *e = &s->cache[h >> (64 - CACHE_BITS)];
    if (e->n_byte == n_byte && e->key[0] == key[0] && e->key[1] == key[1]) {
        for (size_t i = 0; i < e->n_id; i++)
            NIB_TRY(token_list_push(out, e->id[i], err));
        return NIB_OK;
    }
    size_t before = out->n;
    NIB_TRY(encode_word(w, n_byte, out, err));
    size_t n = out->n - before;
    if (n && n <= CACHE_IDS) {
        e->key[0] = key[0];
        e->key[1] = key[1];
        e->n_byte = (uint16_t)n_byte;
        e->n_id = (uint16_t)n;
        memcpy(e->id, out->data + before, n * sizeof *e->id);
    }
    return NIB_OK;
}

/* A byte that claims bytes behind the end of the text at `at`, as only damaged text has one. */
static bool reaches_over(const char *begin, const char *at) {
    for (int back = 1; back <= 3 && at - back >= begin; back++)
        if (utf8_length((unsigned char)at[-back]) > (size_t)back)
            return true;
    return false;
}

/* Where a text may be cut so that no token of a scored vocabulary reaches over the cut: before a U+2581 that
 * follows a byte which precedes it inside no token. */
static size_t next_cut(const merges *m, const char *text, size_t n) {
    for (const char *at = text; n - (size_t)(at - text) > 3;) {
        at = memmem(at + 1, n - (size_t)(at - text) - 1, "\xE2\x96\x81", 3);
        if (!at)
            break;
        unsigned char before = (unsigned char)at[-1];
        if (!(m->no_cut[before >> 3] >> (before & 7) & 1) && !reaches_over(text, at))
            return (size_t)(at - text);
    }
    return n;
}

nib_status merges_encode(const merges *m, const vocab *v, merge_scratch *s, const char *text, size_t n_byte,
                         token_list *out, nib_error *err) {
    work w = {m, v, s, text};
    if (!n_byte)
        return NIB_OK;
    if (m->kind != MERGES_SCORES)
        return encode_cached(&w, n_byte, out, err);
    while (n_byte) {
        size_t cut = next_cut(m, w.text, n_byte);
        NIB_TRY(encode_cached(&w, cut, out, err));
        w.text += cut;
        n_byte -= cut;
    }
    return NIB_OK;
}

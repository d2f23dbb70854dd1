/* unigram.c - see unigram.h. */
#include "text/unigram.h"
#include "text/state.h"
#include "text/unicode.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

/* What an unknown character costs more than the least likely token (sentencepiece, kUnkPenalty). */
#define UNK_PENALTY 10.0
#define NOWHERE     UINT32_MAX

struct unigram_node {
    double score;
    uint32_t from; /* where the token that ends here begins; NOWHERE: no way leads here */
    int32_t id;
};

nib_status unigram_init(unigram *u, const vocab *v, nib_error *err) {
    text_key *key = mem_array((size_t)v->n, sizeof *key);
    double least = INFINITY;
    size_t n = 0;
    if (!key || !mem_bound_take((size_t)v->n * sizeof *key)) { /* as much again for qsort */
        mem_free(key);
        return nib_fail_nomem(err, (size_t)v->n * sizeof *key, "the vocabulary");
    }
    for (int32_t id = 0; id < v->n_model; id++) {
        size_t n_byte;
        const char *text = vocab_text(v, id, &n_byte);
        if (!text || !n_byte || id == u->unk || v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
            continue;
        if (u->score[id] < least)
            least = u->score[id];
        key[n++] = (text_key){text, (uint32_t)n_byte, id};
    }
    text_key_sort(key, n, u->first);
    u->unk_score = (n ? least : 0) - UNK_PENALTY;
    u->sorted = mem_array(n, sizeof *u->sorted);
    if (!u->sorted) {
        mem_free(key);
        return nib_fail_nomem(err, n * sizeof *u->sorted, "the vocabulary");
    }
    u->n_sorted = n;
    for (size_t i = 0; i < n; i++)
        u->sorted[i] = key[i].id;
    mem_free(key);
    return NIB_OK;
}

void unigram_deinit(unigram *u) {
    mem_free(u->score);
    mem_free(u->sorted);
}

size_t unigram_heap_bytes(const unigram *u, const vocab *v) {
    return u->score ? (size_t)v->n * sizeof *u->score + u->n_sorted * sizeof *u->sorted : 0;
}

uint64_t unigram_bytes(uint64_t n) {
    return n * (sizeof(double) + sizeof(int32_t));
}

/* The keys, and as much again for sorting them. */
uint64_t unigram_bytes_most(uint64_t n) {
    return unigram_bytes(n) + 2 * n * sizeof(text_key);
}

void unigram_scratch_deinit(unigram_scratch *s) {
    mem_free(s->node);
    memset(s, 0, sizeof *s);
}

/* In [low, high), equal up to `depth`: the first whose byte there is at least b; ended ones come first. */
static uint32_t lower(const unigram *u, const vocab *v, uint32_t low, uint32_t high, size_t depth, int b) {
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        size_t n;
        const char *text = vocab_text(v, u->sorted[mid], &n);
        int here = n > depth ? (unsigned char)text[depth] : -1;
        if (here < b)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static void relax(struct unigram_node *node, double score, size_t from, int32_t id) {
    if (node->from != NOWHERE && !(score > node->score))
        return;
    *node = (struct unigram_node){score, (uint32_t)from, id};
}

/* All tokens that begin at `at`; the unknown token where none covers exactly the first character. */
static void extend(const unigram *u, const vocab *v, struct unigram_node *node, const char *text, size_t n,
                   size_t at) {
    unsigned char b = (unsigned char)text[at];
    uint32_t low = u->first[b], high = u->first[b + 1];
    size_t character = utf8_length(b);
    bool single = false;
    for (size_t depth = 1; low < high; depth++) {
        for (; low < high; low++) {
            size_t length;
            vocab_text(v, u->sorted[low], &length);
            if (length != depth)
                break;
            relax(&node[at + depth], node[at].score + u->score[u->sorted[low]], at, u->sorted[low]);
            single = single || depth == character;
        }
        if (at + depth >= n)
            break;
        int next = (unsigned char)text[at + depth];
        low = lower(u, v, low, high, depth, next);
        high = lower(u, v, low, high, depth, next + 1);
    }
    if (!single)
        relax(&node[at + character], node[at].score + u->unk_score, at, u->unk);
}

static nib_status push_unknown(const unigram *u, const char *text, size_t n, token_list *out,
                               nib_error *err) {
    bool bytes = u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = u->byte_id[(unsigned char)text[i]] >= 0;
    if (!bytes && u->unk < 0)
        return nib_fail(err, NIB_E_FAILED,
                        "the vocabulary has no token for a character of the text, nor an unknown token");
    if (!bytes)
        return token_list_push(out, u->unk, err);
    for (size_t i = 0; i < n; i++)
        NIB_TRY(token_list_push(out, u->byte_id[(unsigned char)text[i]], err));
    return NIB_OK;
}

nib_status unigram_encode(const unigram *u, const vocab *v, unigram_scratch *s, const char *text, size_t n,
                          token_list *out, nib_error *err) {
    if (mem_grow((void **)&s->node, &s->cap, n + 1, sizeof *s->node))
        return nib_fail_nomem(err, (n + 1) * sizeof *s->node, "encoding a text");
    struct unigram_node *node = s->node;
    for (size_t i = 0; i <= n; i++)
        node[i].from = NOWHERE;
    node[0] = (struct unigram_node){0, 0, -1};
    for (size_t at = 0; at < n; at += utf8_length((unsigned char)text[at]))
        extend(u, v, node, text, n, at);
    /* Backwards along the best way, each node learns where the token that begins there ends. */
    for (size_t end = n; end > 0; end = node[end].from)
        node[node[end].from].score = (double)end;
    for (size_t at = 0; at < n;) {
        size_t begin = at;
        int32_t id;
        do {
            at = (size_t)node[at].score;
            id = node[at].id;
        } while (id == u->unk && u->fuse_unk && at < n && node[(size_t)node[at].score].id == u->unk);
        if (id == u->unk)
            NIB_TRY(push_unknown(u, text + begin, at - begin, out, err));
        else
            NIB_TRY(token_list_push(out, id, err));
    }
    return NIB_OK;
}

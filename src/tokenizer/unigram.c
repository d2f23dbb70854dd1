/* unigram.c - see unigram.h. */
#include "tokenizer/unigram.h"
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <math.h>

/* The score of an unknown character is this much below that of the least likely token (sentencepiece,
 * kUnkPenalty). */
#define UNK_PENALTY 10.0
#define NOWHERE     UINT32_MAX

struct unigram_node {
    double score;
    uint32_t from; /* start of the best token that ends here; NOWHERE: no sequence of tokens ends here */
    int32_t id;
};

nib_status unigram_init(unigram *u, const vocab *v, nib_error *err) {
    text_keys *k = &u->keys;
    double min = INFINITY;
    k->cap = (size_t)v->n;
    k->item = mem_array(k->cap, sizeof *k->item);
    if (!k->item || !mem_bound_take(k->cap * sizeof *k->item)) /* qsort needs as much memory again */
        return nib_fail_nomem(err, k->cap * sizeof *k->item, "the vocabulary");
    for (int32_t id = 0; id < v->n_model; id++) {
        size_t n_byte;
        const char *text = vocab_text(v, id, &n_byte);
        if (!text || !n_byte || id == u->unk || v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
            continue;
        if (u->score[id] < min)
            min = u->score[id];
        k->item[k->n++] = (text_key){text, (uint32_t)n_byte, id};
    }
    text_keys_sort(k);
    u->unk_score = (k->n ? min : 0) - UNK_PENALTY;
    return NIB_OK;
}

void unigram_deinit(unigram *u) {
    mem_free(u->score);
    mem_free(u->keys.item);
}

size_t unigram_heap_bytes(const unigram *u, const vocab *v) {
    return u->score ? (size_t)v->n * sizeof *u->score + u->keys.cap * sizeof *u->keys.item : 0;
}

uint64_t unigram_bytes(uint64_t n) {
    return n * (sizeof(double) + sizeof(text_key));
}

/* Twice the memory, because sorting the keys needs as much again. */
uint64_t max_unigram_bytes(uint64_t n) {
    return unigram_bytes(n) + n * sizeof(text_key);
}

void unigram_scratch_deinit(unigram_scratch *s) {
    mem_free(s->node);
    *s = (unigram_scratch){.work = s->work};
}

static void relax(struct unigram_node *node, double score, size_t from, int32_t id) {
    if (node->from != NOWHERE && !(score > node->score))
        return;
    *node = (struct unigram_node){score, (uint32_t)from, id};
}

/* Extends the best sequences by all tokens that begin at `at`, and by the unknown token if none of them is
 * exactly the first character. */
static uint64_t extend(const unigram *u, struct unigram_node *node, const char *text, size_t n, size_t at) {
    size_t character = utf8_length((unsigned char)text[at]);
    text_walk walk = text_walk_of(&u->keys, text + at);
    bool single = false;
    for (const text_key *key; (key = text_walk_next(&walk, &u->keys, text + at, n - at));) {
        relax(&node[at + key->n_byte], node[at].score + u->score[key->id], at, key->id);
        single = single || key->n_byte == character;
    }
    if (!single)
        relax(&node[at + character], node[at].score + u->unk_score, at, u->unk);
    return walk.units;
}

static nib_status push_unknown(const unigram *u, const char *text, size_t n, token_list *out,
                               nib_error *err) {
    bool bytes = u->byte_fallback;
    for (size_t i = 0; i < n && bytes; i++)
        bytes = u->byte_id[(unsigned char)text[i]] >= 0;
    if (!bytes && u->unk < 0)
        return nib_fail(
            err, NIB_E_FAILED,
            "expected a token for every character of the text, or an unknown token, found neither");
    if (!bytes)
        return token_list_push(out, u->unk, err);
    for (size_t i = 0; i < n; i++)
        NIB_TRY(token_list_push(out, u->byte_id[(unsigned char)text[i]], err));
    return NIB_OK;
}

nib_status unigram_encode(const unigram *u, unigram_scratch *s, const char *text, size_t n, token_list *out,
                          nib_error *err) {
    if (mem_grow((void **)&s->node, &s->cap, n + 1, sizeof *s->node))
        return nib_fail_nomem(err, (n + 1) * sizeof *s->node, "encoding a text");
    struct unigram_node *node = s->node;
    for (size_t i = 0; i <= n; i++)
        node[i].from = NOWHERE;
    node[0] = (struct unigram_node){0, 0, -1};
    for (size_t at = 0; at < n; at += utf8_length((unsigned char)text[at]))
        if (!work_take(s->work, extend(u, node, text, n, at)))
            return work_over(s->work, "tokenizer: the Unigram model", err);
    /* Walks back along the best sequence, and stores in each node the end of the token that begins there. */
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

/* trie.c - see trie.h. Tokens are sorted by their bytes. Then each token adds the nodes for the bytes that it
 * does not share with the token before it, in the order of the array. */
#include "grammar/trie.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

typedef struct piece {
    uint32_t at, n; /* its bytes in the texts */
    int32_t token;
} piece;

typedef struct maker {
    text_buffer text;
    piece *pieces;
    uint32_t n_piece;
} maker;

static int by_bytes(const void *a, const void *b, void *texts) {
    const piece *x = a, *y = b;
    const char *text = texts;
    const int order = memcmp(text + x->at, text + y->at, NUM_MIN(x->n, y->n));
    if (order)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

static nib_status gather(maker *m, const tokenizer *of, int32_t n, nib_error *err) {
    m->pieces = mem_array((size_t)n + 1, sizeof *m->pieces);
    if (!m->pieces)
        return nib_fail_nomem(err, (size_t)n * sizeof *m->pieces, "the tokens' bytes");
    for (int32_t id = 0; id < n; id++) {
        const size_t from = m->text.n;
        NIB_TRY(tokenizer_bytes(of, id, &m->text, err));
        const size_t length = m->text.n - from;
        if (length == 0 || length > TRIE_MAX_TOKEN || m->text.n > UINT32_MAX)
            m->text.n = from;
        else
            m->pieces[m->n_piece++] = (piece){(uint32_t)from, (uint32_t)length, id};
    }
    qsort_r(m->pieces, m->n_piece, sizeof *m->pieces, by_bytes, m->text.data);
    return NIB_OK;
}

/* Number of leading bytes that piece i shares with the one before it. */
static uint32_t shared(const maker *m, uint32_t i) {
    if (i == 0)
        return 0;
    const piece *a = &m->pieces[i - 1], *b = &m->pieces[i];
    const uint32_t n = NUM_MIN(a->n, b->n);
    uint32_t k = 0;
    while (k < n && m->text.data[a->at + k] == m->text.data[b->at + k])
        k++;
    return k;
}

static uint32_t count_nodes(const maker *m) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < m->n_piece; i++)
        n += m->pieces[i].n - shared(m, i);
    return n;
}

static uint64_t bytes_of(uint64_t n_node, uint64_t n_token, uint64_t n_vocab) {
    return n_node * (1 + sizeof(uint16_t) + 3 * sizeof(uint32_t)) + sizeof(uint32_t) +
           (n_token + n_vocab) * sizeof(uint32_t);
}

static nib_status take_memory(trie *t, nib_error *err) {
    const size_t n = t->n_node;
    t->n_byte = bytes_of(n, t->n_token, (uint64_t)t->n_vocab);
    const nib_status status = ledger_charge(t->ledger, PLACE_RAM, NIB_OWNER_TABLES, t->n_byte, err);
    if (status != NIB_OK) {
        t->n_byte = 0;
        return status;
    }
    mem_bound_except((int64_t)t->n_byte);
    t->byte = mem_alloc(n);
    t->depth = mem_array(n, sizeof *t->depth);
    t->skip = mem_array(n, sizeof *t->skip);
    t->parent = mem_array(n, sizeof *t->parent);
    t->first = mem_array(n + 1, sizeof *t->first);
    t->order = mem_array((size_t)t->n_token + 1, sizeof *t->order);
    t->node_of = mem_calloc((size_t)t->n_vocab + 1, sizeof *t->node_of);
    if (!t->byte || !t->depth || !t->skip || !t->parent || !t->first || !t->order || !t->node_of)
        return nib_fail_nomem(err, t->n_byte, "the vocabulary's trie");
    return NIB_OK;
}

static void fill(trie *t, const maker *m) {
    uint32_t path[TRIE_MAX_TOKEN + 1] = {0}, n = 1, open = 0; /* nodes from the root to the last one */
    t->byte[0] = 0;
    t->depth[0] = 0;
    t->parent[0] = 0;
    t->first[0] = 0;
    for (uint32_t i = 0; i < m->n_piece; i++) {
        const piece *p = &m->pieces[i];
        for (const uint32_t same = shared(m, i); open > same; open--)
            t->skip[path[open]] = n;
        for (; open < p->n; n++) {
            t->parent[n] = path[open];
            t->byte[n] = (uint8_t)m->text.data[p->at + open];
            path[++open] = n;
            t->depth[n] = (uint16_t)open;
            t->first[n] = i;
        }
        t->order[i] = p->token;
        t->node_of[p->token] = path[open];
        t->max_depth = NUM_MAX(t->max_depth, p->n);
    }
    for (; open > 0; open--)
        t->skip[path[open]] = n;
    t->skip[0] = n;
    t->first[n] = t->n_token;
}

nib_status trie_open(trie *t, const tokenizer *of, int64_t n_vocab, ledger *l, nib_error *err) {
    maker m = {0};
    memset(t, 0, sizeof *t);
    t->ledger = l;
    t->n_vocab = (int32_t)NUM_MIN((int64_t)tokenizer_n_vocab(of), n_vocab);
    nib_status status = gather(&m, of, t->n_vocab, err);
    if (status == NIB_OK) {
        t->n_token = m.n_piece;
        t->n_node = count_nodes(&m);
        status = take_memory(t, err);
    }
    if (status == NIB_OK)
        fill(t, &m);
    else
        trie_close(t);
    text_buffer_clear(&m.text);
    mem_free(m.pieces);
    return status;
}

void trie_close(trie *t) {
    mem_free(t->byte);
    mem_free(t->depth);
    mem_free(t->skip);
    mem_free(t->parent);
    mem_free(t->first);
    mem_free(t->order);
    mem_free(t->node_of);
    if (t->n_byte)
        ledger_release(t->ledger, PLACE_RAM, NIB_OWNER_TABLES, t->n_byte);
    mem_bound_except(-(int64_t)t->n_byte);
    memset(t, 0, sizeof *t);
}

uint64_t trie_bytes(int64_t n_vocab) {
    const uint64_t n = (uint64_t)n_vocab;
    /* published vocabularies have 1.9 to 2.8 nodes a token; building takes 20 more bytes a token */
    return bytes_of(3 * n, n, n) + 20 * n;
}

uint32_t trie_token(const trie *t, int32_t token, uint8_t *out) {
    const uint32_t node = token >= 0 && token < t->n_vocab ? t->node_of[token] : 0;
    const uint32_t n = node ? t->depth[node] : 0;
    for (uint32_t at = node, i = n; i > 0; at = t->parent[at])
        out[--i] = t->byte[at];
    return n;
}

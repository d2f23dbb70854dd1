/* grammar.c - stores the grammars of an engine, and computes the masks of their states. See grammar.h. */
#include "grammar/grammar_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

/* Bytes for a grammar's states, and for its masks (1,000 masks of 128,000 tokens). Under a cap together at
 * most a 64th of it. */
enum { USUAL_BYTES = 8 << 20, USUAL_MASK_BYTES = 16 << 20, CAP_SHARE = 64, MIN_MASKS = 8 };

/* ---- the store ---- */

void grammar_store_open(grammar_store *s, ledger *l, const tokenizer *t, int64_t n_vocab) {
    *s = (grammar_store){.ledger = l, .tokenizer = t, .n_vocab = n_vocab};
    pthread_mutex_init(&s->lock, NULL);
    const int32_t n = t ? tokenizer_n_vocab(t) : 0;
    for (int32_t id = 0; id < n && id < n_vocab && s->n_end < GRAMMAR_ENDS; id++)
        if (tokenizer_is_end(t, id))
            s->ends[s->n_end++] = id;
}

static uint64_t state_bytes(uint64_t cap) {
    const uint64_t n = cap == NIB_AUTO ? USUAL_BYTES : NUM_MIN(cap / CAP_SHARE / 2, (uint64_t)USUAL_BYTES);
    return NUM_MAX(n, AUTOMATON_MIN_BYTES);
}

static uint64_t mask_words(int64_t n_vocab) {
    return ((uint64_t)n_vocab + 63) / 64;
}

static uint64_t mask_bytes(uint64_t cap, int64_t n_vocab) {
    const uint64_t n =
        cap == NIB_AUTO ? USUAL_MASK_BYTES : NUM_MIN(cap / CAP_SHARE / 2, (uint64_t)USUAL_MASK_BYTES);
    return NUM_MAX(n, MIN_MASKS * mask_words(n_vocab) * sizeof(uint64_t));
}

uint64_t grammar_bytes(uint64_t cap, int64_t n_vocab) {
    const uint64_t usual = 256 << 10; /* bytes of a usual pda */
    return trie_bytes(n_vocab) + usual + state_bytes(cap) + mask_bytes(cap, n_vocab);
}

static void grammar_free(grammar *g) {
    automaton_close(&g->automaton);
    pda_clear(&g->pda);
    if (g->masks)
        mem_unmap(g->masks, g->n_mask_byte);
    mem_free(g->mask_of);
    mem_free(g->of_epoch);
    mem_free(g->used);
    mem_free(g->path);
    mem_free(g->text);
    ledger_release(g->store->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    mem_bound_except(-(int64_t)g->charged);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* Frees the unused grammars, except the first `kept` of them. */
static void drop_idle(grammar_store *s, int kept) {
    for (grammar **at = &s->first; *at;) {
        grammar *g = *at;
        if (g->refs > 0 || kept-- > 0) {
            at = &g->next;
            continue;
        }
        *at = g->next;
        grammar_free(g);
    }
}

void grammar_store_close(grammar_store *s) {
    if (!s->ledger)
        return;
    drop_idle(s, 0);
    if (s->has_trie)
        trie_close(&s->trie);
    pthread_mutex_destroy(&s->lock);
    memset(s, 0, sizeof *s);
}

/* ---- making a grammar ---- */

static nib_status charge(grammar *g, nib_error *err) {
    grammar_store *s = g->store;
    const uint64_t n = g->n_state_byte + g->n_mask_byte + pda_bytes(&g->pda) + g->n_byte;
    nib_status status = ledger_charge(s->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, n, err);
    if (status == NIB_E_NOFIT) {
        drop_idle(s, 0);
        status = ledger_charge(s->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, n, err);
    }
    if (status != NIB_OK)
        return nib_fail_prefix(err, status, "a grammar");
    g->charged = n;
    mem_bound_except((int64_t)n);
    return NIB_OK;
}

static nib_status take_memory(grammar *g, nib_error *err) {
    grammar_store *s = g->store;
    const uint64_t cap = ledger_cap(s->ledger, PLACE_RAM);
    g->n_state_byte = state_bytes(cap);
    g->n_mask_byte = mask_bytes(cap, s->n_vocab);
    NIB_TRY(charge(g, err));
    NIB_TRY(automaton_open(&g->automaton, &g->pda, g->n_state_byte, err));
    g->n_word = (uint32_t)mask_words(s->n_vocab);
    g->n_slot = (uint32_t)(g->n_mask_byte / (g->n_word * sizeof(uint64_t)));
    g->masks = mem_map_sparse(g->n_mask_byte);
    g->mask_of = mem_array(g->n_slot, sizeof *g->mask_of);
    g->of_epoch = mem_calloc(g->n_slot, sizeof *g->of_epoch);
    g->used = mem_calloc(g->n_slot, sizeof *g->used);
    g->path = mem_array((size_t)s->trie.max_depth + 1, sizeof *g->path);
    if (!g->masks || !g->mask_of || !g->of_epoch || !g->used || !g->path)
        return nib_fail_nomem(err, g->n_mask_byte, "a grammar's masks");
    return NIB_OK;
}

static nib_status make(grammar_store *s, const char *text, size_t n_byte, grammar **out, nib_error *err) {
    grammar *g = mem_calloc(1, sizeof *g);
    if (!g)
        return nib_fail_nomem(err, sizeof *g, "a grammar");
    g->store = s;
    g->n_byte = n_byte;
    pthread_mutex_init(&g->lock, NULL);
    nib_status status = pda_parse(text, n_byte, &g->pda, err);
    if (status == NIB_OK && !(g->text = mem_strndup(text, n_byte)))
        status = nib_fail_nomem(err, n_byte, "a grammar");
    if (status == NIB_OK && !s->has_trie) {
        status = trie_open(&s->trie, s->tokenizer, s->n_vocab, s->ledger, err);
        s->has_trie = status == NIB_OK;
    }
    if (status == NIB_OK)
        status = take_memory(g, err);
    if (status == NIB_OK)
        *out = g;
    else
        grammar_free(g);
    return status;
}

static grammar *find(grammar_store *s, const char *text, size_t n_byte) {
    for (grammar **at = &s->first; *at; at = &(*at)->next) {
        grammar *g = *at;
        if (g->n_byte != n_byte || memcmp(g->text, text, n_byte) != 0)
            continue;
        *at = g->next; /* move it to the front */
        g->next = s->first;
        s->first = g;
        return g;
    }
    return NULL;
}

nib_status grammar_acquire(grammar_store *s, const char *text, size_t n_byte, grammar **out, nib_error *err) {
    nib_status status = NIB_OK;
    if (!s->tokenizer)
        return nib_fail(err, NIB_E_USAGE, "expected a model with a tokenizer for a grammar, found none");
    pthread_mutex_lock(&s->lock);
    grammar *g = find(s, text, n_byte);
    if (!g && (status = make(s, text, n_byte, &g, err)) == NIB_OK) {
        g->next = s->first;
        s->first = g;
    }
    if (g && status == NIB_OK) {
        g->refs++;
        *out = g;
        drop_idle(s, GRAMMAR_IDLE);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

void grammar_release(grammar *g) {
    if (!g)
        return;
    grammar_store *s = g->store;
    pthread_mutex_lock(&s->lock);
    g->refs--;
    drop_idle(s, GRAMMAR_IDLE);
    pthread_mutex_unlock(&s->lock);
}

/* ---- masks ---- */

/* Computes a mask: all tokens that can come next, except those that end a text. False: the automaton
 * failed. */
static bool walk(grammar *g, uint32_t from, uint64_t *mask) {
    const trie *t = &g->store->trie;
    automaton *m = &g->automaton;
    memset(mask, 0, g->n_word * sizeof *mask);
    g->path[0] = from;
    for (uint32_t i = 1; i < t->n_node;) {
        const uint32_t d = t->depth[i], to = automaton_step(m, g->path[d - 1], t->byte[i]);
        if (to == AUTOMATON_DEAD) {
            i = t->skip[i];
            continue;
        }
        if (to == AUTOMATON_FAILED)
            return false;
        g->path[d] = to;
        for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++)
            mask[t->order[k] / 64] |= UINT64_C(1) << t->order[k] % 64;
        i++;
    }
    for (int i = 0; i < g->store->n_end; i++)
        mask[g->store->ends[i] / 64] &= ~(UINT64_C(1) << g->store->ends[i] % 64);
    return true;
}

/* Finds a mask slot that was not used recently (clock algorithm). */
static uint32_t free_slot(grammar *g) {
    while (g->used[g->hand]) {
        g->used[g->hand] = false;
        g->hand = (g->hand + 1) % g->n_slot;
    }
    const uint32_t at = g->hand;
    if (g->of_epoch[at] == g->automaton.epoch)
        g->automaton.states[g->mask_of[at]].mask = -1;
    g->hand = (at + 1) % g->n_slot;
    return at;
}

const uint64_t *grammar_mask(grammar *g, uint32_t state) {
    const uint32_t s = automaton_near(&g->automaton, state, g->store->trie.max_depth);
    if (s == AUTOMATON_FAILED)
        return NULL;
    if (g->automaton.states[s].mask < 0) {
        const uint32_t at = free_slot(g);
        g->of_epoch[at] = 0;
        if (!walk(g, s, g->masks + (size_t)at * g->n_word))
            return NULL;
        g->mask_of[at] = s;
        g->of_epoch[at] = g->automaton.epoch;
        g->automaton.states[s].mask = (int32_t)at;
    }
    const uint32_t at = (uint32_t)g->automaton.states[s].mask;
    g->used[at] = true;
    return g->masks + (size_t)at * g->n_word;
}

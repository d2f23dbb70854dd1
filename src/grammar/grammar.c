/* grammar.c - see grammar.h. */
#include "grammar/grammar.h"
#include "grammar/automaton.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

/* Bytes for a grammar's states, and for its masks: 1,000 masks of 128,000 tokens. Under a cap a sixty-fourth
 * of it, at most. */
enum { USUAL_BYTES = 8 << 20, USUAL_MASK_BYTES = 16 << 20, CAP_SHARE = 64, MIN_MASKS = 8 };

struct grammar {
    grammar_store *store;
    grammar *next;
    int refs; /* store->lock */
    char *text;
    size_t n_byte;
    pda pda;
    uint64_t charged, n_state_byte, n_mask_byte;
    pthread_mutex_t lock; /* of what follows */
    automaton automaton;
    uint64_t *masks;    /* [n_slot, n_word] */
    uint32_t *mask_of;  /* [n_slot]: the state that has it */
    bool *used;         /* [n_slot]: since the hand came by */
    uint64_t *of_epoch; /* [n_slot] */
    uint32_t n_slot, n_word, hand;
    uint32_t *path; /* [max_depth + 1]: states on the way down the tree */
    uint64_t n_made;
};

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
    const uint64_t usual = 256 << 10; /* of a pda */
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
    ledger_release(g->store->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    mem_bound_except(-(int64_t)g->charged);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}

/* Those that nobody uses, but the first `kept` of them. */
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
    nib_status status = ledger_charge(s->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, n, err);
    if (status == NIB_E_NOFIT) {
        drop_idle(s, 0);
        status = ledger_charge(s->ledger, NIB_TIER_RAM, NIB_OWNER_ACTIVATIONS, n, err);
    }
    if (status != NIB_OK)
        return nib_fail_prefix(err, status, "a grammar");
    g->charged = n;
    mem_bound_except((int64_t)n);
    return NIB_OK;
}

static nib_status take_memory(grammar *g, nib_error *err) {
    grammar_store *s = g->store;
    const uint64_t cap = ledger_cap(s->ledger, NIB_TIER_RAM);
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
        *at = g->next; /* to the front */
        g->next = s->first;
        s->first = g;
        return g;
    }
    return NULL;
}

nib_status grammar_acquire(grammar_store *s, const char *text, size_t n_byte, grammar **out, nib_error *err) {
    nib_status status = NIB_OK;
    if (!s->tokenizer)
        return nib_fail(err, NIB_E_USAGE, "a grammar needs a tokenizer, and the model has none");
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

uint64_t grammar_n_mask(const grammar *g) {
    return g->n_made;
}

/* ---- masks ---- */

/* All tokens that some text of the grammar has next, but those that end a text. False: the automaton failed.
 */
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

/* A slot that was not used for a while. */
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

static const uint64_t *mask_of(grammar *g, uint32_t s) {
    if (g->automaton.states[s].mask < 0) {
        const uint32_t at = free_slot(g);
        g->of_epoch[at] = 0;
        if (!walk(g, s, g->masks + (size_t)at * g->n_word))
            return NULL;
        g->n_made++;
        g->mask_of[at] = s;
        g->of_epoch[at] = g->automaton.epoch;
        g->automaton.states[s].mask = (int32_t)at;
    }
    const uint32_t at = (uint32_t)g->automaton.states[s].mask;
    g->used[at] = true;
    return g->masks + (size_t)at * g->n_word;
}

/* ---- one answer ---- */

static nib_status failed(const grammar *g, nib_error *err) {
    static const char *const why[] = {
        [AUTOMATON_FINE] = "has no way to begin",
        [AUTOMATON_FULL] = "takes more memory for its states than there is for a grammar",
        [AUTOMATON_AMBIGUOUS] = "is too ambiguous: the answer could be read in too many ways",
        [AUTOMATON_SLOW] = "is too ambiguous: what may come next takes too long to find"};
    return nib_fail(err, NIB_E_USAGE, "the grammar %s", why[g->automaton.failure]);
}

static void allow_work(automaton *m) {
    m->failure = AUTOMATON_FINE;
    m->work_left = AUTOMATON_WORK;
}

/* The state behind all bytes that were read, in an automaton that has forgotten it. */
static bool find_again(constraint *c) {
    automaton *m = &c->of->automaton;
    c->epoch = m->epoch;
    c->state = m->start;
    for (size_t i = 0; i < c->n && c->state != AUTOMATON_FAILED; i++) {
        m->work_left = AUTOMATON_WORK;
        c->state = automaton_step(m, c->state, c->read[i]);
    }
    return c->state != AUTOMATON_FAILED;
}

/* Before anything is asked of the state. */
static bool restore_state(constraint *c) {
    automaton *m = &c->of->automaton;
    allow_work(m);
    if (c->epoch == m->epoch)
        return true;
    if (find_again(c))
        return true;
    if (m->failure != AUTOMATON_FULL)
        return false;
    automaton_reset(m); /* others' states filled it */
    return find_again(c);
}

/* Forgets all states, once, where that is what is wrong. */
static bool retry(constraint *c) {
    if (c->of->automaton.failure != AUTOMATON_FULL)
        return false;
    automaton_reset(&c->of->automaton);
    return restore_state(c);
}

nib_status constraint_open(constraint *c, grammar_store *s, const char *text, nib_error *err) {
    memset(c, 0, sizeof *c);
    return grammar_acquire(s, text, strlen(text), &c->of, err);
}

void constraint_close(constraint *c) {
    grammar_release(c->of);
    mem_free(c->read);
    memset(c, 0, sizeof *c);
}

static constraint_next next_of(const constraint *c) {
    const pda_state *s = &c->of->automaton.states[c->state];
    return !s->ends ? CONSTRAINT_TOKENS : s->n ? CONSTRAINT_EITHER : CONSTRAINT_END;
}

nib_status constraint_state(constraint *c, constraint_next *next, nib_error *err) {
    nib_status status = NIB_OK;
    pthread_mutex_lock(&c->of->lock);
    if (restore_state(c))
        *next = next_of(c);
    else
        status = failed(c->of, err);
    pthread_mutex_unlock(&c->of->lock);
    return status;
}

typedef uint32_t four __attribute__((vector_size(16)));

/* What four bits leave of four logits: a table instead of shifts, which not every processor has for lanes. */
static void keep_four(float *x, uint64_t bits) {
#define LANES(b)                                                                                             \
    { (b) & 1 ? UINT32_MAX : 0, (b)&2 ? UINT32_MAX : 0, (b)&4 ? UINT32_MAX : 0, (b)&8 ? UINT32_MAX : 0 }
    static const four lanes[16] = {LANES(0),  LANES(1),  LANES(2),  LANES(3), LANES(4),  LANES(5),
                                   LANES(6),  LANES(7),  LANES(8),  LANES(9), LANES(10), LANES(11),
                                   LANES(12), LANES(13), LANES(14), LANES(15)};
#undef LANES
    static const uint32_t minus_infinity = 0xff800000;
    const four left = lanes[bits & 15];
    four v;
    memcpy(&v, x, sizeof v);
    v = (v & left) | (minus_infinity & ~left);
    memcpy(x, &v, sizeof v);
}

/* What the mask leaves of 64 logits or fewer. */
static void keep(float *x, int64_t n, uint64_t bits) {
    if (bits == UINT64_MAX)
        return;
    if (n == 64) {
        for (int i = 0; i < 64; i += 4)
            keep_four(x + i, bits >> i);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        x[i] = num_either(bits >> i & 1, x[i], -INFINITY);
}

static bool is_empty(const grammar *g, const uint64_t *mask) {
    uint32_t w = 0;
    while (w < g->n_word && !mask[w])
        w++;
    return w == g->n_word;
}

static void leave_allowed(const grammar *g, const uint64_t *mask, bool may_end, float *logits) {
    const grammar_store *s = g->store;
    float ends[GRAMMAR_ENDS];
    for (int i = 0; i < s->n_end; i++)
        ends[i] = logits[s->ends[i]];
    for (uint32_t w = 0; w < g->n_word; w++)
        keep(logits + (size_t)w * 64, NUM_MIN(s->n_vocab - (int64_t)w * 64, 64), mask[w]);
    for (int i = 0; i < s->n_end && may_end; i++)
        logits[s->ends[i]] = ends[i];
}

/* The mask of the answer's place; NULL: *err. The lock is held. */
static const uint64_t *mask_here(constraint *c, nib_error *err) {
    const uint64_t *mask = restore_state(c) ? mask_of(c->of, c->state) : NULL;
    if (!mask && retry(c))
        mask = mask_of(c->of, c->state);
    if (!mask)
        failed(c->of, err);
    return mask;
}

static nib_status apply(constraint *c, float *logits, bool ends, constraint_next *next, nib_error *err) {
    nib_error why;
    const uint64_t *mask = mask_here(c, &why);
    if (!mask) {
        if (err)
            *err = why;
        return why.status;
    }
    *next = next_of(c);
    if (is_empty(c->of, mask)) {
        if (*next == CONSTRAINT_TOKENS)
            return nib_fail(
                err, NIB_E_USAGE,
                "the grammar asks for text that no token of the model begins, or for calls of rules "
                "deeper than %d",
                AUTOMATON_DEPTH);
        *next = CONSTRAINT_END;
    }
    leave_allowed(c->of, mask, ends && *next != CONSTRAINT_TOKENS, logits);
    return NIB_OK;
}

nib_status constraint_apply(constraint *c, float *logits, bool ends, constraint_next *next, nib_error *err) {
    pthread_mutex_lock(&c->of->lock);
    const nib_status status = apply(c, logits, ends, next, err);
    pthread_mutex_unlock(&c->of->lock);
    return status;
}

static bool is_end(const grammar_store *s, int32_t token) {
    for (int i = 0; i < s->n_end; i++)
        if (s->ends[i] == token)
            return true;
    return false;
}

int32_t constraint_allowed(constraint *c, int32_t token, bool ends) {
    grammar *g = c->of;
    pthread_mutex_lock(&g->lock);
    const uint64_t *mask = mask_here(c, NULL);
    const bool may_end = ends && g->automaton.states[c->state].ends;
    if (mask && !(mask[token / 64] >> token % 64 & 1) && !(may_end && is_end(g->store, token))) {
        uint32_t w = 0;
        while (w < g->n_word && !mask[w])
            w++;
        if (w < g->n_word)
            token = (int32_t)(w * 64) + __builtin_ctzll(mask[w]);
    }
    pthread_mutex_unlock(&g->lock);
    return token;
}

/* The state behind the token's bytes. False: the automaton failed. */
static bool read_on(constraint *c, const uint8_t *bytes, uint32_t n) {
    uint32_t s = c->state;
    for (uint32_t i = 0; i < n && s != AUTOMATON_FAILED; i++)
        s = automaton_step(&c->of->automaton, s, bytes[i]);
    if (s == AUTOMATON_FAILED)
        return false;
    c->state = s;
    return true;
}

nib_status constraint_accept(constraint *c, int32_t token, nib_error *err) {
    uint8_t bytes[TRIE_MAX_TOKEN];
    const uint32_t n = trie_token(&c->of->store->trie, token, bytes);
    nib_status status = NIB_OK;
    if (mem_grow((void **)&c->read, &c->cap, c->n + n + 1, 1))
        return nib_fail_nomem(err, c->n + n, "the answer's bytes");
    pthread_mutex_lock(&c->of->lock);
    if (restore_state(c) && (read_on(c, bytes, n) || (retry(c) && read_on(c, bytes, n)))) {
        memcpy(c->read + c->n, bytes, n);
        c->n += n;
    } else {
        status = failed(c->of, err);
    }
    pthread_mutex_unlock(&c->of->lock);
    return status;
}

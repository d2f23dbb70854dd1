/* constraint.c - the state of one answer in its grammar, and the masking of logits. See grammar.h. */
#include "grammar/grammar_parts.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

static nib_status failed(const grammar *g, nib_error *err) {
    return nib_fail(err, NIB_E_USAGE, "the grammar %s", automaton_why(g->automaton.failure));
}

static void allow_work(automaton *m) {
    m->failure = AUTOMATON_FINE;
    m->work_left = AUTOMATON_WORK;
}

/* If the states' memory is full: keeps only the answer's state. */
static bool make_room(constraint *c) {
    automaton *m = &c->of->automaton;
    if (m->failure != AUTOMATON_FULL || !automaton_compact(m, &c->state))
        return false;
    c->epoch = m->epoch;
    return true;
}

/* Makes c->state valid; to be called before the state is used. In an automaton that was reset the state is
 * computed again from the answer's bytes. */
static bool restore_state(constraint *c) {
    automaton *m = &c->of->automaton;
    allow_work(m);
    if (c->epoch == m->epoch)
        return true;
    c->epoch = m->epoch;
    c->state = m->start;
    for (size_t i = 0; i < c->n && c->state != AUTOMATON_FAILED; i++) {
        uint32_t to = automaton_step(m, c->state, c->read[i]);
        if (to == AUTOMATON_FAILED && make_room(c))
            to = automaton_step(m, c->state, c->read[i]);
        c->state = to;
        m->work_left = AUTOMATON_WORK;
    }
    return c->state != AUTOMATON_FAILED;
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

/* Applies four bits of a mask to four logits. A table replaces shifts of lanes, which not every processor
 * has. */
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

/* Applies the mask to 64 logits or fewer. */
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

/* The mask of the answer's state; NULL: *err is set. The lock is held. */
static const uint64_t *mask_here(constraint *c, nib_error *err) {
    const uint64_t *mask = restore_state(c) ? grammar_mask(c->of, c->state) : NULL;
    if (!mask && make_room(c))
        mask = grammar_mask(c->of, c->state);
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
            return nib_fail(err, NIB_E_USAGE,
                            "the grammar requires text that no token of the model begins, or nests calls of "
                            "rules deeper than %d",
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

/* Advances the state by the token's bytes. False: the automaton failed. */
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
    if (restore_state(c) && (read_on(c, bytes, n) || (make_room(c) && read_on(c, bytes, n)))) {
        memcpy(c->read + c->n, bytes, n);
        c->n += n;
    } else {
        status = failed(c->of, err);
    }
    pthread_mutex_unlock(&c->of->lock);
    return status;
}

/* automaton.c - see automaton.h. */
#include "grammar/automaton.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

enum { HEADS = 1 << 13, BOTTOM = 0, PLACES_A_STATE = 12, FRAMES_A_STATE = 2 };

/* ---- memory ---- */

static uint8_t *take(uint8_t **at, size_t n_byte) {
    uint8_t *p = *at;
    *at += (n_byte + 63) / 64 * 64;
    return p;
}

/* Lays out the region for n_state states; returns its bytes. */
static size_t lay_out(automaton *m, uint32_t n_state) {
    uint8_t *at = m->region;
    m->cap_state = n_state;
    m->cap_place = n_state * PLACES_A_STATE + AUTOMATON_READINGS;
    m->cap_frame = n_state * FRAMES_A_STATE + AUTOMATON_SEEN;
    m->n_head = HEADS;
    m->states = (pda_state *)take(&at, m->cap_state * sizeof(pda_state));
    m->places = (pda_place *)take(&at, m->cap_place * sizeof(pda_place));
    m->frames = (pda_frame *)take(&at, m->cap_frame * sizeof(pda_frame));
    m->rows = (uint32_t *)take(&at, (size_t)m->cap_state * m->p->n_class * sizeof(uint32_t));
    m->state_heads = (uint32_t *)take(&at, HEADS * sizeof(uint32_t));
    m->frame_heads = (uint32_t *)take(&at, HEADS * sizeof(uint32_t));
    m->work = (pda_place *)take(&at, AUTOMATON_SEEN * sizeof(pda_place));
    m->found = (pda_place *)take(&at, AUTOMATON_READINGS * sizeof(pda_place));
    m->seen = (pda_place *)take(&at, 2 * AUTOMATON_SEEN * sizeof(pda_place));
    m->seen_when = (uint32_t *)take(&at, 2 * AUTOMATON_SEEN * sizeof(uint32_t));
    return (size_t)(at - m->region);
}

nib_status automaton_open(automaton *m, const pda *p, uint64_t n_byte, nib_error *err) {
    memset(m, 0, sizeof *m);
    m->p = p;
    m->n_byte = n_byte;
    m->region = mem_map_sparse(n_byte);
    if (!m->region)
        return nib_fail_nomem(err, n_byte, "a grammar's states");
    const size_t one = sizeof(pda_state) + PLACES_A_STATE * sizeof(pda_place) +
                       FRAMES_A_STATE * sizeof(pda_frame) + p->n_class * sizeof(uint32_t);
    const size_t fixed = lay_out(m, 0);
    if (n_byte < fixed + 64 * one)
        return nib_fail(err, NIB_E_NOFIT, "a grammar's states: expected at least %zu bytes, found %llu",
                        fixed + 64 * one, (unsigned long long)n_byte);
    lay_out(m, (uint32_t)NUM_MIN((n_byte - fixed - 4096) / one, 1u << 24));
    automaton_reset(m);
    return NIB_OK;
}

void automaton_close(automaton *m) {
    if (m->region)
        mem_unmap(m->region, m->n_byte);
    memset(m, 0, sizeof *m);
}

/* ---- frames and states, each stored once ---- */

static uint32_t mix(uint32_t h, uint32_t x) {
    const uint64_t y = (h ^ x) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(y >> 32) ^ (uint32_t)y;
}

static uint32_t fail(automaton *m, automaton_failure why) {
    if (m->failure == AUTOMATON_FINE)
        m->failure = why;
    return AUTOMATON_FAILED;
}

/* The frame with these values. AUTOMATON_FAILED: no memory (m->failure is set), or too deep. */
static uint32_t frame_of(automaton *m, uint32_t at, uint32_t below) {
    uint32_t *head = &m->frame_heads[mix(mix(1, at), below) % m->n_head];
    for (uint32_t f = *head; f; f = m->frames[f].same_hash)
        if (m->frames[f].at == at && m->frames[f].below == below)
            return f;
    if (m->frames[below].depth == AUTOMATON_DEPTH)
        return AUTOMATON_FAILED;
    if (m->n_frame == m->cap_frame)
        return fail(m, AUTOMATON_FULL);
    m->frames[m->n_frame] = (pda_frame){at, below, m->frames[below].depth + 1, *head};
    return *head = m->n_frame++;
}

static int by_place(const void *a, const void *b) {
    const pda_place *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return x->frame < y->frame ? -1 : x->frame > y->frame;
}

/* The state that consists of the places in m->found. */
static uint32_t state_of(automaton *m) {
    const uint32_t n = m->n_found;
    const size_t bytes = n * sizeof(pda_place);
    uint32_t h = mix(2, m->found_end);
    if (n == 0 && !m->found_end)
        return AUTOMATON_DEAD;
    if (n > 1)
        qsort(m->found, n, sizeof *m->found, by_place);
    for (uint32_t i = 0; i < n; i++)
        h = mix(mix(h, m->found[i].at), m->found[i].frame);
    uint32_t *head = &m->state_heads[h % m->n_head];
    for (uint32_t s = *head; s; s = m->states[s].same_hash)
        if (m->states[s].n == n && m->states[s].ends == m->found_end &&
            memcmp(m->places + m->states[s].first, m->found, bytes) == 0)
            return s;
    if (m->n_state == m->cap_state || n > m->cap_place - m->n_place)
        return fail(m, AUTOMATON_FULL);
    m->states[m->n_state] = (pda_state){m->n_place, n, *head, -1, m->found_end};
    if (n)
        memcpy(m->places + m->n_place, m->found, bytes);
    memset(m->rows + (size_t)m->n_state * m->p->n_class, 0, m->p->n_class * sizeof *m->rows);
    m->n_place += n;
    return *head = m->n_state++;
}

/* ---- one step ---- */

static void begin_step(automaton *m) {
    m->n_work = m->n_found = m->n_seen = 0;
    m->found_end = false;
    m->when++;
}

/* Adds a place to the work list, unless it was visited. False: a bound was exceeded. */
static bool push(automaton *m, uint32_t at, uint32_t stack) {
    uint32_t slot = mix(mix(3, at), stack) % (2 * AUTOMATON_SEEN);
    for (; m->seen_when[slot] == m->when; slot = (slot + 1) % (2 * AUTOMATON_SEEN))
        if (m->seen[slot].at == at && m->seen[slot].frame == stack)
            return true;
    if (++m->n_seen > AUTOMATON_SEEN)
        return fail(m, AUTOMATON_AMBIGUOUS), false;
    if (--m->work_left < 0)
        return fail(m, AUTOMATON_SLOW), false;
    m->seen_when[slot] = m->when;
    m->seen[slot] = m->work[m->n_work++] = (pda_place){at, stack};
    return true;
}

static bool enter(automaton *m, const pda_op *o, uint32_t stack) {
    const bool last = m->p->ops[o->next].kind == PDA_RETURN;
    const uint32_t inner = last ? stack : frame_of(m, o->next, stack);
    if (inner == AUTOMATON_FAILED)
        return m->failure == AUTOMATON_FINE; /* too deep: such a text does not match */
    return push(m, m->p->entry[o->other], inner);
}

static bool leave(automaton *m, uint32_t stack) {
    if (stack != BOTTOM)
        return push(m, m->frames[stack].at, m->frames[stack].below);
    m->found_end = true;
    return true;
}

static bool look(automaton *m, pda_place at) {
    const pda_op *o = &m->p->ops[at.at];
    switch ((pda_kind)o->kind) {
    case PDA_BYTE:
        if (m->n_found == AUTOMATON_READINGS)
            return fail(m, AUTOMATON_AMBIGUOUS), false;
        m->found[m->n_found++] = at;
        return true;
    case PDA_SPLIT: return push(m, o->next, at.frame) && push(m, o->other, at.frame);
    case PDA_CALL: return enter(m, o, at.frame);
    case PDA_RETURN: return leave(m, at.frame);
    }
    return true;
}

static uint32_t end_step(automaton *m) {
    while (m->n_work)
        if (!look(m, m->work[--m->n_work]))
            return AUTOMATON_FAILED;
    return state_of(m);
}

uint32_t automaton_make(automaton *m, uint32_t from, uint8_t b) {
    const pda_state s = m->states[from];
    begin_step(m);
    for (uint32_t i = 0; i < s.n; i++) {
        const pda_place at = m->places[s.first + i];
        const pda_op *o = &m->p->ops[at.at];
        if (b >= o->lo && b <= o->hi && !push(m, o->next, at.frame))
            return AUTOMATON_FAILED;
    }
    const uint32_t to = end_step(m);
    if (to != AUTOMATON_FAILED)
        m->rows[(size_t)from * m->p->n_class + m->p->class_of[b]] = to;
    return to;
}

void automaton_reset(automaton *m) {
    memset(m->state_heads, 0, m->n_head * sizeof *m->state_heads);
    memset(m->frame_heads, 0, m->n_head * sizeof *m->frame_heads);
    memset(m->seen_when, 0, 2 * AUTOMATON_SEEN * sizeof *m->seen_when);
    m->when = 0;
    m->epoch++;
    m->n_place = 0;
    m->n_frame = 1;
    m->frames[BOTTOM] = (pda_frame){0};
    m->n_state = AUTOMATON_FIRST;
    memset(m->states, 0, AUTOMATON_FIRST * sizeof *m->states);
    memset(m->rows, 0, (size_t)AUTOMATON_FIRST * m->p->n_class * sizeof *m->rows);
    m->failure = AUTOMATON_FINE;
    m->work_left = AUTOMATON_WORK;
    begin_step(m);
    m->start = push(m, m->p->entry[m->p->root], BOTTOM) ? end_step(m) : AUTOMATON_FAILED;
}

/* automaton.c - see automaton.h. */
#include "grammar/automaton.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

enum {
    HEAD_SHARE = 1 << 10, /* bytes of the region for each list by hash: 8 to 16 states or frames */
    BOTTOM = 0,
    PLACES_A_STATE = 12,
    FRAMES_A_STATE = 2,
    QUEUE = 4 * AUTOMATON_SEARCH /* of all searches within searches */
};

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
    m->n_head = (uint32_t)NUM_MIN(m->n_byte / HEAD_SHARE, 1u << 20);
    m->states = (pda_state *)take(&at, m->cap_state * sizeof(pda_state));
    m->places = (pda_place *)take(&at, m->cap_place * sizeof(pda_place));
    m->frames = (pda_frame *)take(&at, m->cap_frame * sizeof(pda_frame));
    m->rows = (uint32_t *)take(&at, (size_t)m->cap_state * m->p->n_class * sizeof(uint32_t));
    m->state_heads = (uint32_t *)take(&at, m->n_head * sizeof(uint32_t));
    m->frame_heads = (uint32_t *)take(&at, m->n_head * sizeof(uint32_t));
    m->work = (pda_place *)take(&at, AUTOMATON_SEEN * sizeof(pda_place));
    m->found = (pda_place *)take(&at, AUTOMATON_READINGS * sizeof(pda_place));
    m->seen = (pda_place *)take(&at, 2 * AUTOMATON_SEEN * sizeof(pda_place));
    m->seen_when = (uint32_t *)take(&at, 2 * AUTOMATON_SEEN * sizeof(uint32_t));
    m->both_starts = (uint32_t *)take(&at, m->p->n_both * sizeof(uint32_t));
    m->queue = (pda_search *)take(&at, m->p->n_both ? QUEUE * sizeof(pda_search) : 0);
    return (size_t)(at - m->region);
}

static uint32_t start_of(automaton *m, uint32_t rule);

static void reset(automaton *m) {
    memset(m->state_heads, 0, m->n_head * sizeof *m->state_heads);
    memset(m->frame_heads, 0, m->n_head * sizeof *m->frame_heads);
    memset(m->seen_when, 0, 2 * AUTOMATON_SEEN * sizeof *m->seen_when);
    m->when = 0;
    m->epoch = 1;
    m->n_place = 0;
    m->n_frame = 1;
    m->frames[BOTTOM] = (pda_frame){0};
    m->n_state = AUTOMATON_FIRST;
    memset(m->states, 0, AUTOMATON_FIRST * sizeof *m->states);
    memset(m->rows, 0, (size_t)AUTOMATON_FIRST * m->p->n_class * sizeof *m->rows);
    m->failure = AUTOMATON_FINE;
    m->work_left = AUTOMATON_WORK;
    m->n_queue = m->nested = 0;
    memset(m->both_starts, 0, m->p->n_both * sizeof *m->both_starts);
    m->start = start_of(m, m->p->root);
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
    reset(m);
    if (m->start == AUTOMATON_DEAD)
        return nib_fail(err, NIB_E_USAGE, "no text can complete the grammar");
    if (m->start == AUTOMATON_FAILED)
        return nib_fail(err, NIB_E_USAGE, "the grammar %s", automaton_why(m->failure));
    return NIB_OK;
}

const char *automaton_why(automaton_failure why) {
    switch (why) {
    case AUTOMATON_FINE: break;
    case AUTOMATON_FULL: return "needs more memory for its states than a grammar may have";
    case AUTOMATON_AMBIGUOUS:
        return "is too ambiguous: expected at most 1024 parses of one text, and 8192 rules and alternatives "
               "before its next byte, found more";
    case AUTOMATON_SLOW: return "is too ambiguous: finding the next tokens takes too long";
    case AUTOMATON_NESTS: return "nests '&' deeper than 16";
    }
    return "allows no text here";
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
static uint32_t frame_of(automaton *m, uint32_t at, uint32_t below, uint32_t x, uint32_t y) {
    uint32_t *head = &m->frame_heads[mix(mix(mix(mix(1, at), below), x), y) % m->n_head];
    for (uint32_t i = *head; i; i = m->frames[i].same_hash) {
        const pda_frame *f = &m->frames[i];
        if (f->at == at && f->below == below && f->x == x && f->y == y)
            return i;
    }
    if (m->frames[below].depth == AUTOMATON_DEPTH)
        return AUTOMATON_FAILED;
    if (m->n_frame == m->cap_frame)
        return fail(m, AUTOMATON_FULL);
    m->frames[m->n_frame] = (pda_frame){at, below, x, y, m->frames[below].depth + 1, *head, 0};
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
    uint32_t h = mix(2, m->found_end), n = NUM_MIN(m->n_found, 1);
    if (n == 0 && !m->found_end)
        return AUTOMATON_DEAD;
    if (m->n_found > 1)
        qsort(m->found, m->n_found, sizeof *m->found, by_place);
    for (uint32_t i = 1; i < m->n_found; i++) /* two ways may lead to the same place */
        if (by_place(&m->found[i], &m->found[n - 1]) != 0)
            m->found[n++] = m->found[i];
    const size_t bytes = n * sizeof(pda_place);
    for (uint32_t i = 0; i < n; i++)
        h = mix(mix(h, m->found[i].at), m->found[i].frame);
    uint32_t *head = &m->state_heads[h % m->n_head];
    for (uint32_t s = *head; s; s = m->states[s].same_hash)
        if (m->states[s].n == n && m->states[s].ends == m->found_end &&
            memcmp(m->places + m->states[s].first, m->found, bytes) == 0)
            return s;
    if (m->n_state == m->cap_state || n > m->cap_place - m->n_place)
        return fail(m, AUTOMATON_FULL);
    m->states[m->n_state] = (pda_state){m->n_place, n, *head, -1, AUTOMATON_UNKNOWN, m->found_end};
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

static bool both_end(const automaton *m, uint32_t at, uint32_t first, uint32_t second);
static bool start_both(automaton *m, uint32_t at);

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

/* Continues on a new frame; true also if it would be too deep: such a text does not match. */
static bool push_on(automaton *m, uint32_t at, uint32_t frame) {
    return frame == AUTOMATON_FAILED ? m->failure == AUTOMATON_FINE : push(m, at, frame);
}

static bool enter(automaton *m, const pda_op *o, uint32_t stack) {
    const bool last = m->p->ops[o->next].kind == PDA_RETURN;
    return push_on(m, m->p->entry[o->other], last ? stack : frame_of(m, o->next, stack, 0, 0));
}

/* Before a repetition of which `need` are still required and `left` allowed. */
static bool repeat(automaton *m, uint32_t at, uint32_t stack, uint32_t need, uint32_t left) {
    const pda_op *o = &m->p->ops[at];
    if (need == 0 && !push(m, o->next, stack))
        return false;
    if (left == 0)
        return true;
    return push_on(m, m->p->entry[m->p->loops[o->other].rule],
                   frame_of(m, at, stack, need ? need : 1, left == PDA_FOREVER ? left : left - 1));
}

static bool leave(automaton *m, uint32_t stack) {
    const pda_frame *f = &m->frames[stack];
    if (stack == BOTTOM)
        return m->found_end = true;
    return f->x ? repeat(m, f->at, f->below, f->x - 1, f->y) : push(m, f->at, f->below);
}

static bool find(automaton *m, uint32_t at, uint32_t frame) {
    if (m->n_found == AUTOMATON_READINGS)
        return fail(m, AUTOMATON_AMBIGUOUS), false;
    m->found[m->n_found++] = (pda_place){at, frame};
    return true;
}

/* Continues with the two states of a pair (a frame above the bottom) on a stack. */
static bool follow_both(automaton *m, uint32_t pair, uint32_t stack) {
    const pda_frame *f = &m->frames[pair];
    if (both_end(m, f->at, f->x, f->y) && !push(m, m->p->ops[f->at].next, stack))
        return false;
    if (f->completes == COMPLETES_NEVER)
        return true;
    const uint32_t frame = frame_of(m, f->at, stack, f->x, f->y);
    return frame == AUTOMATON_FAILED ? m->failure == AUTOMATON_FINE : find(m, f->at, frame);
}

static bool enter_both(automaton *m, uint32_t at, uint32_t stack) {
    const uint32_t pair = m->both_starts[m->p->ops[at].other];
    if (pair)
        return follow_both(m, pair, stack);
    m->wanted = at;
    return false;
}

static bool look(automaton *m, pda_place at) {
    const pda_op *o = &m->p->ops[at.at];
    switch ((pda_kind)o->kind) {
    case PDA_BYTE: return find(m, at.at, at.frame);
    case PDA_SPLIT: return push(m, o->next, at.frame) && push(m, o->other, at.frame);
    case PDA_CALL: return enter(m, o, at.frame);
    case PDA_REPEAT: {
        const pda_loop *l = &m->p->loops[o->other];
        return repeat(m, at.at, at.frame, l->min, l->max);
    }
    case PDA_BOTH: return enter_both(m, at.at, at.frame);
    case PDA_RETURN: return leave(m, at.frame);
    }
    return true;
}

/* AUTOMATON_UNKNOWN: the start of m->wanted must be found first. */
static uint32_t end_step(automaton *m) {
    while (m->n_work)
        if (!look(m, m->work[--m->n_work]))
            return m->failure == AUTOMATON_FINE ? AUTOMATON_UNKNOWN : AUTOMATON_FAILED;
    return state_of(m);
}

/* The state at the beginning of a rule. */
static uint32_t start_of(automaton *m, uint32_t rule) {
    uint32_t to;
    do {
        begin_step(m);
        to = push(m, m->p->entry[rule], BOTTOM) ? end_step(m) : AUTOMATON_FAILED;
    } while (to == AUTOMATON_UNKNOWN && start_both(m, m->wanted));
    return to == AUTOMATON_UNKNOWN ? AUTOMATON_FAILED : to;
}

/* ---- a & b ---- */

static bool both_end(const automaton *m, uint32_t at, uint32_t first, uint32_t second) {
    return m->states[first].ends && m->states[second].ends != m->p->boths[m->p->ops[at].other].without;
}

/* Whether a text may continue in these states of a & b, so far as each of them alone says. */
static bool both_live(const automaton *m, uint32_t at, uint32_t first, uint32_t second) {
    return first != AUTOMATON_DEAD && (second != AUTOMATON_DEAD || m->p->boths[m->p->ops[at].other].without);
}

/* The pair of states after byte b. 0: no text continues so; AUTOMATON_FAILED. */
static uint32_t step_both(automaton *m, uint32_t frame, uint8_t b) {
    const pda_frame f = m->frames[frame];
    const uint32_t x = automaton_step(m, f.x, b);
    if (x == AUTOMATON_DEAD || x == AUTOMATON_FAILED)
        return x == AUTOMATON_DEAD ? 0 : x;
    const uint32_t y = automaton_step(m, f.y, b);
    if (y == AUTOMATON_FAILED || !both_live(m, f.at, x, y))
        return y == AUTOMATON_FAILED ? y : 0;
    return frame_of(m, f.at, BOTTOM, x, y);
}

/* Looks at the pairs after the queue's entry i, and appends new ones. True: a completion was found. */
static bool search_from(automaton *m, uint32_t i) {
    for (uint32_t c = 0; c < m->p->n_class; c++) {
        const uint32_t to = step_both(m, m->queue[i].frame, m->p->byte_of[c]);
        if (to == AUTOMATON_FAILED)
            return true;
        pda_frame *f = &m->frames[to];
        if (to != 0 && (f->completes == COMPLETES_LATER || both_end(m, f->at, f->x, f->y)))
            return true;
        if (to == 0 || f->completes != COMPLETES_UNKNOWN)
            continue;
        f->completes = COMPLETES_SEARCHED;
        m->queue[m->n_queue++] = (pda_search){to, i};
    }
    return false;
}

/* Finds out whether further text completes a pair, breadth first: the first completion is a short one. */
static bool search(automaton *m, uint32_t pair) {
    const uint32_t base = m->n_queue;
    uint32_t i = base;
    bool done = false, many = false;
    if (m->frames[pair].completes != COMPLETES_UNKNOWN)
        return true;
    if (base + AUTOMATON_SEARCH + 256 > QUEUE)
        return fail(m, AUTOMATON_NESTS), false;
    m->frames[pair].completes = COMPLETES_SEARCHED;
    m->queue[m->n_queue++] = (pda_search){pair, UINT32_MAX};
    for (; i < m->n_queue && !done && !many; i++) {
        done = search_from(m, i);
        many = m->n_queue - base >= AUTOMATON_SEARCH;
    }
    for (uint32_t k = base; k < m->n_queue; k++)
        m->frames[m->queue[k].frame].completes = many   ? COMPLETES_LATER
                                                 : done ? COMPLETES_UNKNOWN
                                                        : COMPLETES_NEVER;
    for (uint32_t k = i - 1; done && m->failure == AUTOMATON_FINE && k != UINT32_MAX; k = m->queue[k].from)
        m->frames[m->queue[k].frame].completes = COMPLETES_LATER;
    m->n_queue = base;
    return m->failure == AUTOMATON_FINE;
}

static bool start_both(automaton *m, uint32_t at) {
    const pda_both *both = &m->p->boths[m->p->ops[at].other];
    uint32_t start[2], pair = AUTOMATON_FAILED;
    if (++m->nested > AUTOMATON_NESTED)
        fail(m, AUTOMATON_NESTS);
    for (int i = 0; i < 2; i++)
        start[i] = m->failure == AUTOMATON_FINE ? start_of(m, both->rule[i]) : AUTOMATON_FAILED;
    m->nested--;
    if (start[0] == AUTOMATON_FAILED || start[1] == AUTOMATON_FAILED)
        return false;
    pair = frame_of(m, at, BOTTOM, start[0], start[1]);
    if (pair == AUTOMATON_FAILED)
        return false;
    if (!both_live(m, at, start[0], start[1]))
        m->frames[pair].completes = COMPLETES_NEVER;
    else if (!search(m, pair))
        return false;
    m->both_starts[m->p->ops[at].other] = pair;
    return true;
}

/* Computes all that a step from `from` needs within its pairs. These steps use the same scratch. */
static bool prepare_boths(automaton *m, const pda_state *from, uint8_t b) {
    bool good = ++m->nested <= AUTOMATON_NESTED || fail(m, AUTOMATON_NESTS) != AUTOMATON_FAILED;
    for (uint32_t i = 0; i < from->n && good; i++) {
        const pda_place at = m->places[from->first + i];
        if (m->p->ops[at.at].kind != PDA_BOTH)
            continue;
        const uint32_t pair = step_both(m, at.frame, b);
        good = pair != AUTOMATON_FAILED && (pair == 0 || search(m, pair));
    }
    m->nested--;
    return good;
}

/* ---- a step ---- */

static bool step_place(automaton *m, pda_place at, uint8_t b) {
    const pda_op *o = &m->p->ops[at.at];
    if (o->kind == PDA_BYTE)
        return b < o->lo || b > o->hi || push(m, o->next, at.frame);
    const uint32_t below = m->frames[at.frame].below, pair = step_both(m, at.frame, b);
    return pair == 0 || follow_both(m, pair, below);
}

uint32_t automaton_make(automaton *m, uint32_t from, uint8_t b) {
    const pda_state s = m->states[from];
    uint32_t to;
    if (m->p->n_both && !prepare_boths(m, &s, b))
        return AUTOMATON_FAILED;
    do {
        begin_step(m);
        for (uint32_t i = 0; i < s.n; i++)
            if (!step_place(m, m->places[s.first + i], b))
                return AUTOMATON_FAILED;
        to = end_step(m);
    } while (to == AUTOMATON_UNKNOWN && start_both(m, m->wanted));
    if (to == AUTOMATON_FAILED || to == AUTOMATON_UNKNOWN)
        return AUTOMATON_FAILED;
    m->rows[(size_t)from * m->p->n_class + m->p->class_of[b]] = to;
    return to;
}

/* ---- copies ---- */

static uint32_t copy_state(automaton *m, const automaton *from, uint32_t state, uint32_t far);

/* far: UINT32_MAX, or the bytes of a further text that counters must be able to count. */
static uint32_t copy_frame(automaton *m, const automaton *from, uint32_t frame, uint32_t far) {
    if (frame == BOTTOM)
        return BOTTOM;
    const pda_frame f = from->frames[frame];
    const uint32_t below = copy_frame(m, from, f.below, far);
    uint32_t x = f.x, y = f.y;
    if (below == AUTOMATON_FAILED)
        return below;
    if (x && m->p->ops[f.at].kind == PDA_REPEAT && far != UINT32_MAX) {
        x = NUM_MIN(x, far + 2);
        y = y == PDA_FOREVER ? y : NUM_MIN(y, far + 1);
    }
    if (x && m->p->ops[f.at].kind == PDA_BOTH &&
        m != from) { /* a shorter text does not tell what completes them */
        x = copy_state(m, from, x, far);
        y = x == AUTOMATON_FAILED ? x : copy_state(m, from, y, far);
        if (y == AUTOMATON_FAILED)
            return y;
    }
    return frame_of(m, f.at, below, x, y);
}

static uint32_t copy_state(automaton *m, const automaton *from, uint32_t state, uint32_t far) {
    if (state < AUTOMATON_FIRST)
        return state;
    const pda_state s = from->states[state];
    const uint32_t base = m->n_work;
    if (s.n > AUTOMATON_SEEN - base)
        return fail(m, AUTOMATON_AMBIGUOUS);
    for (uint32_t i = 0; i < s.n; i++) {
        const pda_place at = from->places[s.first + i];
        const uint32_t frame = copy_frame(m, from, at.frame, far);
        if (frame == AUTOMATON_FAILED)
            return frame;
        m->work[m->n_work++] = (pda_place){at.at, frame};
    }
    m->n_found = s.n;
    m->found_end = s.ends;
    m->n_work = base;
    if (s.n)
        memcpy(m->found, m->work + base, s.n * sizeof *m->found);
    return state_of(m);
}

bool automaton_compact(automaton *m, uint32_t *state) {
    automaton fresh;
    uint32_t to = AUTOMATON_FAILED;
    if (automaton_open(&fresh, m->p, m->n_byte, NULL) == NIB_OK)
        to = copy_state(&fresh, m, *state, UINT32_MAX);
    if (to == AUTOMATON_FAILED) {
        automaton_close(&fresh);
        return false;
    }
    fresh.epoch = m->epoch + 1;
    automaton_close(m);
    *m = fresh;
    *state = to;
    return true;
}

uint32_t automaton_near(automaton *m, uint32_t state, uint32_t far) {
    if (m->p->n_loop == 0)
        return state;
    if (m->states[state].near == AUTOMATON_UNKNOWN) {
        m->n_work = 0;
        const uint32_t near = copy_state(m, m, state, far);
        if (near == AUTOMATON_FAILED)
            return near;
        m->states[state].near = near;
    }
    return m->states[state].near;
}

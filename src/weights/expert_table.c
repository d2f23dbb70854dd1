/* expert_table.c - see expert_table.h. */
#include "weights/expert_table.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Chosen on the recorded choices of three models; other values within a factor of two give nearly the same
 * (docs/experts.md). */
static const double LATELY = 3, OFTEN = 48; /* rows after which half of a share is forgotten */
static const float WEIGHT = 0.6f;           /* of the shorter average */

static float score(const expert *e) {
    return WEIGHT * e->lately + (1 - WEIGHT) * e->often;
}

void expert_table_ask(expert_table *t, int first, int n, const expert_use *uses, int n_use, int64_t n_row,
                      bool in_order) {
    const float lately = (float)exp2(-(double)n_row / LATELY), often = (float)exp2(-(double)n_row / OFTEN);
    t->in_order = in_order;
    for (expert *e = t->experts + first; e < t->experts + first + n; e++) {
        e->lately *= lately;
        e->often *= often;
    }
    for (int i = 0; i < n_use; i++) {
        const int number = first + uses[i].expert;
        expert *e = &t->experts[number];
        const float share = (float)uses[i].n_row / (float)n_row;
        assert(uses[i].expert >= 0 && uses[i].expert < n && !e->asked);
        e->lately += (1 - lately) * share;
        e->often += (1 - often) * share;
        e->asked = true;
        t->asked[t->n_asked++] = number;
        t->n_used++;
        t->n_hit += e->slot >= 0;
    }
}

static bool is_in_state(const expert_table *t, int asked, expert_state state) {
    const int slot = t->experts[t->asked[asked]].slot;
    return slot >= 0 && t->slots[slot].state == state;
}

/* Index in `asked` of the first expert that is not pinned; n_asked: none. */
static int first_waiting(const expert_table *t) {
    int i = 0;
    while (i < t->n_asked && is_in_state(t, i, EXPERT_PINNED))
        i++;
    return i;
}

/* The slot of a class that is given up first; -1: none is free. */
static int victim(const expert_table *t, int cls) {
    int found = -1;
    float lowest = 0;
    for (int i = 0; i < t->n_slot; i++) {
        const expert_slot *s = &t->slots[i];
        if (s->cls != cls)
            continue;
        if (s->state == EXPERT_EMPTY)
            return i;
        if (s->state != EXPERT_HERE || t->experts[s->expert].asked)
            continue;
        const float now = score(&t->experts[s->expert]);
        if (found < 0 || now < lowest) {
            found = i;
            lowest = now;
        }
    }
    return found;
}

/* The slot of the expert of this class that is needed last among those that are asked for; -1: none. */
static int needed_last(const expert_table *t, int cls) {
    for (int i = t->n_asked - 1; i >= 0; i--) {
        const expert *e = &t->experts[t->asked[i]];
        if (e->cls == cls && e->slot >= 0 && t->slots[e->slot].state == EXPERT_HERE)
            return e->slot;
    }
    return -1;
}

int expert_table_read(expert_table *t, int *before) {
    const int next = first_waiting(t);
    for (int i = 0; i < t->n_asked; i++) {
        expert *e = &t->experts[t->asked[i]];
        int at = e->slot < 0 ? victim(t, e->cls) : -1;
        if (at < 0 && e->slot < 0 && i == next && t->in_order)
            at = needed_last(t, e->cls);
        if (at < 0)
            continue;
        expert_slot *s = &t->slots[at];
        *before = s->expert;
        if (*before >= 0)
            t->experts[*before].slot = -1;
        s->state = EXPERT_ARRIVING;
        s->expert = t->asked[i];
        e->slot = at;
        return at;
    }
    return -1;
}

void expert_table_arrived(expert_table *t, int slot, bool good) {
    expert_slot *s = &t->slots[slot];
    assert(s->state == EXPERT_ARRIVING);
    if (!good) {
        t->experts[s->expert].slot = -1;
        s->expert = -1;
    }
    s->state = good ? EXPERT_HERE : EXPERT_EMPTY;
}

int expert_table_take(expert_table *t) {
    int i = first_waiting(t);
    while (!t->in_order && i < t->n_asked && !is_in_state(t, i, EXPERT_HERE))
        i++;
    if (i == t->n_asked || !is_in_state(t, i, EXPERT_HERE))
        return -1;
    const int slot = t->experts[t->asked[i]].slot;
    t->slots[slot].state = EXPERT_PINNED;
    return slot;
}

void expert_table_end(expert_table *t, int slot) {
    expert_slot *s = &t->slots[slot];
    int i = 0;
    assert(s->state == EXPERT_PINNED);
    while (t->asked[i] != s->expert)
        i++;
    t->n_asked--;
    memmove(t->asked + i, t->asked + i + 1, (size_t)(t->n_asked - i) * sizeof *t->asked);
    t->experts[s->expert].asked = false;
    s->state = EXPERT_HERE;
}

void expert_table_forget(expert_table *t) {
    for (int i = 0; i < t->n_asked; i++) {
        expert *e = &t->experts[t->asked[i]];
        e->asked = false;
        if (e->slot >= 0 && t->slots[e->slot].state == EXPERT_PINNED)
            t->slots[e->slot].state = EXPERT_HERE;
    }
    t->n_asked = 0;
}

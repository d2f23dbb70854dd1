/* The table of experts: any order of events keeps its invariants, and on synthetic routing it keeps more hits
 * than the least recently used order. */
#include "base/num.h"
#include "weights/expert_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { EXPERTS = 128, BLOCKS = 4, ALL = EXPERTS * BLOCKS, USED = 8, STEPS = 600 };

static uint32_t seed;

static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static double normal(void) {
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += draw(1 << 20) / (double)(1 << 20);
    return sum;
}

typedef struct table_memory {
    expert_table t;
    expert experts[ALL];
    expert_slot slots[ALL + 2];
    int32_t asked[ALL];
} table_memory;

static table_memory m;

static expert_table *make(int n_class, int n_slot) {
    memset(&m, 0, sizeof m);
    m.t = (expert_table){
        .experts = m.experts, .n_expert = ALL, .slots = m.slots, .n_slot = n_slot, .asked = m.asked};
    for (int i = 0; i < ALL; i++)
        m.experts[i] = (expert){.slot = -1, .cls = (int16_t)(i / EXPERTS % n_class)};
    for (int i = 0; i < n_slot; i++)
        m.slots[i] = (expert_slot){EXPERT_EMPTY, -1, (int16_t)(i % n_class)};
    return &m.t;
}

/* ---- invariants ---- */

static void check(const expert_table *t) {
    int n_with_slot = 0, n_full = 0;
    for (int i = 0; i < t->n_expert; i++) {
        const int at = t->experts[i].slot;
        n_with_slot += at >= 0;
        if (at >= 0) {
            assert_int_equal(t->slots[at].expert, i);
            assert_int_equal(t->slots[at].cls, t->experts[i].cls);
            assert_int_not_equal(t->slots[at].state, EXPERT_EMPTY);
        }
    }
    for (int i = 0; i < t->n_slot; i++)
        n_full += t->slots[i].state != EXPERT_EMPTY;
    assert_int_equal(n_with_slot, n_full);
}

/* One visit, with reads that end in any order and sometimes fail. Every expert that is asked for is taken
 * once, unless a read of it fails. */
static void visit(expert_table *t, int n_use) {
    expert_use uses[EXPERTS];
    int arriving[ALL], n_arriving = 0, pinned[ALL], n_pinned = 0, n_taken = 0, before;
    const int first = (int)draw(BLOCKS) * EXPERTS, step = 1 + 2 * (int)draw(EXPERTS / 2);
    for (int i = 0; i < n_use; i++)
        uses[i] = (expert_use){(7 + i * step) % EXPERTS, 1 + draw(3)};
    for (int i = 0; i < t->n_slot; i++) /* of visits that ended early */
        if (t->slots[i].state == EXPERT_ARRIVING)
            arriving[n_arriving++] = i;
    const bool ends_early = draw(10) == 0, in_order = draw(2) == 0;
    expert_table_ask(t, first, EXPERTS, uses, n_use, 4, in_order);
    bool taken[EXPERTS] = {false};
    while (t->n_asked > 0 && !(ends_early && draw(5) == 0)) {
        const uint32_t what = draw(4);
        int at = -1;
        if (what == 0 && (at = expert_table_read(t, &before)) >= 0) {
            assert_true(before < 0 || t->experts[before].slot < 0);
            arriving[n_arriving++] = at;
        } else if (what == 1 && n_arriving > 0) {
            const int i = (int)draw((uint32_t)n_arriving);
            at = arriving[i];
            arriving[i] = arriving[--n_arriving];
            expert_table_arrived(t, at, draw(20) > 0);
        } else if (what == 2 && (at = expert_table_take(t)) >= 0) {
            assert_true(m.experts[m.slots[at].expert].asked);
            const int number = m.slots[at].expert - first;
            assert_true(!in_order || number == uses[n_taken].expert);
            assert_false(taken[number]);
            taken[number] = true;
            n_taken++;
            pinned[n_pinned++] = at;
        } else if (what == 3 && n_pinned > 0) {
            expert_table_end(t, pinned[--n_pinned]);
        }
        check(t);
    }
    assert_true(ends_early || n_taken == n_use);
    expert_table_forget(t);
    check(t);
}

static void any_order_of_events_keeps_the_table(void **state) {
    (void)state;
    for (int n_slot = 2; n_slot < ALL; n_slot = n_slot * 3 + 1) {
        expert_table *t = make(2, n_slot);
        for (int i = 0; i < 300; i++)
            visit(t, 1 + (int)draw(40));
    }
}

/* Experts that are here are used while one that is asked for before them is read, if the order is free. */
static void those_that_are_here_come_first(void **state) {
    (void)state;
    for (int in_order = 0; in_order < 2; in_order++) {
        static const expert_use warm[] = {{3, 1}, {5, 1}}, uses[] = {{1, 1}, {3, 1}, {5, 1}};
        expert_table *t = make(1, 4);
        int at, before, n_taken = 0;
        expert_table_ask(t, 0, EXPERTS, warm, 2, 1, true);
        while ((at = expert_table_read(t, &before)) >= 0)
            expert_table_arrived(t, at, true);
        expert_table_forget(t);
        expert_table_ask(t, 0, EXPERTS, uses, 3, 1, in_order);
        const int arriving = expert_table_read(t, &before);
        while (expert_table_take(t) >= 0)
            n_taken++;
        assert_int_equal(n_taken, in_order ? 0 : 2);
        expert_table_arrived(t, arriving, true);
        assert_true(expert_table_take(t) >= 0);
    }
}

/* ---- hits ---- */

/* Scores of experts: a popularity, and directions of two hidden states with a long and a short memory, which
 * is how recorded routers behave. */
enum { RANK = 24 };
static float slow[ALL][RANK], fast[ALL][RANK], popular[ALL];

static void make_router(double popularity) {
    for (int i = 0; i < ALL; i++) {
        popular[i] = (float)(popularity * normal());
        for (int r = 0; r < RANK; r++) {
            slow[i][r] = (float)(normal() / sqrt(RANK));
            fast[i][r] = (float)(normal() / sqrt(RANK));
        }
    }
}

static void choose(int block, const double *a, const double *b, double novelty, expert_use *out) {
    float score[EXPERTS];
    for (int e = 0; e < EXPERTS; e++) {
        const int i = block * EXPERTS + e;
        double sum = popular[i];
        for (int r = 0; r < RANK; r++)
            sum += a[r] * slow[i][r] + novelty * b[r] * fast[i][r];
        score[e] = (float)sum;
    }
    for (int k = 0; k < USED; k++) {
        int best = 0;
        for (int e = 1; e < EXPERTS; e++)
            best = score[e] > score[best] ? e : best;
        out[k] = (expert_use){best, 1};
        score[best] = -INFINITY;
    }
}

/* The same choices by the least recently used order. */
typedef struct recent {
    uint64_t used[ALL], clock;
    bool here[ALL];
    int n_here;
    uint64_t n_use, n_hit;
} recent;

static void use_recent(recent *l, int number, int n_slot) {
    l->n_use++;
    l->n_hit += l->here[number];
    l->used[number] = ++l->clock;
    if (l->here[number])
        return;
    if (l->n_here == n_slot) {
        int oldest = -1;
        for (int i = 0; i < ALL; i++)
            if (l->here[i] && (oldest < 0 || l->used[i] < l->used[oldest]))
                oldest = i;
        l->here[oldest] = false;
        l->n_here--;
    }
    l->here[number] = true;
    l->n_here++;
}

static double gain(double popularity, double novelty, int n_slot) {
    double a[RANK] = {0}, b[RANK] = {0};
    expert_table *t = make(1, n_slot);
    recent *l = calloc(1, sizeof *l);
    assert_non_null(l);
    make_router(popularity);
    for (int s = 0; s < STEPS; s++) {
        for (int r = 0; r < RANK; r++) {
            a[r] = 0.97 * a[r] + 0.243 * normal();
            b[r] = 0.3 * b[r] + 0.954 * normal();
        }
        for (int block = 0; block < BLOCKS; block++) {
            expert_use uses[USED];
            int at, before;
            choose(block, a, b, novelty, uses);
            expert_table_ask(t, block * EXPERTS, EXPERTS, uses, USED, 1, false);
            while (t->n_asked > 0) {
                if ((at = expert_table_take(t)) >= 0)
                    expert_table_end(t, at);
                else if ((at = expert_table_read(t, &before)) >= 0)
                    expert_table_arrived(t, at, true);
                else
                    fail();
            }
            for (int k = 0; k < USED; k++)
                use_recent(l, block * EXPERTS + uses[k].expert, n_slot);
        }
    }
    const double more = (double)t->n_hit / (double)t->n_used - (double)l->n_hit / (double)l->n_use;
    free(l);
    return more;
}

static void it_keeps_more_than_the_recent_ones(void **state) {
    (void)state;
    seed = 5;
    for (int percent = 6; percent <= 24; percent *= 2) {
        const int n_slot = ALL * percent / 100;
        const double skewed = gain(0.4, 0.8, n_slot), flat = gain(0, 1.2, n_slot);
        print_message("%d %% of the experts: %.1f points more than LRU, %.1f with flat popularity\n", percent,
                      100 * skewed, 100 * flat);
        assert_true(skewed > 0 && flat > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_order_of_events_keeps_the_table),
                                       cmocka_unit_test(those_that_are_here_come_first),
                                       cmocka_unit_test(it_keeps_more_than_the_recent_ones)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Replacement policies over the pages of a token: the simulation of bench_pager against small cases by hand,
 * an exhaustive search, and the reads of the pager's own residency. */
#include "plan/homes.h"
#include "support/page_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_PAGE = 40, PASSES = 40, SKIP = 20 };

static uint32_t seed;

static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

static page_count run(const page_trace *t, page_policy policy, uint64_t capacity) {
    page_count c;
    assert_true(page_policy_run(t, policy, capacity, PASSES, SKIP, &c));
    assert_int_equal(c.hits + c.misses, (PASSES - SKIP) * t->n_use);
    return c;
}

static void a_cycle_that_does_not_fit_defeats_lru(void **state) {
    (void)state;
    static const uint64_t bytes[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    static const double score[] = {0.1, 0.9, 0.2, 0.8, 0.3, 0.7, 0.4, 0.6, 0.5, 0};
    static const int uses[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    const page_trace t = {bytes, score, 10, uses, 10};
    for (uint64_t capacity = 1; capacity < 10; capacity++) {
        const uint64_t passes = PASSES - SKIP;
        assert_int_equal(run(&t, PAGE_LRU, capacity).bytes, 10 * passes);
        /* one unit passes through, the others stay */
        assert_int_equal(run(&t, PAGE_IMPORTANCE, capacity).bytes, (10 - (capacity - 1)) * passes);
        assert_int_equal(run(&t, PAGE_BELADY, capacity).bytes, (10 - capacity) * passes);
    }
    for (int p = 0; p < PAGE_N_POLICY; p++)
        assert_int_equal(run(&t, (page_policy)p, 10).misses, 0);
}

static void what_does_not_fit_is_said(void **state) {
    (void)state;
    static const uint64_t bytes[] = {3, 5};
    static const double score[] = {0, 0};
    static const int uses[] = {0, 1};
    const page_trace t = {bytes, score, 2, uses, 2};
    page_count c;
    assert_false(page_policy_run(&t, PAGE_LRU, 4, PASSES, SKIP, &c));
    assert_true(page_policy_run(&t, PAGE_LRU, 5, PASSES, 0, &c));
    assert_int_equal(c.bytes, 8 * PASSES);
}

/* The fewest misses of any choice, pages of one size, over `n` uses from now on; `here`: a set of pages. */
static int fewest(const page_trace *t, uint32_t here, int capacity, int now, int n) {
    if (now == n)
        return 0;
    const uint32_t page = UINT32_C(1) << t->uses[now % t->n_use];
    if (here & page)
        return fewest(t, here, capacity, now + 1, n);
    int best = fewest(t, here, capacity, now + 1, n); /* it does not stay */
    if (__builtin_popcount(here) < capacity)
        return 1 + NUM_MIN(best, fewest(t, here | page, capacity, now + 1, n));
    for (int i = 0; i < t->n_page; i++)
        if (here >> i & 1)
            best = NUM_MIN(best, fewest(t, (here & ~(UINT32_C(1) << i)) | page, capacity, now + 1, n));
    return 1 + best;
}

/* A page may come twice in a pass. */
static void belady_is_the_best_there_is(void **state) {
    (void)state;
    enum { N_PAGE = 4, N_USE = 5, N_PASS = 2 };
    seed = 1;
    for (int round = 0; round < 100; round++) {
        uint64_t bytes[N_PAGE];
        double score[N_PAGE];
        int uses[N_USE];
        for (int i = 0; i < N_PAGE; i++) {
            bytes[i] = 1;
            score[i] = draw(100);
        }
        for (int i = 0; i < N_USE; i++)
            uses[i] = (int)draw(N_PAGE);
        const page_trace t = {bytes, score, N_PAGE, uses, N_USE};
        const int capacity = 1 + (int)draw(3), best = fewest(&t, 0, capacity, 0, N_PASS * N_USE);
        for (int p = 0; p < PAGE_N_POLICY; p++) {
            page_count c;
            assert_true(page_policy_run(&t, (page_policy)p, (uint64_t)capacity, N_PASS, 0, &c));
            assert_true((int)c.misses >= best);
            if (p == PAGE_BELADY)
                assert_int_equal(c.misses, best);
        }
    }
}

/* The plan's resident pages and the ring together read no more than Belady's choice over the same bytes,
 * except for the ring and one page by rounding. */
static void residency_is_belady_but_for_the_ring(void **state) {
    (void)state;
    seed = 1;
    for (int round = 0; round < 200; round++) {
        pager_page pages[MAX_PAGE];
        uint64_t bytes[MAX_PAGE], all = 0, ring = 0;
        double score[MAX_PAGE];
        int uses[MAX_PAGE];
        uint8_t home_of[MAX_PAGE];
        const int n = 8 + (int)draw(MAX_PAGE - 8);
        for (int i = 0; i < n; i++) {
            bytes[i] = 4096 * (uint64_t)(64 + draw(64));
            score[i] = draw(10);
            pages[i] = (pager_page){.block = i / 4, .bytes = bytes[i]};
            uses[i] = i;
            home_of[i] = HOME_OPEN;
            all += bytes[i];
            ring = NUM_MAX(ring, bytes[i]);
        }
        const uint64_t capacity = ring + (all - ring) * draw(100) / 100;
        const uint64_t left[PLACES] = {[PLACE_RAM] = capacity - ring};
        const page_trace t = {bytes, score, n, uses, n};
        homes_spread(pages, n, left, home_of);
        const uint64_t ours = homes_bytes(pages, n, home_of, PLACE_DISK) * (PASSES - SKIP);
        const page_count best = run(&t, PAGE_BELADY, capacity), lru = run(&t, PAGE_LRU, capacity);
        assert_true(ours <= best.bytes + 3 * ring * (PASSES - SKIP));
        assert_true(ours <= lru.bytes && best.bytes <= lru.bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cycle_that_does_not_fit_defeats_lru),
        cmocka_unit_test(what_does_not_fit_is_said),
        cmocka_unit_test(belady_is_the_best_there_is),
        cmocka_unit_test(residency_is_belady_but_for_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

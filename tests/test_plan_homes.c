/* The tier of each page: every page has one, no tier exceeds its capacity, and a plan is followed. */
#include "base/num.h"
#include "plan/homes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 400, ROUNDS = 3000, BLOCKS = 9 };

static uint32_t seed;

static uint32_t draw(uint32_t n) {
    seed = seed * 1664525u + 1013904223u;
    return (seed >> 8) % n;
}

/* Blocks of pages of any sizes, first slices and then second ones, a head's table at the end. */
static int draw_pages(pager_page *pages) {
    int n = 0;
    for (int second = 0; second < 2; second++)
        for (int b = 0; b < BLOCKS; b++)
            for (uint32_t i = draw(16); i > 0; i--)
                pages[n++] =
                    (pager_page){.block = b, .bytes = 4096 * (uint64_t)(1 + draw(40)), .second = second > 0};
    for (uint32_t i = draw(8); i > 0; i--)
        pages[n++] = (pager_page){.block = 0, .bytes = 4096 * (uint64_t)(1 + draw(40)), .table = true};
    for (uint32_t i = draw(8), b = draw(2) * (BLOCKS - 1); i > 0; i--)
        pages[n++] = (pager_page){.block = (int)b, .bytes = 4096, .table = true, .head = true};
    assert_true(n <= MAX);
    return n;
}

static uint64_t sum(const pager_page *pages, int n) {
    uint64_t all = 0;
    for (int i = 0; i < n; i++)
        all += pages[i].bytes;
    return all;
}

/* Of a block's pages that are visited, those on the first tier come first. */
static void check_order(const pager_page *pages, int n, const uint8_t *home_of, int first) {
    for (int i = 1; i < n; i++)
        if (pages[i].block == pages[i - 1].block && !pages[i].table && !pages[i - 1].table &&
            home_of[i] == first)
            assert_int_equal(home_of[i - 1], first);
}

static void every_page_has_a_tier(void **state) {
    (void)state;
    pager_page pages[MAX];
    uint8_t home_of[MAX];
    for (seed = 1; seed < ROUNDS; seed++) {
        const uint32_t round = seed;
        const int n = draw_pages(pages), with_gpu = (int)draw(2);
        const uint64_t all = sum(pages, n);
        const uint64_t left[PLACES] = {[PLACE_GPU] = with_gpu ? draw((uint32_t)all + 1) : 0,
                                       [PLACE_RAM] = draw((uint32_t)all + 1),
                                       [PLACE_DISK] = NIB_AUTO};
        memset(home_of, HOME_OPEN, sizeof home_of);
        homes_spread(pages, n, left, home_of);
        uint64_t placed = 0;
        for (int t = 0; t < PLACES; t++) {
            const uint64_t there = homes_bytes(pages, n, home_of, t);
            assert_true(there <= left[t]);
            placed += there;
        }
        assert_true(placed == all);
        check_order(pages, n, home_of, with_gpu ? PLACE_GPU : PLACE_RAM);
        seed = round;
    }
}

/* As much as fits: no other page would fit, unless an earlier page of its block does not. */
static void nothing_is_wasted(void **state) {
    (void)state;
    pager_page pages[MAX];
    uint8_t home_of[MAX];
    for (seed = 1; seed < ROUNDS; seed++) {
        const uint32_t round = seed;
        const int n = draw_pages(pages);
        const uint64_t left[PLACES] = {[PLACE_RAM] = draw((uint32_t)sum(pages, n) + 1)};
        memset(home_of, HOME_OPEN, sizeof home_of);
        homes_spread(pages, n, left, home_of);
        const uint64_t wasted = left[PLACE_RAM] - homes_bytes(pages, n, home_of, PLACE_RAM);
        for (int i = 0; i < n; i++) {
            const bool goes_on = i > 0 && pages[i - 1].block == pages[i].block && !pages[i - 1].table;
            if (home_of[i] == PLACE_DISK && !pages[i].table && !(goes_on && home_of[i - 1] == PLACE_DISK))
                assert_true(pages[i].bytes > wasted);
        }
        seed = round;
    }
}

/* Pages that have a tier already keep it, and take no capacity. */
static void decided_pages_stay(void **state) {
    (void)state;
    const pager_page pages[] = {{.block = 0, .bytes = 8192},
                                {.block = 1, .bytes = 8192},
                                {.block = 1, .bytes = 4096},
                                {.block = 2, .bytes = 8192}};
    const uint64_t left[PLACES] = {[PLACE_RAM] = 16384};
    uint8_t home_of[] = {HOME_OPEN, PLACE_DISK, PLACE_DISK, HOME_OPEN};
    homes_spread(pages, 4, left, home_of);
    const uint8_t expected[] = {PLACE_RAM, PLACE_DISK, PLACE_DISK, PLACE_RAM};
    assert_memory_equal(home_of, expected, sizeof expected);
}

/* Experts get memory by their rank, of every block as many. */
static void experts_by_rank(void **state) {
    (void)state;
    enum { N = 4, ALL = 2 * N };
    static const int ranks[N] = {2, 0, 3, 1};
    pager_page pages[ALL];
    uint8_t home_of[ALL];
    for (int i = 0; i < ALL; i++)
        pages[i] = (pager_page){.block = i / N,
                                .bytes = 4096,
                                .chosen = true,
                                .leads = true,
                                .expert = i % N,
                                .rank = ranks[i % N]};
    const uint64_t left[PLACES] = {[PLACE_RAM] = 4 * 4096};
    memset(home_of, HOME_OPEN, sizeof home_of);
    homes_spread(pages, ALL, left, home_of);
    for (int i = 0; i < ALL; i++)
        assert_int_equal(home_of[i], ranks[i % N] < 2 ? PLACE_RAM : PLACE_DISK);
}

/* Without pages: as many bytes as the capacity holds, to less than a page; no block more than it has. */
static void shares(void **state) {
    (void)state;
    for (seed = 1; seed < ROUNDS; seed++) {
        const uint32_t round = seed;
        uint64_t bytes[BLOCKS], kept[BLOCKS], all = 0, total = 0;
        for (int b = 0; b < BLOCKS; b++)
            total += bytes[b] = draw(1 << 20);
        const uint64_t capacity = draw((uint32_t)total + 1);
        homes_share(bytes, BLOCKS, capacity, kept);
        for (int b = 0; b < BLOCKS; b++) {
            assert_true(kept[b] <= bytes[b]);
            all += kept[b];
        }
        assert_in_range(all, capacity - NUM_MIN(capacity, (uint64_t)4096), capacity);
        homes_share(bytes, BLOCKS, NIB_AUTO, kept);
        assert_memory_equal(kept, bytes, sizeof kept);
        seed = round;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_page_has_a_tier),
        cmocka_unit_test(nothing_is_wasted),
        cmocka_unit_test(decided_pages_stay),
        cmocka_unit_test(experts_by_rank),
        cmocka_unit_test(shares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

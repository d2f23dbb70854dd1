/* The time that intervals cover together: intervals that overlap, contain each other, touch, or are apart. */
#include "base/interval.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void what_they_cover(void **state) {
    (void)state;
    interval apart[] = {{5, 6}, {1, 2}}, touch[] = {{2, 3}, {1, 2}}, overlap[] = {{1, 4}, {3, 6}, {8, 9}},
             inside[] = {{1, 9}, {2, 3}, {8, 10}}, empty[] = {{3, 3}, {7, 7}};
    assert_true(interval_cover(NULL, 0) == 0);
    assert_true(interval_cover(apart, NUM_COUNT(apart)) == 2);
    assert_true(interval_cover(touch, NUM_COUNT(touch)) == 2);
    assert_true(interval_cover(overlap, NUM_COUNT(overlap)) == 6);
    assert_true(interval_cover(inside, NUM_COUNT(inside)) == 9);
    assert_true(interval_cover(empty, NUM_COUNT(empty)) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_they_cover)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

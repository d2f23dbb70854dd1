/* The order of the cells of a pass, from literal segments: every block once, rows in groups, the head for the
 * rows whose logits are wanted, and of the others nothing but keys and values in the last layer. */
#include "run/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "block.segment:first+rows", k: for the cache only. */
static void cells_of(schedule s, char *out, size_t size) {
    size_t n = 0;
    cell c;
    out[0] = '\0';
    while (schedule_next(&s, &c) && n < size)
        n += (size_t)snprintf(out + n, size - n, "%s%d.%d:%d+%d%s", n ? " " : "", c.block, c.segment,
                              (int)c.row, (int)c.n_row, c.cache_only ? "k" : "");
}

static void expect_cells(const segment *segments, int n_segment, int n_block, int first, bool whole,
                         const char *want) {
    char found[512];
    cells_of(schedule_begin(n_block, first, segments, n_segment, 4, 2, whole), found, sizeof found);
    assert_string_equal(found, want);
}

static void one_segment(void **state) {
    (void)state;
    const segment last = {.n_row = 6, .head_row = 5}, none = {.n_row = 5, .head_row = 5},
                  some = {.n_row = 6, .head_row = 3}, one = {.n_row = 1};
    expect_cells(&last, 1, 4, 0, false, "0.0:0+4 0.0:4+2 1.0:0+4 1.0:4+2 2.0:0+4k 2.0:4+1k 2.0:5+1 3.0:5+1");
    expect_cells(&last, 1, 4, 0, true, "0.0:0+4 0.0:4+2 1.0:0+4 1.0:4+2 2.0:0+4 2.0:4+2 3.0:5+1");
    expect_cells(&none, 1, 4, 0, false, "0.0:0+4 0.0:4+1 1.0:0+4 1.0:4+1 2.0:0+4k 2.0:4+1k");
    expect_cells(&some, 1, 4, 2, false, "2.0:0+3k 2.0:3+3 3.0:3+2 3.0:5+1");
    expect_cells(&one, 1, 3, 0, false, "0.0:0+1 1.0:0+1 2.0:0+1");
    expect_cells(&last, 1, 4, 3, false, "3.0:5+1");                 /* from the head on */
    expect_cells(&last, 1, 2, 0, false, "0.0:0+4 0.0:4+2 1.0:5+1"); /* no layers: the embedding is whole */
}

static void two_segments(void **state) {
    (void)state;
    const segment both[2] = {{.n_row = 3, .head_row = 3}, {.row = 3, .n_row = 2, .head_row = 1}};
    expect_cells(both, 2, 3, 0, false, "0.0:0+3 0.1:0+2 1.0:0+3k 1.1:0+1k 1.1:1+1 2.1:1+1");
}

static void stays_with_a_block(void **state) {
    (void)state;
    const segment of = {.n_row = 6, .head_row = 5};
    schedule s = schedule_begin(3, 0, &of, 1, 4, 2, false);
    const bool stays[] = {true, false, true, true, false, false};
    cell c;
    int n = 0;
    assert_int_equal(schedule_n_cell(&s), 2);
    assert_int_equal(schedule_n_head(&s), 1);
    for (; schedule_next(&s, &c); n++)
        assert_int_equal(schedule_stays(&s, c.block), stays[n]);
    assert_int_equal(n, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_segment),
        cmocka_unit_test(two_segments),
        cmocka_unit_test(stays_with_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The order of the cells of a pass, from literal segments: every block once, rows in groups, the head for the
 * rows whose logits are wanted, and of the others nothing but keys and values in the last layer. */
#include "exec/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "block:first+rows", k: for the cache only. */
static void cells_of(schedule s, char *out, size_t size) {
    size_t n = 0;
    cell c;
    out[0] = '\0';
    while (schedule_next(&s, &c) && n < size)
        n += (size_t)snprintf(out + n, size - n, "%s%d:%d+%d%s", n ? " " : "", c.block, (int)c.row,
                              (int)c.n_row, c.cache_only ? "k" : "");
}

static void expect_cells(const segment *segments, int n_segment, int n_block, int first, bool whole,
                         bool apart, const char *want) {
    char found[512];
    cells_of(schedule_begin(n_block, first, segments, n_segment, 4, 2, whole, apart), found, sizeof found);
    assert_string_equal(found, want);
}

static void one_segment(void **state) {
    (void)state;
    const segment last = {.n_row = 6, .head_row = 5}, none = {.n_row = 5, .head_row = 5},
                  some = {.n_row = 6, .head_row = 3}, one = {.n_row = 1};
    expect_cells(&last, 1, 4, 0, false, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+4k 2:4+1k 2:5+1 3:0+1");
    expect_cells(&last, 1, 4, 0, true, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+4 2:4+2 3:0+1");
    expect_cells(&none, 1, 4, 0, false, false, "0:0+4 0:4+1 1:0+4 1:4+1 2:0+4k 2:4+1k");
    expect_cells(&some, 1, 4, 2, false, false, "2:0+3k 2:3+3 3:0+2 3:2+1");
    expect_cells(&one, 1, 3, 0, false, false, "0:0+1 1:0+1 2:0+1");
    expect_cells(&last, 1, 4, 3, false, false, "3:0+1");             /* from the head on */
    expect_cells(&last, 1, 2, 0, false, false, "0:0+4 0:4+2 1:0+1"); /* no layers: the embedding is whole */
}

/* Rows of several sequences go through a block together, unless somebody looks at one after the other. */
static void several_segments(void **state) {
    (void)state;
    const segment two[2] = {{.n_row = 3, .head_row = 3}, {.row = 3, .n_row = 2, .head_row = 1}};
    expect_cells(two, 2, 3, 0, false, false, "0:0+4 0:4+1 1:0+4k 1:4+1 2:0+1");
    expect_cells(two, 2, 3, 0, true, true, "0:0+3 0:3+2 1:0+3 1:3+2 2:0+1");
    const segment decode[3] = {{.n_row = 1}, {.row = 1, .n_row = 1}, {.row = 2, .n_row = 1}};
    expect_cells(decode, 3, 3, 0, false, false, "0:0+3 1:0+3 2:0+2 2:2+1");
    expect_cells(decode, 3, 3, 0, true, true, "0:0+1 0:1+1 0:2+1 1:0+1 1:1+1 1:2+1 2:0+1 2:1+1 2:2+1");
    const segment mixed[3] = {{.n_row = 1}, {.row = 1, .n_row = 4, .head_row = 3}, {.row = 5, .n_row = 1}};
    expect_cells(mixed, 3, 3, 0, false, false, "0:0+4 0:4+2 1:0+1 1:1+3k 1:4+2 2:0+2 2:2+1");
    expect_cells(mixed, 3, 3, 0, true, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+2 2:2+1");
}

/* A row of a layer, and a row with logits, to its segment and its row there. */
static void finds_rows(void **state) {
    (void)state;
    const segment all[3] = {
        {.n_row = 2, .head_row = 2}, {.row = 2, .n_row = 3, .head_row = 1}, {.row = 5, .n_row = 1}};
    const struct {
        bool head;
        int64_t row, segment, in;
    } cases[] = {{false, 1, 0, 1}, {false, 2, 1, 0}, {false, 5, 2, 0},
                 {true, 0, 1, 1},  {true, 1, 1, 2},  {true, 2, 2, 0}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        int64_t row = cases[i].row;
        assert_ptr_equal(schedule_find(all, 3, cases[i].head, &row), &all[cases[i].segment]);
        assert_int_equal(row, cases[i].in);
    }
    int64_t behind = 3;
    assert_null(schedule_find(all, 3, true, &behind));
}

static void stays_with_a_block(void **state) {
    (void)state;
    const segment of = {.n_row = 6, .head_row = 5};
    schedule s = schedule_begin(3, 0, &of, 1, 4, 2, false, false);
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
        cmocka_unit_test(several_segments),
        cmocka_unit_test(finds_rows),
        cmocka_unit_test(stays_with_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

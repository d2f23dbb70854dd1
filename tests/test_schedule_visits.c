/* The order of the visits of a pass, from literal segments: every block once, rows in groups, the head for
 * the rows whose logits are wanted, and for the other rows only keys and values in the last layer; and the
 * pages that such a list reads. */
#include "weights/visit_pages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* "block:first+rows", k: for the cache only. */
static void print_visits(visits list, char *out, size_t size) {
    size_t n = 0;
    visit v;
    out[0] = '\0';
    while (visits_next(&list, &v) && n < size)
        n += (size_t)snprintf(out + n, size - n, "%s%d:%d+%d%s", n ? " " : "", v.block, (int)v.row,
                              (int)v.n_row, v.cache_only ? "k" : "");
}

static visits list_of(const segment *segments, int n_segment, int n_block) {
    return (visits){.next = visits_by_block,
                    .n_block = n_block,
                    .end = n_block,
                    .segments = segments,
                    .n_segment = n_segment,
                    .n_cell = 4,
                    .n_head = 2};
}

static void expect_visits(const segment *segments, int n_segment, int n_block, int first, bool whole,
                          bool apart, const char *want) {
    char found[512];
    segment numbered[3];
    memcpy(numbered, segments, (size_t)n_segment * sizeof *segments);
    segments_number(numbered, n_segment);
    visits list = list_of(numbered, n_segment, n_block);
    list.first = first;
    list.whole = whole;
    list.apart = apart;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, want);
}

static void one_segment(void **state) {
    (void)state;
    const segment last = {.n_row = 6, .head_row = 5}, none = {.n_row = 5, .head_row = 5},
                  some = {.n_row = 6, .head_row = 3}, one = {.n_row = 1};
    expect_visits(&last, 1, 4, 0, false, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+4k 2:4+1k 2:5+1 3:0+1");
    expect_visits(&last, 1, 4, 0, true, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+4 2:4+2 3:0+1");
    expect_visits(&none, 1, 4, 0, false, false, "0:0+4 0:4+1 1:0+4 1:4+1 2:0+4k 2:4+1k");
    expect_visits(&some, 1, 4, 2, false, false, "2:0+3k 2:3+3 3:0+2 3:2+1");
    expect_visits(&one, 1, 3, 0, false, false, "0:0+1 1:0+1 2:0+1");
    expect_visits(&last, 1, 4, 3, false, false, "3:0+1");             /* from the head on */
    expect_visits(&last, 1, 2, 0, false, false, "0:0+4 0:4+2 1:0+1"); /* no layers: the embedding is whole */
}

/* Rows of several sequences go through a block together, unless a probe needs one sequence after the other.
 */
static void several_segments(void **state) {
    (void)state;
    const segment two[2] = {{.n_row = 3, .head_row = 3}, {.n_row = 2, .head_row = 1}};
    expect_visits(two, 2, 3, 0, false, false, "0:0+4 0:4+1 1:0+4k 1:4+1 2:0+1");
    expect_visits(two, 2, 3, 0, true, true, "0:0+3 0:3+2 1:0+3 1:3+2 2:0+1");
    const segment decode[3] = {{.n_row = 1}, {.n_row = 1}, {.n_row = 1}};
    expect_visits(decode, 3, 3, 0, false, false, "0:0+3 1:0+3 2:0+2 2:2+1");
    expect_visits(decode, 3, 3, 0, true, true, "0:0+1 0:1+1 0:2+1 1:0+1 1:1+1 1:2+1 2:0+1 2:1+1 2:2+1");
    const segment mixed[3] = {{.n_row = 1}, {.n_row = 4, .head_row = 3}, {.n_row = 1}};
    expect_visits(mixed, 3, 3, 0, false, false, "0:0+4 0:4+2 1:0+1 1:1+3k 1:4+2 2:0+2 2:2+1");
    expect_visits(mixed, 3, 3, 0, true, false, "0:0+4 0:4+2 1:0+4 1:4+2 2:0+2 2:2+1");
}

/* Where roles have different kernels, each visit has rows of one role. */
static void roles(void **state) {
    (void)state;
    segment all[4] = {{.n_row = 1, .generated = true},
                      {.n_row = 2, .generated = true},
                      {.n_row = 3, .head_row = 3},
                      {.n_row = 2, .head_row = 1}};
    char found[512];
    segments_number(all, 4);
    visits list = list_of(all, 4, 4);
    list.whole = true;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, "0:0+4 0:4+4 1:0+4 1:4+4 2:0+4 2:4+4 3:0+2 3:2+2");
    list.by_role = true;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, "0:0+3 0:3+4 0:7+1 1:0+3 1:3+4 1:7+1 2:0+3 2:3+4 2:7+1 3:0+2 3:2+1 3:3+1");
    list.whole = false;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, "0:0+3 0:3+4 0:7+1 1:0+3 1:3+4 1:7+1 2:0+3 2:3+4k 2:7+1 3:0+2 3:2+1 3:3+1");
    for (visit v; visits_next(&list, &v);)
        assert_true(v.generated == (v.row < 3));
}

/* "block:first+rows", @: where its rows are in registers; b, a, r: the part before attention, it, the rest;
 * w: whole. */
static void print_parts(visits list, char *out, size_t size) {
    size_t n = 0;
    visit v;
    while (visits_next(&list, &v) && n < size) {
        n += (size_t)snprintf(out + n, size - n, "%s%d:%d+%d", n ? " " : "", v.block, (int)v.row,
                              (int)v.n_row);
        if (v.part || v.bank)
            n += (size_t)snprintf(out + n, size - n, "@%d%c", (int)v.bank, "wbar"[v.part]);
    }
}

/* Two cells of generated rows go through a block that is cut; prompt rows are whole, beside them while rows
 * are left, and after them. One row is one cell. */
static void cut_at_attention(void **state) {
    (void)state;
    const bool cut[4] = {false, false, true, false};
    segment all[3] = {{.n_row = 5, .generated = true, .head_row = 4}, {.n_row = 2, .head_row = 1}};
    char found[512];
    segments_number(all, 2);
    visits list = list_of(all, 2, 4);
    list.whole = list.by_role = true;
    list.cut = cut;
    list.n_cut = 3;
    print_parts(list, found, sizeof found);
    assert_string_equal(found, "0:0+4 0:4+1 0:5+2 1:0+4 1:4+1 1:5+2 "
                               "2:0+2@0b 2:2+1@2b 2:5+1@3w 2:0+2@0a 2:0+2@0r 2:2+1@2a 2:2+1@2r "
                               "2:3+1@0b 2:4+1@1b 2:6+1@2w 2:3+1@0a 2:3+1@0r 2:4+1@1a 2:4+1@1r 3:0+1 3:1+1");
    list.whole = false; /* the last layer's rows without logits are visits of their own */
    print_parts(list, found, sizeof found);
    assert_string_equal(found, "0:0+4 0:4+1 0:5+2 1:0+4 1:4+1 1:5+2 "
                               "2:0+2@0b 2:2+1@2b 2:5+1@3w 2:0+2@0a 2:0+2@0r 2:2+1@2a 2:2+1@2r "
                               "2:3+1@0b 2:6+1@1w 2:3+1@0a 2:3+1@0r 2:4+1@0b 2:4+1@0a 2:4+1@0r 3:0+1 3:1+1");
    list.whole = true;
    list.n_cut = 4; /* all rows of a cell are in flight */
    print_parts(list, found, sizeof found);
    assert_string_equal(found, "0:0+4 0:4+1 0:5+2 1:0+4 1:4+1 1:5+2 "
                               "2:0+2@0b 2:2+2@2b 2:0+2@0a 2:0+2@0r 2:2+2@2a 2:2+2@2r "
                               "2:4+1@0b 2:5+2@1w 2:4+1@0a 2:4+1@0r 3:0+1 3:1+1");
    all[0].n_row = 1;
    all[0].head_row = 0;
    segments_number(all, 1);
    list.n_segment = 1;
    print_parts(list, found, sizeof found);
    assert_string_equal(found, "0:0+1 1:0+1 2:0+1@0b 2:0+1@0a 2:0+1@0r 3:0+1");
    int n = 0;
    for (visit v; visits_next(&list, &v);)
        n += v.again;
    assert_int_equal(n, 2);
}

/* A row of a layer, and a row with logits, to its segment and its row there. */
static void finds_rows(void **state) {
    (void)state;
    segment all[3] = {{.n_row = 2, .head_row = 2}, {.n_row = 3, .head_row = 1}, {.n_row = 1}};
    const struct {
        bool head;
        int64_t row, segment, in;
    } cases[] = {{false, 1, 0, 1}, {false, 2, 1, 0}, {false, 5, 2, 0},
                 {true, 0, 1, 1},  {true, 1, 1, 2},  {true, 2, 2, 0}};
    assert_int_equal(segments_number(all, 3), 6);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        int64_t row = cases[i].row;
        assert_ptr_equal(visits_segment(all, 3, cases[i].head, &row), &all[cases[i].segment]);
        assert_int_equal(row, cases[i].in);
    }
    int64_t behind = 3;
    assert_null(visits_segment(all, 3, true, &behind));
}

/* Of thousands of segments, some without rows with logits. */
static void finds_rows_of_many(void **state) {
    (void)state;
    enum { N = 4099 };
    static segment all[N];
    int64_t n_head = 0, head = 0;
    for (int i = 0; i < N; i++) {
        all[i] = (segment){.n_row = 1 + i % 3, .head_row = i % 4};
        all[i].head_row = NUM_MIN(all[i].head_row, all[i].n_row);
    }
    const int64_t n_row = segments_number(all, N);
    for (int64_t row = 0, i = 0; i < N; row += all[i++].n_row)
        for (int64_t k = 0; k < all[i].n_row; k++) {
            int64_t of = row + k;
            assert_ptr_equal(visits_segment(all, N, false, &of), &all[i]);
            assert_int_equal(of, k);
            if (k < all[i].head_row)
                continue;
            head = n_head++;
            assert_ptr_equal(visits_segment(all, N, true, &head), &all[i]);
            assert_int_equal(head, k);
        }
    int64_t behind = n_row;
    assert_null(visits_segment(all, N, false, &behind));
    assert_null(visits_segment(all, N, true, &n_head));
}

static void stays_with_a_block(void **state) {
    (void)state;
    const segment of = {.n_row = 6, .head_row = 5};
    visits list = list_of(&of, 1, 3);
    const bool stays[] = {true, false, true, true, false, false};
    visit v;
    int n = 0;
    for (; visits_next(&list, &v); n++)
        assert_int_equal(v.again, stays[n]);
    assert_int_equal(n, 6);
}

/* A stage of a pipeline has some of the blocks; a pass may leave some out. */
static void stages(void **state) {
    (void)state;
    const segment of = {.n_row = 6, .head_row = 5};
    const bool out[5] = {false, false, true, false, false};
    char found[512];
    visits list = list_of(&of, 1, 5);
    list.first = 1;
    list.end = 3;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, "1:0+4 1:4+2 2:0+4 2:4+2");
    list.end = 5;
    list.left_out = out;
    print_visits(list, found, sizeof found);
    assert_string_equal(found, "1:0+4 1:4+2 3:0+4k 3:4+1k 3:5+1 4:0+1");
    print_visits(visits_of_one_row(5, 2, 4), found, sizeof found);
    assert_string_equal(found, "2:0+1 3:0+1");
}

/* ---- pages ---- */

static void print_pages(const visit_pages *p, const visits *list, char *out, size_t size) {
    size_t n = 0;
    out[0] = '\0';
    for (page_cursor c = page_cursor_of(p, list); !c.ended && n < size; page_cursor_step(p, &c))
        n += (size_t)snprintf(out + n, size - n, "%s%d", n ? " " : "", p->pages[c.i]);
}

static void expect_pages(const visit_pages *p, visits list, const char *want) {
    char found[512];
    print_pages(p, &list, found, sizeof found);
    assert_string_equal(found, want);
}

/* Block 0 has nothing on disk, block 1 fits the ring, block 2 does not: all but 5 - 4 of its pages come once
 * for each visit. */
static void pages_of_visits(void **state) {
    (void)state;
    int pages[] = {10, 11, 20, 21, 22, 23, 24, 25, 11}, first[] = {0, 0, 2, 8, 9};
    const visit_pages p = {pages, first, 5, NULL};
    const segment one = {.n_row = 1}, many = {.n_row = 10, .head_row = 7};
    expect_pages(&p, list_of(&one, 1, 4), "10 11 20 21 22 23 24 25 11");
    expect_pages(&p, list_of(&many, 1, 4), "10 11 20 21 22 23 24 25 21 22 23 24 25 21 22 23 24 25 11");
    visits stage = list_of(&many, 1, 4);
    stage.end = 2;
    expect_pages(&p, stage, "10 11");
    stage.end = 1;
    expect_pages(&p, stage, "");
    expect_pages(&p, (visits){0}, "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_segment),
        cmocka_unit_test(several_segments),
        cmocka_unit_test(roles),
        cmocka_unit_test(cut_at_attention),
        cmocka_unit_test(finds_rows),
        cmocka_unit_test(finds_rows_of_many),
        cmocka_unit_test(stays_with_a_block),
        cmocka_unit_test(stages),
        cmocka_unit_test(pages_of_visits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Rows in the order of the files: every wanted row is in exactly one read, in order, and no other row is, for
 * any size of a read. */
#include "base/num.h"
#include "support/tinylayout.h"
#include "support/tinymodel.h"
#include "weights/load_runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static const tiny_shape small = {TYPE_Q4_0, 2, 64, 96, 4, 2, 300, 64, false};
static const tiny_shape large = {TYPE_Q8_0, 8, 256, 768, 8, 2, 8192, 64, true};

enum { PAGE_ROWS = 48 };

/* Pages of PAGE_ROWS rows, of which every `step`-th is not wanted (0: all are). */
static bool place(void *user, const load_run *run, int64_t row, load_target *to, int64_t *n_row) {
    const int step = *(const int *)user;
    const int64_t page = row / PAGE_ROWS;
    *to = (load_target){NULL, run->w->n, row};
    *n_row = run->w->vector ? run->n_row : PAGE_ROWS - row % PAGE_ROWS;
    return run->w->vector || step == 0 || (page + run->index) % step != 0;
}

/* Walks past the rows that are not wanted; false: the end. */
static bool to_wanted(const load_runs *r, int step, load_spot *at) {
    for (; at->run < r->n; *at = (load_spot){at->run + 1, 0})
        while (at->row < r->all[at->run].n_row) {
            const load_run *run = &r->all[at->run];
            load_target to;
            int64_t n = 0;
            if (place(&step, run, run->first + at->row, &to, &n))
                return true;
            at->row = NUM_MIN(at->row + n, run->n_row);
        }
    return false;
}

/* Row by row through a span; returns the bytes of its rows. */
static uint64_t check_span(const load_runs *r, int step, const load_span *s, load_spot *at) {
    uint64_t bytes = 0;
    const load_extent *e = &s->from;
    assert_int_equal(e->offset % FILE_ALIGN, 0);
    assert_int_equal(e->n_byte % FILE_ALIGN, 0);
    assert_true(e->min <= e->n_byte && e->n_byte - e->min < FILE_ALIGN);
    assert_true(to_wanted(r, step, at));
    assert_true(at->run == s->at.run && at->row == s->at.row);
    while (to_wanted(r, step, at) &&
           (at->run < s->end.run || (at->run == s->end.run && at->row < s->end.row))) {
        const load_run *run = &r->all[at->run];
        const uint64_t each = loader_row_bytes(run->w), begin = run->begin + (uint64_t)at->row * each;
        assert_true(begin >= e->offset && begin + each <= e->offset + e->min);
        bytes += each;
        at->row++;
    }
    assert_int_equal(bytes, s->useful);
    return bytes;
}

static uint64_t wanted_bytes(const load_runs *r, int step) {
    uint64_t all = 0;
    for (load_spot at = {0, 0}; to_wanted(r, step, &at); at.row++)
        all += loader_row_bytes(r->all[at.run].w);
    return all;
}

/* Returns the number of reads. */
static int check_all(const tiny_layout *of, int step, uint64_t max) {
    load_runs r;
    loader *ld;
    load_span s;
    load_spot at = {0, 0}, seen = {0, 0};
    uint64_t all = 0;
    int n = 0;
    assert_int_equal(load_runs_open(&r, of->l, NULL), NIB_OK);
    assert_int_equal(load_runs_bytes(of->l), (uint64_t)r.n * sizeof *r.all);
    assert_int_equal(loader_open(of->m, false, &ld, NULL), NIB_OK);
    for (; load_runs_next(&r, ld, place, &step, max, &at, &s); n++) {
        assert_true(s.from.n_byte <= max);
        all += check_span(&r, step, &s, &seen);
    }
    assert_int_equal(all, wanted_bytes(&r, step));
    loader_close(ld);
    load_runs_close(&r);
    return n;
}

static void check_model(const char *path) {
    tiny_layout of = tiny_layout_open(path);
    const uint64_t min = load_raw_bytes(of.l, 0);
    const uint64_t size = file_size(container_file(model_container(of.m), 0));
    for (int step = 0; step < 4; step += step ? 1 : 2)
        for (uint64_t max = min; max < 4 * min; max += FILE_ALIGN)
            assert_true(check_all(&of, step, max) > 0);
    assert_int_equal(check_all(&of, 0, (size / FILE_ALIGN + 1) * FILE_ALIGN),
                     1); /* nothing is between them */
    tiny_layout_close(&of);
}

static void every_row_once(void **state) {
    (void)state;
    check_model(tiny_model("small.gguf", &small));
    check_model(tiny_model("large.gguf", &large));
}

/* None of these is in the list, so they are not read twice. */
static void left_to_others(void **state) {
    (void)state;
    const container_tensor t = {.n_dim = 2};
    weight_piece pieces[] = {{&t, 0, 24}, {&t, 24, 24}};
    weight w = {.type = TYPE_Q8_0, .n = 48, .k = 64, .pieces = pieces, .n_piece = 2, .shared_block = -1};
    assert_false(load_runs_has(&w)); /* two pieces in one panel */
    pieces[0].n_row = 32;
    assert_false(load_runs_has(&w)); /* more rows than there are */
    pieces[1].n_row = 16;
    assert_true(load_runs_has(&w));
    w.transposed = true;
    assert_false(load_runs_has(&w));
    w.transposed = false;
    w.shared_block = 0;
    assert_false(load_runs_has(&w));
    weight v = {.type = TYPE_F32, .n = 1, .k = 48, .pieces = pieces, .n_piece = 2, .vector = true};
    v.shared_block = -1;
    assert_false(load_runs_has(&v)); /* in two pieces */
    pieces[0].n_row = 48;
    v.n_piece = 1;
    assert_true(load_runs_has(&v));
    v.type = TYPE_Q8_0;
    assert_false(load_runs_has(&v)); /* no floats: reading by weights reports the error */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_row_once), cmocka_unit_test(left_to_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

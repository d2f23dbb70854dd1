/* FlexGen's schedules, counted over the sweeps and visits that run, against a count of their cells that was
 * written independently (tests/data/flexgen/schedules.json). */
#include "schedule/sweeps.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int64_t integer(const json_t *of, const char *key) {
    const json_t *v = json_object_get(of, key);
    assert_true(json_is_integer(v));
    return json_integer_value(v);
}

static sweep_counts count(sweep_kind kind, int64_t width, int64_t spacing, const sweep_work *w) {
    const sweeps s = {.kind = kind, .width = width, .spacing = spacing};
    sweep_counts c;
    nib_error err;
    assert_int_equal(sweeps_count(&s, w, &c, &err), NIB_OK);
    return c;
}

static void expect(const json_t *want, const sweep_counts *c, double least) {
    assert_int_equal(c->n_cell, integer(want, "cells"));
    assert_int_equal(c->n_load, integer(want, "weight_loads"));
    assert_int_equal(c->kv_read, integer(want, "kv_positions_read"));
    assert_int_equal(c->kv_written, integer(want, "kv_positions_written"));
    assert_int_equal(c->stream_rows, integer(want, "activation_rows"));
    assert_int_equal(c->max_kv, integer(want, "peak_kv_positions"));
    const double over = json_number_value(json_object_get(want, "loads_over_bound"));
    assert_true(fabs((double)c->n_load / least - over) < 1e-4);
}

static void schedules(void **state) {
    (void)state;
    json_error_t why;
    json_t *all = json_load_file("tests/data/flexgen/schedules.json", 0, &why), *grid;
    size_t i;
    json_array_foreach(json_object_get(all, "grids"), i, grid) {
        const sweep_work w = {integer(grid, "batches"), integer(grid, "s"), integer(grid, "n"),
                              (int)integer(grid, "l")};
        const double least = sweeps_least_loads(&w, (double)integer(grid, "capacity"));
        const sweep_counts row = count(SWEEP_ROW, 1, 0, &w),
                           zigzag = count(SWEEP_BLOCK, integer(grid, "zigzag_block"), 0, &w),
                           refill = count(SWEEP_REFILL, integer(grid, "diagonal_width"), w.n_gen, &w);
        assert_true(fabs(least - json_number_value(json_object_get(grid, "lower_bound_loads"))) < 1e-2);
        expect(json_object_get(grid, "row"), &row, least);
        expect(json_object_get(grid, "zigzag"), &zigzag, least);
        expect(json_object_get(grid, "diagonal"), &refill, least);
        assert_true((double)zigzag.n_load <= 2 * least); /* theorem 4.1 */
        assert_true(refill.max_kv <= integer(grid, "capacity"));
    }
    assert_int_equal(i, 5);
    json_decref(all);
}

/* Without a need to save memory, sequences enter as soon as there is a place. */
static void places_are_filled_at_once(void **state) {
    (void)state;
    const sweep_work w = {64, 8, 8, 4};
    assert_int_equal(count(SWEEP_REFILL, 16, 0, &w).n_load, 4 * 8 * 4);
    assert_int_equal(count(SWEEP_BLOCK, 16, 0, &w).n_load, 4 * 8 * 4);
    assert_int_equal(count(SWEEP_REFILL, 64, 0, &w).n_load, 8 * 4);
}

static void kinds_have_names(void **state) {
    (void)state;
    for (int i = 0; i < SWEEP_N_KIND; i++) {
        sweep_kind found;
        assert_true(sweep_find(sweep_name((sweep_kind)i), &found));
        assert_int_equal(found, i);
    }
    sweep_kind none;
    assert_false(sweep_find("diagonal", &none));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(places_are_filled_at_once),
        cmocka_unit_test(kinds_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

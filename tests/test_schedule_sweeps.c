/* FlexGen's schedules, counted over the sweeps and visits that run, against a count of their cells that was
 * written independently (tests/data/flexgen/schedules.json). */
#include "base/mem.h"
#include "schedule/sweeps.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* ---- the counter ---- */

/* Equal sequences: batches of rows, each with a prompt and n_gen tokens, through n_layer equal layers. */
typedef struct sweep_work {
    int64_t n_batch, n_prompt, n_gen;
    int n_layer;
} sweep_work;

/* What the schedule moves, in layers and positions of a batch (a position of a layer is a unit). */
typedef struct sweep_counts {
    int64_t n_cell; /* visits of layers by a batch */
    int64_t n_load; /* times a layer's weights come: its visits that do not follow one of the same layer */
    int64_t kv_read, kv_written;
    int64_t stream_rows; /* rows of the residual stream that go through a layer */
    int64_t max_kv;      /* positions that are held at the same time, in all layers */
} sweep_counts;

/* The state of a walk: batches in flight, oldest first. */
typedef struct walk {
    const sweep_work *work;
    int64_t *batch;    /* [n]: tokens that each has */
    segment *segments; /* [n] */
    int64_t n;
    int64_t held; /* positions in all layers */
    sweep_counts *out;
} walk;

/* Counts a visit of a layer by one batch. Its keys and values are read and written there; after its last
 * token they are free. */
static void count_cell(walk *w, const visit *v, int last_block) {
    int64_t row = v->row;
    const segment *s = visits_segment(w->segments, (int)w->n, false, &row);
    const bool ends = w->batch[s - w->segments] + 1 == w->work->n_gen;
    w->out->n_cell++;
    w->out->n_load += v->block != last_block;
    w->out->kv_read += s->position;
    w->out->kv_written += s->n_row;
    w->out->stream_rows += s->n_row;
    w->held += s->n_row;
    w->out->max_kv = NUM_MAX(w->out->max_kv, w->held);
    if (ends)
        w->held -= s->position + s->n_row;
}

static void count_sweep(walk *w, int *last_block) {
    const int n_block = w->work->n_layer + 2; /* the embedding before, the head behind */
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t n = w->batch[i], n_prompt = w->work->n_prompt;
        w->segments[i] = (segment){.position = n ? n_prompt + n - 1 : 0, .n_row = n ? 1 : n_prompt};
        w->segments[i].head_row = w->segments[i].n_row - 1;
    }
    segments_number(w->segments, (int)w->n);
    visits list = {.next = visits_by_block,
                   .n_block = n_block,
                   .first = 1,
                   .end = n_block - 1,
                   .segments = w->segments,
                   .n_segment = (int)w->n,
                   .n_cell = INT64_MAX,
                   .n_head = 1,
                   .whole = true,
                   .apart = true};
    for (visit v; visits_next(&list, &v); *last_block = v.block)
        count_cell(w, &v, *last_block);
}

/* Every batch in flight has another token; those that have all leave. */
static void advance(walk *w) {
    int64_t n = 0;
    for (int64_t i = 0; i < w->n; i++)
        if (w->batch[i] + 1 < w->work->n_gen)
            w->batch[n++] = w->batch[i] + 1;
    w->n = n;
}

static nib_status sweeps_count(const sweeps *s, const sweep_work *work, sweep_counts *out, nib_error *err) {
    sweeps at = {.kind = s->kind, .width = s->width, .spacing = s->spacing};
    const size_t most = (size_t)NUM_MIN(s->width, work->n_batch);
    walk w = {.work = work, .out = out};
    int last_block = -1;
    *out = (sweep_counts){0};
    w.batch = mem_calloc(most, sizeof *w.batch);
    w.segments = mem_calloc(most, sizeof *w.segments);
    if (w.batch && w.segments)
        do {
            sweeps_next(&at, w.n);
            while (at.n_begun < work->n_batch && sweeps_admits(&at, w.n)) {
                w.batch[w.n++] = 0;
                sweeps_enter(&at);
            }
            count_sweep(&w, &last_block);
            advance(&w);
        } while (w.n > 0 || at.n_begun < work->n_batch);
    const bool counted = w.batch && w.segments;
    mem_free(w.batch);
    mem_free(w.segments);
    return counted ? NIB_OK : nib_fail_nomem(err, most * sizeof(segment), "counting a schedule");
}

/* Loads of weights that no order can do without, where `capacity` positions are held in all layers together
 * (A.2.2). */
static double sweeps_least_loads(const sweep_work *w, double capacity) {
    const double n = (double)w->n_gen;
    const double each =
        n * (double)w->n_prompt + n * (n - 1) / 2; /* of all tokens of a batch, in one layer */
    return each * (double)w->n_batch * (double)w->n_layer / (capacity / w->n_layer);
}

/* ---- tests ---- */

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules),
        cmocka_unit_test(places_are_filled_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

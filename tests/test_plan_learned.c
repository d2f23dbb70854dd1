/* Learned times of runs: stored and read back equal, bounded, refused if damaged or another machine's; and
 * predictions from them. */
#include "profile/learned.h"

#include "base/mem.h"
#include "plan/expect.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const machine here = {.cpu = "a cpu", .features = "avx2", .n_core = 2, .l3 = 1 << 20};

static learned_run a_run(double share, double seconds) {
    learned_run r = {.content = "abc",
                     .device = 0xfe00,
                     .n_thread = 2,
                     .kv = "f16",
                     .work = {.n_op = 100,
                              .cache_bytes = 1e5,
                              .cache_macs = 1e5,
                              .disk_bytes = share * 1e8,
                              .pack_bytes = share * 1e8,
                              .n_wait = share > 0,
                              .read_bytes = share > 0 ? 1 << 17 : 0},
                     .formula_s = seconds,
                     .seconds = {seconds},
                     .n_seconds = 1};
    r.work.bytes[0][4] = 1e8;
    return r;
}

static learned with(const learned_run *runs, int n) {
    learned l = {0};
    for (int i = 0; i < n; i++)
        assert_int_equal(learned_add(&l, &runs[i], NULL), NIB_OK);
    return l;
}

/* A file that was read is written again with the same bytes. */
static void assert_same_file(const char *path, const learned *back) {
    static char before[1 << 16], after[1 << 16];
    const char *again = temp_path("again.jsonl");
    nib_error err = {NIB_OK, ""};
    if (learned_save(again, &here, back, &err))
        fail_msg("%s", err.message);
    FILE *a = fopen(path, "r"), *b = fopen(again, "r");
    assert_true(a && b);
    const size_t n = fread(before, 1, sizeof before, a);
    assert_in_range(n, 100, sizeof before - 1);
    assert_int_equal(fread(after, 1, sizeof after, b), n);
    assert_memory_equal(before, after, n);
    fclose(a);
    fclose(b);
}

static void kept_and_read(void **state) {
    (void)state;
    const char *path = temp_path("folder/learned.jsonl");
    learned_run runs[] = {a_run(0, 0.01), a_run(0.5, 0.03), a_run(0, 0.012)};
    learned l = with(runs, 3), back;
    nib_error err = {NIB_OK, ""};
    assert_int_equal(l.n, 2); /* the third is one more of the first kind */
    assert_int_equal(l.runs[0].n_seconds, 2);
    assert_int_equal(l.runs[0].at, 3);
    assert_int_equal(learned_load(path, &here, &back, &err), NIB_E_NOTFOUND);
    if (learned_save(path, &here, &l, &err) || learned_load(path, &here, &back, &err))
        fail_msg("%s", err.message);
    assert_int_equal(back.n, l.n);
    assert_same_file(path, &back);
    learned_clear(&back);
    machine other = here;
    other.n_core = 4;
    assert_int_equal(learned_load(path, &other, &back, &err), NIB_E_NOTFOUND);
    learned_clear(&l);
}

static void bounded(void **state) {
    (void)state;
    learned l = {0};
    for (int i = 0; i < 3 * MAX_LEARNED; i++) {
        learned_run r = a_run(0.5, 0.001 * (i + 1));
        r.n_thread = 1 + i % (MAX_LEARNED + 5);
        assert_int_equal(learned_add(&l, &r, NULL), NIB_OK);
    }
    assert_int_equal(l.n, MAX_LEARNED);
    for (int i = 0; i < l.n; i++)
        assert_true(l.runs[i].at > 3 * MAX_LEARNED - MAX_LEARNED - 5);
    learned_clear(&l);
    for (int i = 0; i < 20; i++) {
        learned_run r = a_run(0, i == 18 ? 100 : 0.01);
        assert_int_equal(learned_add(&l, &r, NULL), NIB_OK);
    }
    assert_int_equal(l.n, 1);
    assert_int_equal(l.runs[0].n_seconds, LEARNED_SECONDS);
    assert_true(learned_seconds(&l.runs[0]) == 0.01); /* one disturbed run does not change the prediction */
    learned_clear(&l);
}

static void damage(void **state) {
    (void)state;
    static const char *const wrong[][2] = {{"\"nibble_learned\":1", "\"nibble_learned\":2"},
                                           {"\"threads\":2", "\"threads\":0"},
                                           {"\"threads\":2", "\"threads\":99999999999"},
                                           {"\"device\":\"fe00\"", "\"device\":\"/dev\""},
                                           {"\"kv\":\"f16\"", "\"kv\":\"far too long\""},
                                           {"\"seconds\":[0.01]", "\"seconds\":[]"},
                                           {"\"seconds\":[0.01]", "\"seconds\":[0.0]"},
                                           {"\"seconds\":[0.01]", "\"seconds\":[1e300]"},
                                           {"\"seconds\":[0.01]", "\"seconds\":[-1.0]"},
                                           {"\"formula_s\":0.01", "\"formula_s\":0.0"},
                                           {"\"ops\":100.0", "\"ops\":-1.0"},
                                           {"\"ops\":100.0", "\"ops\":1e200"},
                                           {"\"a16\":[0.0,", "\"a16\":["},
                                           {"\"content\":\"abc\"", "\"contents\":\"abc\""},
                                           {"\"at\":1", "\"at\":-1"},
                                           {"\"packed\":false", "\"packed\":null"},
                                           {"}\n{", "}{"},
                                           {"\"a8\":[", "\"a8\":{["},
                                           {"}\n{", "}\n\n{"}};
    const learned_run run = a_run(0, 0.01);
    learned l = with(&run, 1), back;
    char *text, *edited;
    assert_int_equal(learned_print(&here, &l, &text, NULL), NIB_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const char *at = strstr(text, wrong[i][0]);
        nib_error err = {NIB_OK, ""};
        if (!at)
            fail_msg("%s is not in %s", wrong[i][0], text);
        edited = mem_alloc(strlen(text) + 64);
        const int n =
            sprintf(edited, "%.*s%s%s", (int)(at - text), text, wrong[i][1], at + strlen(wrong[i][0]));
        const nib_status status = learned_parse(edited, (size_t)n, &here, &back, &err);
        if (status != NIB_E_MODEL || !err.message[0])
            fail_msg("%s: %d %s", wrong[i][1], status, err.message);
        mem_free(edited);
    }
    for (size_t n = 0; n < strlen(text); n++) { /* cut anywhere: refused, or whole lines */
        if (learned_parse(text, n, &here, &back, NULL) == NIB_OK)
            learned_clear(&back);
    }
    mem_free(text);
    learned_clear(&l);
}

/* A file with more lines than there are kinds. */
static void too_many(void **state) {
    (void)state;
    const learned_run run = a_run(0, 0.01);
    learned l = with(&run, 1), back;
    nib_error err = {NIB_OK, ""};
    char *text;
    assert_int_equal(learned_print(&here, &l, &text, NULL), NIB_OK);
    const size_t head = (size_t)(strchr(text, '\n') - text) + 1, line = strlen(text) - head;
    char *all = mem_alloc(head + (MAX_LEARNED + 1) * line + 1);
    memcpy(all, text, head);
    for (int i = 0; i <= MAX_LEARNED; i++)
        memcpy(all + head + (size_t)i * line, text + head, line);
    assert_int_equal(learned_parse(all, head + MAX_LEARNED * line, &here, &back, &err), NIB_OK);
    assert_int_equal(back.n, MAX_LEARNED);
    learned_clear(&back);
    assert_int_equal(learned_parse(all, head + (MAX_LEARNED + 1) * line, &here, &back, &err), NIB_E_MODEL);
    mem_free(all);
    mem_free(text);
    learned_clear(&l);
}

/* ---- predictions ---- */

static plan_rates rates(void) {
    plan_rates r = {.n_thread = 2,
                    .n_core = 2,
                    .at[PLACE_RAM].read = 2e10,
                    .at[PLACE_DISK].to[PLACE_RAM] = 3e9,
                    .disk_file = 2e9,
                    .disk_turn = 7e-6,
                    .disk_wait = 1e-4,
                    .pack = 1e10,
                    .two_slices = 1.5,
                    .op_s = 1e-6};
    for (int i = 0; i < PLAN_BITS; i++) {
        r.one_row[i] = 1.5e10;
        r.many_rows[i] = 1e11;
    }
    return r;
}

static double seconds_of(const learned_run *r, const plan_rates *with_rates) {
    return plan_work_seconds(with_rates, &r->work, r->packed);
}

static double expected(const learned *l, const plan_rates *r, const learned_run *now, int *n_run) {
    return seconds_of(now, r) * plan_correction(l, r, now, n_run);
}

static void assert_near(double x, double want, double share) {
    if (!(fabs(x / want - 1) <= share))
        fail_msg("%g instead of %g", x, want);
}

/* A run like a measured one is predicted with its measured time, whatever the profile says. */
static void measured_is_expected(void **state) {
    (void)state;
    plan_rates r = rates();
    const learned_run runs[] = {a_run(0, 0.009), a_run(0.25, 0.03), a_run(0.9, 0.07)};
    learned l = with(runs, 3);
    for (int again = 0; again < 2; again++) {
        for (int i = 0; i < 3; i++) {
            int n;
            assert_near(expected(&l, &r, &runs[i], &n), runs[i].seconds[0], 0.02);
            assert_true(n >= 1);
        }
        r.disk_file *= 1.4; /* the machine was measured again */
        r.one_row[4] *= 0.8;
    }
    learned_clear(&l);
}

static void nearer_counts_more(void **state) {
    (void)state;
    const plan_rates r = rates();
    int n;
    learned_run now = a_run(0.5, 1), near = a_run(0.45, 1), other = a_run(0.5, 1), cold = a_run(0.5, 1);
    const double formula = seconds_of(&now, &r);
    near.seconds[0] = 1.5 * seconds_of(&near, &r);
    strcpy(other.content, "def");
    other.formula_s = formula;
    other.seconds[0] = 3 * formula;
    learned l = with(&other, 1);
    assert_near(expected(&l, &r, &now, &n), 3 * formula, 0.2); /* better than nothing */
    assert_int_equal(learned_add(&l, &near, NULL), NIB_OK);
    assert_near(expected(&l, &r, &now, &n), 1.5 * formula, 0.02);
    learned_clear(&l);
    assert_true(plan_correction(&l, &r, &now, &n) == 1);
    assert_int_equal(n, 0);
    cold.n_thread = 64; /* other threads and another model: the formula knows better */
    strcpy(cold.content, "def");
    cold.seconds[0] = 2 * cold.formula_s;
    l = with(&cold, 1);
    assert_true(plan_correction(&l, &r, &now, &n) == 1 && n == 0);
    learned_clear(&l);
}

static void within_bounds(void **state) {
    (void)state;
    const plan_rates r = rates();
    const learned_run slow = a_run(0.5, 1000), fast = a_run(0.5, 1e-8);
    int n;
    learned l = with(&slow, 1);
    assert_true(plan_correction(&l, &r, &slow, &n) == 4);
    learned_clear(&l);
    l = with(&fast, 1);
    assert_true(plan_correction(&l, &r, &slow, &n) == 0.25);
    learned_clear(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_and_read),
                                       cmocka_unit_test(bounded),
                                       cmocka_unit_test(damage),
                                       cmocka_unit_test(too_many),
                                       cmocka_unit_test(measured_is_expected),
                                       cmocka_unit_test(nearer_counts_more),
                                       cmocka_unit_test(within_bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

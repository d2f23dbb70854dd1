/* Trials of plans: a file keeps the latest of each plan, at most TRIALS_MAX, and a damaged one has none. */
#include "base/file.h"
#include "base/mem.h"
#include "profile/trials.h"
#include "support/tempdir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void keep(const char *path, int64_t n_sequence, int64_t kv_on_disk, double tok_s) {
    const trial t = {n_sequence, kv_on_disk, tok_s};
    nib_error err;
    if (trials_keep(path, &t, &err))
        fail_msg("%s", err.message);
}

static void latest_of_each(void **state) {
    (void)state;
    char path[512];
    trials all;
    snprintf(path, sizeof path, "%s", temp_path("trials.json"));
    trials_load(path, &all);
    assert_int_equal(all.n, 0);
    keep(path, 8, 0, 20);
    keep(path, 8, 30, 25);
    keep(path, 8, 0, 22);
    trials_load(path, &all);
    assert_int_equal(all.n, 2);
    assert_true(trials_find(&all, 8, 0) == 22 && trials_find(&all, 8, 30) == 25);
    assert_true(trials_find(&all, 9, 0) == 0);
    for (int i = 0; i < TRIALS_MAX; i++)
        keep(path, 100 + i, 0, i + 1);
    trials_load(path, &all);
    assert_int_equal(all.n, TRIALS_MAX);
    assert_true(trials_find(&all, 8, 0) == 0 && trials_find(&all, 100, 0) == 1);
}

static void damaged(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "{\"nibble_trials\": 2, \"plans\": []}",
        "{\"nibble_trials\": 1, \"plans\": [{\"n_sequence\": 4, \"kv_on_disk\": 0, \"tok_s\": 5}, 3]}",
        "{\"nibble_trials\": 1, \"plans\": [{\"n_sequence\": 0, \"kv_on_disk\": 0, \"tok_s\": 5}]}",
        "{\"nibble_trials\": 1, \"plans\": [{\"n_sequence\": 4, \"kv_on_disk\": 0, \"tok_s\": -5}]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char path[512];
        trials all;
        snprintf(path, sizeof path, "%s", temp_path("damaged.json"));
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        fputs(texts[i], f);
        fclose(f);
        trials_load(path, &all);
        assert_int_equal(all.n, 0);
        keep(path, 4, 0, 7); /* it is written anew */
        trials_load(path, &all);
        assert_true(all.n == 1 && trials_find(&all, 4, 0) == 7);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(latest_of_each), cmocka_unit_test(damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

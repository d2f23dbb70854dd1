/* The machine's profile: a stored profile is read back equal, another machine's is not used, damage is
 * reported; and the rates of a plan. */
#include "profile/hardware.h"

#include "base/mem.h"
#include "plan/rates.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const machine here = {.cpu = "a cpu", .features = "avx2", .n_core = 2, .l3 = 1 << 20};

static hardware sample(void) {
    hardware h = {.memory = {{1, {10e9, 9e9, 1e9}}, {2, {18e9, 17e9, 2e9}}},
                  .n_memory = 2,
                  .disk = {{1, 4096, {5e7, 4e7, 1e7}},
                           {4, 1 << 16, {2e9, 1e9, 1e9}},
                           {4, 1 << 20, {3e9, 2e9, 1e9}},
                           {16, 1 << 20, {4e9, 3e9, 1e9}}},
                  .n_disk = 4,
                  .folder = "/somewhere",
                  .ring = true,
                  .kernels = {{.bits = 8,
                               .one_row = {20e9, 19e9, 19e9},
                               .two_rows = {15e9, 14e9, 14e9},
                               .many_rows = {1e11, 9e10, 9e10}},
                              {.bits = 4,
                               .one_row = {16e9, 15e9, 15e9},
                               .two_rows = {10e9, 9e9, 9e9},
                               .many_rows = {2e11, 1e11, 1e11}},
                              {.bits = 4,
                               .asym = true,
                               .one_row = {12.8e9, 12e9, 11e9},
                               .two_rows = {9e9, 9e9, 9e9},
                               .many_rows = {2e11, 1e11, 1e11}}},
                  .n_kernel = 3,
                  .n_thread = 2,
                  .attend = {{16, {8e9, 8e9, 8e9}, {9e9, 9e9, 9e9}}, {4, {2e9, 2e9, 1e9}, {4e9, 4e9, 4e9}}},
                  .n_attend = 2,
                  .pack = {3e9, 2e9, 1e9},
                  .barrier_s = 2e-6,
                  .seconds = 4};
    return h;
}

static void kept_and_read(void **state) {
    (void)state;
    const char *path = temp_path("hardware.json");
    hardware h = sample();
    hardware back;
    nib_error err = {NIB_OK, ""};
    h.link = 55e9;
    h.kernels[0].one_thread = (rate){15e9, 14e9, 13e9}; /* the others have none: an older profile */
    assert_int_equal(hardware_load(path, &here, &back, &err), NIB_E_NOTFOUND);
    if (hardware_save(path, &here, &h, &err) || hardware_load(path, &here, &back, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(&back.memory, &h.memory, sizeof h.memory);
    assert_memory_equal(&back.disk, &h.disk, sizeof h.disk);
    assert_memory_equal(&back.kernels, &h.kernels, sizeof h.kernels);
    assert_memory_equal(&back.attend, &h.attend, sizeof h.attend);
    assert_true(back.link == h.link && back.n_attend == 2);
    assert_true(back.ring && !back.direct && back.barrier_s == h.barrier_s && back.n_thread == 2);
    machine other = here;
    other.n_core = 4;
    assert_int_equal(hardware_load(path, &other, &back, &err), NIB_E_NOTFOUND);
}

/* A profile of before attention was measured is read, and its rates are guesses. */
static void older_profile(void **state) {
    (void)state;
    const char *path = temp_path("older.json");
    hardware h = sample(), back;
    char *text, *at;
    nib_error err = {NIB_OK, ""};
    h.n_attend = 0;
    assert_int_equal(hardware_print(&here, &h, &text, NULL), NIB_OK);
    assert_non_null(at = strstr(text, "\"attention\""));
    at[1] = 'x'; /* no such key */
    FILE *out = fopen(path, "w");
    fputs(text, out);
    fclose(out);
    mem_free(text);
    if (hardware_load(path, &here, &back, &err))
        fail_msg("%s", err.message);
    plan_rates r;
    plan_rates_of(&back, &here, 2, 1 << 20, 1 << 18, &r);
    assert_int_equal(back.n_attend, 0);
    assert_true(r.attend[PLAN_KV_HALVES] == 0.75 * 20e9 && r.attend[PLAN_KV_CODES_4] == 3e9);
}

static void damage(void **state) {
    (void)state;
    static const char *const wrong[][2] = {{"\"median\": 9", "\"median\": -9"},
                                           {"\"threads\": 1", "\"threads\": 0"},
                                           {"\"bits\": 8", "\"bits\": 9"},
                                           {"\"block\": 4096", "\"block\": \"many\""},
                                           {"\"nibble_hardware\": 1", "\"nibble_hardware\": 2"},
                                           {"\"bits\": 16", "\"bits\": 17"},
                                           {"\"products\"", "\"prodigals\""}};
    const char *path = temp_path("damaged.json");
    char *text;
    const hardware h = sample();
    hardware back;
    assert_int_equal(hardware_print(&here, &h, &text, NULL), NIB_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        size_t at = 0;
        while (text[at] && strncmp(text + at, wrong[i][0], strlen(wrong[i][0])) != 0)
            at++;
        assert_true(text[at] != 0);
        FILE *out = fopen(path, "w");
        fprintf(out, "%.*s%s%s", (int)at, text, wrong[i][1], text + at + strlen(wrong[i][0]));
        fclose(out);
        nib_error err = {NIB_OK, ""};
        assert_int_equal(hardware_load(path, &here, &back, &err), NIB_E_MODEL);
        assert_true(err.message[0] != 0);
    }
    mem_free(text);
}

static void rates(void **state) {
    (void)state;
    const hardware h = sample();
    plan_rates r;
    plan_rates_of(&h, &here, 2, 1 << 20, 1 << 18, &r);
    assert_false(r.guessed);
    assert_true(r.at[PLACE_RAM].read == 20e9);          /* products read that much */
    assert_true(r.at[PLACE_DISK].to[PLACE_RAM] == 2e9); /* with as many reads as the pager has, or fewer */
    assert_true(fabs(r.disk_file - 1.5e9) < 1);
    assert_true(fabs(r.disk_wait - 4096 / 4e7) < 1e-12);
    assert_true(r.one_row[4] == 16e9 && r.one_row[5] == 16e9 && r.one_row[8] == 20e9);
    assert_true(r.two_slices == 1.6);
    assert_true(fabs(r.asym - 1.25) < 1e-9);
    assert_true(r.attend[PLAN_KV_HALVES] == 9e9 && r.attend[PLAN_KV_CODES_4] == 4e9);
    assert_true(r.attend[PLAN_KV_CODES_8] == 3e9); /* a guess, by threads */
    plan_rates_of(&h, &here, 1, 1 << 20, 1 << 20, &r);
    assert_true(r.one_row[8] == 10e9 && r.attend[PLAN_KV_HALVES] == 8e9);
    hardware own = h; /* one thread has more than half of the rate of two, where memory is the limit */
    own.kernels[0].one_thread = (rate){16e9, 15e9, 15e9};
    plan_rates_of(&own, &here, 1, 1 << 20, 1 << 20, &r);
    assert_true(r.one_row[8] == 16e9);
    plan_rates_of(&own, &here, 2, 1 << 20, 1 << 20, &r);
    assert_true(r.one_row[8] == 20e9);
    plan_rates_of(NULL, &here, 2, 4096, 4096, &r);
    assert_true(r.guessed && r.at[PLACE_RAM].read > 0 && r.at[PLACE_DISK].to[PLACE_RAM] > 0 && r.pack > 0 &&
                r.op_s > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept_and_read), cmocka_unit_test(older_profile),
                                       cmocka_unit_test(damage), cmocka_unit_test(rates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

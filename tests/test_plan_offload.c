/* Layers without room on a GPU: memory and link share them so that none of the two waits, and many rows go
 * where products are fast. */
#include "plan/offload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A layer of 100 MB: 1 ms of memory at 100 GB/s, 2 ms of the link, 0.1 ms of products a row. */
static plan_rates usual(void) {
    plan_rates r = {.link = 50e9, .two_slices = 1.5};
    r.one_row[4] = 100e9;
    r.many_rows[4] = 2e12;
    return r;
}
static const offload_layer layer = {.bytes = 100000000, .macs = 200000000, .bits = 4};

static void both_work(void **state) {
    (void)state;
    const plan_rates r = usual();
    offload o;
    offload_choose(&r, &layer, 16, 64, &o);
    assert_int_equal(o.n_come, 5);
    assert_true(fabs(o.seconds - 11e-3) < 1e-6); /* 11 layers of 1 ms; 5 of 2 ms */
    /* 11 (1 + 0.1 (m - 1)) ms are at most the link's 32 ms */
    assert_int_equal(o.max_rows, 20);
    offload_choose(&r, &layer, 16, 8, &o);
    assert_int_equal(o.max_rows, 8);
    int n = 0;
    for (int i = 0; i < 16; i++)
        n += offload_comes(5, 16, i);
    assert_int_equal(n, 5);
    assert_false(offload_comes(5, 16, 0));
    assert_true(offload_comes(5, 16, 15));
}

static void one_of_them(void **state) {
    (void)state;
    plan_rates r = usual();
    offload o;
    r.link = 1e9;
    offload_choose(&r, &layer, 16, 64, &o);
    assert_int_equal(o.n_come, 0);
    assert_int_equal(o.max_rows, 64);
    r.link = 1e13;
    offload_choose(&r, &layer, 16, 64, &o);
    assert_true(o.n_come >= 15);
    r.one_row[4] = 1e6; /* no processor to speak of */
    offload_choose(&r, &layer, 16, 64, &o);
    assert_int_equal(o.n_come, 16);
    assert_int_equal(o.max_rows, 0);
    offload_choose(&r, &layer, 0, 64, &o);
    assert_int_equal(o.n_come, 0);
}

static void more_activation_bits_take_longer(void **state) {
    (void)state;
    const plan_rates r = usual();
    offload_layer two = layer;
    offload a, b;
    two.two = true;
    offload_choose(&r, &layer, 32, 64, &a);
    offload_choose(&r, &two, 32, 64, &b);
    assert_true(b.n_come > a.n_come && b.seconds > a.seconds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_work),
        cmocka_unit_test(one_of_them),
        cmocka_unit_test(more_activation_bits_take_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

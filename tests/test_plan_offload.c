/* Layers without room on a GPU: memory and link share them so that none of the two waits, and many rows go
 * where products are fast. */
#include "plan/offload.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

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
}

/* S: stays, c: comes, p: in place. */
static void check_places(int n_stay, int n_come, const char *want) {
    static const char letters[] = {[OFFLOAD_STAYS] = 'S', [OFFLOAD_COMES] = 'c', [OFFLOAD_IN_PLACE] = 'p'};
    offload_place places[64];
    char text[64] = "";
    const int n = (int)strlen(want);
    offload_place_all(n, n_stay, n_come, places);
    for (int i = 0; i < n; i++)
        text[i] = letters[places[i]];
    assert_string_equal(text, want);
}

static void where_layers_stand(void **state) {
    (void)state;
    check_places(0, 5, "pppcppcppcppcppc");
    check_places(7, 2, "pppcSSSpppcSSSS");
    check_places(3, 0, "pppppSSS"); /* one change of device */
    check_places(4, 4, "cScScScS");
    check_places(1, 4, "ccccS");
    check_places(5, 0, "SSSSS");
    check_places(0, 0, "ppp");
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
        cmocka_unit_test(where_layers_stand),
        cmocka_unit_test(one_of_them),
        cmocka_unit_test(more_activation_bits_take_longer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

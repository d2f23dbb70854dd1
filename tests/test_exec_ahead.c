/* test_exec_ahead.c - the distance of prefetches that is chosen from times (exec/cpu/ahead.h). */
#include "exec/cpu/ahead.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The seconds of a distance, with other load on two of three samples. */
static double time_of(int64_t distance, int64_t best, int i) {
    const double alone = distance == best ? 1.0 : 1.1;
    return i % 3 == 1 ? alone : alone * (2 + i % 5);
}

/* An engine whose first layers, which say nothing about the choice, have passed. */
static ahead begun(void) {
    ahead a = {0};
    const int64_t at = ahead_next(&a);
    for (int i = 0; i < AHEAD_FIRST; i++) {
        assert_int_equal(ahead_next(&a), at);
        ahead_add(&a, 0.1);
    }
    assert_int_equal(a.n_sample, 0);
    return a;
}

static void test_fastest(void **state) {
    (void)state;
    static const int64_t all[AHEAD_CHOICES] = {2048, 4096, 8192};
    for (int i = 0; i < AHEAD_CHOICES; i++) {
        ahead a = begun();
        int seen[AHEAD_CHOICES] = {0}, n = 0;
        for (; !a.chosen && n < 1000; n++) {
            const int64_t at = ahead_next(&a);
            int c = 0;
            while (c < AHEAD_CHOICES && all[c] != at)
                c++;
            assert_true(c < AHEAD_CHOICES);
            ahead_add(&a, time_of(at, all[i], seen[c]++));
        }
        assert_int_equal(n, AHEAD_CHOICES * AHEAD_SAMPLES);
        for (int c = 0; c < AHEAD_CHOICES; c++)
            assert_int_equal(seen[c], AHEAD_SAMPLES);
        assert_int_equal(a.chosen, all[i]);
        assert_int_equal(ahead_next(&a), all[i]);
    }
}

/* A shorter distance that is only slightly faster is not chosen. */
static void test_close(void **state) {
    (void)state;
    ahead a = begun();
    while (!a.chosen)
        ahead_add(&a, ahead_next(&a) == 8192 ? 1 : 0.95);
    assert_int_equal(a.chosen, 8192);
}

/* A model whose number of layers is a multiple of the choices: each layer is timed with each of them. */
static void test_layers(void **state) {
    (void)state;
    enum { LAYERS = 6 };
    int64_t seen[LAYERS][AHEAD_CHOICES] = {{0}};
    ahead a = begun();
    for (int i = 0; i < AHEAD_CHOICES * LAYERS; i++) {
        seen[i % LAYERS][i / LAYERS] = ahead_next(&a);
        ahead_add(&a, 1);
    }
    int n_alike = 0;
    for (int l = 0; l < LAYERS; l++)
        n_alike += seen[l][0] == seen[l][1] && seen[l][1] == seen[l][2];
    assert_int_equal(n_alike, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fastest), cmocka_unit_test(test_close),
                                       cmocka_unit_test(test_layers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

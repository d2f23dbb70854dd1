/* Parts that are active together: counts, mutual information and clusters, from literal tables. */
#include "profile/coactivity.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void fill(coactivity *c, int n, int n_token, const char *const *rows) {
    uint8_t active[16];
    assert_int_equal(coactivity_open(c, n, NULL), NIB_OK);
    for (int t = 0; t < n_token; t++) {
        for (int i = 0; i < n; i++)
            active[i] = rows[t][i] == '1';
        coactivity_add(c, active);
    }
}

static void always_active_tells_nothing(void **state) {
    (void)state;
    static const char *const rows[] = {"1111", "1111", "1111"};
    const coactivity_rule rule = {0.5, 0.3, 256};
    coactivity c;
    int cluster[4], n;
    fill(&c, 4, 3, rows);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            assert_true(coactivity_pmi(&c, a, b) == 0);
    assert_true(coactivity_information(&c) == 0);
    assert_int_equal(coactivity_cluster(&c, &rule, cluster, &n, NULL), NIB_OK);
    assert_int_equal(n, 4);
    coactivity_close(&c);
}

/* 0 and 1 always together, at half the tokens; 2 at the others; 3 at every second, whatever they do. */
static const char *const mixed[] = {"1101", "1100", "0011", "0010", "1101", "1100", "0011", "0010"};

static void pmi_by_hand(void **state) {
    (void)state;
    coactivity c;
    fill(&c, 4, 8, mixed);
    assert_true(coactivity_share(&c, 0) == 0.5);
    assert_true(fabs(coactivity_pmi(&c, 0, 1) - log(2)) < 1e-12);
    assert_true(coactivity_pmi(&c, 0, 2) == -INFINITY);
    assert_true(fabs(coactivity_pmi(&c, 0, 3)) < 1e-12);
    /* pairs 01, 02, 12 tell all about each other: ln 2 each; those with 3 tell nothing */
    assert_true(fabs(coactivity_information(&c) - 3 * log(2) / 6) < 1e-12);
    coactivity_close(&c);
}

static void clusters(void **state) {
    (void)state;
    coactivity_rule rule = {0.5, 0.3, 256};
    coactivity c;
    int cluster[4], n;
    fill(&c, 4, 8, mixed);
    assert_int_equal(coactivity_cluster(&c, &rule, cluster, &n, NULL), NIB_OK);
    assert_int_equal(n, 3);
    assert_int_equal(cluster[0], cluster[1]);
    assert_int_not_equal(cluster[0], cluster[2]);
    assert_int_not_equal(cluster[2], cluster[3]);
    rule.max = 1;
    assert_int_equal(coactivity_cluster(&c, &rule, cluster, &n, NULL), NIB_OK);
    assert_int_equal(n, 4);
    rule = (coactivity_rule){1, 0.3, 256}; /* more than ln 2 */
    assert_int_equal(coactivity_cluster(&c, &rule, cluster, &n, NULL), NIB_OK);
    assert_int_equal(n, 4);
    coactivity_close(&c);
}

static void limits(void **state) {
    (void)state;
    coactivity c = {0};
    assert_int_equal(coactivity_open(&c, 0, NULL), NIB_E_USAGE);
    assert_int_equal(coactivity_open(&c, MAX_COACTIVITY + 1, NULL), NIB_E_USAGE);
    coactivity_close(&c);
    assert_int_equal(coactivity_open(&c, 2, NULL), NIB_OK);
    assert_true(coactivity_share(&c, 0) == 0 && coactivity_pmi(&c, 0, 1) == 0 &&
                coactivity_information(&c) == 0);
    coactivity_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(always_active_tells_nothing),
        cmocka_unit_test(pmi_by_hand),
        cmocka_unit_test(clusters),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

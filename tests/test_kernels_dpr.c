/* DPR: the schemes that remain are those of the paper, and the measured units are those that the folders
 * offer.
 */
#include "kernels/dpr.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void spell(const dpr_partition *p, char *out) {
    int n = 0;
    for (int i = 0; i < p->n; i++)
        n += sprintf(out + n, i ? ",%d" : "%d", p->width[i]);
}

static int bits_of(const dpr_partition *p) {
    int sum = 0;
    for (int i = 0; i < p->n; i++)
        sum += p->width[i];
    return sum;
}

static void assert_scheme(const dpr_scheme *s, const char *family, const char *w, const char *a) {
    char found[64];
    assert_string_equal(dpr_family(s), family);
    spell(&s->w, found);
    assert_string_equal(found, w);
    spell(&s->a, found);
    assert_string_equal(found, a);
}

/* The paper's W4A8 on units of 1, 4 and 8 bits (Figure 7): three schemes and no more. */
static void test_families(void **state) {
    (void)state;
    static const dpr_unit units[] = {{1, 1, "x", "b1", 0}, {4, 4, "x", "s4", 0}, {8, 8, "x", "s8", 0}};
    dpr_scheme s[8];
    assert_int_equal(dpr_schemes(4, 8, units, 3, s, 8), 3);
    for (int i = 0; i < 3; i++)
        if (s[i].unit == &units[0])
            assert_scheme(&s[i], "bitwise", "1,1,1,1", "1,1,1,1,1,1,1,1");
        else if (s[i].unit == &units[1])
            assert_scheme(&s[i], "split", "4", "4,4");
        else
            assert_scheme(&s[i], "padding", "4", "8");
    /* without 4-bit units W4A8 = (2,2) x (8) and all its kind are promoted to 8 and dropped */
    static const dpr_unit cpu[] = {{1, 1, "x", "b1", 0}, {8, 8, "x", "s8", 0}};
    assert_int_equal(dpr_schemes(4, 8, cpu, 2, s, 8), 2);
    /* 8-bit weights on a unit that is exact for 7: two slices, as even as possible */
    static const dpr_unit avx2[] = {{7, 8, "x", "maddubs", 0}};
    assert_int_equal(dpr_schemes(8, 8, avx2, 1, s, 8), 1);
    assert_scheme(&s[0], "split", "4,4", "8");
    assert_int_equal(dpr_schemes(7, 8, avx2, 1, s, 8), 1);
    assert_scheme(&s[0], "padding", "7", "8");
    /* A16 is two slices of 8 wherever 8 bits are native */
    assert_int_equal(dpr_schemes(4, 16, cpu + 1, 1, s, 8), 1);
    assert_scheme(&s[0], "split", "4", "8,8");
    assert_int_equal(dpr_schemes(4, 8, units, 0, s, 8), 0);
    assert_int_equal(dpr_schemes(0, 8, units, 3, s, 8), 0);
    assert_int_equal(dpr_schemes(4, 17, units, 3, s, 8), 0);
    assert_int_equal(dpr_schemes(4, 8, units, 3, s, 1), 3); /* counts schemes that do not fit */
}

/* For all widths: each scheme fits its unit, no unit has two, and none can do with fewer slices. */
static void test_lean(void **state) {
    (void)state;
    static const dpr_unit units[] = {
        {1, 1, "x", "b1", 0}, {4, 4, "x", "s4", 0}, {7, 8, "x", "m", 0}, {8, 8, "x", "s8", 0}};
    for (int w = 1; w <= 8; w++)
        for (int a = 1; a <= 16; a++) {
            dpr_scheme s[8];
            const int n = dpr_schemes(w, a, units, 4, s, 8);
            assert_true(n >= 1 && n <= 4);
            for (int i = 0; i < n; i++) {
                const dpr_unit *u = s[i].unit;
                assert_int_equal(bits_of(&s[i].w), w);
                assert_int_equal(bits_of(&s[i].a), a);
                assert_int_equal(s[i].w.n, (w + u->w_bits - 1) / u->w_bits);
                assert_int_equal(s[i].a.n, (a + u->a_bits - 1) / u->a_bits);
                for (int j = 0; j < i; j++)
                    assert_ptr_not_equal(s[j].unit, u);
            }
        }
}

/* The schemes that a folder's units allow, by hand: W4A8 is 1 product on 8 bits, 2 on 4 bits, 32 on 1 bit. */
static void test_floor(void **state) {
    (void)state;
    static const dpr_unit units[] = {
        {1, 1, "x", "b1", 320e9}, {4, 4, "x", "s4", 40e9}, {8, 8, "x", "s8", 100e9}, {8, 8, "y", "m", 0}};
    assert_true(fabs(dpr_floor(units, 4, "x", "padding", 4, 8) / 1e-11 - 1) < 1e-12);
    assert_true(fabs(dpr_floor(units, 4, "x", "split", 4, 8) / 5e-11 - 1) < 1e-12);
    assert_true(fabs(dpr_floor(units, 4, "x", "bitwise", 4, 8) / 1e-10 - 1) < 1e-12);
    assert_true(dpr_floor(units, 4, "x", "rows", 4, 8) == 0);    /* no such family */
    assert_true(dpr_floor(units, 4, "y", "padding", 4, 8) == 0); /* its unit was not measured */
    assert_true(dpr_floor(units, 4, "z", "padding", 4, 8) == 0);
    assert_true(dpr_floor(units, 1, "x", "padding", 4, 8) == 0); /* no unit leads to it */
}

static void test_measured(void **state) {
    (void)state;
    dpr_unit units[16];
    dpr_scheme s[16];
    const int n = dpr_measure(units, 16);
    assert_true(n >= 1); /* plain x86-64 has one */
    for (int i = 0; i < n; i++) {
        assert_true(units[i].rate > 0);
        assert_non_null(kernels_table_for(units[i].isa));
        print_message("%-10s %-12s w%d a%d: %.1f G products of slices a second\n", units[i].isa,
                      units[i].name, units[i].w_bits, units[i].a_bits, units[i].rate * 1e-9);
    }
    assert_true(dpr_measure(units, 1) == 1);
    assert_true(dpr_schemes(4, 8, units, 1, s, 16) >= 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_lean),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Paired rates: the share of the reader's rate, and the choice of its pattern. */
#include "base/rate.h"
#include "base/num.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void near(double a, double b) {
    if (a < b - 1e-12 || a > b + 1e-12)
        fail_msg("%.15g instead of %.15g", a, b);
}

/* Memory halves its rate in the middle. The work has nine tenths of it in all rounds but two. Best over best
 * would be 1.5. */
static void a_share_is_of_the_same_moment(void **state) {
    (void)state;
    const double reads[] = {40, 40, 20, 20, 20, 20, 20, 20};
    double rates[NUM_COUNT(reads) - 1];
    for (size_t i = 0; i < NUM_COUNT(rates); i++)
        rates[i] = 0.9 * (reads[i] + reads[i + 1]) / 2;
    rates[0] = 9; /* disturbed once, and once helped */
    rates[5] = 60;
    const rate_share s = rate_share_of(rates, reads, (int)NUM_COUNT(rates));
    near(s.median, 0.9);
    near(s.low, 0.9);
    near(s.high, 0.9);
}

static void the_median_and_the_quarters(void **state) {
    (void)state;
    const double reads[] = {10, 10, 10, 10, 10, 10, 10, 10, 10};
    double odd[] = {9, 5, 7, 6, 8}, even[] = {8, 1, 5, 3, 7, 2, 6, 4}, one[] = {5};
    rate_share s = rate_share_of(odd, reads, 5);
    near(s.median, 0.7);
    near(s.low, 0.6);
    near(s.high, 0.8);
    s = rate_share_of(even, reads, 8);
    near(s.median, 0.45);
    near(s.low, 0.3);
    near(s.high, 0.6);
    s = rate_share_of(one, (const double[]){5, 15}, 1); /* the mean of both sides */
    near(s.median, 0.5);
    near(s.low, 0.5);
    near(s.high, 0.5);
}

/* Pattern 3 is the best in most rounds; pattern 1 is the best once. */
static double pretended(void *arg, int pattern) {
    int *calls = arg;
    assert_in_range(pattern, 0, RATE_PATTERNS - 1);
    return pattern == 1 && calls[pattern]++ == 4 ? 100 : pattern == 3 ? 12 : 10;
}

static void the_pattern_is_the_usually_fastest(void **state) {
    (void)state;
    int calls[RATE_PATTERNS] = {0};
    assert_int_equal(rate_fastest(pretended, calls), 3);
    assert_true(calls[1] > 4);
}

/* Every pattern reads one word of every line, whatever the streams. */
static void every_line_is_read_once(void **state) {
    (void)state;
    enum { BYTES = 4 * 4096 };
    uint8_t *data = aligned_alloc(64, BYTES + RATE_SLACK);
    assert_non_null(data);
    memset(data, 0xff, BYTES + RATE_SLACK);
    for (uint64_t line = 0; line < BYTES / 64; line++)
        memcpy(data + 64 * line, &(uint64_t){line * line + 1}, 8);
    uint64_t sum = 0;
    for (uint64_t line = 0; line < BYTES / 64; line++)
        sum += line * line + 1;
    for (int p = 0; p < RATE_PATTERNS; p++)
        assert_int_equal(rate_read(data, BYTES, p), sum);
    free(data);
}

static void a_reader_gives_rates(void **state) {
    (void)state;
    rate_reader *r = NULL;
    nib_error err;
    assert_int_equal(rate_reader_open(2, 4096, &r, &err), NIB_E_USAGE);
    assert_int_equal(rate_reader_open(2, 1 << 20, &r, &err), NIB_OK);
    assert_true(rate_reader_pass(r, 0) > 0);
    assert_true(rate_reader_pass(r, 0.001) > 0);
    rate_reader_close(r);
    rate_reader_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_share_is_of_the_same_moment),
        cmocka_unit_test(the_median_and_the_quarters),
        cmocka_unit_test(the_pattern_is_the_usually_fastest),
        cmocka_unit_test(every_line_is_read_once),
        cmocka_unit_test(a_reader_gives_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

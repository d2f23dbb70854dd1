/* Stop strings: found across pieces, and no text is released that could still become one. */
#include "sequence/stop.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Feeds text in pieces of `step` bytes, as tokens would give it; returns the text that was released. */
static size_t shown(const stop_list *stop, const char *text, size_t step, bool *stopped) {
    size_t n = strlen(text), seen = 0;
    *stopped = false;
    for (size_t have = step < n ? step : n;; have = have + step < n ? have + step : n) {
        size_t at = stop_find(stop, text, seen, have);
        if (at != SIZE_MAX) {
            assert_true(at >= seen); /* nothing of the stop string was shown */
            *stopped = true;
            return at;
        }
        size_t held = stop_held(stop, text, seen, have);
        assert_true(held <= have - seen);
        seen = have - held;
        if (have == n)
            return n;
    }
}

static void found_whatever_the_pieces(void **state) {
    (void)state;
    const char *const strings[] = {"</s>", "\n\nUser:", "aab"};
    stop_list stop = {strings, 3};
    const struct {
        const char *text;
        size_t at;
    } cases[] = {
        {"hello</s> more", 5}, {"a\n\nUse\n\nUser: x", 6}, {"aaaab", 2}, {"</s>", 0}, {"x</s", SIZE_MAX}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (size_t step = 1; step <= 8; step++) {
            bool stopped;
            size_t n = shown(&stop, cases[c].text, step, &stopped);
            assert_int_equal(stopped, cases[c].at != SIZE_MAX);
            assert_int_equal(n, stopped ? cases[c].at : strlen(cases[c].text));
        }
}

static void the_earliest_of_several(void **state) {
    (void)state;
    const char *const strings[] = {"world", "o w"};
    stop_list stop = {strings, 2};
    assert_int_equal(stop_find(&stop, "hello world", 0, 11), 4);
}

static void holds_back_only_a_prefix(void **state) {
    (void)state;
    const char *const strings[] = {"abcabd"};
    stop_list stop = {strings, 1};
    assert_int_equal(stop_held(&stop, "xxabcab", 0, 7), 5);
    assert_int_equal(stop_held(&stop, "xxabcabc", 0, 8), 3);
    assert_int_equal(stop_held(&stop, "xxabx", 0, 5), 0);
    assert_int_equal(stop_held(&stop, "ab", 1, 2), 0); /* the a was shown already */
}

static void never_cuts_a_character(void **state) {
    (void)state;
    const char *const strings[] = {"\xa9!"}; /* begins in the middle of an e with acute accent */
    stop_list stop = {strings, 1};
    assert_int_equal(stop_held(&stop, "caf\xc3\xa9", 0, 5), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_whatever_the_pieces),
        cmocka_unit_test(the_earliest_of_several),
        cmocka_unit_test(holds_back_only_a_prefix),
        cmocka_unit_test(never_cuts_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Misspelt words: distances, and the word of a list that was meant. */
#include "base/similar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void distances(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        size_t distance;
    } cases[] = {{"", "", 0},
                 {"abc", "", 3},
                 {"", "abc", 3},
                 {"abc", "abc", 0},
                 {"abc", "ABC", 0},
                 {"abc", "abd", 1},
                 {"abc", "ab", 1},
                 {"ab", "abc", 1},
                 {"rnu", "run", 1},
                 {"ca", "abc", 3},
                 {"chta", "chat", 1},
                 {"kitten", "sitting", 3},
                 {"smolm2", "smollm2", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(similar_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(similar_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
}

static void a_word_too_long_is_near_nothing(void **state) {
    (void)state;
    char longest[SIMILAR_LONGEST + 2];
    memset(longest, 'a', sizeof longest);
    longest[SIMILAR_LONGEST] = 0;
    assert_int_equal(similar_distance(longest, longest), 0);
    longest[SIMILAR_LONGEST] = 'a';
    char longer[SIMILAR_LONGEST + 3];
    memset(longer, 'a', sizeof longer);
    longer[SIMILAR_LONGEST + 1] = 0;
    assert_int_equal(similar_distance(longer, longer), SIMILAR_LONGEST + 1);
    similar s = similar_to(longer);
    similar_offer(&s, longer);
    assert_string_equal(s.best, "");
}

static const char *meant(const char *typed) {
    static const char *const words[] = {"run",    "chat", "tokenize",        "bench",
                                        "models", "info", "--repeat-penalty"};
    static similar s;
    s = similar_to(typed);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        similar_offer(&s, words[i]);
    return s.best;
}

static void the_nearest_word_is_meant(void **state) {
    (void)state;
    assert_string_equal(meant("rnu"), "run");
    assert_string_equal(meant("Chta"), "chat");
    assert_string_equal(meant("tokenise"), "tokenize");
    assert_string_equal(meant("tok"), "tokenize"); /* it is a prefix */
    assert_string_equal(meant("model"), "models");
    assert_string_equal(meant("--repeat"), "--repeat-penalty");
    assert_string_equal(meant("perplexity"), "");
    assert_string_equal(meant("xyz"), "");
    assert_string_equal(meant("r"), "");
    assert_string_equal(meant("ru"), ""); /* half of the letters would be a guess */
    assert_string_equal(meant(""), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(distances),
                                       cmocka_unit_test(a_word_too_long_is_near_nothing),
                                       cmocka_unit_test(the_nearest_word_is_meant)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Importance and quality costs without a model: the arithmetic from literals, and hostile files. */
#include "base/file.h"
#include "base/mem.h"
#include "profile/importance.h"
#include "profile/quality.h"
#include "support/faults.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_LAYER = 5, N_PROMPT = 4 };

static void scores_are_min_max(void **state) {
    (void)state;
    const double raw[] = {30, 142, 61, 118, 30};
    const double flat[] = {7, 7 + 1e-9, 7};
    const double zero[] = {0, 0, 0};
    double score[N_LAYER];
    importance_normalise(raw, 5, score);
    assert_true(score[0] == 0 && score[1] == 1 && score[4] == 0);
    assert_true(fabs(score[2] - 31.0 / 112) < 1e-15);
    assert_true(fabs(score[3] - 88.0 / 112) < 1e-15);
    importance_normalise(flat, 3, score);
    assert_true(score[0] == 0 && score[1] == 0 && score[2] == 0);
    importance_normalise(zero, 3, score);
    assert_true(score[0] == 0 && score[1] == 0 && score[2] == 0);
    importance_normalise(raw, 1, score);
    assert_true(score[0] == 0);
}

static void the_rank_is_stable(void **state) {
    (void)state;
    const double scores[] = {0.3, 0.9, 0.3, 1, 0};
    const int want[] = {3, 1, 0, 2, 4};
    int order[5];
    importance_rank(scores, 5, order);
    assert_memory_equal(order, want, sizeof want);
}

static void overlap_counts_what_is_common(void **state) {
    (void)state;
    const double a[] = {9, 8, 7, 1, 2, 3}, b[] = {9, 1, 8, 7, 2, 3}, c[] = {1, 2, 3, 9, 8, 7};
    int scratch[12];
    assert_true(importance_overlap(a, a, 6, 3, scratch) == 1);
    assert_true(fabs(importance_overlap(a, b, 6, 3, scratch) - 2.0 / 3) < 1e-15);
    assert_true(importance_overlap(a, c, 6, 3, scratch) == 0);
    assert_true(importance_overlap(a, c, 6, 6, scratch) == 1);
}

/* The paper's own example: 32 layers, 12 prompts, a gap of 116 and a spread of 64. */
static void the_bound_is_the_papers(void **state) {
    (void)state;
    const double bound = importance_failure_bound(32, 1, 12, 116, 64);
    assert_true(fabs(bound - 62 * exp(-12.0 * 116 * 116 / (8.0 * 64 * 64))) < 1e-12);
    assert_true(bound > 0.44 && bound < 0.48);
    assert_true(importance_failure_bound(32, 8, 12, 0, 64) == 2 * 8 * 24);
    assert_true(importance_failure_bound(32, 1, 12, 10, 0) == 0);
    assert_true(importance_failure_bound(1, 1, 12, 0, 0) == 0);
}

/* Prompt i has 1 + i tokens; a token's signals in layer l are base[l] + i. */
static void make_profile(importance *p) {
    static const double base[N_LAYER] = {10, 40, 20, 30, 15};
    int64_t n_token[N_PROMPT];
    nib_error err = {0};
    assert_int_equal(importance_begin(p, N_LAYER, N_PROMPT, &err), NIB_OK);
    for (int i = 0; i < N_PROMPT; i++) {
        n_token[i] = 1 + i;
        for (int t = 0; t < n_token[i]; t++)
            for (int l = 0; l < N_LAYER; l++) {
                double signals[IMPORTANCE_N];
                for (int s = 0; s < IMPORTANCE_N; s++)
                    signals[s] =
                        (base[l] + i) * (s + 1) + (t - 0.5 * i); /* the mean over t does not change */
                importance_add(p, i, l, signals);
            }
    }
    strcpy(p->content, "00112233445566778899aabbccddeeff");
    strcpy(p->prompts, "abcdef");
    assert_int_equal(importance_finish(p, n_token, &err), NIB_OK);
}

static void prompts_weigh_alike(void **state) {
    (void)state;
    importance p;
    make_profile(&p);
    assert_int_equal(p.n_token, 1 + 2 + 3 + 4);
    for (int s = 0; s < IMPORTANCE_N; s++) {
        assert_true(fabs(p.raw[s][0] - (10 + 1.5) * (s + 1)) < 1e-12);
        assert_true(fabs(p.raw[s][1] - (40 + 1.5) * (s + 1)) < 1e-12);
        assert_true(fabs(p.spread[s][2] - sqrt(5.0 / 3) * (s + 1)) < 1e-12); /* of 0, 1, 2, 3 */
    }
    assert_true(p.score[0] == 0 && p.score[1] == 1);
    assert_true(fabs(p.score[3] - 20.0 / 30) < 1e-12);
    assert_true(fabs(p.gap - 10) < 1e-12);
    assert_true(fabs(p.sigma - sqrt(5.0 / 3)) < 1e-12);
    assert_true(fabs(p.bound - importance_failure_bound(5, 1, 4, 10, sqrt(5.0 / 3))) < 1e-12);
    assert_true(p.half_overlap == 1 && p.half_overlap_min == 1); /* all prompts rank alike */
    importance_clear(&p);
}

/* Two prompts that rank the layers the other way round share no half. */
static void halves_may_disagree(void **state) {
    (void)state;
    importance p;
    const int64_t n_token[] = {1, 1};
    nib_error err = {0};
    assert_int_equal(importance_begin(&p, 4, 2, &err), NIB_OK);
    for (int l = 0; l < 4; l++) {
        const double up[IMPORTANCE_N] = {l}, down[IMPORTANCE_N] = {3 - l};
        importance_add(&p, 0, l, up);
        importance_add(&p, 1, l, down);
    }
    assert_int_equal(importance_finish(&p, n_token, &err), NIB_OK);
    assert_true(p.half_overlap == 0 && p.half_overlap_min == 0);
    assert_true(p.score[0] == 0 && p.score[3] == 0); /* and their mean is flat */
    importance_clear(&p);
    assert_int_equal(importance_begin(&p, 2, 1, &err), NIB_OK);
    assert_int_equal(importance_finish(&p, n_token, &err), NIB_OK);
    assert_true(p.half_overlap < 0);
    assert_true(p.bound == 2); /* one prompt tells nothing */
    importance_clear(&p);
}

static void infinite_activations_are_an_error(void **state) {
    (void)state;
    importance p;
    const int64_t n_token[] = {1};
    const double signals[IMPORTANCE_N] = {INFINITY};
    nib_error err = {0};
    assert_int_equal(importance_begin(&p, 2, 1, &err), NIB_OK);
    importance_add(&p, 0, 1, signals);
    assert_int_equal(importance_finish(&p, n_token, &err), NIB_E_MODEL);
    assert_non_null(strstr(err.message, "layer 1"));
    importance_clear(&p);
}

static void a_profile_comes_back(void **state) {
    (void)state;
    importance p, q;
    char *text, *again;
    nib_error err = {0};
    make_profile(&p);
    const char *path = temp_path("folder/profile.json");
    assert_int_equal(importance_save(path, &p, &err), NIB_OK);
    assert_int_equal(importance_load(path, p.content, &q, &err), NIB_OK);
    assert_int_equal(importance_print(&p, &text, &err), NIB_OK);
    assert_int_equal(importance_print(&q, &again, &err), NIB_OK);
    assert_string_equal(text, again);
    assert_int_equal(q.n_token, p.n_token);
    assert_true(fabs(q.score[3] - p.score[3]) < 1e-8);
    mem_free(text);
    mem_free(again);
    importance_clear(&q);
    assert_int_equal(importance_load(path, "ff", &q, &err), NIB_E_MODEL); /* other weights */
    assert_non_null(strstr(err.message, "expected a profile of the weights"));
    assert_int_equal(importance_load(temp_path("none.json"), NULL, &q, &err), NIB_E_NOTFOUND);
    importance_clear(&p);
}

static void make_quality(quality *q) {
    static const char *const formats[] = {"u8g128", "u4g64"};
    nib_error err = {0};
    assert_int_equal(quality_begin(q, 3, formats, 2, &err), NIB_OK);
    strcpy(q->content, "0123");
    strcpy(q->prompts, "4567");
    q->n_token = 12;
    q->kl[3] = 0.25;
    q->error[3] = 0.5;
    q->kl_activation[5] = 1e-9;
    q->kl_left_out[1] = 0;
    q->kl_fewer[0] = 0;
    q->place[1] = 2;
}

/* The latest file of a model is found whatever its prompts, and no other kind of file. */
static void profiles_are_found_by_their_weights(void **state) {
    (void)state;
    importance p;
    nib_error err = {0};
    char *folder = mem_strdup(temp_path("cache"));
    assert_int_equal(setenv("XDG_CACHE_HOME", folder, 1), 0);
    make_profile(&p);
    assert_null(importance_find(p.content));
    char *path = importance_path(p.content, p.prompts), *other = quality_path(p.content, p.prompts);
    assert_int_equal(importance_save(path, &p, &err), NIB_OK);
    assert_null(quality_find(p.content));
    quality q;
    make_quality(&q);
    assert_int_equal(quality_save(other, &q, &err), NIB_OK);
    quality_clear(&q);
    char *found = importance_find(p.content), *costs = quality_find(p.content);
    assert_string_equal(found, path);
    assert_string_equal(costs, other);
    assert_null(importance_find("0011"));
    mem_free(found);
    mem_free(costs);
    mem_free(path);
    mem_free(other);
    mem_free(folder);
    importance_clear(&p);
}

static void costs_come_back(void **state) {
    (void)state;
    quality p, q;
    nib_error err = {0};
    make_quality(&p);
    const char *path = temp_path("quality.json");
    assert_int_equal(quality_save(path, &p, &err), NIB_OK);
    assert_int_equal(quality_load(path, "0123", &q, &err), NIB_OK);
    assert_int_equal(q.n_block, 3);
    assert_int_equal(q.n_format, 2);
    assert_string_equal(q.format[1], "u4g64");
    assert_memory_equal(q.kl, p.kl, 6 * sizeof *q.kl);
    assert_memory_equal(q.error, p.error, 6 * sizeof *q.error);
    assert_memory_equal(q.kl_activation, p.kl_activation, 6 * sizeof *q.kl);
    assert_memory_equal(q.error_activation, p.error_activation, 6 * sizeof *q.kl);
    assert_memory_equal(q.kl_left_out, p.kl_left_out, 3 * sizeof *q.kl);
    assert_memory_equal(q.place, p.place, 3 * sizeof *q.kl);
    assert_memory_equal(q.kl_fewer, p.kl_fewer, 3 * sizeof *q.kl);
    quality_clear(&q);
    assert_int_equal(quality_load(path, "0124", &q, &err), NIB_E_MODEL);
    quality_clear(&p);
}

/* Every text that differs from a good one by one replacement is refused, or is still complete. */
static const struct {
    const char *from, *to;
} wrong[] = {
    {"\"nibble_importance\": 2", "\"nibble_importance\": 1"},
    {"\"n_layer\": 5", "\"n_layer\": 0"},
    {"\"n_layer\": 5", "\"n_layer\": 4"},
    {"\"n_layer\": 5", "\"n_layer\": 1000000000000"},
    {"\"n_prompt\": 4", "\"n_prompt\": -1"},
    {"\"n_prompt\": 4", "\"n_prompt\": 3"},
    {"\"n_token\": 10", "\"n_token\": 3"},
    {"\"n_token\": 10", "\"n_token\": \"10\""},
    {"\"prompts\": \"abcdef\"", "\"prompts\": \"../../x\""},
    {"\"prompts\": \"abcdef\"", "\"prompts\": \"\""},
    {"\"prompts\": \"abcdef\"", "\"prompts\": \"0123456789012345678901234567890123456789\""},
    {"\"ffn\": [", "\"ffn\": [null, "},
    {"\"ffn\": [34.5", "\"ffn\": [-34.5"},
    {"\"ffn\": [34.5", "\"ffn\": [1e999"},
    {"\"ffn\": [34.5", "\"ffn\": [\"x\""},
    {"\"mcap_by_prompt\"", "\"other\""},
    {"\"spread\": {", "\"spread\": [], \"x\": {"},
    {"\"bound\": ", "\"bound\": -"},
};

static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("no %s in\n%s", from, text);
    char *out = malloc(strlen(text) + strlen(to) + 1);
    sprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

static void hostile_profiles_are_refused(void **state) {
    (void)state;
    importance p, q;
    char *text;
    nib_error err = {0};
    make_profile(&p);
    assert_int_equal(importance_print(&p, &text, &err), NIB_OK);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char *bad = replaced(text, wrong[i].from, wrong[i].to);
        err.message[0] = 0;
        const nib_status status = importance_load(temp_file("bad.json", bad, strlen(bad)), NULL, &q, &err);
        if (status != NIB_E_MODEL || !err.message[0])
            fail_msg("%s: status %d", wrong[i].to, (int)status);
        free(bad);
    }
    for (size_t n = 0; n + 1 < strlen(text); n += 7) /* cut short: never whole */
        assert_int_equal(importance_load(temp_file("bad.json", text, n), NULL, &q, &err), NIB_E_MODEL);
    mem_free(text);
    importance_clear(&p);
}

static void hostile_costs_are_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"\"n_block\": 3", "\"n_block\": 2"},
        {"\"n_block\": 3", "\"n_block\": 99999"},
        {"\"formats\": [\"u8g128\", ", "\"formats\": ["},
        {"\"formats\": [", "\"formats\": [1, "},
        {"\"formats\": [", "\"formats\": [\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", "},
        {"\"u4g64\"", "\"a name that is much too long\""},
        {"0.25", "-0.25"},
        {"\"kl_left_out\"", "\"kl_left\""},
        {"\"place\": [null, 2", "\"place\": [null, 3"},
        {"\"place\": [null, 2", "\"place\": [2"},
    };
    quality p, q;
    char *text;
    nib_error err = {0};
    make_quality(&p);
    assert_int_equal(quality_print(&p, &text, &err), NIB_OK);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char *changed = replaced(text, bad[i][0], bad[i][1]);
        if (quality_load(temp_file("bad.json", changed, strlen(changed)), NULL, &q, &err) != NIB_E_MODEL)
            fail_msg("accepted: %s", bad[i][1]);
        free(changed);
    }
    mem_free(text);
    quality_clear(&p);
}

/* Files made when layers were left out in another order say nothing of places. */
static void costs_without_places_are_read(void **state) {
    (void)state;
    quality p, q;
    char *text;
    nib_error err = {0};
    make_quality(&p);
    assert_int_equal(quality_print(&p, &text, &err), NIB_OK);
    char *old = replaced(text, "\"place\"", "\"another\"");
    assert_int_equal(quality_load(temp_file("old.json", old, strlen(old)), NULL, &q, &err), NIB_OK);
    for (int b = 0; b < 3; b++)
        assert_true(q.place[b] < 0);
    free(old);
    mem_free(text);
    quality_clear(&p);
    quality_clear(&q);
}

static nib_status round_trip(void *user, nib_error *err) {
    importance p, *from = user;
    char *text;
    NIB_TRY(importance_print(from, &text, err));
    const nib_status status = importance_load(temp_file("trip.json", text, strlen(text)), NULL, &p, err);
    fault_made(text, strlen(text));
    if (status == NIB_OK)
        fault_made(p.score, (size_t)p.n_layer * sizeof *p.score);
    mem_free(text);
    importance_clear(&p);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    importance p;
    make_profile(&p);
    assert_true(fault_sweep(FAULT_ALLOC, 1, round_trip, &p) > 5);
    importance_clear(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scores_are_min_max),
        cmocka_unit_test(the_rank_is_stable),
        cmocka_unit_test(overlap_counts_what_is_common),
        cmocka_unit_test(the_bound_is_the_papers),
        cmocka_unit_test(prompts_weigh_alike),
        cmocka_unit_test(halves_may_disagree),
        cmocka_unit_test(infinite_activations_are_an_error),
        cmocka_unit_test(a_profile_comes_back),
        cmocka_unit_test(profiles_are_found_by_their_weights),
        cmocka_unit_test(costs_come_back),
        cmocka_unit_test(hostile_profiles_are_refused),
        cmocka_unit_test(hostile_costs_are_refused),
        cmocka_unit_test(costs_without_places_are_read),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

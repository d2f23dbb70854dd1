/* A kernel map changes only time: logits have the same bits without a map and with any valid one. Measuring a
 * map: every candidate is timed, and the resulting map can be used. */
#include "nib.h"
#include "profile/kernel_map_file.h"
#include "measure/kernel_profile.h"
#include "support/matrix.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 70, N_VOCAB = 500, N_THREAD = 2 };

static const tiny_shape shapes[] = {{TYPE_Q4_1, 2, 96, 160, 6, 2, N_VOCAB, 128, true},
                                    {TYPE_Q8_0, 2, 64, 96, 4, 4, N_VOCAB, 128, false}};

static void keep_row(void *user, int64_t position, const float *logits) {
    memcpy((float *)user + position * N_VOCAB, logits, N_VOCAB * sizeof *logits);
}

/* Logits of every position: a prompt in one pass, then three tokens one by one. */
static float *logits_with(const char *path, const char *map, bool *used) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_error err = {NIB_OK, ""};
    int32_t tokens[N_TOKEN];
    float *out = calloc(N_TOKEN * N_VOCAB, sizeof *out);
    nib_engine_options_init(&o);
    o.n_thread = N_THREAD;
    o.kernels = map;
    if (nib_engine_open(path, &o, &e, &err) || nib_session_open(e, NULL, &s, &err))
        fail_msg("%s", err.message);
    *used = nib_engine_kernels(e) != NULL;
    for (int i = 0; i < N_TOKEN; i++)
        tokens[i] = (i * 31 + 7) % N_VOCAB;
    assert_int_equal(nib_session_forward(s, tokens, N_TOKEN - 3, 0, keep_row, out, NULL), NIB_OK);
    for (int i = N_TOKEN - 2; i <= N_TOKEN; i++) {
        assert_int_equal(nib_session_sync(s, tokens, (size_t)i, NULL), NIB_OK);
        keep_row(out, i - 1, nib_session_logits(s));
    }
    nib_session_close(s);
    nib_engine_close(e);
    return out;
}

static int shapes_of(const char *path, trial_shape list[TRIAL_MAX_SHAPES]) {
    model *m = NULL;
    assert_int_equal(model_open(path, NULL, &m, NULL), NIB_OK);
    const int n = trial_shapes_of(m, list);
    model_close(m);
    return n;
}

/* Kernels of one shape; half of the time the shape is in planes, with kernels for those. */
static void random_choices(kernel_map *p, const trial_shape *shape, const kernel_table *t, uint64_t *seed) {
    char format[PACK_NAME];
    kernel_map_shape *s;
    pack_format f = shape->format;
    for (bool again = true; again;) {
        pack_name(&f, format);
        assert_int_equal(kernel_map_add(p, shape->n, shape->k, format, 8, &s, NULL), NIB_OK);
        for (int b = 0; b < ROW_BUCKETS; b++)
            s->by_bucket[b] = t->strategies[random_next(seed) % (uint64_t)t->n_strategy];
        again = f.packing == PACK_PARTS && random_next(seed) % 2;
        if (again)
            f.packing = s->packing = PACK_PLANES;
    }
}

static void random_map(const char *path, const char *to, const kernel_map_key *key, uint64_t *seed) {
    trial_shape list[TRIAL_MAX_SHAPES];
    const int n = shapes_of(path, list);
    kernel_map p = {0};
    for (int i = 0; i < n; i++)
        random_choices(&p, &list[i], key->table, seed);
    assert_int_equal(kernel_map_save(to, key, &p, NULL), NIB_OK);
    kernel_map_clear(&p);
}

static void any_map_gives_the_same_bits(void **state) {
    (void)state;
    machine here;
    machine_detect(&here);
    const kernel_map_key key = {&here, kernels_table(), N_THREAD};
    uint64_t seed = 11;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        char path[512], map[512];
        bool used;
        snprintf(path, sizeof path, "%s", tiny_model("model.gguf", &shapes[i]));
        snprintf(map, sizeof map, "%s", temp_path("map.json"));
        float *want = logits_with(path, "none", &used);
        assert_false(used);
        for (int round = 0; round < 4; round++) {
            random_map(path, map, &key, &seed);
            float *got = logits_with(path, map, &used);
            assert_true(used);
            assert_memory_equal(got, want, sizeof(float) * N_TOKEN * N_VOCAB);
            free(got);
        }
        free(want);
    }
}

static void a_map_that_was_named_must_be_there(void **state) {
    (void)state;
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {NIB_OK, ""};
    char path[512];
    snprintf(path, sizeof path, "%s", tiny_model("model.gguf", &shapes[0]));
    nib_engine_options_init(&o);
    o.kernels = temp_path("missing.json");
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_NOTFOUND);
    o.kernels = temp_file("garbage.json", "{\"nibble_kernel_map\":", 21);
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_MODEL);
    static const char other[] = "{\"nibble_kernel_map\":1,\"machine\":{\"cpu\":\"abacus\"},\"products\":[]}";
    o.kernels = temp_file("other.json", other, sizeof other - 1);
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_OK); /* logged, and the rule decides */
    assert_null(nib_engine_kernels(e));
    nib_engine_close(e);
}

typedef struct seen {
    int n;
    kernel_map map;
} seen;

static nib_status check_point(void *user, const trial_shape *shape, int bucket, const trial_result *r,
                              nib_error *err) {
    seen *s = user;
    s->n++;
    assert_in_range(r->rule, 0, r->n - 1);
    assert_in_range(r->chosen, 0, r->n - 1);
    assert_ptr_equal(r->times[r->rule].strategy, row_bucket_rule(kernels_table(), &shape->format, bucket));
    assert_true(r->times[r->rule].best > 0 && r->times[r->chosen].best > 0);
    assert_true(r->times[r->fastest].best <= r->times[r->rule].best);
    assert_true(r->chosen == r->rule || trial_beats(r, r->chosen, r->rule));
    assert_true(r->read > 0 && r->bytes > 0);
    for (int i = 0; i < r->n; i++) { /* exactly the points with a time have a share */
        const rate_share *of = &r->times[i].share;
        assert_int_equal(r->times[i].best > 0, of->median > 0);
        assert_true(of->low <= of->median && of->median <= of->high);
    }
    return kernel_profile_keep(&s->map, shape, bucket, r, err);
}

static void measuring_gives_a_whole_map(void **state) {
    (void)state;
    trial_shape list[TRIAL_MAX_SHAPES];
    pool *threads;
    seen s = {0};
    assert_true(shapes_of(tiny_model("model.gguf", &shapes[0]), list) >= 3);
    const int n = 2; /* of them: a point takes a minimum of time, however few seconds are requested */
    assert_int_equal(pool_open(N_THREAD, &threads, NULL), NIB_OK);
    const kernel_profile_options options = {
        .table = kernels_table(), .threads = threads, .n_byte = 4 << 20, .seconds = 0.2};
    assert_int_equal(kernel_profile(&options, list, n, check_point, &s, NULL), NIB_OK);
    pool_close(threads);
    assert_int_equal(s.n, n * ROW_BUCKETS);
    assert_int_equal(s.map.n_shape, n);
    for (int i = 0; i < n; i++)
        for (int b = 0; b < ROW_BUCKETS; b++)
            assert_non_null(s.map.shapes[i].by_bucket[b]);
    kernel_map_clear(&s.map);
}

/* A packing is chosen for every shape, and the grid measured is of that packing. */
static void packings_are_chosen(void **state) {
    (void)state;
    trial_shape list[TRIAL_MAX_SHAPES];
    pool *threads;
    kernel_map map = {0};
    const int n = shapes_of(tiny_model("model.gguf", &shapes[0]), list);
    assert_int_equal(pool_open(N_THREAD, &threads, NULL), NIB_OK);
    const kernel_profile_options options = {
        .table = kernels_table(), .threads = threads, .n_byte = 4 << 20, .seconds = 0.2, .packings = &map};
    assert_int_equal(kernel_profile(&options, list, n, kernel_profile_keep, &map, NULL), NIB_OK);
    pool_close(threads);
    for (int i = 0; i < n; i++) {
        char format[PACK_NAME];
        pack_format f = list[i].format;
        pack_name(&f, format);
        assert_non_null(kernel_map_find(&map, list[i].n, list[i].k, format, 8));
        f.packing = (uint8_t)kernel_map_packing(&map, list[i].n, list[i].k, &f, 8);
        pack_name(&f, format);
        const kernel_map_shape *s = kernel_map_find(&map, list[i].n, list[i].k, format, 8);
        for (int b = 0; b < ROW_BUCKETS; b++)
            assert_true(row_bucket_can(s->by_bucket[b], &f, b));
    }
    kernel_map_clear(&map);
}

/* Within the spread the rule's choice stays. */
static void noise_replaces_nothing(void **state) {
    (void)state;
    trial_result r = {.n = 2};
    r.times[0] = (trial_time){.best = 1.00, .spread = 0.03};
    r.times[1] = (trial_time){.best = 0.97, .spread = 0.02};
    assert_false(trial_beats(&r, 1, 0));
    r.times[1].best = 0.94;
    assert_true(trial_beats(&r, 1, 0));
    r.times[1].best = 0.97;
    r.times[0].n_sample = r.times[1].n_sample = 40; /* with more samples the best time is more certain */
    assert_true(trial_beats(&r, 1, 0));
    r.times[0].spread = r.times[1].spread = 0;
    r.times[1].best = 0.995;
    assert_false(trial_beats(&r, 1, 0)); /* at least a hundredth */
    r.times[1].best = 0;                 /* not measured */
    assert_false(trial_beats(&r, 1, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_map_gives_the_same_bits), cmocka_unit_test(a_map_that_was_named_must_be_there),
        cmocka_unit_test(measuring_gives_a_whole_map), cmocka_unit_test(packings_are_chosen),
        cmocka_unit_test(noise_replaces_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

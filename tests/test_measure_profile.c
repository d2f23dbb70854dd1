/* A profile does not depend on threads; costs agree with their definition; measuring can be cancelled and run
 * out of memory; the divergence is exact. */
#include "base/mem.h"
#include "measure/divergence.h"
#include "measure/measure.h"
#include "support/faults.h"
#include "support/prompts.h"
#include "nib_tools.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape packed = {TYPE_Q8_0, 4, 128, 256, 4, 2, 512, 128, true};
static const tiny_shape few = {TYPE_Q8_0, 2, 64, 64, 2, 2, 300, 128, true};

static char *profile_of(const char *path, const calibration *c, int n_thread, double *bound) {
    nib_engine_options o;
    importance p;
    nib_error err = {0};
    char *text = NULL;
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    if (measure_importance(path, &o, c, &p, &err) || importance_print(&p, &text, &err))
        fail_msg("%s: %s", path, err.message);
    *bound = p.raw[IMPORTANCE_MCAP][0];
    assert_true(p.rss_peak > 0);
    importance_clear(&p);
    return text;
}

static void profiles_are_the_same_everywhere(void **state) {
    (void)state;
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = prompts_open(512);
    double first, other;
    char *want = profile_of(path, &c, 1, &first);
    assert_true(first > 0);
    for (int n_thread = 2; n_thread <= 3; n_thread++) {
        char *got = profile_of(path, &c, n_thread, &other);
        assert_string_equal(got, want);
        mem_free(got);
    }
    mem_free(want);
    calibration_clear(&c);
}

/* Costs of a small model: nothing of its own costs nothing, fewer bits cost more, and the same for any number
 * of threads. */
static void costs_are_costs(void **state) {
    (void)state;
    static const char *const formats[] = {"u8g128", "u6g64",  "u4g64",      "u3g64",
                                          "u8g16",  "u4g64w", "u4g64+u2g64"};
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = prompts_open(512);
    const double score[] = {1, 0, 0.5, 0.25};
    const quality_options q = {formats, 7, score, 40, 8};
    model_imatrix first = {0};
    nib_engine_options o;
    char *text[2];
    nib_error err = {0};
    for (int i = 0; i < 2; i++) {
        quality got;
        model_imatrix seen;
        nib_engine_options_init(&o);
        o.n_thread = 1 + i;
        if (measure_quality(path, &o, &c, &q, &got, &seen, &err))
            fail_msg("%s", err.message);
        assert_int_equal(got.n_block, 6);
        assert_int_equal(got.n_token, 5 + 8 + 1 + 8);
        for (int b = 0; b < 5; b++) {
            const double *kl = got.kl + 7 * b, *off = got.error + 7 * b;
            assert_true(kl[4] < 0 && off[4] < 0); /* larger than Q8_0 */
            assert_true(off[0] > 0 && off[0] < off[1] && off[1] < off[2] && off[2] < off[3]);
            assert_true(kl[0] > 0 && kl[0] < kl[2] && kl[2] < kl[3]);
            assert_true(kl[5] > 0 && kl[5] != kl[2]);        /* rounded by the inputs of the products */
            assert_true(off[1] < off[6] && off[6] < off[2]); /* a stack of 6.5 bits is as 6 or so */
            if (b > 0)
                assert_true(got.kl_left_out[b] > 0 &&
                            got.kl_activation[2 * b] < got.kl_activation[2 * b + 1]);
        }
        assert_true(got.kl[5 * 7] == 0 && got.kl_left_out[5] < 0 && got.kl_left_out[0] < 0);
        assert_true(got.kl_fewer[0] == 0 && got.kl_fewer[1] == got.kl_left_out[2] && got.kl_fewer[4] < 0);
        assert_int_equal(quality_print(&got, &text[i], &err), NIB_OK);
        assert_int_equal(seen.n_site, 4 * 4 + 1); /* q k v, o, gate up, down of each layer, head */
        for (uint64_t j = 0; j < seen.first[seen.n_site]; j++)
            assert_true(seen.mean[j] > 0 && (!i || seen.mean[j] == first.mean[j]));
        quality_clear(&got);
        if (i)
            imatrix_clear(&seen);
        else
            first = seen;
    }
    assert_string_equal(text[0], text[1]);
    mem_free(text[0]);
    mem_free(text[1]);
    imatrix_clear(&first);
    calibration_clear(&c);
}

/* Losses of keys and values, the same for any number of threads; the formats that they lead to. */
static void losses_of_keys_and_values(void **state) {
    (void)state;
    const char *path = tiny_model("packed.gguf", &packed);
    const char *folder = temp_path("cache");
    calibration c;
    kv_loss losses[2];
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    setenv("XDG_CACHE_HOME", folder, 1);
    nib_engine_options_init(&o);
    if (measure_prompts(path, &o, NULL, true, &c, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < 2; i++) {
        o.n_thread = 1 + 2 * i;
        if (measure_kv_loss(path, &o, &c, &losses[i], &err))
            fail_msg("%s", err.message);
    }
    assert_int_equal(losses[0].n_layer, 4);
    assert_memory_equal(losses[0].kl, losses[1].kl, 8 * sizeof(double));
    for (int l = 0; l < 4; l++)
        assert_true(0 < losses[0].kl[2 * l] && losses[0].kl[2 * l] < losses[0].kl[2 * l + 1]);
    assert_true(losses[0].kl[7] < losses[0].all[1] && losses[0].all[0] < losses[0].all[1]);

    o.kv_type = NIB_KV_AUTO; /* nothing is stored yet */
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_OK);
    assert_true(!engine_parts_of(e).kv.layers && engine_parts_of(e).kv.type == TYPE_F16);
    nib_engine_close(e);
    const double kl[] = {0.001, 1, 0.00005, 0.00075, 0.00005, 0.00065, 0.1, 0.2};
    memcpy(losses[0].kl, kl, sizeof kl);
    char *at = kv_loss_path(c.content, c.hash);
    assert_int_equal(kv_loss_save(at, &losses[0], &err), NIB_OK);
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_OK);
    const kv_formats kv = engine_parts_of(e).kv; /* two in kv4 save more than three in kv8 */
    static const type_id want[] = {TYPE_F16, TYPE_KV4, TYPE_KV4, TYPE_F16};
    for (int l = 0; l < 4; l++)
        assert_int_equal(kv_format_of(kv, l), want[l]);
    nib_engine_close(e);
    assert_int_equal(unlink(at), 0);
    mem_free(at);
    unsetenv("XDG_CACHE_HOME");
    kv_loss_clear(&losses[0]);
    kv_loss_clear(&losses[1]);
    calibration_clear(&c);
}

static bool stop_at_once(void *user, const char *what, uint64_t done, uint64_t all) {
    (void)user;
    (void)all;
    return strncmp(what, "measuring", 9) != 0 || done < 2;
}

static void measuring_can_be_cancelled(void **state) {
    (void)state;
    const char *path = tiny_model("packed.gguf", &packed);
    calibration c = prompts_open(512);
    nib_engine_options o;
    importance p;
    quality q;
    model_imatrix seen;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.progress = stop_at_once;
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_E_CANCELLED);
    importance_clear(&p);
    assert_int_equal(
        measure_quality(path, &o, &c, &(quality_options){measure_formats, 2, NULL, 0, 0}, &q, &seen, &err),
        NIB_E_CANCELLED);
    quality_clear(&q);
    imatrix_clear(&seen);
    c.tokens[3] = 512;
    assert_int_equal(measure_importance(path, &o, &c, &p, &err), NIB_E_USAGE); /* no such id */
    importance_clear(&p);
    calibration_clear(&c);
}

typedef struct measured {
    const char *path;
    const calibration *c;
} measured;

static nib_status measure_both(void *user, nib_error *err) {
    static const char *const formats[] = {"u4g64w"};
    const measured *m = user;
    nib_engine_options o;
    importance p;
    quality q;
    model_imatrix seen;
    nib_engine_options_init(&o);
    o.n_thread = 2;
    o.packed = NIB_PACKED_OFF;
    nib_status status = measure_importance(m->path, &o, m->c, &p, err);
    if (status == NIB_OK) {
        const quality_options how = {formats, 1, p.score, 8, 1};
        status = measure_quality(m->path, &o, m->c, &how, &q, &seen, err);
        fault_made(p.score, (size_t)p.n_layer * sizeof *p.score);
        if (status == NIB_OK) {
            fault_made(q.kl, (size_t)(q.n_block * q.n_format) * sizeof *q.kl);
            fault_made(q.kl_activation, (size_t)q.n_block * 2 * sizeof *q.kl_activation);
        }
        quality_clear(&q);
        imatrix_clear(&seen);
    }
    importance_clear(&p);
    return status;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    calibration c = prompts_open(few.n_vocab);
    c.n_prompt = 1;
    measured m = {tiny_model("few.gguf", &few), &c};
    assert_true(fault_sweep(FAULT_ALLOC, 11, measure_both, &m) > 50);
    calibration_clear(&c);
}

static double exact_divergence(const float *a, const float *b, int64_t n) {
    long double za = 0, zb = 0, sum = 0;
    for (int64_t i = 0; i < n; i++) {
        za += expl((long double)a[i]);
        zb += expl((long double)b[i]);
    }
    for (int64_t i = 0; i < n; i++)
        sum += expl((long double)a[i]) / za * ((long double)a[i] - logl(za) - (long double)b[i] + logl(zb));
    return (double)sum;
}

static void divergence_is_exact(void **state) {
    (void)state;
    enum { N = 1003 };
    float a[N], b[N];
    uint64_t x = 1;
    for (double size = 1e-3; size < 100; size *= 10) {
        for (int i = 0; i < N; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            a[i] = (float)(x >> 40) / 1e6f;
            b[i] = a[i] + (float)(size * ((double)(x >> 20 & 1023) / 512 - 1));
        }
        const double want = exact_divergence(a, b, N), got = divergence(a, b, N);
        if (fabs(got - want) > 2e-8 + 1e-6 * want)
            fail_msg("expected %.10g, found %.10g", want, got);
    }
    assert_true(divergence(a, a, N) == 0);
    for (int i = 0; i < N; i++)
        b[i] = a[i] + 500; /* the same distribution */
    assert_true(divergence(a, b, N) < 1e-7);
    b[N - 1] = NAN;
    assert_true(isnan(divergence(a, b, N)));
    b[N - 1] = INFINITY;
    assert_true(isnan(divergence(a, b, N)) && isnan(divergence(b, a, N)));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profiles_are_the_same_everywhere), cmocka_unit_test(costs_are_costs),
        cmocka_unit_test(losses_of_keys_and_values),        cmocka_unit_test(measuring_can_be_cancelled),
        cmocka_unit_test(every_allocation_may_fail),        cmocka_unit_test(divergence_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

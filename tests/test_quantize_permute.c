/* Permutations that put channels with outliers first (FMPQ), and rotations: the same model, whatever the
 * architecture; and activations of 4 and 8 bits. */
#include "base/num.h"
#include "kernels/act8.h"
#include "model/axes.h"
#include "nib_tools.h"
#include "numbers/rotation.h"
#include "quantize/permute_n8.h"
#include "support/archs.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the rule, on planted outliers (COMET, figure 4) ---- */

enum { K = 4096, ROWS = 64 };

static uint64_t seed;

static double uniform(void) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void) {
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

/* Channels of which a share p is 20 to 100 times as large as the others. */
typedef struct planted {
    float channel[K], largest[K];
    bool outlier[K];
    int n;
} planted;

static void plant(planted *p, double share) {
    seed = (uint64_t)(share * 1e4);
    memset(p, 0, sizeof *p);
    p->n = (int)lrint(share * K);
    for (int i = 0; i < K; i++)
        p->channel[i] = (float)exp(0.3 * normal());
    for (int i = 0; i < p->n;) {
        const int at = (int)(uniform() * K);
        i += !p->outlier[at];
        p->channel[at] *= p->outlier[at] ? 1 : (float)(20 + 80 * uniform());
        p->outlier[at] = true;
    }
    for (int r = 0; r < 256; r++)
        for (int i = 0; i < K; i++)
            p->largest[i] = fmaxf(p->largest[i], fabsf((float)normal() * p->channel[i]));
}

static int blocks_with(const bool *is_far, const int32_t *order) {
    int n = 0;
    for (int b = 0; b < K; b += ACT_BLOCK) {
        bool has = false;
        for (int i = b; i < b + ACT_BLOCK; i++)
            has = has || is_far[order ? order[i] : i];
        n += has;
    }
    return n;
}

static void test_order(void **state) {
    (void)state;
    /* the shares of 4-bit blocks before and after, as tests of the paper's rule give them */
    static const struct {
        double share, before, after;
    } rows[] = {{0.002, 0.77, 0.96875},
                {0.005, 0.53, 0.96875},
                {0.01, 0.28, 0.96875},
                {0.02, 0.08, 0.96875},
                {0.05, 0.0, 0.9375}};
    static planted p;
    static int32_t order[K];
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        bool seen[K] = {false};
        plant(&p, rows[i].share);
        assert_int_equal(permute_order(p.largest, K, 6, order), p.n);
        for (int k = 0; k < K; k++) {
            assert_int_equal(p.outlier[order[k]], k < p.n);
            assert_false(seen[order[k]]);
            seen[order[k]] = true;
            if (k > 0 && k < p.n)
                assert_true(p.largest[order[k - 1]] >= p.largest[order[k]]);
            if (k > p.n)
                assert_true(order[k - 1] < order[k]);
        }
        const double before = 1 - blocks_with(p.outlier, NULL) * (double)ACT_BLOCK / K;
        const double after = 1 - blocks_with(p.outlier, order) * (double)ACT_BLOCK / K;
        assert_true(fabs(before - rows[i].before) < 0.2);
        assert_true(after == rows[i].after);
    }
}

/* The relative error of a row whose channels all count alike. */
static double error_of(act_format f, const planted *p, const int32_t *order) {
    static float x[K];
    static _Alignas(64) char codes[2 * K];
    const act8_layout at = act_layout_of(f, K);
    double off = 0, all = 0;
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < K; i++)
            x[i] = (float)normal() * p->channel[order ? order[i] : i];
        kernels_table()->act_quantize(f, x, K, codes);
        for (int i = 0; i < K; i++) {
            const int c = order ? order[i] : i;
            const float scale = ((const float *)(const void *)(codes + at.scale))[i / act_group(f, K)];
            const double w = 1 / (p->channel[c] > 10 ? p->channel[c] : 1),
                         d = x[i] - scale * (float)(int8_t)codes[i];
            off += w * d * d;
            all += w * (double)x[i] * (double)x[i];
        }
    }
    return sqrt(off / all);
}

/* With 1 % of outlier channels: one scale a row loses most, blocks of 128 in 4 bits less, a permutation less
 * again, and 8 bits in the blocks that have the outliers as much as 8 bits in all blocks do without it. The
 * errors are those of the paper's rule in another program, which has other random numbers. Its steps are a
 * seventh of the largest value, ours an eighth: that shows where values are not far below the step. */
static void test_errors(void **state) {
    (void)state;
    static planted p;
    static int32_t order[K];
    plant(&p, 0.01);
    const int n8 = (permute_order(p.largest, K, 6, order) + ACT_BLOCK - 1) / ACT_BLOCK;
    const double row = error_of((act_format){.bits = 4, .group = PACK_GROUP_ROW}, &p, NULL),
                 cut = error_of((act_format){.bits = 4, .group = 128}, &p, NULL),
                 ordered = error_of((act_format){.bits = 4, .group = 128}, &p, order),
                 fmpq = error_of((act_format){.bits = 4, .group = 128, .n8 = (uint8_t)n8}, &p, order),
                 eight = error_of((act_format){.bits = 8, .group = 128}, &p, NULL);
    assert_true(row > cut && cut > ordered && ordered > fmpq);
    assert_true(fabs(row / 0.811 - 1) < 0.1 && fabs(cut / 0.577 - 1) < 0.1);
    assert_true(fabs(ordered / (0.197 * 7 / 8) - 1) < 0.1 && fabs(fmpq / (0.128 * 7 / 8) - 1) < 0.1);
    assert_true(fabs(eight / 0.127 - 1) < 0.1);
}

static void test_choice(void **state) {
    (void)state;
    double four[2][4] = {{8, 1, 1, 1}, {4, 4, 0.5, 0.5}}, eight[2][4] = {{0}};
    const site_loss of[2] = {{four[0], eight[0], 4, 10}, {four[1], eight[1], 4, 10}};
    int64_t n8[2];
    assert_true(n8_choose(of, 2, 0, n8) == 0);
    assert_true(n8[0] == 0 && n8[1] == 0);
    assert_true(n8_choose(of, 2, 0.4, n8) == 0.375); /* the next block costs an eighth */
    assert_true(n8[0] == 1 && n8[1] == 2);
    assert_true(n8_choose(of, 2, 1, n8) == 1);
    assert_true(n8[0] == 4 && n8[1] == 4);
}

/* ---- files ---- */

static nib_quantize_report make_permuted(const char *path, const char *out, const char *type, double share8) {
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {.out = out,
                                    .type = type,
                                    .imatrix = type ? "none" : NULL,
                                    .permute = true,
                                    .share8 = share8,
                                    .outlier = 1e-6 /* all channels, by their strength */};
    nib_quantize_report r;
    nib_error err;
    unlink(out);
    if (nib_quantize(path, &o, &q, &r, &err) != NIB_OK)
        fail_msg("%s: %s", path, err.message);
    return r;
}

static double distance_to(const logits_rows *x, const char *path, int activation) {
    logits_rows y = logits_of_file(path, activation);
    const double far = logits_distance(x, &y);
    free(y.data);
    return far;
}

static double distance(const char *a, const char *b, int act_a, int act_b) {
    logits_rows x = logits_of_file(a, act_a);
    const double far = distance_to(&x, b, act_b);
    free(x.data);
    return far;
}

typedef struct tally {
    int n_seen, n, n_permuted, n_rotated;
} tally;

static nib_status make_rotated(const char *path, const char *out, const char *type, nib_quantize_report *r,
                               nib_error *err) {
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {.out = out, .type = type, .imatrix = "none", .rotate = true};
    unlink(out);
    return nib_quantize(path, &o, &q, r, err);
}

/* A rotated file gives the same logits but for rounding, or is refused by name. */
static void look_rotated(tally *t, const char *whole, const logits_rows *expected, const char *name) {
    static const char *const can[] = {"llama", "mistral", "mixtral", "qwen2", "qwen3", "deepseek"};
    char turned[512];
    nib_quantize_report r;
    nib_error err;
    snprintf(turned, sizeof turned, "%s", temp_path("turned.gguf"));
    const nib_status status = make_rotated(whole, turned, NULL, &r, &err);
    for (size_t i = 0; i < NUM_COUNT(can); i++)
        if (!strcmp(name, can[i]) && status != NIB_OK)
            fail_msg("%s: %s", name, err.message);
    if (status != NIB_OK) {
        assert_int_equal(status, NIB_E_USAGE);
        assert_non_null(strstr(err.message, "--rotate: "));
        return;
    }
    const double far = distance_to(expected, turned, 16);
    if (!(far < 2e-5))
        fail_msg("%s rotated: %g off", name, far);
    t->n_rotated++;
}

/* A permuted file gives the same logits but for the order of sums. The original is written as a GGUF file
 * first, because some folders cannot be. */
static void look(void *user, const char *path, const char *name) {
    tally *t = user;
    if (SANITIZED && t->n_seen++ % 8) /* the others run without one */
        return;
    char whole[512], moved[512];
    const nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    snprintf(whole, sizeof whole, "%s", temp_path("whole.gguf"));
    snprintf(moved, sizeof moved, "%s", temp_path("moved.gguf"));
    const nib_quantize_options q = {.out = whole, .type = "f32", .imatrix = "none"};
    unlink(whole);
    if (nib_quantize(path, &o, &q, &r, &err) != NIB_OK)
        return;
    r = make_permuted(whole, moved, NULL, 16);
    t->n++;
    t->n_permuted += r.n_first > 0;
    logits_rows expected = logits_of_file(whole, 16);
    const double far = distance_to(&expected, moved, 16);
    if (!(far < 1e-5))
        fail_msg("%s: %g off, %d channels moved", name, far, r.n_first);
    look_rotated(t, whole, &expected, name);
    free(expected.data);
    if (!strcmp(name, "llama") || !strcmp(name, "gemma3") || !strcmp(name, "mixtral") ||
        !strcmp(name, "bloom"))
        assert_true(r.n_first > 0);
}

static void test_fixtures(void **state) {
    (void)state;
    tally t = {0};
    archs_each("tests/data/arch", look, &t);
    archs_each("tests/data/arch-extra", look, &t);
    print_message("of %d models %d have channels that can be permuted, %d can be rotated\n", t.n,
                  t.n_permuted, t.n_rotated);
    assert_true(t.n_permuted >= (SANITIZED ? 4 : 40) && t.n_rotated >= (SANITIZED ? 2 : 20));
}

/* All blocks in 8 bits are a8, none is a4: bit by bit. */
static void test_ends(void **state) {
    (void)state;
    char out[512];
    snprintf(out, sizeof out, "%s", temp_path("ax.gguf"));
    make_permuted("tests/data/arch/llama", out, "q4_0", 100);
    assert_true(distance(out, out, NIB_ACT_AX, 8) == 0);
    assert_true(distance(out, out, NIB_ACT_AX, 4) > 0);
    make_permuted("tests/data/arch/llama", out, "q4_0", 0);
    assert_true(distance(out, out, NIB_ACT_AX, 4) == 0);
}

/* A file that does not say which inputs have 8 bits is refused; one that was made of a permuted file is not.
 */
static void test_advice(void **state) {
    (void)state;
    char moved[512], again[512];
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_quantize_report r;
    nib_error err;
    o.activation = NIB_ACT_AX;
    assert_int_equal(nib_engine_open("tests/data/arch/llama", &o, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--permute"));
    snprintf(moved, sizeof moved, "%s", temp_path("moved.gguf"));
    snprintf(again, sizeof again, "%s", temp_path("again.gguf"));
    make_permuted("tests/data/arch/llama", moved, NULL, 100);
    o.activation = 0;
    const nib_quantize_options q = {.out = again, .type = "q4_0", .imatrix = "none"};
    unlink(again);
    assert_int_equal(nib_quantize(moved, &o, &q, &r, &err), NIB_OK);
    assert_true(distance(again, again, NIB_ACT_AX, 8) == 0);
}

/* Rows of the matrix have length 1 and are orthogonal, and for the widths of models that are no power of two
 * each new channel has a part of every old one. */
static void test_rotation(void **state) {
    (void)state;
    static const struct {
        int64_t n, m;
    } rows[] = {{1, 1},  {2, 1}, {12, 12},  {20, 20},  {28, 28}, {36, 36},
                {64, 1}, {7, 1}, {576, 36}, {640, 20}, {960, 60}};
    for (size_t i = 0; i < NUM_COUNT(rows); i++) {
        const int64_t n = rows[i].n;
        rotation r;
        assert_int_equal(rotation_open(&r, n, NULL), NIB_OK);
        assert_int_equal(r.m, rows[i].m);
        float *x = calloc((size_t)(2 * n * n), sizeof *x);
        for (int64_t k = 0; k < n; k++)
            x[k * n + k] = 1;
        rotation_apply(&r, x, n, x + n * n);
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = 0; b <= a; b += NUM_MAX(n / 30, (int64_t)1)) {
                double dot = 0;
                for (int64_t k = 0; k < n; k++)
                    dot += (double)x[a * n + k] * (double)x[b * n + k];
                assert_true(fabs(dot - (a == b)) < 1e-5);
                assert_true(r.m * r.step != n ||
                            fabs(fabs((double)x[a * n + b]) * sqrt((double)n) - 1) < 1e-5);
            }
        free(x);
        rotation_close(&r);
    }
}

/* A folder with one tensor for embedding and head; a norm that cannot move; other methods on the way. */
static void test_rotated(void **state) {
    (void)state;
    char turned[512];
    nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    snprintf(turned, sizeof turned, "%s", temp_path("rotated.gguf"));
    assert_int_equal(make_rotated("tests/data/arch/qwen3", turned, "f32", &r, &err), NIB_OK);
    assert_true(r.n_rotated > 1);
    assert_true(distance("tests/data/arch/qwen3", turned, 16, 16) < 2e-5);
    assert_int_equal(make_rotated("tests/data/arch/gemma3", turned, "f32", &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "layer.0, attn_post_norm"));
    nib_quantize_options q = {.out = turned, .imatrix = "none", .rotate = true, .permute = true};
    assert_int_equal(nib_quantize("tests/data/arch/llama", &o, &q, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--permute"));
    q = (nib_quantize_options){.out = turned, .method = "gptq", .rotate = true};
    assert_int_equal(nib_quantize("tests/data/arch/llama", &o, &q, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "gptq"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rotation), cmocka_unit_test(test_rotated), cmocka_unit_test(test_order),
        cmocka_unit_test(test_errors),   cmocka_unit_test(test_choice),  cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_ends),     cmocka_unit_test(test_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

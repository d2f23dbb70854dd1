/* A model in smaller formats: each tensor has the requested one, and the file computes. */
#include "base/num.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/logits.h"
#include "support/quantized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_formats(void **state) {
    (void)state;
    static const struct {
        const char *type;
        type_id wide, narrow; /* of rows of 256, of 288 */
        double far;
    } cases[] = {{"q8_0", TYPE_Q8_0, TYPE_Q8_0, 0.01},
                 {"q4_k", TYPE_Q4_K, TYPE_Q5_0, 0.12},
                 {"q3_k", TYPE_Q3_K, TYPE_IQ4_NL, 0.25},
                 {"q3_k_m", TYPE_Q3_K, TYPE_Q5_0, 0.25}, /* value, down and output have a bit more */
                 {"bf16", TYPE_BF16, TYPE_BF16, 0.005}};
    small_choose();
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        const nib_quantize_options q = {.out = small.out, .type = cases[i].type};
        nib_quantize_report r;
        container *a, *b;
        nib_error err;
        small_must_make(&q, &r);
        assert_int_equal(container_open(small.model, NULL, &a, &err), NIB_OK);
        assert_int_equal(container_open(small.out, NULL, &b, &err), NIB_OK);
        assert_int_equal(container_n_tensor(a), container_n_tensor(b));
        assert_int_equal(r.n_quantized, 2 + 2 * 7);
        assert_int_equal(container_find(b, "blk.0.attn_q.weight")->type, cases[i].wide);
        assert_int_equal(container_find(b, "blk.1.ffn_down.weight")->type, cases[i].narrow);
        assert_int_equal(container_find(b, "blk.1.attn_norm.weight")->type, TYPE_F32);
        assert_true(small_distance(a, b, "blk.1.attn_norm.weight") == 0);
        const double far = small_distance(a, b, "blk.0.attn_q.weight");
        if (!(far > 0 && far < cases[i].far))
            fail_msg("%s: %g off", cases[i].type, far);
        assert_string_equal(container_meta_str(a, "general.architecture"),
                            container_meta_str(b, "general.architecture"));
        container_close(a);
        container_close(b);
        nib_engine_options o = engine_usual();
        nib_engine_close(engine_must_open(small.out, &o, NULL)); /* and it computes */
    }
}

/* Rows with code books are held as the file has them, for every back end. */
static void test_books(void **state) {
    (void)state;
    const nib_quantize_options q = {.out = small.out, .type = "c4", .imatrix = "none"};
    nib_quantize_report r;
    small_choose();
    small_must_make(&q, &r);
    for (int wide = 0; wide < 2; wide++) {
        model *m;
        uint64_t bytes;
        assert_int_equal(model_open_headers(small.out, NULL, NULL, wide, &m, NULL), NIB_OK);
        const weight *w = &model_block(m, 1)->weights[0];
        for (int i = 0; w->vector && i < model_block(m, 1)->n_weight; i++)
            w = &model_block(m, 1)->weights[i];
        assert_int_equal(w->type, TYPE_C4);
        assert_int_equal(w->format.bits, 4);
        assert_true(pack_bytes(&w->format, w->n, w->k, &bytes) && bytes == w->bytes);
        model_close(m);
    }
    nib_engine_options o = engine_usual();
    nib_engine_close(engine_must_open(small.out, &o, NULL));
}

/* With outliers rows come nearer to the original; other formats have none. */
static void test_outliers(void **state) {
    (void)state;
    nib_quantize_options q = {.out = small.out, .type = "c3", .imatrix = "none"};
    nib_quantize_report r;
    nib_error err;
    double far[2];
    small_choose();
    for (int with = 0; with < 2; with++) {
        container *a, *b;
        q.outliers = with;
        small_must_make(&q, &r);
        assert_int_equal(container_open(small.model, NULL, &a, &err), NIB_OK);
        assert_int_equal(container_open(small.out, NULL, &b, &err), NIB_OK);
        const container_tensor *t = container_find(b, "blk.0.attn_q.weight");
        assert_int_equal(t->type, with ? TYPE_C3O100 : TYPE_C3);
        far[with] = r.error;
        container_close(a);
        container_close(b);
        nib_engine_options o = engine_usual();
        nib_engine_close(engine_must_open(small.out, &o, NULL));
    }
    assert_true(far[1] < 0.95 * far[0]);
    q.outliers = 0.3;
    assert_int_equal(small_make(&q, NULL, &r, &err), NIB_E_USAGE);
    q.outliers = 0.45;
    q.type = "q4_0";
    assert_int_equal(small_make(&q, NULL, &r, &err), NIB_E_USAGE);
}

/* Embedding and output head have a format of their own, beside one for all, a mix and an average. */
static void test_head_type(void **state) {
    (void)state;
    nib_quantize_options cases[] = {
        {.type = "n3g64"}, {.type = "q3_k_m"}, {.type = "n3g64,q4_0", .bits = 3.5}};
    const nib_quantize_options books = {
        .out = small.out, .type = "c3", .method = "squeezellm", .imatrix = "none"};
    nib_quantize_report r;
    nib_error err;
    container *c;
    small_choose();
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        int n_fine = 0;
        cases[i].out = small.out;
        cases[i].imatrix = "none";
        cases[i].head_type = "q8_0";
        small_must_make(&cases[i], &r);
        assert_int_equal(container_open(small.out, NULL, &c, &err), NIB_OK);
        assert_int_equal(container_find(c, "token_embd.weight")->type, TYPE_Q8_0);
        assert_int_equal(container_find(c, "output.weight")->type, TYPE_Q8_0);
        for (int l = 0; l < 2; l++)
            n_fine += container_find(c, l ? "blk.1.attn_q.weight" : "blk.0.attn_q.weight")->type !=
                      (i == 1 ? TYPE_Q3_K : TYPE_N3G64);
        assert_int_equal(n_fine, i == 2); /* one of two equal layers has 4 bits: the head does not count */
        container_close(c);
    }
    small_must_make(&books, &r); /* keeps them at 8 bits by itself */
    assert_int_equal(container_open(small.out, NULL, &c, &err), NIB_OK);
    assert_int_equal(container_find(c, "token_embd.weight")->type, TYPE_Q8_0);
    assert_int_equal(container_find(c, "blk.0.attn_q.weight")->type, TYPE_C3);
    container_close(c);
    cases[0].head_type = "q4_k_m";
    assert_int_equal(small_make(&cases[0], NULL, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--head-type"));
}

static void test_refused(void **state) {
    (void)state;
    nib_quantize_report r;
    nib_error err;
    small_choose();
    const nib_quantize_options unknown = {.out = small.out, .type = "q9"};
    assert_int_equal(small_make(&unknown, NULL, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "q4_k_m"));
    const nib_quantize_options nowhere = {.out = "/nowhere/at/all.gguf", .imatrix = "none"};
    assert_int_equal(small_make(&nowhere, NULL, &r, &err), NIB_E_IO);
}

/* A folder's sinks become a tensor of single precision, and count. */
static void test_sinks(void **state) {
    (void)state;
    static const char folder[] = "tests/data/arch-extra/llama-sinks";
    const nib_quantize_options q = {.out = small.out, .type = "f16", .imatrix = "none"};
    const nib_engine_options o = engine_usual();
    nib_quantize_report r;
    expected x;
    container *made;
    small_choose();
    snprintf(small.model, sizeof small.model, "%s", folder);
    small_must_make(&q, &r);
    assert_int_equal(container_open(small.out, NULL, &made, NULL), NIB_OK);
    const container_tensor *sinks = container_find(made, "blk.1.attn_sinks.weight");
    assert_non_null(sinks);
    assert_int_equal(sinks->type, TYPE_F32);
    assert_int_equal(sinks->n_dim, 1);
    assert_int_equal(sinks->shape[0], 6);
    container_close(made);
    expected_load("tests/data/arch-extra/llama-sinks/expected.safetensors", &x);
    nib_engine *e = engine_must_open(small.out, &o, NULL);
    logits_rows rows = logits_of(e, x.input_ids, x.n_input);
    assert_true(relative_rms(rows.data, x.logits, x.n_input * x.n_vocab) < 3e-3);
    free(rows.data);
    nib_engine_close(e);
    expected_free(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats),  cmocka_unit_test(test_books),
                                       cmocka_unit_test(test_outliers), cmocka_unit_test(test_head_type),
                                       cmocka_unit_test(test_refused),  cmocka_unit_test(test_sinks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How a model is rounded: the methods, the importance of inputs, and the allocation of bits. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "quantize/awq.h"
#include "quantize/bit_allocation.h"
#include "quantize/held_back.h"
#include "quantize/imatrix_file.h"
#include "quantize/lapack.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/logits.h"
#include "support/quantized.h"
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

/* The places of AWQ's factors in a layer of Llama. */
static void test_sources(void **state) {
    (void)state;
    static const struct {
        const char *reader, *source;
    } cases[] = {{"q", "attn_norm"}, {"o", "v"}, {"up", "ffn_norm"}, {"down", "up"}};
    const logger silent = {0};
    model *m;
    nib_error err;
    small_choose();
    assert_int_equal(model_open(small.model, &silent, &m, &err), NIB_OK);
    const block *b = model_block(m, 1);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        site_source s;
        int w = 0;
        while (strcmp(b->weights[w].name, cases[i].reader) != 0)
            w++;
        assert_true(site_find_source(b, w, &s));
        assert_string_equal(b->weights[s.w].name, cases[i].source);
        assert_int_equal(s.n_share, strcmp(cases[i].reader, "o") ? 1 : 2);
    }
    model_close(m);
}

static void last_logits(const char *path, float *out, int n) {
    static const int32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    nib_engine_options o = engine_usual();
    o.activation = 16;
    nib_engine *e = engine_must_open(path, &o, NULL);
    logits_rows rows = logits_of(e, tokens, NUM_COUNT(tokens));
    memcpy(out, rows.data + (NUM_COUNT(tokens) - 1) * (size_t)rows.n_vocab, (size_t)n * sizeof *out);
    free(rows.data);
    nib_engine_close(e);
}

/* Factors and their inverses leave the model unchanged: at 8 bits its logits are the original's. */
static void test_methods(void **state) {
    (void)state;
    enum { N_VOCAB = 384 };
    float wanted[N_VOCAB], found[N_VOCAB];
    const char *const methods[] = {"rtn", "awq", "gptq"};
    double plain = 0;
    small_choose();
    last_logits(small.model, wanted, N_VOCAB);
    for (int i = 0; i < (lapack_check(NULL) == NIB_OK ? 3 : 2); i++) {
        const nib_quantize_options q = {.out = small.out, .type = "q8_0", .method = methods[i]};
        nib_quantize_report r;
        container *a, *b;
        small_must_make(&q, &r);
        last_logits(small.out, found, N_VOCAB);
        const double far = relative_error(wanted, found, N_VOCAB);
        plain = i ? plain : far;
        if (!(far > 0 && far < 0.06 && far < 2 * plain))
            fail_msg("%s: %g off, plainly %g", methods[i], far, plain);
        assert_int_equal(container_open(small.model, NULL, &a, NULL), NIB_OK);
        assert_int_equal(container_open(small.out, NULL, &b, NULL), NIB_OK);
        const double norm =
            small_distance(a, b, "blk.0.ffn_norm.weight") + small_distance(a, b, "blk.1.attn_norm.weight");
        assert_true(i == 1 ? norm > 0 : norm == 0);
        container_close(a);
        container_close(b);
    }
}

/* AWQ's file is replaced by the one rounded to nearest where text that was not measured is less likely. */
static void test_awq_is_no_worse(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_F32, 2, 128, 192, 4, 2, 201, 256, false},
                                        {TYPE_F32, 3, 64, 128, 2, 1, 301, 256, true},
                                        {TYPE_F32, 1, 192, 256, 4, 4, 401, 256, false}};
    static const char *const types[] = {"n2g64", "n3g64"}, *const methods[] = {"rtn", "awq"};
    const nib_engine_options o = engine_usual();
    small_choose();
    for (size_t i = 0; i < (SANITIZED ? 1 : NUM_COUNT(shapes)) * NUM_COUNT(types); i++) {
        char left[600];
        double ppl[2] = {0};
        snprintf(small.model, sizeof small.model, "%s", tiny_model_with_words("words.gguf", &shapes[i / 2]));
        for (int m = 0; m < 2; m++) {
            const nib_quantize_options q = {.out = small.out, .type = types[i % 2], .method = methods[m]};
            nib_quantize_report r;
            small_must_make(&q, &r);
            assert_int_equal(held_back_perplexity(small.out, &o, &ppl[m], NULL), NIB_OK);
        }
        if (!(ppl[1] <= ppl[0]))
            fail_msg("shape %d, %s: perplexity %g by rtn, %g by awq", (int)i / 2, types[i % 2], ppl[0],
                     ppl[1]);
        snprintf(left, sizeof left, "%s.rtn", small.out);
        assert_false(path_exists(left));
    }
}

/* The optimal allocation of bits, against trying every one. */
static void test_share(void **state) {
    (void)state;
    enum { N = 5, F = ALLOCATION_FORMATS };
    double cost[N * F], weights[N];
    uint64_t seed = 9;
    allocation_list list;
    nib_error err;
    assert_int_equal(allocate_find("c3,f16", &list, &err), NIB_E_USAGE);
    assert_int_equal(allocate_find("c3,c4,c3,c4,c3,c4", &list, &err), NIB_E_USAGE);
    assert_int_equal(allocate_find("c3,c4", &list, &err), NIB_OK);
    assert_true(list.n == 2 && list.of[0].type == TYPE_C3 && list.of[1].type == TYPE_C4);
    assert_int_equal(allocate_find(NULL, &list, &err), NIB_OK);
    assert_int_equal(list.n, F);
    for (int b = 0; b < N; b++) {
        weights[b] = 1 + (double)(seed % 3);
        for (int f = 0; f < F; f++) {
            seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
            cost[b * F + f] = (double)(seed >> 40) / (double)(1 << 24) * pow(0.25, list.of[f].bits - 2);
        }
    }
    for (double bits = 2; bits <= 8; bits += 0.7) {
        int choice[N];
        double kl, best = INFINITY, all = 0, used = 0;
        for (int b = 0; b < N; b++)
            all += weights[b];
        for (int code = 0; code < 3125; code++) {
            double sum = 0, size = 0;
            for (int b = 0, rest = code; b < N; b++, rest /= F) {
                sum += cost[b * F + rest % F];
                size += weights[b] * list.of[rest % F].bits;
            }
            best = size <= bits * all + 1e-9 ? fmin(best, sum) : best;
        }
        assert_int_equal(allocate_choose(&list, cost, weights, N, bits, choice, &kl, &err), NIB_OK);
        assert_true(fabs(kl - best) < 1e-12);
        for (int b = 0; b < N; b++)
            used += weights[b] * list.of[choice[b]].bits;
        assert_true(used <= bits * all + 1e-9);
    }
    const nib_quantize_options q = {.out = small.out, .bits = 3.5};
    nib_quantize_report r;
    small_choose();
    if (!SANITIZED) { /* measures every format; the next one measures two in the same way */
        small_must_make(&q, &r);
        assert_true(r.bits > 2.5 && r.bits < 4.6 && r.kl > 0);
    }
    const nib_quantize_options books = {.out = small.out, .type = "c3,c4", .bits = 3.5};
    small_must_make(&books, &r);
    assert_true(r.bits > 3 && r.bits < 4.6 && r.kl > 0);
}

static void test_importance(void **state) {
    (void)state;
    char kept[512], old[512];
    nib_quantize_report r;
    nib_error err;
    size_t n, m;
    small_choose();
    snprintf(kept, sizeof kept, "%s", temp_path("kept.gguf"));
    snprintf(old, sizeof old, "%s", temp_path("kept.dat"));
    const nib_quantize_options measured = {.out = small.out, .type = "q4_0", .keep_imatrix = kept};
    small_must_make(&measured, &r);
    char *first = small_read(small.out, &n);
    small_must_make(&measured, &r);
    assert_non_null(strstr(r.importance, "measured before"));
    const nib_quantize_options from_file = {.out = small.out, .type = "q4_0", .imatrix = kept};
    small_must_make(&from_file, &r);
    char *second = small_read(small.out, &m);
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    const nib_quantize_options none = {.out = small.out, .type = "q4_0", .imatrix = "none"};
    small_must_make(&none, &r);
    char *third = small_read(small.out, &m);
    assert_int_equal(n, m);
    assert_memory_not_equal(first, third, n);

    /* the older file: the sums of 3 calls for one tensor, and one of an unknown tensor */
    FILE *f = fopen(old, "wb");
    const int32_t entries = 2, calls = 3, k = 256;
    fwrite(&entries, 4, 1, f);
    for (int e = 0; e < 2; e++) {
        const char *name = e ? "nobody.weight" : "blk.1.attn_q.weight";
        const int32_t len = (int32_t)strlen(name);
        fwrite(&len, 4, 1, f);
        fwrite(name, 1, (size_t)len, f);
        fwrite(&calls, 4, 1, f);
        fwrite(&k, 4, 1, f);
        for (int i = 0; i < k; i++) {
            const float sum = 3 * (float)i;
            fwrite(&sum, 4, 1, f);
        }
    }
    fclose(f);
    const logger silent = {0};
    model *model_of;
    gguf_tensors c;
    stats s;
    assert_int_equal(model_open(small.model, &silent, &model_of, &err), NIB_OK);
    assert_int_equal(gguf_tensors_open(model_of, &c, &err), NIB_OK);
    if (imatrix_file_read(old, &c, NULL, &s, &err) != NIB_OK)
        fail_msg("%s", err.message);
    const container *whole = model_container(model_of);
    const size_t at = (size_t)(container_find(whole, "blk.1.attn_q.weight") - container_tensor_at(whole, 0));
    assert_true(s.of[at][0] == 0 && s.of[at][255] == 255);
    assert_null(s.of[at + 1]);
    stats_close(&s);
    assert_int_equal(truncate(old, 500), 0);
    assert_int_equal(imatrix_file_read(old, &c, NULL, &s, &err), NIB_E_MODEL);
    stats_close(&s);
    gguf_tensors_close(&c);
    model_close(model_of);
    mem_free(first);
    mem_free(second);
    mem_free(third);
}

/* Quantizes `from` with importance 1 of all columns, but i + 1 of those of expert 1 if `own`. Returns the
 * gates of the first layer. */
static char *gates_with(const char *from, bool own, size_t *n_byte) {
    const nib_engine_options usual = engine_usual();
    const logger silent = {0};
    const char *by = temp_path("experts.imatrix");
    model *m;
    gguf_tensors c;
    stats s = {0};
    container *made;
    nib_quantize_report r;
    nib_error err;
    assert_int_equal(model_open(from, &silent, &m, &err), NIB_OK);
    assert_int_equal(gguf_tensors_open(m, &c, &err), NIB_OK);
    s.of = mem_calloc(c.n + 1, sizeof *s.of);
    size_t at = 0;
    while (strcmp(c.all[at].as.name, "blk.0.ffn_gate_exps.weight") != 0)
        at++;
    const int64_t k = c.all[at].as.shape[2], n_expert = stats_experts(&c.all[at]);
    assert_int_equal(n_expert, 6);
    float *mean = s.own = mem_array((size_t)(n_expert * k), sizeof *mean);
    for (int64_t i = 0; i < n_expert * k; i++)
        mean[i] = own && i / k == 1 ? (float)(i % k + 1) : 1;
    s.of[at] = mean;
    assert_int_equal(imatrix_file_write(by, &c, &s, "test", &err), NIB_OK);
    stats_close(&s);
    gguf_tensors_close(&c);
    model_close(m);
    const nib_quantize_options q = {.out = small.out, .type = "q4_0", .imatrix = by};
    if (nib_quantize(from, &usual, &q, &r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(container_open(small.out, NULL, &made, &err), NIB_OK);
    const container_tensor *t = container_find(made, "blk.0.ffn_gate_exps.weight");
    assert_int_equal(t->type, TYPE_Q4_0);
    char *data = mem_alloc((size_t)t->bytes);
    assert_int_equal(file_read_at(container_file(made, t->file), data, t->offset, t->bytes, &err), NIB_OK);
    *n_byte = (size_t)t->bytes;
    container_close(made);
    return data;
}

/* Experts have importance of their own: it is measured, kept and read in the form of llama.cpp's files, and
 * each rounds by its own. */
static void test_importance_of_experts(void **state) {
    (void)state;
    char from[512], kept[512];
    const nib_engine_options usual = engine_usual();
    nib_quantize_report r;
    nib_error err;
    container *c;
    size_t n, m;
    small_choose();
    snprintf(from, sizeof from, "%s", temp_path("experts.gguf"));
    snprintf(kept, sizeof kept, "%s", temp_path("kept.gguf"));
    const nib_quantize_options plain = {.out = from, .type = "f32", .imatrix = "none"};
    assert_int_equal(nib_quantize("tests/data/packed/gpt_oss_mxfp4", &usual, &plain, &r, &err), NIB_OK);
    const nib_quantize_options measured = {.out = small.out, .type = "q4_0", .keep_imatrix = kept};
    if (nib_quantize(from, &usual, &measured, &r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    char *first = small_read(small.out, &n);
    assert_int_equal(container_open(kept, NULL, &c, &err), NIB_OK);
    const container_tensor *t = container_find(c, "blk.0.ffn_down_exps.weight.in_sum2");
    assert_true(t && t->n_dim == 2 && t->shape[0] == 6 && t->shape[1] == 64);
    t = container_find(c, "blk.0.ffn_down_exps.weight.counts");
    assert_true(t && t->bytes == 6 * sizeof(float));
    container_close(c);
    const nib_quantize_options from_file = {.out = small.out, .type = "q4_0", .imatrix = kept};
    assert_int_equal(nib_quantize(from, &usual, &from_file, &r, &err), NIB_OK);
    char *second = small_read(small.out, &m);
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    mem_free(first);
    mem_free(second);

    first = gates_with(from, false, &n);
    second = gates_with(from, true, &n);
    const size_t each = n / 6;
    for (size_t e = 0; e < 6; e++)
        assert_true((memcmp(first + e * each, second + e * each, each) != 0) == (e == 1));
    mem_free(first);
    mem_free(second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sources),         cmocka_unit_test(test_methods),
        cmocka_unit_test(test_awq_is_no_worse), cmocka_unit_test(test_share),
        cmocka_unit_test(test_importance),      cmocka_unit_test(test_importance_of_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

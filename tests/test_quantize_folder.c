/* Folders of safetensors as GGUF files: the same model, tensor by tensor and token by token, or a refusal
 * that names what GGUF cannot express. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/made.h"
#include "support/tempdir.h"
#include "tokenizer/write_gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char out_path[512];

static nib_status make(const char *folder, const char *type, const char *method, nib_error *err) {
    const nib_engine_options o = engine_usual();
    const nib_quantize_options q = {
        .out = out_path, .type = type, .method = method, .imatrix = method ? NULL : "none"};
    nib_quantize_report r;
    unlink(out_path);
    return nib_quantize(folder, &o, &q, &r, err);
}

static double distance(const char *a, const char *b) {
    logits_rows x = logits_of_file(a, 0), y = logits_of_file(b, 0);
    const double far = logits_distance(&x, &y);
    free(x.data);
    free(y.data);
    return far;
}

/* Every way in which a GGUF file differs from a folder. */
static void test_same_model(void **state) {
    (void)state;
    static const char *const folders[] = {
        "arch/llama",                     /* rows of q and k move */
        "arch-extra/llama-bias",          /* and their biases */
        "arch-extra/llama-rope-llama3",   /* frequency factors are a tensor */
        "arch-extra/llama-rope-yarn",     /* keys of scaling */
        "arch-extra/phi3-longrope-short", /* two tensors; fused stay fused */
        "arch-extra/falcon-40b",          /* grouped rows, two norms */
        "arch-extra/internlm2",           /* fused become three */
        "arch-extra/bloom",               /* a norm after the embedding, biases of grouped rows */
        "arch/gpt2",                      /* transposed */
        "arch/gemma3",                    /* norms plus 1, layers that slide */
        "arch-extra/granite",             /* scales */
        "arch/stablelm",
        "arch-extra/cohere2",
        "arch/qwen3",
        "arch/seed_oss",         /* a norm of another name */
        "arch/ernie4_5",         /* pairs stay adjacent */
        "arch/olmo3",            /* the name of another family, rotary frequencies of sliding layers */
        "arch/ministral3",       /* YaRN, queries scaled by position */
        "arch/hunyuan_v1_dense", /* a larger base */
        "arch/lfm2",        /* three parts of one projection, a table of taps, layers without attention */
        "arch/mamba2",      /* A from its logarithm, a norm of the whole row */
        "arch/qwen3_5",     /* heads in another order, a gate beside the queries */
        "arch/falcon_h1",   /* factors in the rows of weights */
        "arch/kimi_linear", /* q, k and v apart, latent attention in some layers */
        "arch/jamba",       /* two norms in one weight, parts of a low rank */
        "arch/nemotron_h",  /* layers of one sub-layer, experts without gates */
        "arch/granitemoehybrid", /* experts, perhaps without rotary embedding */
        "arch/qwen3_next",       /* rows of groups */
        "arch/qwen3_5_moe",
        "arch/lfm2_moe",
        "arch/apertus", /* parameters of the activation function */
        "arch/gemma4",  /* widths of each layer, factors of layers, per-layer embeddings */
        "arch-extra/gemma4-values-are-keys",
        "arch/gemma4_moe", /* a mixture beside a dense layer */
        "arch/gemma3n",    /* streams of the residual, matrices of all streams in one tensor */
        "arch-extra/nemotron_h-latent",
        "arch-extra/granitemoehybrid-attention",
        "arch-extra/qwen3_next-dense",
        "arch/laguna", /* numbers of heads of each layer */
        "arch/deepseek_v3",
        "arch-extra/deepseek_v2-dense",   /* latent attention, YaRN of scores */
        "arch-extra/glm4_moe_lite-dense", /* under another family's name */
        "arch/gpt_oss",    /* gates and ups alternate in transposed tensors, biases of experts */
        "arch/qwen3_moe",  /* a tensor for each expert, a dense layer between */
        "arch/granitemoe", /* gates and ups of all experts are one tensor */
        "arch/qwen2_moe",  /* a gated shared expert */
        "arch/dots1",      /* a bias that chooses */
        "arch/mixtral",    /* under another family's name */
        "arch/cohere2_moe",
        "arch/deepseek_v2",
        "arch/deepseek_v3_fp8", /* scales of 128 x 128 */
        "arch/ernie4_5_moe",
        "arch/exaone_moe",
        "arch/glm4_moe",
        "arch/glm4_moe_lite",
        "arch/hunyuan_v1_moe",
        "arch/hy_v3",
        "arch/llama4",
        "arch/mimo_v2_flash",
        "arch/minimax_m2",
        "arch/olmoe",
        "arch/exaone4"}; /* layers without rotary embedding */
    for (size_t i = 0; i < NUM_COUNT(folders); i++) {
        char folder[200];
        nib_error err;
        snprintf(folder, sizeof folder, "tests/data/%s", folders[i]);
        if (make(folder, "f32", NULL, &err) != NIB_OK)
            fail_msg("%s: %s", folder, err.message);
        const double far = distance(folder, out_path);
        if (!(far < 1e-5))
            fail_msg("%s: %g off", folder, far);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *folder, *says;
    } cases[] = {{"arch-extra/llama-rope-dynamic", "dynamic"}, {"arch-extra/bloom-post-ln", "resid_normed"},
                 {"arch-extra/gpt2-scaled", "scale_by_layer"}, {"arch-extra/gemma2-no-cap", "attn_softcap"},
                 {"arch-extra/smollm3-interval", "rotary"},    {"arch-extra/gpt_neox-tied", "activation"},
                 {"arch-extra/deepseek_v3-half", "halves"},    {"arch-extra/apertus-relu2", "activation"},
                 {"arch-extra/falcon_h1-bias", "biases"},      {"arch-extra/cohere2_moe-sum", "ffn_scale"},
                 {"arch-extra/laguna-columns", "router_cap"},  {"arch/qwen4_exp", "GGUF has no place"},
                 {"arch/deepseek_v4", "GGUF has no"}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        char folder[200], check[600];
        nib_error err;
        snprintf(folder, sizeof folder, "tests/data/%s", cases[i].folder);
        snprintf(check, sizeof check, "%s.check", out_path);
        assert_int_equal(make(folder, "f32", NULL, &err), NIB_E_MODEL);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: expected '%s' in '%s'", folder, cases[i].says, err.message);
        assert_false(path_exists(out_path) || path_exists(check));
    }
}

/* AWQ's factors are applied to the right rows, also for rows of a fused tensor. */
static void test_methods(void **state) {
    (void)state;
    static const char *const folders[] = {"arch/llama", "arch/phi3", "arch-extra/internlm2"};
    for (size_t i = 0; i < NUM_COUNT(folders); i++) {
        char folder[200];
        nib_error err;
        double far[2];
        snprintf(folder, sizeof folder, "tests/data/%s", folders[i]);
        for (int m = 0; m < 2; m++) {
            if (make(folder, "q8_0", m ? "awq" : NULL, &err) != NIB_OK)
                fail_msg("%s: %s", folder, err.message);
            far[m] = distance(folder, out_path);
        }
        if (!(far[0] > 0 && far[0] < 0.1 && far[1] < 2 * far[0]))
            fail_msg("%s: plainly %g off, by awq %g", folder, far[0], far[1]);
    }
}

/* A folder's tensors are not in the order of the file that is made: AWQ weighs each row in the format that
 * this row becomes, so it chooses the same factors as from a GGUF file of the folder. */
static void test_awq_of_both(void **state) {
    (void)state;
    static const char *const folders[] = {"tests/data/arch-extra/qwen2-untied", "tests/data/arch/qwen3"};
    for (size_t i = 0; i < NUM_COUNT(folders); i++) {
        char whole[600], from_folder[600];
        nib_error err;
        snprintf(whole, sizeof whole, "%s.whole", out_path);
        snprintf(from_folder, sizeof from_folder, "%s.folder", out_path);
        assert_int_equal(make(folders[i], "f32", NULL, &err), NIB_OK);
        assert_int_equal(rename(out_path, whole), 0);
        assert_int_equal(make(folders[i], "q4_0", "awq", &err), NIB_OK);
        assert_int_equal(rename(out_path, from_folder), 0);
        assert_int_equal(make(whole, "q4_0", "awq", &err), NIB_OK);
        const double far = distance(from_folder, out_path);
        if (!(far < 1e-5))
            fail_msg("%s: AWQ from the folder is %g off AWQ from its GGUF file", folders[i], far);
        unlink(whole);
        unlink(from_folder);
    }
}

/* ---- tokenizers ---- */

static tokenizer *open_json(const char *name) {
    char path[200], *text;
    size_t n;
    tokenizer *t = NULL;
    nib_error err;
    snprintf(path, sizeof path, "tests/data/tokenizer-json/%s.json", name);
    assert_int_equal(file_read_all(path, 1 << 24, &text, &n, &err), NIB_OK);
    if (tokenizer_open_json(text, n, NULL, 0, &t, &err) != NIB_OK)
        fail_msg("%s: %s", name, err.message);
    mem_free(text);
    return t;
}

static nib_status write_vocabulary(const tokenizer *t, const char *path, nib_error *err) {
    gguf_writer *w;
    assert_int_equal(gguf_writer_open(path, &w, err), NIB_OK);
    nib_status status = tokenizer_write_gguf(t, tokenizer_n_vocab(t) + 3, w, err);
    if (status == NIB_OK)
        return gguf_writer_commit(w, err);
    gguf_writer_abort(w);
    return status;
}

/* Uses a text without the fixtures' added tokens that match only as single words or with white space: GGUF
 * cannot express that. */
static void check_tokens(const char *name, const tokenizer *a, const tokenizer *b) {
    static const char text[] = "Hello, it's I'M 12 12345  a_b\n\n \tHTMLParser (x)!? "
                               "\xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\x98\x80 ";
    token_list x = {0}, y = {0};
    nib_error err;
    assert_int_equal(tokenizer_encode(a, text, sizeof text - 1, TOKENIZE_BOS, &x, &err), NIB_OK);
    assert_int_equal(tokenizer_encode(b, text, sizeof text - 1, TOKENIZE_BOS, &y, &err), NIB_OK);
    if (x.n != y.n || memcmp(x.data, y.data, x.n * sizeof *x.data) != 0)
        fail_msg("%s: other tokens", name);
    token_list_clear(&x);
    token_list_clear(&y);
}

static void test_tokenizers(void **state) {
    (void)state;
    static const struct {
        const char *name, *pre; /* NULL: SentencePiece */
    } cases[] = {
        {"gpt2", "gpt-2"},     {"llama3", "llama-bpe"}, {"qwen2-nfc", "qwen2"},       {"gpt-4o", "gpt-4o"},
        {"falcon", "default"}, {"bloom", "bloom"},      {"deepseek3", "deepseek-v3"}, {"starcoder", "smollm"},
        {"llama-like", NULL},  {"gemma-like", NULL}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        const char *path = temp_path("vocabulary.gguf");
        tokenizer *a = open_json(cases[i].name), *b = NULL;
        container *c;
        nib_error err;
        bool same = false;
        if (write_vocabulary(a, path, &err) != NIB_OK)
            fail_msg("%s: %s", cases[i].name, err.message);
        assert_int_equal(container_open(path, NULL, &c, &err), NIB_OK);
        if (cases[i].pre)
            assert_string_equal(container_meta_str(c, "tokenizer.ggml.pre"), cases[i].pre);
        assert_int_equal(tokenizer_open(c, NULL, &b, &err), NIB_OK);
        assert_int_equal(tokenizer_check_same(b, b, &same, &err), NIB_OK);
        assert_true(same);
        check_tokens(cases[i].name, a, b);
        for (int32_t id = 0; id < tokenizer_n_vocab(a); id++) {
            size_t n, m;
            const char *x = tokenizer_piece(a, id, &n), *y = tokenizer_piece(b, id, &m);
            assert_true(!x || (n == m && !memcmp(x, y, n)));
        }
        assert_true(tokenizer_eos(a) < 0 || tokenizer_eos(a) == tokenizer_eos(b));
        tokenizer_close(b);
        container_close(c);
        tokenizer_close(a);
    }
}

static void test_refused_tokenizers(void **state) {
    (void)state;
    static const struct {
        const char *name, *says;
    } cases[] = {{"unigram", "Unigram"}, {"metaspace-first", "byte fallback"}};
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        tokenizer *t = open_json(cases[i].name);
        nib_error err;
        assert_int_equal(write_vocabulary(t, temp_path("vocabulary.gguf"), &err), NIB_E_MODEL);
        if (!strstr(err.message, cases[i].says))
            fail_msg("%s: %s", cases[i].name, err.message);
        tokenizer_close(t);
    }
}

/* ---- faults ---- */

static nib_status write_step(void *t, nib_error *err) {
    gguf_writer *w;
    NIB_TRY(gguf_writer_open(temp_path("faulty.gguf"), &w, err));
    const nib_status status = tokenizer_write_gguf(t, tokenizer_n_vocab(t), w, err);
    if (status != NIB_OK) {
        gguf_writer_abort(w);
        return status;
    }
    NIB_TRY(gguf_writer_commit(w, err));
    made_file(temp_path("faulty.gguf"));
    return NIB_OK;
}

static nib_status make_step(void *folder, nib_error *err) {
    char part[600];
    snprintf(part, sizeof part, "%s.part", out_path);
    unlink(part);
    NIB_TRY(make(folder, "f32", NULL, err));
    made_file(out_path);
    return NIB_OK;
}

static void test_faults(void **state) {
    (void)state;
    static const char *const names[] = {"qwen2-nfc", "llama-like"};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        tokenizer *t = open_json(names[i]);
        assert_true(fault_sweep(FAULT_ALLOC, 3, write_step, t) > 5);
        tokenizer_close(t);
    }
    assert_true(fault_sweep(FAULT_ALLOC, 19, make_step, (void *)"tests/data/arch/gpt2") > 10);
    assert_true(fault_sweep(FAULT_WRITE, 5, make_step, (void *)"tests/data/arch-extra/internlm2") > 5);
}

int main(void) {
    snprintf(out_path, sizeof out_path, "%s", temp_path("made.gguf"));
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_model), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_methods),    cmocka_unit_test(test_awq_of_both),
        cmocka_unit_test(test_tokenizers), cmocka_unit_test(test_refused_tokenizers),
        cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every family against another implementation: logits of a whole pass and greedy tokens, from folders and
 * from GGUF, with the f32 cache and the default one, on the processor and on the check back end. The bounds
 * are relative RMS errors; measured ones are near 1e-6 with f32 and 3e-4 with f16 keys and values, because
 * the random weights have large scores. */
#include "base/file.h"
#include "base/mem.h"
#include "nib.h"
#include "support/expected.h"
#include "support/logits.h"
#include "support/slow.h"
#include "support/tempdir.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { PROMPT = 16 };

static const char *backend_name; /* NULL: the processor */

/* The tokens must be the expected ones. */
static bool greedy_equal(nib_session *s, const expected *x, const char *model) {
    nib_error err = {0};
    nib_generate_options g;
    nib_result result = {0};
    nib_generate_options_init(&g);
    g.prompt = x->input_ids;
    g.n_prompt = PROMPT;
    g.n_predict = x->n_greedy;
    g.ignore_eos = true;
    g.sampling.temperature = 0;
    if (nib_generate(s, &g, &result, &err) != NIB_OK) {
        print_error("%s: %s\n", model, err.message);
        return false;
    }
    int same = 0;
    while (same < x->n_greedy && (size_t)same < result.n_token && result.tokens[same] == x->greedy[same])
        same++;
    nib_result_clear(&result);
    if (same < x->n_greedy)
        print_error("%s: greedy token %d differs\n", model, same);
    return same == x->n_greedy;
}

static bool logits_close(nib_session *s, const expected *x, const char *model, double bound) {
    nib_error err = {0};
    size_t n = (size_t)x->n_input * (size_t)x->n_vocab;
    logits_rows r = {mem_array(n, sizeof(float)), x->n_vocab, 0};
    assert_non_null(r.data);
    double error = 1e9;
    if (nib_session_forward(s, x->input_ids, (size_t)x->n_input, 0, logits_keep, &r, &err) == NIB_OK)
        error = relative_rms(r.data, x->logits, (int64_t)n);
    else
        print_error("%s: %s\n", model, err.message);
    mem_free(r.data);
    if (getenv("SHOW"))
        print_message("%-60s %.2e\n", model, error);
    if (!(error <= bound))
        print_error("%s: relative RMS error %.3g, allowed %.3g\n", model, error, bound);
    return error <= bound;
}

/* Logits under the bound; greedy tokens too, except with half-precision keys and values, whose rounding is
 * larger than the distance between the two best tokens in some places of the fixtures. */
static bool check_kv(nib_engine *e, int kv_type, const expected *x, const char *model, double bound) {
    nib_error err = {0};
    nib_session_options so;
    nib_session *s;
    nib_session_options_init(&so);
    so.kv_type = kv_type;
    if (nib_session_open(e, &so, &s, &err) != NIB_OK) {
        print_error("%s: %s\n", model, err.message);
        return false;
    }
    bool ok = logits_close(s, x, model, bound) && (kv_type == NIB_KV_F16 || greedy_equal(s, x, model));
    nib_session_close(s);
    return ok;
}

/* quantized: the file's weights are rounded to 8 bits, and the activations too. The test is that every block
 * comes from its place (a wrong one gives an error near 1). */
static bool check_model(const char *model, const char *folder, bool quantized) {
    nib_error err = {0};
    nib_engine_options eo;
    nib_engine *e;
    expected x;
    char path[512];
    snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    expected_load(path, &x);
    nib_engine_options_init(&eo);
    eo.n_ctx = 64;
    eo.n_thread = 1;
    eo.backend = backend_name;
    bool ok = nib_engine_open(model, &eo, &e, &err) == NIB_OK;
    if (!ok) {
        print_error("%s: %s\n", model, err.message);
    } else if (quantized) {
        ok = check_kv(e, NIB_KV_F16, &x, model, 0.08);
        nib_engine_close(e);
    } else {
        ok = nib_engine_info(e)->n_vocab == x.n_vocab;
        ok = ok && check_kv(e, NIB_KV_F32, &x, model, 1e-3) && check_kv(e, NIB_KV_F16, &x, model, 3e-3) &&
             check_kv(e, 0, &x, model, 3e-3);
        nib_engine_close(e);
    }
    expected_free(&x);
    return ok;
}

static void check_folders(const char *root, int min) {
    DIR *dir = opendir(root);
    assert_non_null(dir);
    int n = 0, bad = 0;
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[400];
        snprintf(path, sizeof path, "%s/%s", root, d->d_name);
        if (d->d_name[0] == '.' || !path_is_dir(path))
            continue;
        n++;
        bad += !check_model(path, path, false);
    }
    closedir(dir);
    assert_true(n >= min);
    assert_int_equal(bad, 0);
}

static void the_sixteen(void **state) {
    (void)state;
    check_folders("tests/data/arch", 16);
}

static void other_members_and_flags(void **state) {
    (void)state;
    check_folders("tests/data/arch-extra", 60);
}

/* A fixture's configuration in another spelling: keys of files on the hub. */
typedef struct spelling {
    const char *fixture;
    const char *change[6]; /* pairs: a text, and what replaces it */
} spelling;

static const spelling spellings[] = {
    {"mimo_v2_flash",
     {"\"layer_types\"", "\"hybrid_layer_pattern\": [0, 1, 1, 0], \"unused\"", "\"mlp_layer_types\"",
      "\"moe_layer_freq\": [0, 1, 1, 1], \"unused2\""}},
    {"deepseek_v3",
     {"\"model_type\": \"deepseek_v3\"", "\"model_type\": \"kimi_k2\"", "\"architectures\"", "\"unused\""}},
    {"deepseek_v4", {"\"n_shared_experts\": 1", "\"n_shared_experts\": 2"}},
};

/* A folder with the fixture's weights and the changed configuration. */
static const char *respelled(const spelling *s) {
    char path[400], link[700], name[300], text[8192], here[512];
    char *json = NULL;
    size_t n = 0;
    nib_error err = {0};
    snprintf(path, sizeof path, "tests/data/arch/%s/config.json", s->fixture);
    assert_int_equal(file_read_all(path, sizeof text / 2, &json, &n, &err), NIB_OK);
    snprintf(text, sizeof text, "%s", json);
    mem_free(json);
    for (int i = 0; s->change[i]; i += 2) {
        char *at = strstr(text, s->change[i]);
        assert_non_null(at);
        const size_t from = strlen(s->change[i]), to = strlen(s->change[i + 1]);
        memmove(at + to, at + from, strlen(at + from) + 1);
        memcpy(at, s->change[i + 1], to);
    }
    mkdir(temp_path(s->fixture), 0700);
    snprintf(name, sizeof name, "%s/config.json", s->fixture);
    temp_file(name, text, strlen(text));
    static const char *const kept[] = {"model.safetensors", "expected.safetensors"};
    assert_non_null(getcwd(here, sizeof here));
    for (int i = 0; i < 2; i++) {
        snprintf(link, sizeof link, "%s/tests/data/arch/%s/%s", here, s->fixture, kept[i]);
        snprintf(name, sizeof name, "%s/%s", s->fixture, kept[i]);
        assert_int_equal(symlink(link, temp_path(name)), 0);
    }
    return temp_path(s->fixture);
}

static void other_spellings(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        const char *folder = respelled(&spellings[i]);
        assert_true(check_model(folder, folder, false));
    }
}

static void gguf_files(void **state) {
    (void)state;
    FILE *list = fopen("tests/data/arch-gguf/files.list", "r");
    assert_non_null(list);
    char line[256], name[64], type[16], fixture[96];
    int n = 0, bad = 0;
    while (fgets(line, sizeof line, list) != NULL) {
        if (line[0] == '#' || sscanf(line, "%63s %15s %95s", name, type, fixture) != 3)
            continue;
        char model[256], folder[256];
        snprintf(model, sizeof model, "tests/data/arch-gguf/%s.gguf", name);
        snprintf(folder, sizeof folder, "tests/data/%s", fixture);
        if (n++ % slow_step(2)) /* the rest is the folder's, which is checked */
            continue;
        bad += !check_model(model, folder, type[0] == 'Q');
    }
    fclose(list);
    assert_true(n >= 30);
    assert_int_equal(bad, 0);
}

/* Latent attention with attn_k_b and attn_v_b in place of attn_kv_b. */
static void absorbed(void **state) {
    (void)state;
    assert_true(check_model("tests/data/arch-gguf/deepseek2-absorbed.gguf",
                            "tests/data/arch-extra/deepseek_v2-dense", false));
}

static void on_the_check_back_end(void **state) {
    if (slow_step(2) > 1) /* test_exec_check compares the bits of all */
        return;
    backend_name = "check";
    the_sixteen(state);
    other_members_and_flags(state);
    gguf_files(state);
    backend_name = NULL;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_sixteen),     cmocka_unit_test(other_members_and_flags),
        cmocka_unit_test(other_spellings), cmocka_unit_test(gguf_files),
        cmocka_unit_test(absorbed),        cmocka_unit_test(on_the_check_back_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

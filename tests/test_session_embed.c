/* Embeddings: the output head's matrix times the pooled vector is the mean of the logits of all rows, or the
 * last row's, since that product is linear; resident, from disk and in passes of any size; the check back end
 * has the processor's bits, for every family; the model's own pooling is found; impossible requests are
 * errors. */
#include "base/file.h"
#include "base/mem.h"
#include "engine/engine.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { N_VOCAB = 200, N_CTX = 96, D_MODEL = 64, N_TOKEN = 45, MAX_WIDE = 4096 };

static const tiny_shape shape = {TYPE_F32, 2, D_MODEL, 96, 4, 2, N_VOCAB, N_CTX, false};

static void embed(nib_engine *e, const int32_t *tokens, int n, int pooling, float *out) {
    nib_session *s = session_must_open(e);
    nib_error err = {0};
    if (nib_session_embed(s, tokens, (size_t)n, pooling, out, NULL, NULL, &err))
        fail_msg("%s", err.message);
    assert_int_equal(nib_session_length(s), n);
    assert_null(nib_session_logits(s));
    nib_session_close(s);
}

/* [N_VOCAB, D_MODEL] */
static void read_head(const char *path, float *out) {
    container *c = NULL;
    assert_int_equal(container_open(path, NULL, &c, NULL), NIB_OK);
    const container_tensor *t = container_find(c, "output.weight");
    assert_int_equal(t->bytes, sizeof(float) * N_VOCAB * D_MODEL);
    assert_int_equal(file_read_at(container_file(c, t->file), out, t->offset, t->bytes, NULL), NIB_OK);
    container_close(c);
}

static double logit(const float *head, const float *h, int v) {
    double sum = 0;
    for (int i = 0; i < D_MODEL; i++)
        sum += (double)head[v * D_MODEL + i] * (double)h[i];
    return sum;
}

static void compare_with_logits(nib_engine *e, const float *head) {
    int32_t tokens[N_TOKEN];
    float mean[D_MODEL], last[D_MODEL];
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 5);
    const logits_rows rows = logits_of(e, tokens, N_TOKEN);
    embed(e, tokens, N_TOKEN, NIB_POOLING_MEAN, mean);
    embed(e, tokens, N_TOKEN, NIB_POOLING_LAST, last);
    for (int v = 0; v < N_VOCAB; v++) {
        double sum = 0, size = 0;
        for (int r = 0; r < N_TOKEN; r++) {
            sum += (double)rows.data[r * N_VOCAB + v];
            size = fmax(size, fabs((double)rows.data[r * N_VOCAB + v]));
        }
        assert_true(fabs(logit(head, mean, v) - sum / N_TOKEN) <= 2e-5 * (1 + size));
        assert_true(fabs(logit(head, last, v) - (double)rows.data[(N_TOKEN - 1) * N_VOCAB + v]) <=
                    2e-5 * (1 + size));
    }
    free(rows.data);
}

static void as_the_logits_say(void **state) {
    (void)state;
    static float head[N_VOCAB * D_MODEL];
    const char *path = tiny_model("embed.gguf", &shape);
    read_head(path, head);
    for (int i = 0; i < 4; i++) {
        nib_engine_options o = engine_usual();
        o.n_batch = i == 1 ? 7 : 64;
        o.n_logits = i == 2 ? 3 : 0;
        o.stream = i == 3;
        nib_engine *e = NULL;
        const engine_internal nothing_stays = {.n_row = 20, .keep_nothing = i == 3};
        assert_int_equal(engine_open(path, &o, &nothing_stays, &e, NULL), NIB_OK);
        assert_int_equal(nib_engine_info(e)->d_embed, D_MODEL);
        compare_with_logits(e, head);
        nib_engine_close(e);
    }
}

/* With the default pooling, which is the mean. */
static float *embedding_by(const char *name, const char *path, int pooling, int64_t *width) {
    nib_engine_options o = engine_usual();
    int32_t tokens[20];
    o.backend = name;
    o.n_ctx = 32;
    nib_engine *e = engine_must_open(path, &o, NULL);
    float *out = malloc(MAX_WIDE * sizeof *out);
    *width = nib_engine_info(e)->d_embed;
    assert_true(*width > 0 && *width <= MAX_WIDE);
    logits_tokens(tokens, 20, nib_engine_info(e)->n_vocab, 1);
    embed(e, tokens, 20, pooling, out);
    nib_engine_close(e);
    return out;
}

static void every_family_by_two_back_ends(void **state) {
    (void)state;
    DIR *dir = opendir("tests/data/arch");
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        char path[512];
        int64_t width, other;
        snprintf(path, sizeof path, "tests/data/arch/%s", d->d_name);
        if (d->d_name[0] == '.' || !path_is_dir(path))
            continue;
        const int pooling = n++ % 2 ? NIB_POOLING_MODEL : NIB_POOLING_LAST;
        float *cpu = embedding_by("cpu", path, pooling, &width);
        float *check = embedding_by("check", path, pooling, &other);
        double size = 0;
        for (int64_t i = 0; i < width; i++)
            size = fmax(size, fabs((double)cpu[i]));
        if (width != other || memcmp(cpu, check, (size_t)width * sizeof *cpu) != 0 ||
            !(size > 0 && isfinite(size)))
            fail_msg("%s: the back ends differ", path);
        free(cpu);
        free(check);
    }
    closedir(dir);
    assert_true(n >= 16);
}

static int pooling_of(const char *path) {
    nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(path, &o, NULL);
    const int pooling = nib_engine_info(e)->pooling;
    nib_engine_close(e);
    return pooling;
}

/* A copy of a checkpoint's folder, with a file that names its pooling. */
static void says_its_pooling(const char *mode, int expected) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char from[512], text[128];
    const char *folder = temp_path("pooled");
    mkdir(folder, 0700);
    for (int i = 0; i < 2; i++) {
        char *data = NULL;
        size_t n;
        char name[64];
        snprintf(from, sizeof from, "tests/data/arch/llama/%s", files[i]);
        assert_int_equal(file_read_all(from, 1 << 26, &data, &n, NULL), NIB_OK);
        snprintf(name, sizeof name, "pooled/%s", files[i]);
        temp_file(name, data, n);
        mem_free(data);
    }
    mkdir(temp_path("pooled/1_Pooling"), 0700);
    const int n = snprintf(text, sizeof text, "{%s}", mode);
    temp_file("pooled/1_Pooling/config.json", text, (size_t)n);
    assert_int_equal(pooling_of(folder), expected);
}

static void the_models_own_pooling(void **state) {
    (void)state;
    assert_int_equal(pooling_of("tests/data/arch/llama"), NIB_POOLING_MODEL);
    says_its_pooling("\"pooling_mode_lasttoken\":true,\"pooling_mode_mean_tokens\":false", NIB_POOLING_LAST);
    says_its_pooling("\"pooling_mode_mean_tokens\":true", NIB_POOLING_MEAN);
    says_its_pooling("\"pooling_mode\":\"lasttoken\"", NIB_POOLING_LAST);
    says_its_pooling("\"pooling_mode_cls_token\":true", NIB_POOLING_MODEL);
    says_its_pooling("]", NIB_POOLING_MODEL);
}

static bool stop_after_one(void *user, const char *what, uint64_t done, uint64_t total) {
    int *n = user;
    (void)what;
    return ++*n < 2 && done < total;
}

static void what_cannot_be_is_said(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(tiny_model("embed.gguf", &shape), &o, NULL);
    nib_session *s = session_must_open(e);
    nib_error err = {0};
    int32_t tokens[N_CTX + 1];
    float out[D_MODEL];
    int n_told = 0;
    logits_tokens(tokens, N_CTX + 1, N_VOCAB, 2);
    assert_int_equal(nib_session_embed(s, tokens, 0, 0, out, NULL, NULL, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_embed(s, tokens, N_CTX + 1, 0, out, NULL, NULL, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_embed(s, tokens, 3, 9, out, NULL, NULL, &err), NIB_E_USAGE);
    assert_int_equal(nib_session_embed(s, (int32_t[]){N_VOCAB}, 1, 0, out, NULL, NULL, &err), NIB_E_USAGE);
    nib_session_cancel(s);
    assert_int_equal(nib_session_embed(s, tokens, 3, 0, out, NULL, NULL, &err), NIB_E_CANCELLED);
    assert_int_equal(nib_session_embed(s, tokens, N_CTX, 0, out, stop_after_one, &n_told, &err),
                     NIB_E_CANCELLED);
    assert_int_equal(n_told, 2);
    assert_int_equal(nib_session_embed(s, tokens, N_CTX, 0, out, NULL, NULL, &err), NIB_OK);
    nib_session_close(s);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_logits_say),
        cmocka_unit_test(every_family_by_two_back_ends),
        cmocka_unit_test(the_models_own_pooling),
        cmocka_unit_test(what_cannot_be_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

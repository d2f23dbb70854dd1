/* nib_session_perplexity and nib_session_hellaswag against the same figures from the session's logits. */
#include "nib_tools.h"

#include "base/file.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_Q8_0, 2, 64, 128, 4, 2, 97, 64, false};
enum { CHUNK = 16, CHUNKS = 3, N = CHUNK * CHUNKS + 5 };

static double log_prob(const float *logits, int64_t n, int32_t token) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)logits[i]);
    return (double)logits[token] - log(sum);
}

/* Mean of -log p over the second half of the first n chunks. */
static double mean_nll(nib_session *s, const int32_t *tokens, int n_chunk) {
    const nib_model_info *info = nib_engine_info(s->engine);
    double nll = 0;
    for (int c = 0; c < n_chunk; c++) {
        int32_t chunk[CHUNK];
        memcpy(chunk, tokens + (size_t)c * CHUNK, sizeof chunk);
        if (info->add_bos)
            chunk[0] = info->bos;
        logits_rows rows = logits_of_session(s, chunk, CHUNK, shape.n_vocab);
        for (int i = CHUNK / 2; i + 1 < CHUNK; i++)
            nll -= log_prob(rows.data + i * shape.n_vocab, shape.n_vocab, chunk[i + 1]);
        free(rows.data);
    }
    return nll / (n_chunk * (CHUNK - CHUNK / 2 - 1));
}

static bool stop_after_two(void *user, const nib_perplexity *so_far) {
    int *calls = user;
    assert_int_equal(so_far->n_done, ++*calls);
    return *calls < 2;
}

static void perplexities(void **state) {
    int32_t tokens[N];
    nib_perplexity found;
    nib_error err;
    (void)state;
    const nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(tiny_model_with_words("words.gguf", &shape), &o, NULL);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N, shape.n_vocab, 1);
    nib_perplexity_options how = {.n_ctx = CHUNK};
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_OK);
    assert_int_equal(found.n_chunk, CHUNKS);
    assert_int_equal(found.n_done, CHUNKS);
    assert_int_equal(found.n_scored, CHUNKS * (CHUNK - CHUNK / 2 - 1));
    assert_true(fabs(log(found.ppl) - mean_nll(s, tokens, CHUNKS)) < 1e-6);
    assert_true(found.stderr_ppl > 0 && !found.saved && !found.compared);
    how.max_chunk = 2;
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_OK);
    assert_true(fabs(log(found.ppl) - mean_nll(s, tokens, 2)) < 1e-6);
    int calls = 0;
    how = (nib_perplexity_options){.n_ctx = CHUNK, .on_chunk = stop_after_two, .user = &calls};
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_E_CANCELLED);
    assert_int_equal(found.n_done, 2);
    assert_true(fabs(log(found.ppl) - mean_nll(s, tokens, 2)) < 1e-6);
    assert_int_equal(nib_session_perplexity(s, tokens, CHUNK - 1, &how, &found, &err), NIB_E_USAGE);
    assert_true(isnan(found.ppl));
    nib_session_close(s);
    nib_engine_close(e);
}

/* The distributions of a model are saved; it differs from itself by their 16 bits alone, and from a model
 * without one of its layers by more. */
static void distributions(void **state) {
    int32_t tokens[N];
    nib_perplexity base, found;
    nib_error err;
    char path[512];
    (void)state;
    snprintf(path, sizeof path, "%s", temp_path("base.kld"));
    const nib_engine_options o = engine_usual();
    const nib_perplexity_options how = {.n_ctx = CHUNK, .kld_base = path};
    nib_engine *e = engine_must_open(tiny_model("whole.gguf", &shape), &o, NULL);
    nib_session *s = session_must_open(e);
    logits_tokens(tokens, N, shape.n_vocab, 2);
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &base, &err), NIB_OK);
    assert_true(base.saved && !base.compared && path_exists(path));
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_OK);
    assert_true(found.compared && !found.saved);
    assert_true(fabs(found.kld) < 1e-4 && found.max_kld < 1e-3 && found.same_top > 0.99);
    assert_true(fabs(found.base_ppl / base.ppl - 1) < 1e-3);
    tokens[0] ^= 1; /* another text */
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_E_USAGE);
    tokens[0] ^= 1;
    nib_session_close(s);
    nib_engine_close(e);
    e = engine_must_open(tiny_model_without("part.gguf", &shape, 2), &o, NULL);
    s = session_must_open(e);
    assert_int_equal(nib_session_perplexity(s, tokens, N, &how, &found, &err), NIB_OK);
    assert_true(found.kld > 1e-3 && found.max_kld > found.kld && found.stderr_kld > 0);
    assert_true(fabs(found.base_ppl / base.ppl - 1) < 1e-3);
    nib_session_close(s);
    nib_engine_close(e);
}

/* The ending of a task that wins, by the session's own logits; -1: an ending adds nothing. */
static int best_ending(nib_session *s, const char *context, const char *const *endings) {
    int32_t *tokens[4];
    size_t n[4], prefix = 0;
    int best = 0;
    double best_mean = -INFINITY;
    nib_error err;
    for (int e = 0; e < 4; e++) {
        char text[256];
        snprintf(text, sizeof text, "%s %s", context, endings[e]);
        assert_int_equal(
            nib_tokenize(s->engine, text, strlen(text), NIB_TOKENIZE_BOS, &tokens[e], &n[e], &err), NIB_OK);
    }
    for (bool same = true; same; prefix += same)
        for (int e = 0; e < 4; e++)
            same = same && prefix < n[e] && tokens[e][prefix] == tokens[0][prefix];
    for (int e = 0; e < 4; e++) {
        double sum = 0;
        logits_rows rows = logits_of_session(s, tokens[e], (int64_t)n[e], shape.n_vocab);
        for (size_t i = prefix; i < n[e]; i++)
            sum += log_prob(rows.data + (int64_t)(i - 1) * shape.n_vocab, shape.n_vocab, tokens[e][i]);
        sum /= (double)(n[e] - prefix);
        best = sum > best_mean ? e : best;
        best_mean = fmax(best_mean, sum);
        free(rows.data);
        nib_free(tokens[e]);
    }
    return best;
}

static bool stop(void *user, const nib_hellaswag *so_far) {
    (void)user;
    return so_far->n_done < 1;
}

static void endings(void **state) {
    static const char *const all[2][5] = {{"t t0", "t1 t2", "t3", "t4 t5 t6", "t7 t"},
                                          {"t3 t", "t2 t2", "t9 t1", "t8", "t0 t0 t0"}};
    char text[512];
    nib_hellaswag found;
    nib_error err;
    (void)state;
    const nib_engine_options o = engine_usual();
    nib_engine *e = engine_must_open(tiny_model_with_words("words.gguf", &shape), &o, NULL);
    nib_session *s = session_must_open(e);
    const int right = best_ending(s, all[0][0], all[0] + 1), other = best_ending(s, all[1][0], all[1] + 1);
    snprintf(text, sizeof text, "%s\n%d\n%s\n%s\n%s\n%s\n\n%s\r\n%d\r\n%s\n%s\n%s\n%s", all[0][0], right,
             all[0][1], all[0][2], all[0][3], all[0][4], all[1][0], (other + 1) % 4, all[1][1], all[1][2],
             all[1][3], all[1][4]);
    nib_hellaswag_options how = {0};
    if (nib_session_hellaswag(s, text, strlen(text), &how, &found, &err))
        fail_msg("%s", err.message);
    assert_int_equal(found.n_task, 2);
    assert_int_equal(found.n_done, 2);
    assert_int_equal(found.n_right, 1);
    assert_true(found.n_token > 0);
    how.max_task = 1;
    assert_int_equal(nib_session_hellaswag(s, text, strlen(text), &how, &found, &err), NIB_OK);
    assert_int_equal(found.n_right, 1);
    assert_int_equal(found.n_task, 1);
    how = (nib_hellaswag_options){.on_task = stop};
    assert_int_equal(nib_session_hellaswag(s, text, strlen(text), &how, &found, &err), NIB_E_CANCELLED);
    assert_int_equal(found.n_done, 1);
    static const char *const bad[] = {"", "t\n0\nt\nt\nt\n", "t\n4\nt0\nt1\nt2\nt3\n",
                                      "t\n0\nt0\nt0\nt0\nt0\n"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(nib_session_hellaswag(s, bad[i], strlen(bad[i]), &how, &found, &err), NIB_E_USAGE);
    nib_session_close(s);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(perplexities), cmocka_unit_test(distributions),
                                       cmocka_unit_test(endings)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

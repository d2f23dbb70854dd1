/* A model in smaller formats: the same model in the requested formats. Whatever ends the work, the next run
 * completes the file with the bytes of an uninterrupted run. */
#include "base/file.h"
#include "base/num.h"
#include "quantize/awq.h"
#include "quantize/held_back.h"
#include "quantize/imatrix_file.h"
#include "quantize/lapack.h"
#include "quantize/mix.h"
#include "nib_tools.h"
#include "quantize/bit_allocation.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/made.h"
#include "support/sanitized.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const tiny_shape shape = {TYPE_F32, 2, 256, 288, 4, 2, 384, 64, false};

static char model_path[512], out_path[512], part_path[600], log_path[600];

static void choose_paths(void) {
    snprintf(model_path, sizeof model_path, "%s", tiny_model("whole.gguf", &shape));
    snprintf(out_path, sizeof out_path, "%s", temp_path("small.gguf"));
    snprintf(part_path, sizeof part_path, "%s.part", out_path);
    snprintf(log_path, sizeof log_path, "%s.part.log", out_path);
    unlink(out_path);
    unlink(part_path);
    unlink(log_path);
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
}

static nib_status make(const nib_quantize_options *q, const nib_engine_options *o, nib_quantize_report *r,
                       nib_error *err) {
    const nib_engine_options usual = engine_usual();
    return nib_quantize(model_path, o ? o : &usual, q, r, err);
}

static void must_make(const nib_quantize_options *q, nib_quantize_report *r) {
    nib_error err;
    if (make(q, NULL, r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_false(path_exists(part_path));
    assert_false(path_exists(log_path));
}

static char *must_read(const char *path, size_t *n) {
    char *data;
    nib_error err;
    if (file_read_all(path, 1 << 26, &data, n, &err) != NIB_OK)
        fail_msg("%s", err.message);
    return data;
}

/* ---- the results ---- */

static void read_floats(const container *c, const char *name, float **out, int64_t *n) {
    const container_tensor *t = container_find(c, name);
    assert_non_null(t);
    *n = 1;
    for (int i = 0; i < t->n_dim; i++)
        *n *= t->shape[i];
    char *raw = malloc(t->bytes);
    *out = malloc((size_t)*n * sizeof **out);
    assert_int_equal(file_read_at(container_file(c, t->file), raw, t->offset, t->bytes, NULL), NIB_OK);
    type_get(t->type)->dequantize(raw, *out, *n);
    free(raw);
}

static double distance(const container *a, const container *b, const char *name) {
    float *x, *y;
    int64_t n, m;
    double all = 0, off = 0;
    read_floats(a, name, &x, &n);
    read_floats(b, name, &y, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++) {
        all += (double)x[i] * (double)x[i];
        off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    }
    free(x);
    free(y);
    return sqrt(off / all);
}

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
    choose_paths();
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        const nib_quantize_options q = {.out = out_path, .type = cases[i].type};
        nib_quantize_report r;
        container *a, *b;
        nib_error err;
        must_make(&q, &r);
        assert_int_equal(container_open(model_path, NULL, &a, &err), NIB_OK);
        assert_int_equal(container_open(out_path, NULL, &b, &err), NIB_OK);
        assert_int_equal(container_n_tensor(a), container_n_tensor(b));
        assert_int_equal(r.n_quantized, 2 + 2 * 7);
        assert_int_equal(container_find(b, "blk.0.attn_q.weight")->type, cases[i].wide);
        assert_int_equal(container_find(b, "blk.1.ffn_down.weight")->type, cases[i].narrow);
        assert_int_equal(container_find(b, "blk.1.attn_norm.weight")->type, TYPE_F32);
        assert_true(distance(a, b, "blk.1.attn_norm.weight") == 0);
        const double far = distance(a, b, "blk.0.attn_q.weight");
        if (!(far > 0 && far < cases[i].far))
            fail_msg("%s: %g off", cases[i].type, far);
        assert_string_equal(container_meta_str(a, "general.architecture"),
                            container_meta_str(b, "general.architecture"));
        container_close(a);
        container_close(b);
        nib_engine_options o = engine_usual();
        nib_engine_close(engine_must_open(out_path, &o, NULL)); /* and it computes */
    }
}

/* Rows with code books are held as the file has them, for every back end. */
static void test_books(void **state) {
    (void)state;
    const nib_quantize_options q = {.out = out_path, .type = "c4", .imatrix = "none"};
    nib_quantize_report r;
    choose_paths();
    must_make(&q, &r);
    for (int wide = 0; wide < 2; wide++) {
        model *m;
        uint64_t bytes;
        assert_int_equal(model_open_headers(out_path, NULL, NULL, wide, &m, NULL), NIB_OK);
        const weight *w = &model_block(m, 1)->weights[0];
        for (int i = 0; w->vector && i < model_block(m, 1)->n_weight; i++)
            w = &model_block(m, 1)->weights[i];
        assert_int_equal(w->type, TYPE_C4);
        assert_int_equal(w->format.bits, 4);
        assert_true(pack_bytes(&w->format, w->n, w->k, &bytes) && bytes == w->bytes);
        model_close(m);
    }
    nib_engine_options o = engine_usual();
    nib_engine_close(engine_must_open(out_path, &o, NULL));
}

/* With outliers rows come nearer to the original; other formats have none. */
static void test_outliers(void **state) {
    (void)state;
    nib_quantize_options q = {.out = out_path, .type = "c3", .imatrix = "none"};
    nib_quantize_report r;
    nib_error err;
    double far[2];
    choose_paths();
    for (int with = 0; with < 2; with++) {
        container *a, *b;
        q.outliers = with;
        must_make(&q, &r);
        assert_int_equal(container_open(model_path, NULL, &a, &err), NIB_OK);
        assert_int_equal(container_open(out_path, NULL, &b, &err), NIB_OK);
        const container_tensor *t = container_find(b, "blk.0.attn_q.weight");
        assert_int_equal(t->type, with ? TYPE_C3O100 : TYPE_C3);
        far[with] = r.error;
        container_close(a);
        container_close(b);
        nib_engine_options o = engine_usual();
        nib_engine_close(engine_must_open(out_path, &o, NULL));
    }
    assert_true(far[1] < 0.95 * far[0]);
    q.outliers = 0.3;
    assert_int_equal(make(&q, NULL, &r, &err), NIB_E_USAGE);
    q.outliers = 0.45;
    q.type = "q4_0";
    assert_int_equal(make(&q, NULL, &r, &err), NIB_E_USAGE);
}

/* Embedding and output head have a format of their own, beside one for all, a mix and an average. */
static void test_head_type(void **state) {
    (void)state;
    nib_quantize_options cases[] = {
        {.type = "n3g64"}, {.type = "q3_k_m"}, {.type = "n3g64,q4_0", .bits = 3.5}};
    const nib_quantize_options books = {
        .out = out_path, .type = "c3", .method = "squeezellm", .imatrix = "none"};
    nib_quantize_report r;
    nib_error err;
    container *c;
    choose_paths();
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        int n_fine = 0;
        cases[i].out = out_path;
        cases[i].imatrix = "none";
        cases[i].head_type = "q8_0";
        must_make(&cases[i], &r);
        assert_int_equal(container_open(out_path, NULL, &c, &err), NIB_OK);
        assert_int_equal(container_find(c, "token_embd.weight")->type, TYPE_Q8_0);
        assert_int_equal(container_find(c, "output.weight")->type, TYPE_Q8_0);
        for (int l = 0; l < 2; l++)
            n_fine += container_find(c, l ? "blk.1.attn_q.weight" : "blk.0.attn_q.weight")->type !=
                      (i == 1 ? TYPE_Q3_K : TYPE_N3G64);
        assert_int_equal(n_fine, i == 2); /* one of two equal layers has 4 bits: the head does not count */
        container_close(c);
    }
    must_make(&books, &r); /* keeps them at 8 bits by itself */
    assert_int_equal(container_open(out_path, NULL, &c, &err), NIB_OK);
    assert_int_equal(container_find(c, "token_embd.weight")->type, TYPE_Q8_0);
    assert_int_equal(container_find(c, "blk.0.attn_q.weight")->type, TYPE_C3);
    container_close(c);
    cases[0].head_type = "q4_k_m";
    assert_int_equal(make(&cases[0], NULL, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--head-type"));
}

static void test_refused(void **state) {
    (void)state;
    nib_quantize_report r;
    nib_error err;
    choose_paths();
    const nib_quantize_options unknown = {.out = out_path, .type = "q9"};
    assert_int_equal(make(&unknown, NULL, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "q4_k_m"));
    const nib_quantize_options nowhere = {.out = "/nowhere/at/all.gguf", .imatrix = "none"};
    assert_int_equal(make(&nowhere, NULL, &r, &err), NIB_E_IO);
}

/* ---- going on ---- */

static int n_left; /* calls of progress until it says no */

static bool count_down(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user, (void)what, (void)done, (void)total;
    return --n_left != 0;
}

static void test_goes_on(void **state) {
    (void)state;
    const nib_quantize_options q = {.out = out_path, .type = "q4_k_m", .imatrix = "none"};
    nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    size_t n, m;
    choose_paths();
    must_make(&q, &r);
    assert_int_equal(r.n_resumed, 0);
    char *wanted = must_read(out_path, &n);
    o.progress = count_down;
    int n_run = 0;
    for (int stop = 1;; stop += slow_is_thinned() ? 9 : 3) {
        unlink(out_path);
        n_left = stop;
        const nib_status status = make(&q, &o, &r, &err);
        if (status == NIB_OK)
            break;
        assert_int_equal(status, NIB_E_CANCELLED);
        assert_false(path_exists(out_path));
        assert_true(path_exists(part_path) == (stop > 1)); /* without a finished tensor nothing stays */
        if (n_run++ == (slow_is_thinned() ? 1 : 3)) { /* bytes that disagree with the log are made again */
            FILE *f = fopen(part_path, "r+b");
            fseek(f, -200, SEEK_END);
            fputs("damage", f);
            fclose(f);
        }
    }
    assert_true(n_run > (slow_is_thinned() ? 1 : 3) && r.n_resumed > 0);
    char *found = must_read(out_path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(found, wanted, n);
    /* work of other settings is not continued */
    n_left = 9;
    unlink(out_path);
    assert_int_equal(make(&q, &o, &r, &err), NIB_E_CANCELLED);
    const nib_quantize_options other = {.out = out_path, .type = "q8_0", .imatrix = "none"};
    must_make(&other, &r);
    assert_int_equal(r.n_resumed, 0);
    mem_free(wanted);
    mem_free(found);
}

/* ---- killed ---- */

static bool all_written; /* but the file has no name yet */

static bool kill_at(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    if (!strcmp(what, "quantizing")) {
        all_written = done == total;
        if (--n_left == 0)
            kill(getpid(), SIGKILL);
    }
    return true;
}

static bool kill_in_the_end(void *user) {
    (void)user;
    if (all_written)
        kill(getpid(), SIGKILL);
    return false;
}

/* Runs in a process of its own that dies at the n-th piece of rows, or (0) before the finished file gets its
 * name, so its memory is lost. False: it ended by itself. */
static bool killed_at(const nib_quantize_options *q, int n) {
    nib_engine_options o = engine_usual();
    nib_quantize_report r;
    nib_error err;
    int status;
    o.progress = kill_at;
    o.cancel = n ? NULL : kill_in_the_end;
    n_left = n;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(make(q, &o, &r, &err) == NIB_OK ? 0 : 1);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status))
        assert_int_equal(WEXITSTATUS(status), 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void must_equal(const char *wanted, size_t n) {
    size_t m;
    char *found = must_read(out_path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(found, wanted, n);
    mem_free(found);
}

/* Killed at each piece, in single runs and one after the other, and at the end: the bytes are those of one
 * run. The methods differ before the pieces, so they are killed at some pieces only. A sanitizer reports
 * nothing of a killed process, so under it one method is enough for the runs that continue. */
static void test_killed(void **state) {
    (void)state;
    static const tiny_shape one_layer = {TYPE_F32, 1, 256, 288, 4, 2, 128, 64, false};
    const char *const methods[] = {"rtn", "awq", "gptq"};
    choose_paths();
    snprintf(model_path, sizeof model_path, "%s", tiny_model("killed.gguf", &one_layer));
    const int n_method = SANITIZED ? 1 : lapack_check(NULL) == NIB_OK ? 3 : 2;
    for (int i = 0; i < n_method; i++) {
        const nib_quantize_options q = {.out = out_path, .type = "q4_k_m", .method = methods[i]};
        nib_quantize_report r;
        size_t n;
        int n_run = 0, n_resumed = 0;
        must_make(&q, &r);
        char *wanted = must_read(out_path, &n);
        for (int at = 1;; at += slow_is_thinned() ? 6 : i > 0 ? 5 : 1) {
            unlink(out_path);
            if (!killed_at(&q, at))
                break;
            n_run++;
            assert_false(path_exists(out_path));
            if (at % 2)
                (void)killed_at(&q, 1); /* again, at once */
            must_make(&q, &r);
            assert_true(r.n_resumed >= n_resumed && r.n_resumed < r.n_tensor);
            n_resumed = r.n_resumed;
            must_equal(wanted, n);
        }
        assert_true(n_run > (slow_is_thinned() || i > 0 ? 1 : 4) && n_resumed > 5);
        unlink(out_path);
        assert_true(killed_at(&q, 0));
        assert_false(path_exists(out_path));
        must_make(&q, &r);
        assert_int_equal(r.n_resumed, r.n_tensor);
        must_equal(wanted, n);
        mem_free(wanted);
    }
}

static nib_status full_disk_step(void *user, nib_error *err) {
    const nib_quantize_options q = {.out = out_path, .type = "q4_0", .imatrix = "none"};
    nib_quantize_report r;
    (void)user;
    unlink(part_path);
    unlink(log_path);
    const nib_status status = make(&q, NULL, &r, err);
    assert_true((status == NIB_OK) == path_exists(out_path));
    if (status == NIB_OK) {
        made_file(out_path);
        unlink(out_path);
    }
    return status;
}

static void test_faults(void **state) {
    (void)state;
    choose_paths();
    assert_true(fault_sweep(FAULT_WRITE, 5, full_disk_step, NULL) > 10);
    assert_true(fault_sweep(FAULT_READ, 5, full_disk_step, NULL) > 10);
    assert_true(fault_sweep(FAULT_ALLOC, 7, full_disk_step, NULL) > 20);
}

/* ---- methods ---- */

/* The places of AWQ's factors in a layer of Llama. */
static void test_sources(void **state) {
    (void)state;
    static const struct {
        const char *reader, *source;
        bool rows;
    } cases[] = {
        {"q", "attn_norm", false}, {"o", "v", true}, {"up", "ffn_norm", false}, {"down", "up", true}};
    const logger silent = {0};
    model *m;
    nib_error err;
    choose_paths();
    assert_int_equal(model_open(model_path, &silent, &m, &err), NIB_OK);
    const block *b = model_block(m, 1);
    for (size_t i = 0; i < NUM_COUNT(cases); i++) {
        site_source s;
        int w = 0;
        while (strcmp(b->weights[w].name, cases[i].reader) != 0)
            w++;
        assert_true(site_find_source(b, w, &s));
        assert_string_equal(b->weights[s.w].name, cases[i].source);
        assert_int_equal(s.rows, cases[i].rows);
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
    choose_paths();
    last_logits(model_path, wanted, N_VOCAB);
    for (int i = 0; i < (lapack_check(NULL) == NIB_OK ? 3 : 2); i++) {
        const nib_quantize_options q = {.out = out_path, .type = "q8_0", .method = methods[i]};
        nib_quantize_report r;
        container *a, *b;
        double all = 0, off = 0;
        must_make(&q, &r);
        last_logits(out_path, found, N_VOCAB);
        for (int j = 0; j < N_VOCAB; j++) {
            all += (double)wanted[j] * (double)wanted[j];
            off += ((double)wanted[j] - (double)found[j]) * ((double)wanted[j] - (double)found[j]);
        }
        const double far = sqrt(off / all);
        plain = i ? plain : far;
        if (!(far > 0 && far < 0.06 && far < 2 * plain))
            fail_msg("%s: %g off, plainly %g", methods[i], far, plain);
        assert_int_equal(container_open(model_path, NULL, &a, NULL), NIB_OK);
        assert_int_equal(container_open(out_path, NULL, &b, NULL), NIB_OK);
        const double norm =
            distance(a, b, "blk.0.ffn_norm.weight") + distance(a, b, "blk.1.attn_norm.weight");
        assert_true(i == 1 ? norm > 0 : norm == 0);
        container_close(a);
        container_close(b);
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
    const nib_quantize_options q = {.out = out_path, .bits = 3.5};
    nib_quantize_report r;
    choose_paths();
    if (!SANITIZED) { /* measures every format; the next one measures two in the same way */
        must_make(&q, &r);
        assert_true(r.bits > 2.5 && r.bits < 4.6 && r.kl > 0);
    }
    const nib_quantize_options books = {.out = out_path, .type = "c3,c4", .bits = 3.5};
    must_make(&books, &r);
    assert_true(r.bits > 3 && r.bits < 4.6 && r.kl > 0);
}

/* ---- importance ---- */

static void test_importance(void **state) {
    (void)state;
    char kept[512], old[512];
    nib_quantize_report r;
    nib_error err;
    size_t n, m;
    choose_paths();
    snprintf(kept, sizeof kept, "%s", temp_path("kept.gguf"));
    snprintf(old, sizeof old, "%s", temp_path("kept.dat"));
    const nib_quantize_options measured = {.out = out_path, .type = "q4_0", .keep_imatrix = kept};
    must_make(&measured, &r);
    char *first = must_read(out_path, &n);
    must_make(&measured, &r);
    assert_non_null(strstr(r.importance, "measured before"));
    const nib_quantize_options from_file = {.out = out_path, .type = "q4_0", .imatrix = kept};
    must_make(&from_file, &r);
    char *second = must_read(out_path, &m);
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    const nib_quantize_options none = {.out = out_path, .type = "q4_0", .imatrix = "none"};
    must_make(&none, &r);
    char *third = must_read(out_path, &m);
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
    assert_int_equal(model_open(model_path, &silent, &model_of, &err), NIB_OK);
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
    const nib_quantize_options q = {.out = out_path, .type = "q4_0", .imatrix = by};
    if (nib_quantize(from, &usual, &q, &r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(container_open(out_path, NULL, &made, &err), NIB_OK);
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
    choose_paths();
    snprintf(from, sizeof from, "%s", temp_path("experts.gguf"));
    snprintf(kept, sizeof kept, "%s", temp_path("kept.gguf"));
    const nib_quantize_options plain = {.out = from, .type = "f32", .imatrix = "none"};
    assert_int_equal(nib_quantize("tests/data/packed/gpt_oss_mxfp4", &usual, &plain, &r, &err), NIB_OK);
    const nib_quantize_options measured = {.out = out_path, .type = "q4_0", .keep_imatrix = kept};
    if (nib_quantize(from, &usual, &measured, &r, &err) != NIB_OK)
        fail_msg("%s", err.message);
    char *first = must_read(out_path, &n);
    assert_int_equal(container_open(kept, NULL, &c, &err), NIB_OK);
    const container_tensor *t = container_find(c, "blk.0.ffn_down_exps.weight.in_sum2");
    assert_true(t && t->n_dim == 2 && t->shape[0] == 6 && t->shape[1] == 64);
    t = container_find(c, "blk.0.ffn_down_exps.weight.counts");
    assert_true(t && t->bytes == 6 * sizeof(float));
    container_close(c);
    const nib_quantize_options from_file = {.out = out_path, .type = "q4_0", .imatrix = kept};
    assert_int_equal(nib_quantize(from, &usual, &from_file, &r, &err), NIB_OK);
    char *second = must_read(out_path, &m);
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

/* A folder's sinks become a tensor of single precision, and count. */
static void test_sinks(void **state) {
    (void)state;
    static const char folder[] = "tests/data/arch-extra/llama-sinks";
    const nib_quantize_options q = {.out = out_path, .type = "f16", .imatrix = "none"};
    const nib_engine_options o = engine_usual();
    nib_quantize_report r;
    expected x;
    container *made;
    choose_paths();
    snprintf(model_path, sizeof model_path, "%s", folder);
    must_make(&q, &r);
    assert_int_equal(container_open(out_path, NULL, &made, NULL), NIB_OK);
    const container_tensor *sinks = container_find(made, "blk.1.attn_sinks.weight");
    assert_non_null(sinks);
    assert_int_equal(sinks->type, TYPE_F32);
    assert_int_equal(sinks->n_dim, 1);
    assert_int_equal(sinks->shape[0], 6);
    container_close(made);
    expected_load("tests/data/arch-extra/llama-sinks/expected.safetensors", &x);
    nib_engine *e = engine_must_open(out_path, &o, NULL);
    logits_rows rows = logits_of(e, x.input_ids, x.n_input);
    assert_true(relative_rms(rows.data, x.logits, x.n_input * x.n_vocab) < 3e-3);
    free(rows.data);
    nib_engine_close(e);
    expected_free(&x);
}

/* AWQ's file is replaced by the one rounded to nearest where text that was not measured is less likely. */
static void test_awq_is_no_worse(void **state) {
    (void)state;
    static const tiny_shape shapes[] = {{TYPE_F32, 2, 128, 192, 4, 2, 201, 256, false},
                                        {TYPE_F32, 3, 64, 128, 2, 1, 301, 256, true},
                                        {TYPE_F32, 1, 192, 256, 4, 4, 401, 256, false}};
    static const char *const types[] = {"n2g64", "n3g64"}, *const methods[] = {"rtn", "awq"};
    const nib_engine_options o = engine_usual();
    choose_paths();
    for (size_t i = 0; i < (SANITIZED ? 1 : NUM_COUNT(shapes)) * NUM_COUNT(types); i++) {
        char left[600];
        double ppl[2] = {0};
        snprintf(model_path, sizeof model_path, "%s", tiny_model_with_words("words.gguf", &shapes[i / 2]));
        for (int m = 0; m < 2; m++) {
            const nib_quantize_options q = {.out = out_path, .type = types[i % 2], .method = methods[m]};
            nib_quantize_report r;
            must_make(&q, &r);
            assert_int_equal(held_back_perplexity(out_path, &o, &ppl[m], NULL), NIB_OK);
        }
        if (!(ppl[1] <= ppl[0]))
            fail_msg("shape %d, %s: perplexity %g by rtn, %g by awq", (int)i / 2, types[i % 2], ppl[0],
                     ppl[1]);
        snprintf(left, sizeof left, "%s.rtn", out_path);
        assert_false(path_exists(left));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats),
                                       cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_books),
                                       cmocka_unit_test(test_outliers),
                                       cmocka_unit_test(test_goes_on),
                                       cmocka_unit_test(test_killed),
                                       cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_importance),
                                       cmocka_unit_test(test_sources),
                                       cmocka_unit_test(test_methods),
                                       cmocka_unit_test(test_awq_is_no_worse),
                                       cmocka_unit_test(test_share),
                                       cmocka_unit_test(test_head_type),
                                       cmocka_unit_test(test_sinks),
                                       cmocka_unit_test(test_importance_of_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

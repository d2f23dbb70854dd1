/* The formats that plans of requests choose, against enumerations: every choice by itself, and every
 * combination of the formats of blocks. */
#include "base/mem.h"
#include "base/num.h"
#include "engine/headers.h"
#include "engine/kv_auto.h"
#include "nib_tools.h"
#include "plan/planner.h"
#include "profile/quality.h"
#include "support/sanitized.h"
#include "support/skip.h"
#include "support/tempdir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define PROMPTS "0123456789abcdef0123456789abcdef"
enum { N_PROBLEM = 12, N_FORMAT = 2 };
static const char *const formats[N_FORMAT] = {"u6g64", "u4g64"};

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return *seed >> 16;
}

/* From 0 to 1. */
static double random_share(uint32_t *seed) {
    return (double)(next_random(seed) % 1000) / 1000;
}

/* ---- the fewest bytes within a loss ---- */

enum { N_BLOCK = 5, N_CHOICE = 3 };

/* All combinations: the fewest bytes within the loss; negative: none keeps it. */
static double fewest_of_all(const plan_question *q, double max_loss) {
    double best = -1;
    for (int at = 0; at < 243; at++) {
        double bytes = 0, loss = 0;
        bool is_measured = true;
        for (int b = 0, rest = at; b < N_BLOCK; b++, rest /= N_CHOICE) {
            const plan_choice *c = &q->blocks[b].choices[rest % N_CHOICE];
            bytes += (double)c->bytes + (double)c->table_bytes;
            loss += (rest % N_CHOICE ? c->kl : 0) + q->blocks[b].kl_a8;
            is_measured = is_measured && (rest % N_CHOICE == 0 || c->kl >= 0);
        }
        if (is_measured && loss <= max_loss && (best < 0 || bytes < best))
            best = bytes;
    }
    return best;
}

static void fewest_bytes(void **state) {
    (void)state;
    uint32_t seed = 3;
    int n_none = 0, n_rounded = 0;
    for (int i = 0; i < 300; i++) {
        plan_block_facts blocks[N_BLOCK] = {0};
        const plan_question q = {.blocks = blocks, .n_block = N_BLOCK};
        double bytes = 0, loss;
        int choice[N_BLOCK];
        nib_error err;
        for (int b = 0; b < N_BLOCK; b++) {
            blocks[b].n_choice = N_CHOICE;
            blocks[b].kl_a8 = random_share(&seed) / 1000;
            for (int c = 0; c < N_CHOICE; c++)
                blocks[b].choices[c] = (plan_choice){
                    .bytes = 1000 - 300 * (uint64_t)c + next_random(&seed) % 200,
                    .table_bytes = next_random(&seed) % 50,
                    .kl = c && next_random(&seed) % 8 == 0 ? -1 : c * random_share(&seed) / 100};
        }
        const double max_loss = random_share(&seed) * 0.03, want = fewest_of_all(&q, max_loss);
        assert_int_equal(plan_fewest_bytes(&q, max_loss, choice, &loss, &err), NIB_OK);
        double sum = 0;
        for (int b = 0; b < N_BLOCK; b++) {
            bytes +=
                (double)blocks[b].choices[choice[b]].bytes + (double)blocks[b].choices[choice[b]].table_bytes;
            sum += choice[b] ? blocks[b].choices[choice[b]].kl : 0;
            n_rounded += choice[b] > 0;
            assert_true(choice[b] == 0 || (want >= 0 && blocks[b].choices[choice[b]].kl >= 0));
        }
        n_none += want < 0;
        assert_true(want < 0 || bytes == want);
        assert_true(fabs(sum - loss) < 1e-12);
    }
    assert_true(n_none > 0 && n_rounded > 100);
}

/* ---- plans ---- */

static char model_path[512]; /* its headers: q8_0, so that 6 and 4 bits are fewer */

static void make_model(void) {
    nib_error err;
    snprintf(model_path, sizeof model_path, "%s", temp_path("model.gguf"));
    if (nib_synth(&(nib_synth_options){.shape = "llama-3.2-1b", .type = "q8_0", .hollow = true}, model_path,
                  NULL, &err))
        fail_msg("%s", err.message);
}

/* Stores random losses of the model. */
static void store_losses(uint32_t *seed, kv_loss *kv) {
    engine_core e;
    quality q;
    nib_error err = {0};
    char content[CONTENT_KEY];
    nib_engine_options o;
    nib_engine_options_init(&o);
    if (headers_open(&e, model_path, &o, NULL, &err) || container_content_key(e.container, content, &err) ||
        kv_loss_begin(kv, model_n_kv_layer(e.m), &err) ||
        quality_begin(&q, layout_n_block(e.layout), formats, N_FORMAT, &err))
        fail_msg("%s", err.message);
    snprintf(kv->content, sizeof kv->content, "%s", content);
    snprintf(kv->prompts, sizeof kv->prompts, PROMPTS);
    snprintf(q.content, sizeof q.content, "%s", content);
    snprintf(q.prompts, sizeof q.prompts, PROMPTS);
    kv->n_token = q.n_token = 100;
    const double scale = 0.0002 * random_share(seed);
    kv->all[0] = kv->all[1] = 0;
    for (int l = 0; l < kv->n_layer; l++) {
        kv->kl[2 * l] = scale * random_share(seed) / 4;
        kv->kl[2 * l + 1] = kv->kl[2 * l] + scale * random_share(seed);
        for (int f = 0; f < 2; f++)
            kv->all[f] += kv->kl[2 * l + f] * 0.9;
    }
    for (int b = 0; b < q.n_block; b++)
        for (int f = 0; f < N_FORMAT; f++)
            q.kl[b * N_FORMAT + f] = 0.0003 * (1 + 3 * f) * random_share(seed);
    char *at = kv_loss_path(content, PROMPTS), *costs = quality_path(content, PROMPTS);
    if (kv_loss_save(at, kv, &err) || quality_save(costs, &q, &err))
        fail_msg("%s", err.message);
    mem_free(at);
    mem_free(costs);
    quality_clear(&q);
    core_close(&e);
}

/* A random machine and work. */
static void random_problem(uint32_t *seed, nib_engine_options *o, nib_workload *w) {
    nib_engine_options_init(o);
    o->stream = true;
    o->ram = (uint64_t)((0.5 + 2 * random_share(seed)) * (1 << 30));
    if (next_random(seed) % 2) {
        o->backend = "cuda";
        o->ram = UINT64_C(8) << 30;
        o->vram = (uint64_t)((1 + 2 * random_share(seed)) * (1 << 30));
    }
    o->n_ctx = 1024;
    *w = (nib_workload){.n_request = 50 + next_random(seed) % 400,
                        .n_prompt = 50 + next_random(seed) % 400,
                        .n_gen = 10 + next_random(seed) % 200};
}

/* The rate of a plan with these formats of keys and values alone. Calls differ by what the process holds. */
static double forced(nib_engine_options o, const nib_workload *w, int kv_type, const char *layers) {
    nib_flow flow;
    nib_error err;
    o.kv_type = kv_type;
    o.kv_layers = layers;
    if (nib_plan_workload(model_path, &o, w, &flow, NULL, &err) == NIB_E_NOFIT)
        return 0;
    assert_true(flow.n_format == 1 && flow.format == 0);
    return flow.tok_s;
}

#define NEAR (SANITIZED ? 0.03 : 0.005) /* a sanitizer holds freed memory for a while */
static bool is_near(double a, double b) {
    return fabs(a - b) <= NEAR * fmax(a, b);
}

/* The chosen formats have the least loss of those that are as fast as the fastest within a hundredth. */
static void check_choice(const nib_flow *f) {
    const nib_flow_format *x = &f->formats[f->format];
    double most = 0;
    for (int i = 0; i < f->n_format; i++)
        most = fmax(most, f->formats[i].tok_s);
    assert_true(x->tok_s * 1.01 >= most && x->loss >= 0 && x->loss <= f->max_loss);
    for (int i = 0; i < f->n_format; i++) {
        const nib_flow_format *y = &f->formats[i];
        assert_true((y->loss >= 0 && y->loss <= f->max_loss) || y->tok_s == 0);
        assert_true(y->tok_s == 0 || y->loss >= x->loss || y->tok_s * 1.01 < most);
    }
}

/* Every choice of keys and values by itself is as fast as the search says. */
static void best_of_forced_choices(void **state) {
    (void)state;
    need_solver();
    make_model();
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    uint32_t seed = 11;
    int n_chosen[2] = {0}, n_solved = 0;
    for (int i = 0; i < N_PROBLEM; i++) {
        nib_engine_options o;
        nib_workload w;
        nib_flow f;
        nib_error err;
        kv_loss kv = {.n_layer = 0};
        double most = 0;
        store_losses(&seed, &kv);
        random_problem(&seed, &o, &w);
        nib_engine_options is_auto = o;
        is_auto.kv_type = NIB_KV_AUTO;
        const nib_status status = nib_plan_workload(model_path, &is_auto, &w, &f, NULL, &err);
        const int types[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
        for (int k = 0; k < 3; k++)
            if (k == 0 || KV_AUTO_MARGIN * kv.all[k - 1] <= KV_AUTO_LOSS)
                most = fmax(most, forced(o, &w, types[k], NULL));
        kv_loss_clear(&kv);
        if (status == NIB_E_NOFIT) {
            assert_true(most == 0);
            continue;
        }
        assert_int_equal(status, NIB_OK);
        for (int k = 0; k < f.n_format; k++)
            if (f.formats[k].kv_type != NIB_KV_AUTO && f.formats[k].tok_s > 0)
                assert_true(is_near(f.formats[k].tok_s, forced(o, &w, f.formats[k].kv_type, NULL)));
            else if (k == f.format)
                assert_true(is_near(f.tok_s, forced(o, &w, NIB_KV_F16, f.kv_layers)));
        check_choice(&f);
        assert_true(f.tok_s * 1.01 >= most * (1 - NEAR));
        n_chosen[f.formats[f.format].kv_type != NIB_KV_F16]++;
        n_solved++;
    }
    assert_true(n_solved > N_PROBLEM / 2 && n_chosen[1] > 0);
    unsetenv("XDG_CACHE_HOME");
}

/* With a bound on the loss, weights and keys and values share it. */
static void weights_too(void **state) {
    (void)state;
    need_solver();
    make_model();
    setenv("XDG_CACHE_HOME", temp_path("cache"), 1);
    uint32_t seed = 5;
    int n_rounded = 0;
    for (int i = 0; i < N_PROBLEM; i++) {
        static const char *const names[] = {"lossless", "high", "balanced", "small"};
        const nib_plan_options how = {.quality = names[i % 4]};
        nib_engine_options o;
        nib_workload w;
        nib_flow f, whole;
        nib_error err;
        kv_loss kv = {.n_layer = 0};
        store_losses(&seed, &kv);
        kv_loss_clear(&kv);
        random_problem(&seed, &o, &w);
        o.kv_type = NIB_KV_AUTO;
        o.planning = &how;
        if (nib_plan_workload(model_path, &o, &w, &f, NULL, &err) == NIB_E_NOFIT)
            continue;
        check_choice(&f);
        o.planning = NULL;
        for (int k = 0; k < f.n_format; k++)
            assert_true(i % 4 > 0 || f.formats[k].weights == NIB_WEIGHTS_FILE);
        n_rounded += f.formats[f.format].weights == NIB_WEIGHTS_FEWEST;
        o.kv_type = NIB_KV_F16;
        if (nib_plan_workload(model_path, &o, &w, &whole, NULL, &err) == NIB_OK)
            assert_true(is_near(f.formats[0].tok_s, whole.tok_s));
    }
    assert_true(n_rounded > 0);
    unsetenv("XDG_CACHE_HOME");
}

/* A format whose loss nobody measured is not chosen. */
static void nothing_is_measured(void **state) {
    (void)state;
    need_solver();
    make_model();
    setenv("XDG_CACHE_HOME", temp_path("empty"), 1);
    const nib_plan_options how = {.quality = "small"};
    nib_engine_options o;
    nib_workload w;
    nib_flow f;
    nib_error err;
    uint32_t seed = 1;
    random_problem(&seed, &o, &w);
    o.kv_type = NIB_KV_AUTO;
    o.planning = &how;
    assert_int_equal(nib_plan_workload(model_path, &o, &w, &f, NULL, &err), NIB_OK);
    assert_true(f.n_format == 3 && f.format == 0 && f.formats[0].kv_type == NIB_KV_F16);
    assert_true(f.formats[1].loss < 0 && f.formats[2].loss < 0 && f.formats[2].tok_s == 0);
    unsetenv("XDG_CACHE_HOME");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fewest_bytes),
        cmocka_unit_test(best_of_forced_choices),
        cmocka_unit_test(weights_too),
        cmocka_unit_test(nothing_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

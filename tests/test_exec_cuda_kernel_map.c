/* Kernel maps of a GPU, on the fake CUDA table (support/fakecuda.h): measuring times every strategy of the
 * device; the map is stored, found again and followed at each launch; answers keep their bits, and a failing
 * call leaks nothing. */
#include "kernels/cuda_load.h"
#include "nib_tools.h"
#include "measure/kernel_profile.h"
#include "measure/trial_cuda.h"
#include "support/engine.h"
#include "support/fakecuda.h"
#include "support/isas.h"
#include "support/logits.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* N_TOKEN: a pass of 16 rows and one of one. */
enum { N_TOKEN = 17, N_VOCAB = 512, N_CTX = 64, MEMORY = 1 << 28 };
enum { VRAM = 68 << 20 /* that measuring may take */ };

static const tiny_shape small = {TYPE_Q8_0, 3, 64, 96, 4, 2, N_VOCAB, N_CTX, true};

static void fake_is_idle(void) {
    if (fake_cuda_wrong())
        fail_msg("%s", fake_cuda_wrong());
    assert_int_equal(fake_cuda_held(), 0);
}

/* ---- measuring ---- */

static int n_point;

static bool is_by(const trial_result *r, int i, const char *name) {
    return !strcmp(r->times[i].strategy->name, name);
}

/* By the fake clock Split is the fastest with few rows; Bitwise computes one row of at most 64. */
static nib_status check_point(void *user, const trial_shape *shape, int bucket, const trial_result *r,
                              nib_error *err) {
    const bool few = bucket <= row_bucket(CUDA_MAX_ROWS);
    bool bitwise = false;
    n_point++;
    assert_true(is_by(r, r->rule, few ? "padding" : "padding.wide"));
    assert_true(is_by(r, r->chosen, few ? "split" : "padding.wide"));
    assert_int_equal(r->chosen, r->fastest);
    assert_true(r->read > 0);
    for (int i = 0; i < r->n; i++) {
        assert_string_equal(r->times[i].isa, "cuda");
        assert_true(r->times[i].best > 0 && r->times[i].n_sample >= 5 && r->times[i].share.median > 0);
        bitwise = bitwise || is_by(r, i, "bitwise");
    }
    assert_int_equal(bitwise, bucket == 0 && shape->k <= 64);
    return kernel_profile_keep(user, shape, bucket, r, err);
}

static nib_status measure(const trial_shape *list, int n, kernel_map *map, nib_error *err) {
    gpu_kernels gpu;
    trial_cuda *t;
    NIB_TRY(gpu_kernels_probe(&gpu, err));
    NIB_TRY(trial_cuda_open(&gpu, VRAM, NULL, &t, err));
    const kernel_profile_options o = {.table = &gpu.table,
                                      .n_byte = trial_cuda_bytes(t),
                                      .packings = map,
                                      .kind = &trial_cuda_kind,
                                      .trial = t};
    const nib_status status = kernel_profile(&o, list, n, check_point, map, err);
    trial_cuda_close(t);
    return status;
}

static trial_shape shape_of(const char *format, int64_t n, int64_t k, int act_bits) {
    trial_shape s = {.n = n, .k = k, .act_bits = act_bits, .count = 1};
    assert_true(pack_from_name(format, k, &s.format));
    return s;
}

static void every_strategy_is_timed(void **state) {
    (void)state;
    const trial_shape list[] = {shape_of("u4g32", 16, 64, 8), shape_of("u2g128", 16, 96, 4)};
    kernel_map map = {0};
    nib_error err;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    n_point = 0;
    if (measure(list, 2, &map, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_int_equal(n_point, 2 * ROW_BUCKETS);
    fake_is_idle();
    for (int i = 0; i < 2; i++) {
        char format[PACK_NAME];
        pack_name(&list[i].format, format);
        const kernel_map_shape *s = kernel_map_find(&map, list[i].n, list[i].k, format, list[i].act_bits);
        assert_non_null(s);
        assert_int_equal(s->packing, PACK_PARTS);
        assert_string_equal(s->by_bucket[0]->name, "split");
    }
    kernel_map_clear(&map);
}

/* The strategies with slices of this device, and none of a newer one. */
static void units_are_the_devices(void **state) {
    (void)state;
    gpu_kernels gpu;
    trial_cuda *t;
    dpr_unit units[DPR_MAX_UNIT];
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    assert_int_equal(gpu_kernels_probe(&gpu, NULL), NIB_OK);
    for (int i = 0; i < gpu.table.n_strategy; i++)
        assert_string_not_equal(gpu.table.strategies[i]->name, "bitwise.other");
    assert_int_equal(trial_cuda_open(&gpu, VRAM, NULL, &t, NULL), NIB_OK);
    assert_int_equal(trial_cuda_units(t, units), 2);
    for (int i = 0; i < 2; i++)
        assert_true(units[i].rate > 0);
    assert_true(dpr_floor(units, 2, "cuda", "bitwise", 4, 8) > dpr_floor(units, 2, "cuda", "padding", 4, 8));
    trial_cuda_close(t);
    fake_is_idle();
    assert_int_equal(trial_cuda_open(&gpu, 1 << 20, NULL, &t, NULL), NIB_E_NOFIT);
    fake_is_idle();
}

/* The n-th call fails, for every n that makes a difference. */
static void a_failing_call_leaves_nothing(void **state) {
    (void)state;
    const trial_shape shape = shape_of("u4g32", 16, 32, 8);
    long n = 1, step = 1;
    nib_status status = NIB_E_DEVICE;
    for (; status != NIB_OK; n += step) {
        kernel_map map = {0};
        cuda_load_with(fake_cuda(MEMORY, n, FAKE_CUDA_LOST));
        status = measure(&shape, 1, &map, NULL);
        assert_true(status == NIB_OK || status == NIB_E_DEVICE);
        assert_int_equal(fake_cuda_held(), 0);
        kernel_map_clear(&map);
        step = n < (SANITIZED ? 20 : 80) ? 1 : SANITIZED ? 389 : 97; /* one point is like another */
    }
    assert_true(n > 200);
}

/* ---- applying the map ---- */

static char said[4096];
static void keep_line(void *user, const char *line) {
    const size_t at = strlen(said);
    (void)user;
    snprintf(said + at, sizeof said - at, "%s\n", line);
}

/* map NULL: the device's own. */
static logits_rows logits_with(const char *path, const char *map, int gpu_layers, bool *used) {
    nib_engine_options o = engine_usual();
    int32_t tokens[N_TOKEN];
    o.backend = "cuda";
    o.kv_type = NIB_KV_F16;
    o.n_ctx = N_CTX;
    o.kernels = map;
    o.gpu_layers = gpu_layers;
    o.log = keep_line;
    said[0] = 0;
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    nib_engine *e = engine_must_open(path, &o, NULL);
    *used = nib_engine_kernels(e) != NULL;
    logits_tokens(tokens, N_TOKEN, N_VOCAB, 3);
    const logits_rows out = logits_of(e, tokens, N_TOKEN);
    nib_engine_close(e);
    fake_is_idle();
    return out;
}

static void make_map(const char *path, const char *to) {
    nib_error err;
    char *json = NULL;
    const nib_kernels_options o = {.backend = "cuda", .vram = VRAM, .seconds = 0, .map = to};
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    if (nib_kernels_profile(path, &o, &json, &err) != NIB_OK)
        fail_msg("%s", err.message);
    assert_non_null(strstr(json, "\"threads\":0"));
    free(json);
    fake_is_idle();
}

static void a_map_is_followed(void **state) {
    (void)state;
    char path[512], map[512];
    bool used;
    snprintf(path, sizeof path, "%s", tiny_model("model.gguf", &small));
    snprintf(map, sizeof map, "%s", temp_path("map.json"));
    logits_rows want = logits_with(path, "none", 0, &used);
    assert_false(used);
    assert_true(fake_cuda_by(FAKE_BY_RULE) > 0);
    assert_int_equal(fake_cuda_by(FAKE_BY_SPLIT), 0);
    make_map(path, map);
    for (int layers = 0; layers <= 1; layers++) { /* layers in place do not use the GPU's map */
        logits_rows got = logits_with(path, map, layers, &used);
        assert_true(used);
        assert_non_null(strstr(said, "by the kernel map, q8_0 "));
        assert_non_null(strstr(said, "rows: 1-64 split"));
        assert_int_equal(fake_cuda_by(FAKE_BY_RULE), 0);
        assert_true(fake_cuda_by(FAKE_BY_SPLIT) > 0);
        assert_int_equal(logits_bytes(&got), logits_bytes(&want));
        assert_memory_equal(got.data, want.data, logits_bytes(&want));
        free(got.data);
    }
    free(want.data);
}

/* A map may name a strategy that cannot compute a product (Bitwise with longer rows): the rule decides then.
 */
static void what_cannot_be_done_goes_by_the_rule(void **state) {
    (void)state;
    static gpu_kernels gpu;
    char path[512], map[512];
    bool used;
    kernel_map p = {0};
    const int64_t sizes[] = {64, 96, 32, N_VOCAB};
    snprintf(path, sizeof path, "%s", tiny_model("model.gguf", &small));
    snprintf(map, sizeof map, "%s", temp_path("map.json"));
    logits_rows want = logits_with(path, "none", 0, &used);
    cuda_load_with(fake_cuda(MEMORY, 0, 0));
    assert_int_equal(gpu_kernels_probe(&gpu, NULL), NIB_OK);
    const kernel_map_key key = gpu_kernels_key(&gpu);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 2; j++) {
            kernel_map_shape *s;
            assert_int_equal(kernel_map_add(&p, sizes[i], sizes[j], "q8_0", 8, &s, NULL), NIB_OK);
            for (int b = 0; b < ROW_BUCKETS; b++)
                s->by_bucket[b] = isas_strategy(&gpu.table, NULL, "bitwise");
        }
    assert_int_equal(kernel_map_save(map, &key, &p, NULL), NIB_OK);
    kernel_map_clear(&p);
    logits_rows got = logits_with(path, map, 0, &used);
    assert_true(used);
    assert_true(fake_cuda_by(FAKE_BY_BITS) > 0); /* rows of 64, alone: those of the last token */
    assert_true(fake_cuda_by(FAKE_BY_RULE) > 0);
    assert_memory_equal(got.data, want.data, logits_bytes(&want));
    free(want.data), free(got.data);
}

/* The processor's map is another device's. */
static void another_map_is_not_used(void **state) {
    (void)state;
    char path[512], map[512];
    bool used;
    machine here;
    kernel_map p = {0};
    snprintf(path, sizeof path, "%s", tiny_model("model.gguf", &small));
    snprintf(map, sizeof map, "%s", temp_path("map.json"));
    machine_detect(&here);
    const kernel_map_key key = {&here, kernels_table(), 2};
    assert_int_equal(kernel_map_save(map, &key, &p, NULL), NIB_OK);
    logits_rows got = logits_with(path, map, 0, &used);
    assert_false(used);
    assert_non_null(strstr(said, "is not used"));
    free(got.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_is_timed),
        cmocka_unit_test(units_are_the_devices),
        cmocka_unit_test(a_failing_call_leaves_nothing),
        cmocka_unit_test(a_map_is_followed),
        cmocka_unit_test(what_cannot_be_done_goes_by_the_rule),
        cmocka_unit_test(another_map_is_not_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

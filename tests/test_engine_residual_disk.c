/* Residuals whose codes are on disk: the same bits as from RAM, nothing left of the file, and every fault. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "tiers/ledger.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 7 };
static const int32_t tokens[N_TOKEN] = {5, 17, 3, 99, 4, 250, 8};
static const tiny_shape shape = {TYPE_F32, 4, 256, 2560, 8, 2, 1024, 64, true};
static char whole[512], coarse[512], folder[512];
static uint64_t headroom; /* for half of the weights, and what making residuals takes */

static nib_engine_options options(int bits, bool on_disk) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.residual = whole;
    o.residual_bits = bits;
    o.k_chunk = 100;
    o.n_thread = 2;
    o.learn = false;
    o.stream = on_disk;
    o.scratch = on_disk ? folder : NULL;
    o.packed = NIB_PACKED_OFF;
    o.ram = on_disk ? ledger_look().now + headroom : NIB_AUTO;
    return o;
}

static int files_of_scratch(void) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (const struct dirent *d; dir && (d = readdir(dir));)
        n += !strncmp(d->d_name, "residuals", 9);
    if (dir)
        closedir(dir);
    return n;
}

static int make(void **state) {
    (void)state;
    nib_engine_options o;
    nib_engine_options_init(&o);
    const nib_quantize_options q = {.out = coarse, .type = "n3g64", .imatrix = "none"};
    nib_quantize_report report;
    nib_error err;
    snprintf(whole, sizeof whole, "%s", tiny_model("original.gguf", &shape));
    snprintf(coarse, sizeof coarse, "%s", temp_path("coarse.gguf"));
    snprintf(folder, sizeof folder, "%s", temp_path("scratch"));
    if (nib_quantize(whole, &o, &q, &report, &err) != NIB_OK)
        fail_msg("%s", err.message);
    headroom = tiny_model_half_bytes(coarse);
    return 0;
}

/* Rows together, and rows alone, which each thread chooses for itself. */
static void test_same_bits(void **state) {
    (void)state;
    for (int bits = 2; bits <= 16; bits *= 2)
        for (int n_batch = 1; n_batch <= 16; n_batch += 15) {
            nib_memory now;
            nib_error err;
            nib_engine *e;
            nib_engine_options o = options(bits, false);
            o.n_batch = n_batch;
            e = engine_must_open(coarse, &o, NULL);
            nib_engine_memory(e, &now);
            assert_int_equal(now.tier[NIB_TIER_DISK].peak, 0);
            logits_rows expected = logits_of(e, tokens, N_TOKEN);
            nib_engine_close(e);
            o = options(bits, true);
            o.ram -= bits == 2 ? 3 << 18 : 0; /* else these have room */
            o.n_batch = n_batch;
            if (nib_engine_open(coarse, &o, &e, &err) != NIB_OK)
                fail_msg("%d bits: %s", bits, err.message);
            nib_engine_memory(e, &now);
            assert_true(now.tier[NIB_TIER_DISK].peak > 0);
            assert_true(now.tier[NIB_TIER_RAM].peak <= o.ram);
            assert_int_equal(files_of_scratch(), 0);
            logits_rows found = logits_of(e, tokens, N_TOKEN);
            if (memcmp(expected.data, found.data, (size_t)(N_TOKEN * found.n_vocab) * sizeof *found.data))
                fail_msg("%d bits, passes of %d rows: other bits", bits, n_batch);
            nib_engine_close(e);
            free(expected.data);
            free(found.data);
        }
}

/* A cap on the disk holds, and what needs all residuals at hand keeps them in RAM. */
static void test_refused(void **state) {
    (void)state;
    nib_engine_options o = options(4, true);
    nib_engine *e;
    nib_error err;
    o.disk = 1000;
    assert_int_equal(nib_engine_open(coarse, &o, &e, &err), NIB_E_NOFIT);
    assert_int_equal(files_of_scratch(), 0);
}

static nib_status live(void *user, nib_error *err) {
    nib_engine_options o = options(16, true); /* which are made fastest */
    nib_result result;
    (void)user;
    o.n_batch = 4;
    const nib_status status = engine_life(coarse, &o, NULL, 2, &result, err);
    nib_result_clear(&result);
    return status;
}

static void test_faults(void **state) {
    (void)state;
    fault_sweep(FAULT_ALLOC, 256, live, NULL);
    assert_int_equal(files_of_scratch(), 0);
    fault_sweep(FAULT_READ, 1024, live, NULL);
    assert_int_equal(files_of_scratch(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, make, NULL);
}

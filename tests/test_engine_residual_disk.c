/* Residuals whose codes are on disk: the same bits as from RAM, no file left over, and every fault. */
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "engine/engine.h"
#include "nib_tools.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKEN = 7 };
static const int32_t tokens[N_TOKEN] = {5, 17, 3, 99, 4, 250, 8};
static const tiny_shape large_shape = {TYPE_F32, 4, 256, 2560, 8, 2, 1024, 64, true};
static const tiny_shape small_shape = {TYPE_F32, 4, 256, 1024, 8, 2, 256, 64, true};
/* headroom: bytes of a cap beyond the process's memory, for half of the weights. */
typedef struct pair {
    char whole[512], coarse[512];
    uint64_t headroom;
} pair;
static pair large, small; /* small: for tests that run it hundreds of times */
static char folder[512];

static nib_engine_options options(const pair *p, int bits, bool on_disk) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.residual = p->whole;
    o.residual_bits = bits;
    o.k_chunk = 100;
    o.n_thread = 2;
    o.learn = false;
    o.stream = on_disk;
    o.scratch = on_disk ? folder : NULL;
    o.packed = NIB_PACKED_OFF;
    o.ram = on_disk ? process_bytes() + p->headroom : NIB_AUTO;
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

static void make_pair(pair *p, const char *name, const tiny_shape *of) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    const nib_quantize_options q = {.out = p->coarse, .type = "n3g64", .imatrix = "none"};
    nib_quantize_report report;
    nib_error err;
    char path[64];
    snprintf(path, sizeof path, "%s.gguf", name);
    snprintf(p->whole, sizeof p->whole, "%s", tiny_model(path, of));
    snprintf(path, sizeof path, "%s-3.gguf", name);
    snprintf(p->coarse, sizeof p->coarse, "%s", temp_path(path));
    if (nib_quantize(p->whole, &o, &q, &report, &err) != NIB_OK)
        fail_msg("%s", err.message);
    o.n_thread = 2;
    o.n_batch = 16; /* the maximum in these tests; memory for longer passes would hold residuals */
    p->headroom = tiny_model_half_bytes_with(p->coarse, &o);
}

static int make(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "%s", temp_path("scratch"));
    make_pair(&large, "large", &large_shape);
    large.headroom -= 3 << 18; /* residuals of 2 bits do not fit either */
    make_pair(&small, "small", &small_shape);
    return 0;
}

/* Opens under a cap that holds half of the weights. If that is too small, as with a sanitizer's own memory,
 * the cap grows until it works. Each open begins at half again: under a larger cap residuals would be in RAM.
 */
static nib_engine *open_on_disk(const pair *p, nib_engine_options *o) {
    const uint64_t step = SANITIZED ? 1 << 20 : 1 << 17, enough = p->headroom + (64 << 20);
    nib_error err = {0};
    nib_engine *e = NULL;
    for (uint64_t headroom = p->headroom; headroom < enough; headroom += step) {
        o->ram = process_bytes() + headroom;
        const nib_status status = nib_engine_open(p->coarse, o, &e, &err);
        if (status == NIB_OK)
            return e;
        if (status != NIB_E_NOFIT)
            break;
    }
    fail_msg("%d bits: %s", o->residual_bits, err.message);
    return NULL;
}

/* Rows together, and single rows, for which each thread chooses channels itself. */
static void test_same_bits(void **state) {
    (void)state;
    for (int bits = 2; bits <= 16; bits *= SANITIZED ? 4 : 2)
        for (int n_batch = 1; n_batch <= 16; n_batch += 15) {
            if (slow_is_thinned() && (bits > 2) != (n_batch > 1)) /* every value has its turn */
                continue;
            nib_memory now;
            nib_engine *e;
            nib_engine_options o = options(&large, bits, false);
            o.n_batch = n_batch;
            e = engine_must_open(large.coarse, &o, NULL);
            nib_engine_memory(e, &now);
            assert_int_equal(now.tier[NIB_TIER_DISK].peak, 0);
            logits_rows expected = logits_of(e, tokens, N_TOKEN);
            nib_engine_close(e);
            o = options(&large, bits, true);
            o.n_batch = n_batch;
            e = open_on_disk(&large, &o);
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

/* Opens the large model with `headroom` bytes beyond the process's. *t: the traffic of some tokens. */
static nib_status open_with(nib_engine_options *o, uint64_t headroom, nib_traffic *t, nib_error *err) {
    nib_engine *e;
    o->ram = process_bytes() + headroom;
    const nib_status status = nib_engine_open(large.coarse, o, &e, err);
    if (status != NIB_OK)
        return status;
    logits_rows rows = logits_of(e, tokens, N_TOKEN);
    nib_engine_traffic(e, t);
    nib_engine_close(e);
    free(rows.data);
    return NIB_OK;
}

/* The cap that "...; 18.2 MiB is the smallest ..." names. */
static uint64_t named_cap(const char *message) {
    char size[32];
    double number = 0;
    uint64_t cap;
    const char *at = strstr(message, "; ");
    if (!at || sscanf(at, "; %lf MiB is the smallest", &number) != 1)
        fail_msg("no cap is named: %s", message);
    snprintf(size, sizeof size, "%.1fMiB", number);
    assert_true(num_parse_size(size, &cap));
    return cap;
}

/* Writes the large model's residuals of 16 bits, which take more than its weights. */
static void write_residuals(const char *path) {
    nib_engine_options o;
    nib_quantize_report report;
    nib_error err;
    nib_engine_options_init(&o);
    o.residual_bits = 16;
    const nib_quantize_options q = {
        .out = temp_path("again.gguf"), .type = "n3g64", .imatrix = "none", .residual = path};
    if (nib_quantize(large.whole, &o, &q, &report, &err) != NIB_OK)
        fail_msg("%s", err.message);
}

/* Under a cap that holds all weights, but not the residuals too, no weight is streamed: residuals are read
 * from their own file or from one under --scratch. Without both the cap is refused, and the one that the
 * message names holds everything. */
static void test_evicts_nothing(void **state) {
    (void)state;
    enum { STEP = 1 << 18, BESIDE = 4 << 20 /* scales, buffers, and rows while residuals are made */ };
    char residuals[512];
    nib_engine_options o = options(&large, 16, true);
    nib_traffic t = {0};
    nib_error err;
    uint64_t whole = large.headroom;
    snprintf(residuals, sizeof residuals, "%s", temp_path("large.residual"));
    write_residuals(residuals);
    o.n_batch = 16;
    o.residual = o.scratch = NULL;
    while (open_with(&o, whole, &t, &err) != NIB_OK || t.streamed > 0)
        whole += STEP;
    for (int i = 0; i < 2; i++) {
        o.residual = i ? large.whole : residuals;
        o.scratch = i ? folder : NULL;
        if (open_with(&o, whole + BESIDE, &t, &err) != NIB_OK)
            fail_msg("%s: %s", o.residual, err.message);
        assert_int_equal(t.streamed, 0);
        assert_true(t.residual_reads > 0);
    }
    o.scratch = NULL;
    assert_int_equal(open_with(&o, whole + BESIDE, &t, &err), NIB_E_NOFIT);
    assert_non_null(strstr(err.message, "--scratch"));
    if (SANITIZED) /* its own memory differs from run to run */
        return;
    assert_int_equal(open_with(&o, named_cap(err.message) - process_bytes(), &t, &err), NIB_OK);
    assert_true(t.streamed == 0 && t.residual_reads == 0);
}

/* A cap on the disk holds, and rules that read all residuals keep them in RAM. */
static void test_refused(void **state) {
    (void)state;
    nib_engine_options o = options(&large, 4, true);
    nib_engine *e;
    nib_error err;
    o.disk = 1000;
    assert_int_equal(nib_engine_open(large.coarse, &o, &e, &err), NIB_E_NOFIT);
    assert_int_equal(files_of_scratch(), 0);
}

static nib_status live(void *user, nib_error *err) {
    nib_engine_options o = options(&small, 16, true); /* the fastest ones to make */
    nib_result result;
    (void)user;
    o.n_batch = 4;
    o.ram += SANITIZED ? 32 << 20 : 0; /* freed memory that the sanitizer keeps */
    const nib_status status = engine_life(small.coarse, &o, NULL, 2, &result, err);
    nib_result_clear(&result);
    return status;
}

static void test_faults(void **state) {
    (void)state;
    nib_engine_options o = options(&small, 16, true);
    nib_engine *e = open_on_disk(&small, &o);
    nib_memory now;
    nib_engine_memory(e, &now);
    assert_true(now.tier[NIB_TIER_DISK].peak > 0);
    nib_engine_close(e);
    small.headroom += 1 << 20;
    fault_sweep(FAULT_ALLOC, 256, live, NULL);
    assert_int_equal(files_of_scratch(), 0);
    fault_sweep(FAULT_READ, 1024, live, NULL);
    assert_int_equal(files_of_scratch(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same_bits),
                                       cmocka_unit_test(test_evicts_nothing), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, make, NULL);
}

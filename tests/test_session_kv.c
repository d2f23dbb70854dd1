/* A session whose cache is in codes: the same bits for any division of the rows, for a sequence that grew,
 * for a truncated prefix, and after an unfinished pass. The ledger's sizes are the touched ones, and a
 * context that does not fit is refused when the engine opens. */
#include "base/num.h"
#include "session/session.h"
#include "support/engine.h"
#include "support/expected.h"
#include "support/logits.h"
#include "support/process.h"
#include "engine/engine.h"
#include "support/slow.h"
#include "support/tinyfolder.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

enum { N_TOKEN = 210, N_CTX = 256, MIB = 1 << 20 };

static const tiny_shape small = {TYPE_Q8_0, 2, 96, 160, 6, 2, 300, N_CTX, true};
static const tiny_shape long_cache = {TYPE_Q8_0, 4, 256, 256, 4, 4, 300, 1 << 15, true};
enum { MIXED = 50 }; /* layer 0 in f16, the others in kv4 */
static const int kinds[] = {NIB_KV_8, NIB_KV_4, NIB_KV_4H, NIB_KV_4S, MIXED};

static nib_engine *open_with(const char *path, int kv, int n_thread, int64_t n_batch, bool no_fuse) {
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    o.n_batch = n_batch;
    o.no_fuse = no_fuse;
    o.kv_type = kv == MIXED ? NIB_KV_4 : kv;
    const engine_internal internal = {.kv_layers = kv == MIXED ? "0=f16" : NULL};
    if (engine_open(path, &o, &internal, &e, &err))
        fail_msg("%s", err.message);
    return e;
}

static void check_cuts(const char *path, int n) {
    static const struct {
        int n_thread, n_batch;
        bool no_fuse;
    } ways[] = {{1, 512, false}, {2, 512, true}, {3, 64, false}, {2, 37, false}, {2, 1, false}};
    int32_t tokens[N_TOKEN];
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        logits_rows want = {0};
        for (size_t i = 0; i < NUM_COUNT(ways); i += (size_t)slow_step(2)) {
            nib_engine *e = open_with(path, kinds[k], ways[i].n_thread, ways[i].n_batch, ways[i].no_fuse);
            logits_tokens(tokens, n, nib_engine_info(e)->n_vocab, 1);
            logits_rows got = logits_of(e, tokens, n);
            if (i == 0) {
                want = got;
            } else {
                assert_memory_equal(got.data, want.data, (size_t)(n * got.n_vocab) * sizeof(float));
                free(got.data);
            }
            nib_engine_close(e);
        }
        free(want.data);
    }
}

static void same_bits_for_any_cut(void **state) {
    (void)state;
    check_cuts(tiny_model("small.gguf", &small), N_TOKEN);
    check_cuts(tiny_folder_gemma3(16), 120); /* windows that begin inside of a block */
}

/* Single rows after a long prompt: with 3 and 5 threads for 2 kv heads threads share their positions in
 * spans. */
static void long_rows_by_any_threads(void **state) {
    (void)state;
    enum { N = 1100, SINGLE = 3, MAX = 300 };
    static const tiny_shape shape = {TYPE_Q8_0, 2, 96, 160, 6, 2, MAX, 1200, true};
    static const int caches[] = {NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4}, threads[] = {1, 2, 3, 5};
    const char *path = tiny_model("long.gguf", &shape);
    int32_t tokens[N];
    logits_tokens(tokens, N, MAX, 3);
    for (size_t k = 0; k < NUM_COUNT(caches); k += (size_t)slow_step(3)) {
        float want[SINGLE][MAX];
        for (size_t i = 0; i < NUM_COUNT(threads); i += (size_t)slow_step(2)) {
            nib_engine *e = open_with(path, caches[k], threads[i], 512, false);
            nib_session *s = session_must_open(e);
            assert_int_equal(nib_session_sync(s, tokens, N - SINGLE, NULL), NIB_OK);
            for (int r = 0; r < SINGLE; r++) {
                assert_int_equal(nib_session_sync(s, tokens, (size_t)(N - SINGLE + r + 1), NULL), NIB_OK);
                if (i == 0)
                    memcpy(want[r], nib_session_logits(s), sizeof want[r]);
                assert_memory_equal(nib_session_logits(s), want[r], sizeof want[r]);
            }
            nib_session_close(s);
            nib_engine_close(e);
        }
    }
}

/* More rows in a cell than a block has, as a streamed model may get. */
static void cells_of_any_size(void **state) {
    (void)state;
    const char *path = tiny_model("small.gguf", &small);
    static const int64_t cells[] = {64, 8, 65, 128, 200, 256};
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, 300, 1);
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        logits_rows want = {0};
        for (size_t i = 0; i < NUM_COUNT(cells); i++) {
            nib_engine *e = open_with(path, kinds[k], 3, 256, false);
            const backend_rows rows = {256, cells[i], 16, 0};
            backend *by = engine_parts_of(e).step->backend;
            assert_int_equal(by->kind->reserve(by, &rows, NULL), NIB_OK);
            assert_int_equal(by->rows.n_head, NUM_MIN(cells[i], 16)); /* quantized as a cell's rows are */
            logits_rows got = logits_of(e, tokens, N_TOKEN);
            if (i == 0) {
                want = got;
            } else {
                assert_memory_equal(got.data, want.data, (size_t)(N_TOKEN * got.n_vocab) * sizeof(float));
                free(got.data);
            }
            nib_engine_close(e);
        }
        free(want.data);
    }
}

static void near_f16(void **state) {
    (void)state;
    const char *path = tiny_model("small.gguf", &small);
    int32_t tokens[N_TOKEN];
    double off[3];
    logits_rows plain = {0};
    for (int k = 0; k < 3; k++) {
        nib_engine *e = open_with(path, k == 0 ? NIB_KV_F16 : kinds[k - 1], 2, 0, false);
        logits_tokens(tokens, N_TOKEN, 300, 1);
        logits_rows got = logits_of(e, tokens, N_TOKEN);
        if (k == 0)
            plain = got;
        /* within the first block there are no codes yet */
        assert_memory_equal(got.data, plain.data, (size_t)(KV_BLOCK * got.n_vocab) * sizeof(float));
        off[k] = relative_rms(got.data, plain.data, N_TOKEN * got.n_vocab);
        if (k > 0)
            free(got.data);
        nib_engine_close(e);
    }
    free(plain.data);
    /* random weights have large scores, which enlarge small errors: 0.026 and 0.21 were seen */
    assert_true(off[1] > 0 && off[1] < 0.05);
    assert_true(off[2] > 4 * off[1] && off[2] < 0.4);
}

/* After a sync the logits are those of a session that never held anything else. */
static void check_sync(nib_session *s, nib_session *fresh, const int32_t *tokens, int n) {
    nib_error err = {0};
    const size_t bytes = (size_t)nib_engine_info(s->engine)->n_vocab * sizeof(float);
    if (nib_session_sync(s, tokens, (size_t)n, &err) || nib_session_sync(fresh, tokens, (size_t)n, &err))
        fail_msg("%s", err.message);
    assert_int_equal(nib_session_length(s), n);
    assert_memory_equal(nib_session_logits(s), nib_session_logits(fresh), bytes);
}

static void grown_and_cut_back(void **state) {
    (void)state;
    const char *path = tiny_model("small.gguf", &small);
    static const int back[] = {209, 193, 192, 191, 150, 128, 127, 100, 64, 63, 1, 0};
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        nib_engine *e = open_with(path, kinds[k], 2, 48, false);
        int32_t tokens[N_TOKEN], other[N_TOKEN];
        nib_error err = {0};
        logits_tokens(tokens, N_TOKEN, 300, 1);
        nib_session *s = session_must_open(e);
        for (int n = 1; n <= N_TOKEN; n += n < 60 ? 1 : 23) {
            nib_session *fresh = session_must_open(e);
            check_sync(s, fresh, tokens, n);
            nib_session_close(fresh);
        }
        for (size_t i = 0; i < NUM_COUNT(back); i++) {
            logits_tokens(other, N_TOKEN, 300, 2);
            memcpy(other, tokens, (size_t)back[i] * sizeof *other);
            assert_int_equal(nib_session_sync(s, tokens, N_TOKEN, &err), NIB_OK);
            for (int more = 1; back[i] + more <= N_TOKEN && more < 120; more += 59) {
                nib_session *fresh = session_must_open(e);
                check_sync(s, fresh, other, back[i] + more);
                nib_session_close(fresh);
            }
        }
        nib_session_close(s);
        nib_engine_close(e);
    }
}

/* At most the block's own rows are computed again. Pages that follow one that was computed again are found.
 */
static void how_much_is_computed_again(void **state) {
    (void)state;
    const char *path = tiny_model("small.gguf", &small);
    nib_engine *e = open_with(path, NIB_KV_4, 1, 512, false);
    int32_t tokens[N_TOKEN];
    logits_tokens(tokens, N_TOKEN, 300, 1);
    static const struct {
        int n, computed;
    } cases[] = {{210, 210}, {200, 1}, {129, 1}, {130, 1}, {128, 64}, {65, 1}, {64, 64}, {210, 18}};
    nib_session *s = session_must_open(e);
    for (size_t i = 0; i < NUM_COUNT(cases); i++)
        assert_int_equal(session_must_compute(s, tokens, cases[i].n), cases[i].computed);
    nib_session_close(s);
    nib_engine_close(e);
}

static void cancel(void *user, int64_t position, const float *logits) {
    (void)logits;
    if (position >= 60)
        nib_session_cancel(user);
}

/* An unfinished pass has overwritten positions that the next one needs. */
static void after_a_cancelled_pass(void **state) {
    (void)state;
    const char *path = tiny_model("small.gguf", &small);
    for (size_t k = 0; k < NUM_COUNT(kinds); k++) {
        nib_engine *e = open_with(path, kinds[k], 2, 170, false);
        int32_t tokens[N_TOKEN];
        nib_error err = {0};
        logits_tokens(tokens, N_TOKEN, 300, 1);
        nib_session *s = session_must_open(e), *fresh = session_must_open(e);
        assert_int_equal(nib_session_sync(s, tokens, 30, &err), NIB_OK);
        assert_int_equal(nib_session_forward(s, tokens, N_TOKEN, 31, cancel, s, &err), NIB_E_CANCELLED);
        check_sync(s, fresh, tokens, 45);
        check_sync(s, fresh, tokens, N_TOKEN);
        nib_session_close(fresh);
        nib_session_close(s);
        nib_engine_close(e);
    }
}

/* ---- memory ---- */

static uint64_t resident_at(void *at, uint64_t n_byte) {
    const size_t n = (size_t)(n_byte + 4095) / 4096;
    unsigned char *in = malloc(n);
    uint64_t sum = 0;
    assert_non_null(in);
    assert_int_equal(mincore(at, (size_t)n_byte, in), 0);
    for (size_t i = 0; i < n; i++)
        sum += in[i] & 1 ? 4096 : 0;
    free(in);
    return sum;
}

static uint64_t resident(const kv_table *kv) {
    uint64_t sum = kv->newest.bytes ? resident_at(kv->newest.at, kv->newest.bytes) : 0;
    for (int64_t i = 0; i < kv->n_page; i++)
        sum += resident_at(kv->at[i], kv_pool_paging(kv->pool)->page_bytes);
    return sum;
}

static uint64_t told(const nib_engine *e) {
    nib_memory m;
    nib_engine_memory(e, &m);
    return m.owner[NIB_OWNER_KV];
}

/* The ledger's bytes are the system's, except for the ends of runs; f16 for comparison. */
static void touched_as_it_grows(void **state) {
    (void)state;
    const char *path = tiny_model("long.gguf", &long_cache);
    static const int all[] = {NIB_KV_F16, NIB_KV_8, NIB_KV_4};
    int32_t tokens[700];
    logits_tokens(tokens, 700, 300, 1);
    uint64_t full = 0;
    for (size_t k = 0; k < NUM_COUNT(all); k++) {
        nib_engine *e = open_with(path, all[k], 2, 512, false);
        nib_session *s = session_must_open(e);
        const uint64_t slack = 4 * 4 * 2 * 2 * 2 * 4096; /* layers, heads, k and v, runs, both ends */
        for (int n = 10; n <= 700; n += 230) {
            assert_int_equal(nib_session_sync(s, tokens, (size_t)n, NULL), NIB_OK);
            assert_in_range(resident(&s->slot.of.kv), told(e) - NUM_MIN(slack, told(e)), told(e) + slack);
        }
        if (k == 0)
            full = told(e);
        else
            assert_true(told(e) < full * (k == 1 ? 80 : 60) / 100);
        nib_session_close(s);
        nib_engine_close(e);
    }
}

/* 32,768 positions of 4 layers of 256 take 128 MiB in f16 and 40 MiB in kv4. */
static void refused_when_it_opens(void **state) {
    (void)state;
    process_counted();
    const char *path = tiny_model("long.gguf", &long_cache);
    nib_engine_options o;
    nib_engine *e = NULL;
    nib_error err = {0};
    nib_engine_options_init(&o);
    o.n_thread = 1;
    o.n_ctx = 1 << 15;
    o.stream = true;
    o.ram = process_bytes() + LEDGER_RUNTIME_MARGIN + (uint64_t)70 * MIB;
    o.kv_type = NIB_KV_F16;
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_NOFIT);
    o.kv_type = NIB_KV_4;
    if (nib_engine_open(path, &o, &e, &err))
        fail_msg("%s", err.message);
    nib_session *s = session_must_open(e);
    nib_session_close(s);
    nib_engine_close(e);
    o.kv_type = 99;
    assert_int_equal(nib_engine_open(path, &o, &e, &err), NIB_E_USAGE);
    o.kv_type = NIB_KV_4;
    engine_internal internal = {.kv_layers = "0-1=f16,4=kv8"}; /* there are 4 layers */
    assert_int_equal(engine_open(path, &o, &internal, &e, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "4=kv8"));
    internal.kv_layers = "0-3=f16"; /* as many bytes as with f16 for all */
    assert_int_equal(engine_open(path, &o, &internal, &e, &err), NIB_E_NOFIT);
    internal.kv_layers = "0=f16";
    if (engine_open(path, &o, &internal, &e, &err))
        fail_msg("%s", err.message);
    nib_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_for_any_cut),  cmocka_unit_test(long_rows_by_any_threads),
        cmocka_unit_test(cells_of_any_size),      cmocka_unit_test(near_f16),
        cmocka_unit_test(grown_and_cut_back),     cmocka_unit_test(how_much_is_computed_again),
        cmocka_unit_test(after_a_cancelled_pass), cmocka_unit_test(touched_as_it_grows),
        cmocka_unit_test(refused_when_it_opens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The n-th poll for cancellation says yes, for every n: while opening, in passes and in measurements. Each
 * call ends with NIB_E_CANCELLED and leaves nothing behind, and later calls have the same bits as without it.
 */
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "measure/hardware_rates.h"
#include "measure/kernel_profile.h"
#include "measure/measure.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/prompts.h"
#include "support/slow.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = SANITIZED ? 2048 : 8192, N_PROMPT = SANITIZED ? 28 : 40 };

static const tiny_shape large = {TYPE_Q8_0, 8, 256, 768, 8, 2, N_VOCAB, 256, true};
static const tiny_shape small = {TYPE_Q8_0, 3, 128, 256, 4, 2, 1000, 256, true};
static const tiny_shape few = {TYPE_Q8_0, 2, 64, 64, 2, 2, 300, 128, true};

static atomic_long left; /* answers of no */

static bool ask(void *user) {
    (void)user;
    return atomic_fetch_sub(&left, 1) <= 0;
}

static const canceller asking = {ask, NULL};

static void arm(long n) {
    atomic_store(&left, n);
}

static void disarm(void) {
    arm(INT64_MAX / 2);
}

/* Tries the first n one by one, then in larger and larger steps. Returns about the smallest n at which the
 * call is not cancelled. */
static long sweep(nib_status (*run)(void *user, nib_error *err), void *user) {
    for (long n = 0;; n += slow_step(3) + n / (slow_step(2) == 1 ? 3 : 1)) {
        nib_error err = {0};
        arm(n);
        const nib_status status = run(user, &err);
        disarm();
        if (status == NIB_OK)
            return n;
        if (status != NIB_E_CANCELLED)
            fail_msg("after %ld answers: %d, %s", n, (int)status, err.message);
    }
}

static int n_file(const char *folder) {
    DIR *dir = opendir(folder);
    int n = 0;
    for (const struct dirent *d; dir && (d = readdir(dir));)
        n += d->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* ---- opening ---- */

typedef struct opening {
    const char *path;
    nib_engine_options o;
    uint64_t headroom; /* of the cap; NIB_AUTO: none */
} opening;

static nib_status open_once(void *user, nib_error *err) {
    opening *x = user;
    nib_engine *e = NULL;
    x->o.cancel = ask;
    x->o.ram = x->headroom == NIB_AUTO ? NIB_AUTO : process_bytes() + x->headroom;
    const nib_status status = nib_engine_open(x->path, &x->o, &e, err);
    assert_int_equal(status == NIB_OK, e != NULL);
    nib_engine_close(e);
    return status;
}

static void opening_ends(void **state) {
    (void)state;
    opening x = {tiny_model("large.gguf", &large), engine_usual(), NIB_AUTO};
    assert_true(sweep(open_once, &x) > 3);
    x.o.stream = true;
    x.headroom = tiny_model_half_bytes(x.path);
    assert_true(sweep(open_once, &x) > 3);
    x.o.n_best = 1;
    x.o.shortlist = NIB_SHORTLIST_ON;
    assert_true(sweep(open_once, &x) > 3);
}

static void writing_packed_weights_ends(void **state) {
    (void)state;
    static char folder[512];
    opening x = {tiny_model("large.gguf", &large), engine_usual(), NIB_AUTO};
    snprintf(folder, sizeof folder, "%s", temp_path("scratch"));
    x.o.packed = NIB_PACKED_ON;
    x.o.scratch = folder;
    for (int streamed = 0; streamed < 2; streamed++) {
        nib_error err = {0};
        char packed[540];
        snprintf(packed, sizeof packed, "%s/packed", folder);
        for (long n = 0; n < 10; n += slow_step(3)) {
            arm(n);
            assert_int_equal(open_once(&x, &err), NIB_E_CANCELLED);
            assert_int_equal(n_file(packed), 0);
        }
        disarm();
        x.o.stream = true;
        x.headroom = tiny_model_half_bytes(x.path);
    }
}

static bool until_kept(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)user;
    (void)done;
    (void)total;
    return strcmp(what, "keep") != 0;
}

/* If progress says no while the packed file is written, the engine does not open. */
static void progress_ends_writing_too(void **state) {
    (void)state;
    static char folder[512];
    nib_engine_options o = engine_usual();
    nib_engine *e = NULL;
    nib_error err = {0};
    snprintf(folder, sizeof folder, "%s", temp_path("refused"));
    o.packed = NIB_PACKED_ON;
    o.scratch = folder;
    o.progress = until_kept;
    assert_int_equal(nib_engine_open(tiny_model("large.gguf", &large), &o, &e, &err), NIB_E_CANCELLED);
    assert_null(e);
}

/* ---- passes ---- */

typedef struct passes {
    nib_session *s;
    int32_t tokens[N_PROMPT];
    size_t n_byte; /* of logits */
    float want[N_VOCAB];
} passes;

static nib_status compute(void *user, nib_error *err) {
    passes *p = user;
    const int32_t other[1] = {7};
    NIB_TRY(nib_session_sync(p->s, other, 1, err)); /* nothing is reused */
    return nib_session_sync(p->s, p->tokens, N_PROMPT, err);
}

static nib_status compute_and_again(void *user, nib_error *err) {
    passes *p = user;
    const nib_status status = compute(p, err);
    disarm();
    if (status == NIB_OK)
        return status;
    assert_true(nib_session_length(p->s) < N_PROMPT);
    assert_int_equal(nib_session_sync(p->s, p->tokens, N_PROMPT, NULL), NIB_OK);
    assert_memory_equal(nib_session_logits(p->s), p->want, p->n_byte);
    return status;
}

static void passes_end(const nib_engine_options *options, bool stream) {
    static passes p;
    nib_engine_options o = *options;
    const char *path = stream ? tiny_model("large.gguf", &large) : tiny_model("small.gguf", &small);
    o.cancel = ask;
    if (stream) {
        o.ram = tiny_model_half_bytes(path);
        o.ram += process_bytes();
        o.stream = true;
    }
    disarm();
    nib_engine *e = engine_must_open(path, &o, NULL);
    p.s = session_must_open(e);
    p.n_byte = (size_t)nib_engine_info(e)->n_vocab * sizeof *p.want;
    logits_tokens(p.tokens, N_PROMPT, nib_engine_info(e)->n_vocab, 1);
    assert_int_equal(compute(&p, NULL), NIB_OK);
    memcpy(p.want, nib_session_logits(p.s), p.n_byte);
    assert_true(sweep(compute_and_again, &p) > 50);
    nib_session_close(p.s);
    nib_engine_close(e);
}

static void resident_passes_end(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    passes_end(&o, false);
    o.kv_type = NIB_KV_4;
    passes_end(&o, false);
    o.no_fuse = true;
    o.n_thread = 1;
    passes_end(&o, false);
}

static void streamed_passes_end(void **state) {
    (void)state;
    nib_engine_options o = engine_usual();
    passes_end(&o, true);
    o.n_best = 1;
    o.shortlist = NIB_SHORTLIST_ON;
    passes_end(&o, true);
}

/* ---- batches ---- */

enum { N_REQUEST = 3, N_ANSWER = 6 };

typedef struct answers {
    nib_batch *b;
    int32_t tokens[N_REQUEST][N_ANSWER];
} answers;

/* A cancelled step is repeated; its error is returned. */
static nib_status answer_all(answers *a) {
    nib_status first = NIB_OK;
    int64_t id;
    nib_result r;
    for (int i = 0; i < N_REQUEST; i++) {
        int32_t tokens[N_PROMPT];
        nib_generate_options o;
        nib_generate_options_init(&o);
        o.n_prompt = (size_t)(7 + 10 * i);
        o.prompt = tokens;
        o.n_predict = N_ANSWER;
        o.ignore_eos = true;
        o.sampling.temperature = 0;
        logits_tokens(tokens, N_PROMPT, small.n_vocab, (uint64_t)i + 1);
        assert_int_equal(nib_batch_add(a->b, &o, &id, NULL), NIB_OK);
    }
    for (int32_t n_left = 1; n_left > 0;) {
        const nib_status status = nib_batch_step(a->b, &n_left, NULL);
        first = first == NIB_OK ? status : first;
        if (status != NIB_OK) {
            disarm();
            n_left = 1;
        }
    }
    while (nib_batch_take(a->b, &id, &r, NULL)) {
        assert_int_equal(r.n_token, N_ANSWER);
        memcpy(a->tokens[(id - 1) % N_REQUEST], r.tokens, sizeof a->tokens[0]);
        nib_result_clear(&r);
    }
    return first;
}

typedef struct batches {
    nib_engine *e;
    answers want;
} batches;

static nib_status answer_as_before(void *user, nib_error *err) {
    const batches *x = user;
    answers got = {0};
    (void)err;
    assert_int_equal(nib_batch_open(x->e, NULL, &got.b, NULL), NIB_OK);
    const nib_status status = answer_all(&got);
    assert_memory_equal(got.tokens, x->want.tokens, sizeof got.tokens);
    nib_batch_close(got.b);
    return status;
}

static void steps_of_a_batch_end(void **state) {
    (void)state;
    batches x = {0};
    nib_engine_options o = engine_usual();
    o.cancel = ask;
    disarm();
    x.e = engine_must_open(tiny_model("small.gguf", &small), &o, NULL);
    assert_int_equal(nib_batch_open(x.e, NULL, &x.want.b, NULL), NIB_OK);
    assert_int_equal(answer_all(&x.want), NIB_OK);
    nib_batch_close(x.want.b);
    assert_true(sweep(answer_as_before, &x) > 50);
    nib_engine_close(x.e);
}

/* ---- measurements ---- */

typedef struct measured {
    const char *path;
    calibration c;
} measured;

static nib_status measure_layers(void *user, nib_error *err) {
    const measured *m = user;
    nib_engine_options o = engine_usual();
    importance p;
    o.cancel = ask;
    const nib_status status = measure_importance(m->path, &o, &m->c, &p, err);
    importance_clear(&p);
    return status;
}

static nib_status measure_costs(void *user, nib_error *err) {
    static const char *const formats[] = {"u4g64w", "u4g64+u2g64"};
    const measured *m = user;
    nib_engine_options o = engine_usual();
    quality q;
    model_imatrix seen;
    o.cancel = ask;
    const nib_status status =
        measure_quality(m->path, &o, &m->c, &(quality_options){formats, 2, NULL, 0, 0}, &q, &seen, err);
    quality_clear(&q);
    imatrix_clear(&seen);
    return status;
}

static void profiles_end(void **state) {
    (void)state;
    measured m = {tiny_model("few.gguf", &few), prompts_open(300)};
    assert_true(sweep(measure_layers, &m) > 20);
    assert_true(sweep(measure_costs, &m) > 200);
    calibration_clear(&m.c);
}

static nib_status keep_none(void *user, const trial_shape *shape, int bucket, const trial_result *r,
                            nib_error *err) {
    (void)user;
    (void)shape;
    (void)bucket;
    (void)r;
    (void)err;
    return NIB_OK;
}

static nib_status time_kernels(void *user, nib_error *err) {
    trial_shape shape = {.n = 64, .k = 256, .act_bits = 8, .count = 1};
    const kernel_profile_options o = {
        .table = kernels_table(), .threads = user, .n_byte = 2 << 20, .seconds = 0.01, .cancel = &asking};
    assert_true(pack_uniform(4, 64, false, false, shape.k, &shape.format));
    return kernel_profile(&o, &shape, 1, keep_none, NULL, err);
}

static void timing_kernels_ends(void **state) {
    (void)state;
    pool *threads;
    assert_int_equal(pool_open(2, &threads, NULL), NIB_OK);
    for (long n = 0; n < 100; n = 3 * n + 1) {
        nib_error err = {0};
        arm(n);
        assert_int_equal(time_kernels(threads, &err), NIB_E_CANCELLED);
    }
    disarm();
    pool_close(threads);
}

/* At some moments of a call that takes at least a second; the read file is deleted. */
static bool ask_the_clock(void *user) {
    return time_now() > *(const double *)user;
}

static void measuring_a_machine_ends(void **state) {
    (void)state;
    static char folder[512];
    machine m;
    hardware h;
    double until;
    const canceller clock = {ask_the_clock, &until};
    const hardware_options o = {.folder = folder, .seconds = 1, .cancel = &clock};
    snprintf(folder, sizeof folder, "%s", temp_path("hardware"));
    machine_detect(&m);
    m.ram_free = NUM_MIN(m.ram_free, UINT64_C(512) << 20);
    for (int i = 0; i < 6; i++) {
        nib_error err = {0};
        until = time_now() + 0.12 * i;
        assert_int_equal(hardware_measure(&m, &o, &h, &err), NIB_E_CANCELLED);
        assert_int_equal(n_file(folder), 0);
    }
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_ends),
        cmocka_unit_test(writing_packed_weights_ends),
        cmocka_unit_test(progress_ends_writing_too),
        cmocka_unit_test(resident_passes_end),
        cmocka_unit_test(streamed_passes_end),
        cmocka_unit_test(steps_of_a_batch_end),
        cmocka_unit_test(profiles_end),
        cmocka_unit_test(timing_kernels_ends),
        cmocka_unit_test(measuring_a_machine_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Passes through the step loop and the pager: whole, in stages of a pipeline, and with blocks that are cut at
 * their attention. All give the same logits, from resident and from streamed weights, and read each page
 * once. */
#include "exec/step.h"
#include "sequence/sequence.h"
#include "support/engine.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/slow.h"
#include "support/tinymodel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_SEQUENCE = 3, N_TOKEN = 11, N_BLOCK = 18, N_VOCAB = 2048, N_CTX = 64 };

static const tiny_shape narrow = {TYPE_Q8_0, N_BLOCK - 2, 128, 256, 4, 2, N_VOCAB, 128, false};

typedef struct world {
    nib_engine *e;
    sequence of[N_SEQUENCE];
    int32_t tokens[N_SEQUENCE][N_CTX];
    segment segments[N_SEQUENCE];
    float logits[N_SEQUENCE][N_VOCAB];
} world;

static void open_world(world *w, const char *path, uint64_t headroom) {
    nib_engine_options o = engine_usual();
    nib_error err = {0};
    o.n_batch = N_SEQUENCE * N_TOKEN;
    o.n_ctx = N_CTX;
    o.n_session = N_SEQUENCE;
    o.stream = headroom != NIB_AUTO;
    if (o.stream)
        o.ram = process_bytes() + headroom;
    memset(w, 0, sizeof *w);
    w->e = engine_must_open(path, &o, NULL);
    sequence_memory memory;
    assert_int_equal(engine_sequence_memory(w->e, kv_formats_all(TYPE_F16), &memory, &err), NIB_OK);
    for (int i = 0; i < N_SEQUENCE; i++)
        if (sequence_open(&w->of[i], &memory, N_CTX, w->tokens[i], false, &err))
            fail_msg("%s", err.message);
}

static void close_world(world *w) {
    for (int i = 0; i < N_SEQUENCE; i++)
        sequence_close(&w->of[i]);
    nib_engine_close(w->e);
}

static nib_status take(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                       nib_error *err) {
    world *w = user;
    (void)row;
    (void)err;
    assert_int_equal(n_row, 1);
    memcpy(w->logits[segment_index], logits, sizeof w->logits[segment_index]);
    return NIB_OK;
}

static void run(world *w, pass p) {
    nib_error err = {0};
    p.segments = w->segments;
    p.n_segment = N_SEQUENCE;
    p.n_head = 1;
    p.rows = take;
    p.user = w;
    if (step_pass(engine_parts_of(w->e).step, &p, &err))
        fail_msg("%s", err.message);
}

/* All tokens of the sequences but the last ones again, as rows of the next pass. */
static void begin_prompts(world *w) {
    int32_t tokens[N_TOKEN];
    memset(w->logits, 0, sizeof w->logits);
    for (int i = 0; i < N_SEQUENCE; i++) {
        logits_tokens(tokens, N_TOKEN, N_VOCAB, (uint64_t)i + 1);
        sequence_set(&w->of[i], tokens, N_TOKEN, 0);
        w->segments[i] = sequence_rows(&w->of[i], N_TOKEN, N_TOKEN - 1);
    }
    segments_number(w->segments, N_SEQUENCE);
}

/* One more token of each sequence. */
static void begin_decoding(world *w, int32_t token) {
    for (int i = 0; i < N_SEQUENCE; i++) {
        sequence_advance(&w->of[i], w->segments[i].n_row);
        sequence_add(&w->of[i], token + i);
        w->segments[i] = sequence_rows(&w->of[i], 1, 0);
    }
    segments_number(w->segments, N_SEQUENCE);
}

static uint64_t streamed(const world *w) {
    nib_traffic t;
    nib_engine_traffic(w->e, &t);
    return t.streamed;
}

static uint64_t one_pass(const world *w) {
    nib_traffic t;
    nib_engine_traffic(w->e, &t);
    return t.pass;
}

/* ---- the same answers ---- */

static float expected[N_SEQUENCE][N_VOCAB], expected_next[N_SEQUENCE][N_VOCAB];

static void as_usual(world *w) {
    begin_prompts(w);
    run(w, (pass){0});
    memcpy(expected, w->logits, sizeof expected);
    begin_decoding(w, 7);
    run(w, (pass){0});
    memcpy(expected_next, w->logits, sizeof expected_next);
}

/* Two halves of the generated rows go through each layer in three parts, interleaved, as where another
 * processor attends; the first n sequences are generated, and the others prompts beside them. */
static void check_parts(world *w, int n, int64_t n_cut) {
    static bool cut[N_BLOCK];
    backend *by = engine_parts_of(w->e).step->backend;
    const backend whole = *by;
    for (int b = 1; b < N_BLOCK - 1; b++)
        cut[b] = true;
    by->cut = cut;
    by->n_cut = n_cut;
    by->by_role = true;
    begin_prompts(w);
    for (int i = 0; i < n; i++)
        w->segments[i].generated = true;
    run(w, (pass){0});
    assert_memory_equal(w->logits, expected, sizeof expected);
    by->cut = whole.cut;
    by->n_cut = whole.n_cut;
    by->by_role = whole.by_role;
}

/* A prompt in stages of the model is followed by a token. */
static void check_all(world *w) {
    const int64_t n_cell = engine_parts_of(w->e).step->backend->rows.n_cell;
    check_parts(w, N_SEQUENCE, n_cell);
    check_parts(w, N_SEQUENCE - 1, NUM_MAX(n_cell / 2, 1));
    check_parts(w, 1, 3);
    for (int stages = 1; stages <= 4; stages += slow_step(3)) {
        begin_prompts(w);
        for (int s = 0; s < stages; s++)
            run(w, (pass){.first_block = N_BLOCK * s / stages, .end_block = N_BLOCK * (s + 1) / stages});
        assert_memory_equal(w->logits, expected, sizeof expected);
        begin_decoding(w, 7);
        run(w, (pass){0});
        assert_memory_equal(w->logits, expected_next, sizeof expected_next);
    }
}

static void resident(void **state) {
    world w;
    (void)state;
    open_world(&w, tiny_model("visits.gguf", &narrow), NIB_AUTO);
    as_usual(&w);
    check_all(&w);
    close_world(&w);
}

static void from_disk(void **state) {
    world w;
    (void)state;
    const char *path = tiny_model("visits.gguf", &narrow);
    open_world(&w, path, tiny_model_half_bytes(path));
    assert_true(pager_streams(engine_parts_of(w.e).step->pager));
    check_all(&w);
    close_world(&w);
}

/* ---- what is read ---- */

/* Bytes that n passes read, and the ring at most beside them. */
static uint64_t read_by(world *w, int n) {
    const uint64_t before = streamed(w);
    for (int i = 0; i < n; i++) {
        begin_prompts(w);
        run(w, (pass){0});
    }
    return streamed(w) - before;
}

/* Each page once for all rows of a pass. */
static void pages_are_read_once(void **state) {
    enum { N = SANITIZED ? 3 : 8 };
    world w;
    pager_need need;
    (void)state;
    const char *path = tiny_model("visits.gguf", &narrow);
    open_world(&w, path, tiny_model_half_bytes(path));
    need = pager_needs(engine_parts_of(w.e).layout, 2);
    const uint64_t slack = need.ring + N * N_SEQUENCE * N_TOKEN * UINT64_C(4096), all = N * one_pass(&w);
    read_by(&w, 1);
    assert_in_range(read_by(&w, N), all - need.ring, all + slack);
    close_world(&w);
}

/* ---- what is acquired ---- */

static backend_kind failing; /* the engine's, which fails at a run */
static const backend_kind *real;
static int n_run, fail_at;

static nib_status run_or_fail(backend *by, const backend_run *r, nib_error *err) {
    assert_ptr_equal(r->weights.views, pager_views(r->pager, r->visit.block));
    if (++n_run == fail_at)
        return nib_fail(err, NIB_E_IO, "as the test asks");
    return real->run(by, r, err);
}

/* A block is released after a failed run too: the next pass is unaffected. */
static void released_after_errors(void **state) {
    world w;
    (void)state;
    const char *path = tiny_model("visits.gguf", &narrow);
    open_world(&w, path, tiny_model_half_bytes(path));
    stepper *step = engine_parts_of(w.e).step;
    real = step->backend->kind;
    failing = *real;
    failing.run = run_or_fail;
    step->backend->kind = &failing;
    for (fail_at = 1; fail_at <= N_BLOCK; fail_at += 4) {
        nib_error err = {0};
        n_run = 0;
        begin_prompts(&w);
        const pass p = {
            .segments = w.segments, .n_segment = N_SEQUENCE, .n_head = 1, .rows = take, .user = &w};
        assert_int_equal(step_pass(step, &p, &err), NIB_E_IO);
        begin_prompts(&w);
        run(&w, (pass){0});
        assert_memory_equal(w.logits, expected, sizeof expected);
    }
    step->backend->kind = real;
    close_world(&w);
}

int main(void) {
    process_counted();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(resident),
        cmocka_unit_test(from_disk),
        cmocka_unit_test(pages_are_read_once),
        cmocka_unit_test(released_after_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

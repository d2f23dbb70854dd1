/* The output head in two steps gives the bits of the whole head wherever a logit can be among the n_best, and
 * -infinity elsewhere: resident, with the head on disk, with any number of threads, for any sampling.
 * Requests that it cannot answer are refused. */
#include "base/mem.h"
#include "nib.h"
#include "engine/engine.h"
#include "exec/cpu/best.h"
#include "support/engine.h"
#include "support/faults.h"
#include "support/logits.h"
#include "support/process.h"
#include "support/skip.h"
#include "support/slow.h"
#include "support/tinymodel.h"
#include "memory/ledger.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_TOKEN = 24 };

static const tiny_shape tied = {TYPE_Q8_0, 6, 256, 512, 8, 2, 8200, 64, true};
static const tiny_shape untied = {TYPE_Q8_0, 3, 320, 512, 8, 2, 8192, 64, false};

static nib_engine_options options(int n_thread, int n_best) {
    nib_engine_options o;
    nib_engine_options_init(&o);
    o.n_thread = n_thread;
    o.n_ctx = 64;
    o.n_best = n_best;
    o.shortlist = n_best ? NIB_SHORTLIST_ON : NIB_SHORTLIST_OFF;
    return o;
}

static logits_rows forward(const char *path, const nib_engine_options *o, double *share, uint64_t *streamed) {
    int32_t tokens[N_TOKEN];
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_traffic t;
    nib_error err = {0};
    if (nib_engine_open(path, o, &e, &err) || nib_session_open(e, NULL, &s, &err))
        fail_msg("%s: %s", path, err.message);
    logits_rows r = {NULL, nib_engine_info(e)->n_vocab, 0};
    r.data = calloc((size_t)(N_TOKEN * r.n_vocab), sizeof *r.data);
    assert_non_null(r.data);
    for (int i = 0; i < N_TOKEN; i++)
        tokens[i] = (int32_t)((i * 7919 + 13) % r.n_vocab);
    if (nib_session_forward(s, tokens, N_TOKEN, 0, logits_keep, &r, &err))
        fail_msg("%s: %s", path, err.message);
    nib_engine_traffic(e, &t);
    *share = t.head_share;
    *streamed = t.streamed;
    nib_session_close(s);
    nib_engine_close(e);
    return r;
}

/* The n-th largest of a row. */
static float nth_of(const float *row, int64_t n_vocab, int n) {
    float bound = INFINITY;
    for (int i = 0; i < n; i++) { /* values differ: random weights */
        float next = -INFINITY;
        for (int64_t v = 0; v < n_vocab; v++)
            if (row[v] < bound && row[v] > next)
                next = row[v];
        bound = next;
    }
    return bound;
}

static void check_rows(const logits_rows *whole, const logits_rows *best, int n_best) {
    int64_t n_left_out = 0;
    for (int64_t r = 0; r < N_TOKEN; r++) {
        const float *all = whole->data + r * whole->n_vocab, *some = best->data + r * whole->n_vocab;
        const float min = nth_of(all, whole->n_vocab, n_best);
        for (int64_t v = 0; v < whole->n_vocab; v++) {
            if (some[v] == -INFINITY && all[v] < min)
                n_left_out++;
            else if (memcmp(&some[v], &all[v], sizeof *all))
                fail_msg("row %d, token %d: expected %g, found %g (the %d largest begin at %g)", (int)r,
                         (int)v, (double)all[v], (double)some[v], n_best, (double)min);
        }
    }
    assert_true(n_left_out > 0);
}

/* Everything in memory: few and many best logits, one and three threads, op by op, 16-bit activations.
 */
static void check_resident(const char *path) {
    static const struct {
        int n_thread, n_best, activation;
        bool no_fuse;
    } cases[] = {{2, 1, 8, false}, {1, 1, 8, false},  {1, 2, 8, false},  {1, 3, 8, false}, {2, 5, 8, false},
                 {3, 8, 8, false}, {1, 16, 8, false}, {2, 40, 8, false}, {2, 1, 8, true},  {2, 1, 16, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += (size_t)slow_step(2)) {
        nib_engine_options o = options(cases[i].n_thread, 0);
        double share;
        uint64_t streamed;
        o.activation = cases[i].activation;
        o.no_fuse = cases[i].no_fuse;
        logits_rows whole = forward(path, &o, &share, &streamed);
        assert_true(share == 1);
        o.n_best = cases[i].n_best;
        o.shortlist = NIB_SHORTLIST_ON;
        logits_rows best = forward(path, &o, &share, &streamed);
        check_rows(&whole, &best, cases[i].n_best);
        assert_true(share < 1 && share > 0);
        free(whole.data);
        free(best.data);
    }
}

static void resident(void **state) {
    (void)state;
    check_resident(tiny_model("tied.gguf", &tied));
    check_resident(tiny_model("untied.gguf", &untied));
}

/* Whether an engine with `headroom` beyond the process's memory uses a shortlist and streams weights. */
static bool streams_with(const char *path, int n_best, uint64_t headroom) {
    nib_engine_options o = options(2, n_best);
    nib_engine *e = NULL;
    nib_session *s = NULL;
    nib_traffic t = {0};
    nib_error err;
    const int32_t token = 5;
    o.shortlist = NIB_SHORTLIST_AUTO;
    o.stream = true;
    o.ram = process_bytes() + headroom;
    if (nib_engine_open(path, &o, &e, &err))
        return false;
    const bool works = !nib_session_open(e, NULL, &s, &err) && !nib_session_sync(s, &token, 1, &err);
    nib_engine_traffic(e, &t);
    nib_session_close(s);
    nib_engine_close(e);
    return works && t.streamed > 0 && t.head_share < 1;
}

/* The middle of the caps that stream with a shortlist, because the process's memory varies. */
static uint64_t streaming_cap(const char *path, int n_best) {
    const uint64_t step = (uint64_t)slow_step(2) << 18;
    uint64_t first = 0, headroom = 4 << 20;
    for (; headroom < (uint64_t)64 << 20; headroom += step) {
        const bool works = streams_with(path, n_best, headroom);
        if (works && !first)
            first = headroom;
        if (!works && first)
            break;
    }
    if (!first)
        fail_msg("no cap has a shortlist with the head on disk");
    return (first + headroom) / 2;
}

static void on_disk(void **state) {
    (void)state;
    if (SANITIZED)
        skip_because("a sanitizer's own memory does not fit the caps here");
    const tiny_shape *const shapes[] = {&tied, &untied};
    for (int i = 0; i < 4; i++) {
        const int n_best = i < 2 ? 1 : 8;
        const char *path = tiny_model(i % 2 ? "untied.gguf" : "tied.gguf", shapes[i % 2]);
        nib_engine_options o = options(2, n_best);
        double share;
        uint64_t streamed;
        o.shortlist = NIB_SHORTLIST_OFF;
        logits_rows whole = forward(path, &o, &share, &streamed);
        assert_int_equal(streamed, 0);
        o.shortlist = NIB_SHORTLIST_AUTO;
        o.stream = true;
        const uint64_t headroom = streaming_cap(path, n_best);
        o.ram = process_bytes() + headroom;
        logits_rows there = forward(path, &o, &share, &streamed);
        assert_true(share < 1);
        assert_true(streamed > 0);
        check_rows(&whole, &there, n_best);
        free(whole.data);
        free(there.data);
    }
}

/* ---- rows from panels that were read ---- */

static int weight_of(nib_engine *e, int b, op_kind kind) {
    const program *p = &layout_block(engine_parts_of(e).layout, b)->program;
    for (int i = 0; i < p->n_op; i++)
        if (p->ops[i].kind == kind)
            return p->ops[i].w;
    fail_msg("block %d has no such op", b);
    return -1;
}

static void count_panel(void *user, int32_t panel, const view *rows) {
    (void)panel;
    (void)rows;
    ++*(int *)user;
}

/* Waits until the reader has filled its ring, so that later reads are this thread's. */
static void wait_for_reader(void) {
    int64_t n = -1;
    for (int same = 0; same < 20; same++) {
        const int64_t now = fault_count(FAULT_READ);
        same = now == n ? same : 0;
        n = now;
        usleep(10000);
    }
}

/* A token whose logit was computed is embedded without another read, with the same bits. Other tokens are
 * read, and all tokens are read after a failed read of panels. */
static void rows_that_came_are_not_read_again(void **state) {
    (void)state;
    if (SANITIZED)
        skip_because("a sanitizer's own memory does not fit the caps here");
    enum { K = 256 };
    const char *path = tiny_model("tied.gguf", &tied);
    nib_engine_options o = options(2, 1);
    nib_engine *all = NULL, *e = NULL;
    float expected[K], found[K];
    int n = 0;
    assert_int_equal(nib_engine_open(path, &o, &all, NULL), NIB_OK);
    o.shortlist = NIB_SHORTLIST_AUTO;
    o.stream = true;
    o.ram = streaming_cap(path, 1);
    o.ram += process_bytes();
    assert_int_equal(nib_engine_open(path, &o, &e, NULL), NIB_OK);
    wait_for_reader();
    const int head = model_n_block(engine_parts_of(e).m) - 1, w = weight_of(e, head, OP_SHORTLIST),
              embed = weight_of(e, 0, OP_EMBED);
    int32_t missing[8200 / PACK_PANEL + 1];
    view unused;
    int n_missing = 0;
    for (int32_t i = 0; i < (int32_t)(sizeof missing / sizeof *missing); i++)
        if (!pager_panel(engine_parts_of(e).step->pager, head, w, i, &unused))
            missing[n_missing++] = i;
    assert_true(n_missing > 64); /* neighbouring panels take one read, distant ones do not */
    const int32_t panels[] = {missing[0], missing[1], missing[n_missing - 1]};
    const int64_t rows[] = {(int64_t)panels[0] * PACK_PANEL, (int64_t)panels[1] * PACK_PANEL + 7,
                            (int64_t)panels[2] * PACK_PANEL + 3,
                            (int64_t)missing[n_missing / 2] * PACK_PANEL};
    for (int failing = 0; failing < 2; failing++) {
        if (failing)
            fault_arm(FAULT_READ, 1);
        assert_int_equal(
            pager_read_panels(engine_parts_of(e).step->pager, head, w, panels, 3, count_panel, &n, NULL),
            failing ? NIB_E_IO : NIB_OK);
        fault_arm(FAULT_READ, 0);
        assert_int_equal(n, 3); /* no row is reused after a failed read */
        for (int i = 0; i < 4; i++) {
            const int64_t before = fault_count(FAULT_READ);
            assert_int_equal(pager_read_row(engine_parts_of(e).step->pager, 0, embed, rows[i], found, NULL),
                             NIB_OK);
            assert_int_equal(
                pager_read_row(engine_parts_of(all).step->pager, 0, embed, rows[i], expected, NULL), NIB_OK);
            assert_memory_equal(found, expected, sizeof found);
            assert_int_equal(fault_count(FAULT_READ) - before, i == 3 || (failing && i < 2));
        }
    }
    nib_engine_close(e);
    nib_engine_close(all);
}

/* ---- generation ---- */

static nib_status generate(const char *path, const nib_engine_options *o, const nib_sampling *how,
                           nib_result *result, nib_error *err) {
    return engine_life(path, o, how, 20, result, err);
}

static void same_tokens(void **state) {
    (void)state;
    const char *path = tiny_model("tied.gguf", &tied);
    nib_sampling how[4];
    for (int i = 0; i < 4; i++) {
        nib_sampling_init(&how[i]);
        how[i].seed = 7;
    }
    how[0].temperature = 0;
    how[1].temperature = 2;
    how[2].repeat_penalty = 1.5f;
    how[2].frequency_penalty = 0.5f;
    how[3].temperature = 0;
    how[3].presence_penalty = 1;
    for (int i = 0; i < 4; i++) {
        nib_result all, best;
        nib_error err = {0};
        nib_engine_options o = options(2, 0);
        assert_int_equal(generate(path, &o, &how[i], &all, &err), NIB_OK);
        o.n_best = nib_sampling_n_best(&how[i]);
        o.shortlist = NIB_SHORTLIST_ON;
        if (generate(path, &o, &how[i], &best, &err))
            fail_msg("%s", err.message);
        assert_int_equal(best.n_token, all.n_token);
        assert_memory_equal(best.tokens, all.tokens, all.n_token * sizeof *all.tokens);
        nib_result_clear(&all);
        nib_result_clear(&best);
    }
}

/* ---- many greedy sequences together ---- */

enum { N_SEQ = 40, N_NEW = 6 };

typedef struct answers {
    int32_t tokens[N_SEQ][N_NEW];
    int n[N_SEQ];
} answers;

typedef struct answer_of {
    answers *all;
    int i;
} answer_of;

static bool keep_token(void *user, int32_t token) {
    const answer_of *of = user;
    assert_true(of->all->n[of->i] < N_NEW);
    of->all->tokens[of->i][of->all->n[of->i]++] = token;
    return true;
}

/* penalised: the last sequence's logits are changed before the best is found. Returns the share of the head
 * that was computed. */
static double answer_all(const char *path, const nib_engine_options *o, int n_seq, bool penalised,
                         answers *out) {
    nib_error err = {0};
    nib_engine *e = NULL;
    nib_batch *b = NULL;
    answer_of of[N_SEQ];
    int32_t n_left = 1;
    nib_traffic t;
    memset(out, 0, sizeof *out);
    if (nib_engine_open(path, o, &e, &err) ||
        nib_batch_open(e, &(nib_batch_options){.n_sequence = n_seq, .n_ctx = 32}, &b, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < n_seq; i++) {
        nib_generate_options g;
        int32_t prompt[9];
        int64_t id;
        nib_generate_options_init(&g);
        for (int k = 0; k < 9; k++)
            prompt[k] = (k * 7919 + i * 104729 + 13) % 8000;
        of[i] = (answer_of){out, i};
        g.sampling.temperature = 0;
        g.sampling.presence_penalty = penalised && i == n_seq - 1 ? 1 : 0;
        g.ignore_eos = true;
        g.n_predict = N_NEW;
        g.prompt = prompt;
        g.n_prompt = (size_t)(4 + i % 6);
        g.on_token = keep_token;
        g.user = &of[i];
        assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
    }
    while (n_left > 0)
        if (nib_batch_step(b, &n_left, &err))
            fail_msg("%s", err.message);
    nib_engine_traffic(e, &t);
    nib_batch_close(b);
    nib_engine_close(e);
    return t.head_share;
}

/* Whether an engine for so many sequences opens under `headroom`, and rows of its head are on disk. */
static bool has_head_on_disk(const char *path, nib_engine_options o, int n_seq, uint64_t headroom) {
    nib_engine *e = NULL;
    nib_batch *b = NULL;
    nib_error err;
    const nib_slice *slices;
    bool found = false;
    o.ram = process_bytes() + headroom;
    if (nib_engine_open(path, &o, &e, &err))
        return false;
    const size_t n = nib_engine_placement(e, &slices);
    for (size_t i = 0; i < n; i++)
        found = found ||
                (slices[i].tier == NIB_TIER_DISK && (strcmp(slices[i].block, "head") == 0 || slices[i].also));
    found = found && !nib_batch_open(e, &(nib_batch_options){.n_sequence = n_seq, .n_ctx = 32}, &b, &err);
    nib_batch_close(b);
    nib_engine_close(e);
    return found;
}

/* The same tokens from a head that is read page by page. */
static void many_greedy_sequences_on_disk(void **state) {
    (void)state;
    if (SANITIZED)
        skip_because("a sanitizer's own memory does not fit the caps here");
    for (int i = 0; i < 4; i++) {
        const char *path = i % 2 ? tiny_model("tied.gguf", &tied) : tiny_model("untied.gguf", &untied);
        const int n_seq = i < 2 ? N_SEQ : 9;
        nib_engine_options o = options(1 + i % 3, 0);
        answers whole, found;
        uint64_t headroom = 4 << 20;
        o.n_batch = 64;
        o.n_logits = o.n_session = n_seq;
        assert_true(answer_all(path, &o, n_seq, false, &whole) == 1);
        o.shortlist = NIB_SHORTLIST_AUTO;
        o.stream = true;
        while (headroom < (uint64_t)64 << 20 && !has_head_on_disk(path, o, n_seq, headroom))
            headroom += (uint64_t)slow_step(2) << 18;
        assert_true(headroom < (uint64_t)64 << 20);
        o.ram = process_bytes() + headroom + (1 << 19);
        const double share = answer_all(path, &o, n_seq, false, &found);
        assert_memory_equal(&found, &whole, sizeof whole);
        assert_true(kernels_table()->estimate ? share < 0.7 && share > 0 : share == 1);
    }
}

/* The tokens are those of the whole head. If the kernels have estimates, only a small part of it is computed.
 */
static void many_greedy_sequences(void **state) {
    (void)state;
    static const struct {
        int n_seq, n_thread, activation;
        bool no_fuse, penalised;
    } cases[] = {{N_SEQ, 2, 8, false, false},  {N_SEQ, 1, 8, true, false}, {9, 3, 8, false, false},
                 {N_SEQ, 2, 16, false, false}, {12, 2, 8, false, true},    {3, 2, 8, false, false}};
    const bool estimates = kernels_table()->estimate != NULL;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i += (size_t)slow_step(2)) {
        const char *path = i % 2 ? tiny_model("tied.gguf", &tied) : tiny_model("untied.gguf", &untied);
        const size_t c = i / 2;
        nib_engine_options o = options(cases[c].n_thread, 0);
        answers whole, found;
        o.n_batch = 64;
        o.n_logits = o.n_session = cases[c].n_seq;
        o.activation = cases[c].activation;
        o.no_fuse = cases[c].no_fuse;
        assert_true(answer_all(path, &o, cases[c].n_seq, cases[c].penalised, &whole) == 1);
        o.shortlist = NIB_SHORTLIST_AUTO;
        const double share = answer_all(path, &o, cases[c].n_seq, cases[c].penalised, &found);
        assert_memory_equal(&found, &whole, sizeof whole);
        const bool possible = estimates && cases[c].n_seq >= BEST_MIN_ROWS && cases[c].activation == 8;
        if (possible && !cases[c].penalised)
            assert_true(share < 0.5 && share > 0);
        else if (!possible)
            assert_true(share == 1);
    }
}

/* Answer i has i + 2 tokens, so that generated rows of every number find their best tokens together. */
static void every_width(void **state) {
    (void)state;
    enum { N = SANITIZED ? 16 : 64, MAX = N + 1 };
    static const tiny_shape shape = {TYPE_Q8_0, 1, 64, 96, 2, 1, 2048, 128, true};
    static int32_t tokens[2][N][MAX];
    const char *path = tiny_model("widths.gguf", &shape);
    double share[2];
    for (int on = 0; on < 2; on++) {
        nib_engine_options o = options(2, 0);
        nib_error err = {0};
        nib_result r;
        nib_traffic t;
        int64_t id;
        int32_t n_left = 1, prompt[3];
        o.n_batch = 4 * N;
        o.n_ctx = 80;
        o.n_logits = o.n_session = N;
        o.shortlist = on ? NIB_SHORTLIST_AUTO : NIB_SHORTLIST_OFF;
        nib_engine *e = engine_must_open(path, &o, NULL);
        nib_batch *b = batch_must_open(e, &(nib_batch_options){.n_sequence = N});
        nib_session *s = on ? NULL : session_must_open(e);
        for (int i = 0; i < N; i++) {
            nib_generate_options g;
            nib_generate_options_init(&g);
            for (int k = 0; k < 3; k++)
                prompt[k] = (i * 31 + k * 7) % 2048;
            g.sampling.temperature = 0;
            g.ignore_eos = true;
            g.n_predict = i + 2;
            g.prompt = prompt;
            g.n_prompt = 3;
            if (on) {
                assert_int_equal(nib_batch_add(b, &g, &id, &err), NIB_OK);
                continue;
            }
            assert_int_equal(nib_generate(s, &g, &r, &err), NIB_OK); /* alone, with the whole head */
            memcpy(tokens[0][i], r.tokens, r.n_token * sizeof *r.tokens);
            nib_result_clear(&r);
        }
        while (on && n_left > 0)
            if (nib_batch_step(b, &n_left, &err))
                fail_msg("%s", err.message);
        for (; nib_batch_take(b, &id, &r, &err); nib_result_clear(&r)) {
            assert_int_equal(r.n_token, id + 1);
            memcpy(tokens[1][id - 1], r.tokens, r.n_token * sizeof *r.tokens);
        }
        nib_engine_traffic(e, &t);
        share[on] = t.head_share;
        nib_session_close(s);
        nib_batch_close(b);
        nib_engine_close(e);
    }
    assert_memory_equal(tokens[1], tokens[0], sizeof tokens[0]);
    assert_true(share[0] == 1);
    assert_true(kernels_table()->estimate ? share[1] < 1 && share[1] > 0 : share[1] == 1);
}

static void how_many_are_looked_at(void **state) {
    (void)state;
    nib_sampling s;
    nib_sampling_init(&s);
    assert_int_equal(nib_sampling_n_best(&s), 40);
    s.repeat_penalty = 1.1f; /* 64 tokens may go down, so as many others come up */
    assert_int_equal(nib_sampling_n_best(&s), 104);
    s.penalty_window = -1;
    assert_int_equal(nib_sampling_n_best(&s), 0);
    s.penalty_window = 64;
    s.repeat_penalty = 0.9f; /* any token may come up */
    assert_int_equal(nib_sampling_n_best(&s), 0);
    s.repeat_penalty = 1;
    s.top_k = 0;
    assert_int_equal(nib_sampling_n_best(&s), 0);
    s.temperature = 0;
    assert_int_equal(nib_sampling_n_best(&s), 1);
}

static void refusals(void **state) {
    (void)state;
    const char *path = tiny_model("tied.gguf", &tied);
    nib_sampling how;
    nib_result r;
    nib_error err;
    nib_engine_options o = options(2, 8);
    nib_sampling_init(&how);
    assert_int_equal(generate(path, &o, &how, &r, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "the best 8 tokens"));
    nib_result_clear(&r);
    how.top_k = 0;
    assert_int_equal(generate(path, &o, &how, &r, &err), NIB_E_USAGE);
    nib_result_clear(&r);
    o.n_best = -1;
    assert_int_equal(generate(path, &o, &how, &r, &err), NIB_E_USAGE);
    o = options(2, 1);
    o.shortlist = 9;
    assert_int_equal(generate(path, &o, &how, &r, &err), NIB_E_USAGE);
}

/* A plan decides on the head as the engine would, and an engine that follows a plan does as the plan says. */
static void by_plan(void **state) {
    (void)state;
    const char *path = tiny_model("tied.gguf", &tied);
    nib_engine_options o = options(2, 1);
    nib_sampling how;
    nib_result all, best;
    nib_error err = {0};
    char *json = NULL;
    nib_sampling_init(&how);
    how.temperature = 0;
    assert_int_equal(generate(path, &o, &how, &all, &err), NIB_OK);
    o.shortlist = NIB_SHORTLIST_AUTO;
    o.stream = true;
    o.ram = process_bytes() + ((uint64_t)48 << 20);
    if (nib_plan(path, &o, NULL, &json, &err))
        fail_msg("%s", err.message);
    assert_non_null(strstr(json, "\"n_best\": 1"));
    o.plan = json;
    if (generate(path, &o, &how, &best, &err))
        fail_msg("%s", err.message);
    assert_memory_equal(best.tokens, all.tokens, all.n_token * sizeof *all.tokens);
    nib_result_clear(&best);
    o.shortlist = NIB_SHORTLIST_OFF; /* which the plan does not have */
    assert_int_equal(generate(path, &o, &how, &best, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "--shortlist off was requested"));
    o.shortlist = NIB_SHORTLIST_AUTO;
    how.temperature = 0.8f; /* more than the plan gives */
    o.n_best = 40;
    assert_int_equal(generate(path, &o, &how, &best, &err), NIB_E_USAGE);
    assert_non_null(strstr(err.message, "the plan's shortlist gives the best 1 tokens"));
    nib_result_clear(&all);
    nib_free(json);
}

/* Under a cap that holds the sketch, an engine for one sequence makes it, and one for several does not. */
static void several_sequences(void **state) {
    (void)state;
    const char *path = tiny_model("tied.gguf", &tied);
    for (int32_t n = 1; n <= 2; n++) {
        nib_engine *e = NULL;
        nib_error err = {0};
        nib_engine_options o = options(2, 1);
        const nib_slice *slices;
        bool has_sketch = false;
        o.shortlist = NIB_SHORTLIST_AUTO;
        o.n_sequence = n;
        o.ram = process_bytes() + ((uint64_t)48 << 20);
        if (nib_engine_open(path, &o, &e, &err))
            fail_msg("%s", err.message);
        const size_t n_slice = nib_engine_placement(e, &slices);
        for (size_t i = 0; i < n_slice; i++)
            has_sketch = has_sketch || strcmp(slices[i].format, "u5g64") == 0;
        assert_int_equal(has_sketch, n == 1);
        nib_engine_close(e);
    }
}

/* ---- what goes wrong ---- */

typedef struct life {
    const char *path;
    uint64_t headroom;
} life;

static nib_status live(void *user, nib_error *err) {
    const life *l = user;
    nib_engine_options o = options(2, 1);
    nib_sampling how;
    nib_result r;
    nib_sampling_init(&how);
    how.temperature = 0;
    o.shortlist = NIB_SHORTLIST_AUTO;
    o.stream = true;
    o.ram = process_bytes() + l->headroom;
    const nib_status status = generate(l->path, &o, &how, &r, err);
    nib_result_clear(&r);
    return status;
}

static void faults(void **state) {
    (void)state;
    if (SANITIZED)
        skip_because("a sanitizer's own memory does not fit the caps here");
    life l = {.path = tiny_model("tied.gguf", &tied)};
    l.headroom = streaming_cap(l.path, 1);
    fault_sweep(FAULT_ALLOC, 7 * slow_step(3), live, &l);
    fault_sweep(FAULT_READ, 23 * slow_step(3), live, &l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(how_many_are_looked_at),
        cmocka_unit_test(resident),
        cmocka_unit_test(on_disk),
        cmocka_unit_test(rows_that_came_are_not_read_again),
        cmocka_unit_test(same_tokens),
        cmocka_unit_test(many_greedy_sequences),
        cmocka_unit_test(every_width),
        cmocka_unit_test(many_greedy_sequences_on_disk),
        cmocka_unit_test(refusals),
        cmocka_unit_test(by_plan),
        cmocka_unit_test(several_sequences),
        cmocka_unit_test(faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* session.c - one sequence: reuses the computed part of a prefix, and computes the rest (driver.h). */
#include "session/session.h"

#include "base/mem.h"
#include "base/num.h"
#include <string.h>

void nib_session_options_init(nib_session_options *options) {
    memset(options, 0, sizeof *options);
}

/* Allocates the tables: logits, then tokens. */
static nib_status take_tables(nib_session *s, int64_t n_ctx, nib_error *err) {
    const uint64_t bytes = engine_session_tables(s->engine, n_ctx);
    NIB_TRY(memory_region_open(&s->tables, device_host(), s->driver.on.ledger, NIB_OWNER_ACTIVATIONS, bytes,
                               true, "logits", err));
    memory_region_touch(&s->tables, bytes);
    s->driver.logits = s->tables.at;
    return NIB_OK;
}

static nib_status open_all(nib_session *s, kv_formats kv, int64_t n_ctx, nib_error *err) {
    NIB_TRY(take_tables(s, n_ctx, err));
    NIB_TRY(driver_open(&s->driver, 1, 1, err));
    int32_t *tokens = (int32_t *)(s->driver.logits + model_hparams(s->driver.on.m)->n_vocab);
    sequence_memory memory;
    NIB_TRY(engine_sequence_memory(s->engine, kv, &memory, err));
    memory.goes_back = driver_goes_back(&s->driver);
    return sequence_open(&s->slot.of, &memory, n_ctx, tokens, NULL, err);
}

nib_status nib_session_open(nib_engine *engine, const nib_session_options *options, nib_session **out,
                            nib_error *err) {
    nib_session_options o = {0};
    if (options)
        o = *options;
    NIB_TRY(engine_check_answers(engine, err));
    const engine_parts on = engine_parts_of(engine);
    kv_formats kv = on.kv;
    if (o.n_ctx < 0 || o.n_draft_min < 0 || (o.kv_type != 0 && !engine_kv_formats(engine, o.kv_type, &kv)))
        return nib_fail(
            err, NIB_E_USAGE,
            "expected a context and proposals of 0 or more and a nib_kv_type, found %lld, %ld and %d",
            (long long)o.n_ctx, (long)o.n_draft_min, o.kv_type);
    if (o.n_ctx)
        NIB_TRY(engine_check_positions(engine, kv, o.n_ctx, err));
    nib_session *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "the session");
    s->engine = engine;
    s->driver.on = on;
    s->driver.n_draft = on.n_draft;
    s->driver.n_draft_min = o.n_draft_min;
    const int64_t n_ctx = o.n_ctx ? o.n_ctx : on.n_ctx;
    nib_status status = open_all(s, kv, n_ctx, err);
    if (status == NIB_OK)
        status = driver_open_draft(&s->driver, o.draft, engine, 1, n_ctx, err);
    if (status != NIB_OK) {
        nib_session_close(s);
        return engine_name_sessions(engine, status, err);
    }
    *out = s;
    return NIB_OK;
}

void nib_session_close(nib_session *s) {
    if (!s)
        return;
    sequence_close(&s->slot.of);
    driver_close(&s->driver);
    memory_region_close(&s->tables);
    mem_free(s);
}

void nib_session_cancel(nib_session *s) {
    atomic_store(&s->cancelled, true);
}

void nib_session_cancel_clear(nib_session *s) {
    atomic_store(&s->cancelled, false);
}

static bool is_cancelled(void *user) {
    const nib_session *s = user;
    return atomic_load_explicit(&s->cancelled, memory_order_relaxed);
}

canceller session_canceller(nib_session *s) {
    return (canceller){is_cancelled, s};
}

nib_status session_answer(nib_session *s, nib_status status) {
    if (status == NIB_E_CANCELLED)
        nib_session_cancel_clear(s);
    return status;
}

size_t nib_session_length(const nib_session *s) {
    return (size_t)sequence_reached(&s->slot.of);
}

const float *nib_session_logits(const nib_session *s) {
    return s->logits_valid ? s->driver.logits : NULL;
}

/* ---- computing ---- */

/* Which logits of the tokens are wanted. */
typedef struct wanted {
    nib_session *s;
    int64_t first_row; /* those of the positions from here on, and always of the last */
    nib_row_fn row_fn;
    nib_progress_fn on_pass; /* called after each pass; NULL: none */
    void *user;
} wanted;

/* Passes logits row by row to the caller's row_fn; stores those of the sequence's last token. */
static nib_status give_rows(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                            nib_error *err) {
    const wanted *w = user;
    const driver_slot *at = &w->s->slot;
    const int64_t n_vocab = model_hparams(w->s->driver.on.m)->n_vocab;
    (void)segment_index;
    (void)err;
    for (int64_t r = 0; r < n_row; r++)
        w->row_fn(w->user, at->of.n + row + r, logits + r * n_vocab);
    if (row + n_row == at->n_row)
        memcpy(w->s->driver.logits, logits + (n_row - 1) * n_vocab, (size_t)n_vocab * sizeof *logits);
    return NIB_OK;
}

/* Computes the tokens that are not computed yet, in passes with these receivers. */
static nib_status compute(nib_session *s, const wanted *w, pass how, nib_error *err) {
    driver_slot *at = &s->slot;
    const canceller cancel = session_canceller(s);
    how.cancel = &cancel;
    s->logits_valid = false;
    while (at->of.n < at->of.n_token) {
        driver_begin(&s->driver);
        driver_add(&s->driver, at, INT64_MAX);
        at->head_row = NUM_MIN(at->head_row, NUM_MAX(w->first_row - at->of.n, 0));
        NIB_TRY(driver_run(&s->driver, &how, err));
        if (w->on_pass && !w->on_pass(w->user, "prompt", (uint64_t)at->of.n, (uint64_t)at->of.n_token))
            return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    }
    s->logits_valid = how.logits || how.rows;
    return NIB_OK;
}

/* Computes them for the logits of the last one. */
static nib_status compute_last(nib_session *s, nib_error *err) {
    const wanted last = {.first_row = INT64_MAX};
    return compute(s, &last, (pass){.logits = s->driver.logits}, err);
}

nib_status session_set(nib_session *s, const int32_t *tokens, size_t n_token, int64_t n_reuse,
                       nib_error *err) {
    const canceller cancel = session_canceller(s);
    const int64_t n = (int64_t)n_token;
    sequence *of = &s->slot.of;
    NIB_TRY(sequence_check(of, tokens, n_token, err));
    NIB_TRY(cancel_check(&cancel, err));
    const bool extends =
        n_reuse == n && n >= of->n && !memcmp(of->tokens, tokens, (size_t)of->n * sizeof *tokens);
    if (extends && n == of->n && s->logits_valid)
        return NIB_OK;
    /* a caller that samples tokens itself appends one in each call */
    const bool follows = extends && of->n > 0 && n == of->n + 1;
    s->logits_valid = false;
    s->slot.generated = follows ? n - 1 : n;
    sequence_set(of, tokens, n, NUM_MIN(n_reuse, n - 1));
    return NIB_OK;
}

static int32_t largest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

static nib_status take_largest(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                               const float *logits, nib_error *err) {
    (void)segment_index, (void)row, (void)n_row, (void)logits, (void)err;
    *(int32_t *)user = ids[0];
    return NIB_OK;
}

static nib_status append_next(nib_session *s, int32_t token, int32_t *next, nib_error *err) {
    const canceller cancel = session_canceller(s);
    sequence *of = &s->slot.of;
    NIB_TRY(sequence_check(of, &token, 1, err));
    const int64_t n = sequence_reached(of);
    if (n < 1)
        return nib_fail(err, NIB_E_USAGE, "expected a session that holds tokens, found none");
    if (n >= of->n_ctx)
        return nib_fail(err, NIB_E_USAGE,
                        "expected space for another token, the context of %lld positions is full",
                        (long long)of->n_ctx);
    NIB_TRY(cancel_check(&cancel, err));
    of->n_token = n;
    sequence_add(of, token);
    sequence_resume(of);
    s->slot.generated = NUM_MIN(s->slot.generated, n); /* rows of an answer may be computed again */
    const backend_kind *kind = s->driver.on.step->backend->kind;
    if (kind->max_best < 1 || kind->best_from > 1) {
        NIB_TRY(compute_last(s, err));
        *next = largest(s->driver.logits, model_hparams(s->driver.on.m)->n_vocab);
        return NIB_OK;
    }
    const wanted last = {.first_row = INT64_MAX};
    return compute(s, &last, (pass){.n_best = 1, .best = take_largest, .user = next}, err);
}

nib_status nib_session_next(nib_session *s, int32_t token, int32_t *next, nib_error *err) {
    return session_answer(s, append_next(s, token, next, err));
}

/* ---- embeddings ---- */

typedef struct pool_rows { /* the rows of all passes, in their order */
    double *sum;           /* [width] */
    int64_t n;
    bool last; /* only the last row counts */
} pool_rows;

static void take_hidden(void *user, int64_t row, int64_t n_row, const float *x, int64_t width) {
    pool_rows *p = user;
    (void)row;
    for (int64_t r = 0; r < n_row; r++, x += width)
        for (int64_t i = 0; i < width; i++)
            p->sum[i] = (p->last ? 0 : p->sum[i]) + (double)x[i];
    p->n += n_row;
}

static nib_status embed(nib_session *s, const int32_t *tokens, size_t n, pool_rows *to,
                        nib_progress_fn on_pass, void *user, nib_error *err) {
    const hidden_receiver taker = {take_hidden, to};
    const wanted w = {.first_row = to->last ? INT64_MAX : 0, .on_pass = on_pass, .user = user};
    NIB_TRY(session_set(s, tokens, n, to->last ? (int64_t)n - 1 : 0, err));
    return compute(s, &w, (pass){.hidden = &taker}, err);
}

nib_status nib_session_embed(nib_session *s, const int32_t *tokens, size_t n_token, int pooling, float *out,
                             nib_progress_fn on_pass, void *user, nib_error *err) {
    const nib_model_info *info = nib_engine_info(s->engine);
    if (pooling < NIB_POOLING_MODEL || pooling > NIB_POOLING_LAST)
        return nib_fail(err, NIB_E_USAGE, "expected a nib_pooling, found %d", pooling);
    pooling = pooling == NIB_POOLING_MODEL ? info->pooling : pooling;
    pool_rows to = {.sum = mem_calloc((size_t)info->d_embed, sizeof *to.sum),
                    .last = pooling == NIB_POOLING_LAST};
    if (!to.sum)
        return nib_fail_nomem(err, (size_t)info->d_embed * sizeof *to.sum, "an embedding");
    const nib_status status = embed(s, tokens, n_token, &to, on_pass, user, err);
    for (int64_t i = 0; i < info->d_embed && status == NIB_OK; i++)
        out[i] = (float)(to.last ? to.sum[i] : to.sum[i] / (double)to.n);
    mem_free(to.sum);
    return session_answer(s, status);
}

nib_status nib_session_sync(nib_session *s, const int32_t *tokens, size_t n_token, nib_error *err) {
    nib_status status = session_set(s, tokens, n_token, (int64_t)n_token, err);
    if (status == NIB_OK && !s->logits_valid)
        status = compute_last(s, err);
    return session_answer(s, status);
}

nib_status nib_session_forward(nib_session *s, const int32_t *tokens, size_t n_token, int64_t first_row,
                               nib_row_fn row_fn, void *user, nib_error *err) {
    if (first_row < 0 || (n_token > 0 && first_row >= (int64_t)n_token))
        return nib_fail(err, NIB_E_USAGE, "expected a first row of 0 or more and below %lld, found %lld",
                        (long long)n_token, (long long)first_row);
    wanted w = {s, first_row, row_fn, NULL, user};
    nib_status status = session_set(s, tokens, n_token, first_row, err);
    if (status == NIB_OK)
        status = compute(s, &w, (pass){.rows = give_rows, .user = &w}, err);
    return session_answer(s, status);
}

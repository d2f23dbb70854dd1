/* session.c - one sequence: reuses the computed part of a prefix, and computes the rest by the step loop
 * (exec/step.h). */
#include "session/session.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/step.h"

#include <string.h>

void nib_session_options_init(nib_session_options *options) {
    memset(options, 0, sizeof *options);
}

/* Allocates the tables: logits, then tokens. */
static nib_status take_tables(nib_session *s, int64_t n_ctx, nib_error *err) {
    const uint64_t bytes = engine_session_tables(s->engine, n_ctx);
    NIB_TRY(memory_region_open(&s->tables, device_host(), s->on.ledger, NIB_OWNER_ACTIVATIONS, bytes, true,
                               "logits", err));
    memory_region_touch(&s->tables, bytes);
    s->logits = s->tables.at;
    return NIB_OK;
}

static nib_status open_all(nib_session *s, type_id type, int64_t n_ctx, nib_error *err) {
    NIB_TRY(take_tables(s, n_ctx, err));
    int32_t *tokens = (int32_t *)(s->logits + model_hparams(s->on.m)->n_vocab);
    sequence_memory memory;
    NIB_TRY(engine_sequence_memory(s->engine, type, &memory, err));
    return sequence_open(&s->of, &memory, n_ctx, tokens, false, err);
}

nib_status nib_session_open(nib_engine *engine, const nib_session_options *options, nib_session **out,
                            nib_error *err) {
    nib_session_options o = {0};
    if (options)
        o = *options;
    if (!engine_has_weights(engine))
        return nib_fail(err, NIB_E_USAGE, "the engine was opened for its vocabulary only: it has no weights");
    const engine_parts on = engine_parts_of(engine);
    type_id type = on.kv_type;
    if (o.n_ctx < 0 || (o.kv_type != 0 && !engine_kv_type(o.kv_type, &type)))
        return nib_fail(err, NIB_E_USAGE,
                        "expected a context of 0 or more positions and a nib_kv_type, found %lld and %d",
                        (long long)o.n_ctx, o.kv_type);
    if (o.n_ctx)
        NIB_TRY(engine_check_positions(engine, type, o.n_ctx, err));
    nib_session *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "the session");
    s->engine = engine;
    s->on = on;
    s->n_draft = model_state_bytes(on.m) > 0 ? 0 : on.n_draft;
    const nib_status status = open_all(s, type, o.n_ctx ? o.n_ctx : on.n_ctx, err);
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
    sequence_close(&s->of);
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
    return (size_t)s->of.n;
}

const float *nib_session_logits(const nib_session *s) {
    return s->logits_valid ? s->logits : NULL;
}

/* ---- computing ---- */

typedef struct given {
    nib_session *s;
    const sync_options *o;
    int64_t first; /* position of the pass's first row */
    int64_t n_row;
} given;

/* Passes logits row by row to the caller's row_fn; stores those of the sequence's last token. */
static nib_status give_rows(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                            nib_error *err) {
    const given *g = user;
    const int64_t n_vocab = model_hparams(g->s->on.m)->n_vocab;
    (void)segment_index;
    (void)err;
    for (int64_t r = 0; r < n_row; r++)
        g->o->row_fn(g->o->user, g->first + row + r, logits + r * n_vocab);
    if (row + n_row == g->n_row)
        memcpy(g->s->logits, logits + (n_row - 1) * n_vocab, (size_t)n_vocab * sizeof *logits);
    return NIB_OK;
}

static nib_status run_pass(nib_session *s, int64_t n_row, int64_t head_row, bool generated,
                           const sync_options *o, nib_error *err) {
    const bool rows = o->first_row >= 0;
    segment all = sequence_rows(&s->of, n_row, head_row);
    all.generated = generated;
    const canceller cancel = session_canceller(s);
    given g = {s, o, s->of.n, n_row};
    const pass p = {.segments = &all,
                    .n_segment = 1,
                    .logits = rows ? NULL : s->logits,
                    .n_head = s->on.step->backend->rows.n_head,
                    .rows = rows ? give_rows : NULL,
                    .user = &g,
                    .cancel = &cancel};
    if (generated && s->on.step->backend->by_role)
        sequence_generates(&s->of, s->of.n);
    NIB_TRY(step_pass(s->on.step, &p, err));
    sequence_advance(&s->of, n_row);
    return NIB_OK;
}

/* Computes the tokens that are not computed yet. generated: if only the last token is left, it belongs to an
 * answer. */
static nib_status compute(nib_session *s, bool generated, const sync_options *o, nib_error *err) {
    sequence *of = &s->of;
    const int64_t start = of->n, n = of->n_token;
    generated = generated && start == n - 1;
    s->logits_valid = false;
    while (of->n < n) {
        const int64_t n_row = NUM_MIN(s->on.step->backend->rows.n_pass, n - of->n);
        const bool final = of->n + n_row == n;
        int64_t head_row = n_row - (final ? 1 : 0);
        if (o->first_row >= 0)
            head_row = NUM_MIN(NUM_MAX(o->first_row - of->n, 0), head_row);
        NIB_TRY(run_pass(s, n_row, head_row, generated, o, err));
        if (o->n_computed)
            *o->n_computed = of->n - start;
        if (o->progress &&
            !o->progress(o->user, "prompt", (uint64_t)(of->n - start), (uint64_t)(n - start))) {
            s->logits_valid = final;
            return nib_fail(err, NIB_E_CANCELLED, "cancelled");
        }
    }
    s->logits_valid = true;
    return NIB_OK;
}

static bool holds(const sequence *of, const int32_t *tokens, int64_t n) {
    return of->n == n && !memcmp(of->tokens, tokens, (size_t)n * sizeof *tokens);
}

nib_status session_sync(nib_session *s, const int32_t *tokens, size_t n_token, const sync_options *o,
                        nib_error *err) {
    const int64_t n = (int64_t)n_token;
    NIB_TRY(sequence_check(&s->of, tokens, n_token, err));
    if (o->first_row >= n)
        return nib_fail(err, NIB_E_USAGE, "expected a first row below %lld, found %lld", (long long)n,
                        (long long)o->first_row);
    const canceller cancel = session_canceller(s);
    NIB_TRY(cancel_check(&cancel, err));
    if (o->n_computed)
        *o->n_computed = 0;
    if (o->first_row < 0 && s->logits_valid && holds(&s->of, tokens, n))
        return NIB_OK;
    /* a caller that samples tokens itself appends one in each call */
    const bool follows = o->first_row < 0 && s->of.n > 0 && n == s->of.n + 1 &&
                         !memcmp(s->of.tokens, tokens, (size_t)s->of.n * sizeof *tokens);
    sequence_set(&s->of, tokens, n, o->first_row < 0 ? n - 1 : o->first_row);
    return compute(s, follows, o, err);
}

nib_status session_add_token(nib_session *s, int32_t token, nib_error *err) {
    if (s->of.n >= s->of.n_ctx)
        return nib_fail(err, NIB_E_USAGE,
                        "expected space for another token, the context of %lld positions is full",
                        (long long)s->of.n_ctx);
    s->of.n_token = s->of.n;
    sequence_add(&s->of, token);
    sequence_resume(&s->of);
    return NIB_OK;
}

nib_status session_append(nib_session *s, int32_t token, nib_error *err) {
    NIB_TRY(session_add_token(s, token, err));
    return compute(s, true, &(sync_options){.first_row = -1}, err);
}

/* Computes all tokens but the last. */
static nib_status compute_before(nib_session *s, nib_error *err) {
    const sync_options o = {.first_row = -1};
    while (s->of.n < s->of.n_token - 1) {
        const int64_t n = NUM_MIN(s->on.step->backend->rows.n_pass, s->of.n_token - 1 - s->of.n);
        NIB_TRY(run_pass(s, n, n, false, &o, err));
    }
    return NIB_OK;
}

static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    session_best *best = user;
    (void)segment_index, (void)row, (void)n_row, (void)err;
    memcpy(best->ids, ids, (size_t)best->n * sizeof *ids);
    memcpy(best->logits, logits, (size_t)best->n * sizeof *logits);
    return NIB_OK;
}

nib_status session_append_best(nib_session *s, int32_t token, session_best *best, nib_error *err) {
    NIB_TRY(session_add_token(s, token, err));
    if (s->of.n <
        s->of.n_token - 1) /* rotary frequencies have changed with the length: all must be computed again */
        NIB_TRY(compute_before(s, err));
    segment all = sequence_rows(&s->of, 1, 0);
    all.generated = true;
    const canceller cancel = session_canceller(s);
    const pass p = {.segments = &all,
                    .n_segment = 1,
                    .n_head = 1,
                    .n_best = best->n,
                    .best = take_best,
                    .processor = best->processor,
                    .user = best,
                    .cancel = &cancel};
    s->logits_valid = false;
    if (s->on.step->backend->by_role)
        sequence_generates(&s->of, s->of.n);
    NIB_TRY(step_pass(s->on.step, &p, err));
    sequence_advance(&s->of, 1);
    return NIB_OK;
}

static int32_t largest(const float *logits, int64_t n) {
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return (int32_t)best;
}

static nib_status append_next(nib_session *s, int32_t token, int32_t *next, nib_error *err) {
    const canceller cancel = session_canceller(s);
    session_best best = {.n = 1};
    NIB_TRY(sequence_check(&s->of, &token, 1, err));
    if (s->of.n < 1)
        return nib_fail(err, NIB_E_USAGE, "expected a session that holds tokens, found none");
    NIB_TRY(cancel_check(&cancel, err));
    const backend_kind *kind = s->on.step->backend->kind;
    if (kind->max_best < 1 || kind->best_from > 1) {
        NIB_TRY(session_append(s, token, err));
        *next = largest(s->logits, model_hparams(s->on.m)->n_vocab);
        return NIB_OK;
    }
    NIB_TRY(session_append_best(s, token, &best, err));
    *next = best.ids[0];
    return NIB_OK;
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

static nib_status embed_pass(nib_session *s, pool_rows *to, nib_error *err) {
    sequence *of = &s->of;
    const int64_t left = of->n_token - of->n, n_row = NUM_MIN(s->on.step->backend->rows.n_pass, left);
    const int64_t last = n_row - (n_row == left ? 1 : 0);
    const segment all = sequence_rows(of, n_row, to->last ? last : 0);
    const canceller cancel = session_canceller(s);
    const hidden_receiver taker = {take_hidden, to};
    const pass p = {.segments = &all,
                    .n_segment = 1,
                    .n_head = s->on.step->backend->rows.n_head,
                    .hidden = &taker,
                    .cancel = &cancel};
    NIB_TRY(step_pass(s->on.step, &p, err));
    sequence_advance(of, n_row);
    return NIB_OK;
}

static nib_status embed(nib_session *s, const int32_t *tokens, int64_t n, pool_rows *to,
                        nib_progress_fn on_pass, void *user, nib_error *err) {
    const canceller cancel = session_canceller(s);
    NIB_TRY(sequence_check(&s->of, tokens, (size_t)n, err));
    NIB_TRY(cancel_check(&cancel, err));
    s->logits_valid = false;
    sequence_set(&s->of, tokens, n, to->last ? n - 1 : 0);
    while (s->of.n < n) {
        NIB_TRY(embed_pass(s, to, err));
        if (on_pass && !on_pass(user, "prompt", (uint64_t)s->of.n, (uint64_t)n))
            return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    }
    return NIB_OK;
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
    const nib_status status = embed(s, tokens, (int64_t)n_token, &to, on_pass, user, err);
    for (int64_t i = 0; i < info->d_embed && status == NIB_OK; i++)
        out[i] = (float)(to.last ? to.sum[i] : to.sum[i] / (double)to.n);
    mem_free(to.sum);
    return session_answer(s, status);
}

nib_status nib_session_sync(nib_session *s, const int32_t *tokens, size_t n_token, nib_error *err) {
    return session_answer(s, session_sync(s, tokens, n_token, &(sync_options){.first_row = -1}, err));
}

nib_status nib_session_forward(nib_session *s, const int32_t *tokens, size_t n_token, int64_t first_row,
                               nib_row_fn row_fn, void *user, nib_error *err) {
    if (first_row < 0)
        return nib_fail(err, NIB_E_USAGE, "expected a first row of 0 or more, found %lld",
                        (long long)first_row);
    const sync_options how = {.first_row = first_row, .row_fn = row_fn, .user = user};
    return session_answer(s, session_sync(s, tokens, n_token, &how, err));
}

/* draft_model.c - see draft_model.h. */
#include "session/draft_model.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/driver.h"

#include <string.h>

typedef struct draft_slot {
    driver_slot on; /* the first member: the slots of a pass are these */
    draft *to;      /* gets the proposals */
    int64_t n_done; /* of to->n */
} draft_slot;

struct draft_model {
    driver driver;
    kv_pool *pages;
    int64_t n_ctx;
    kv_amount reserved;
    int32_t n_slot;
    draft_slot *slots;  /* [n_slot] */
    draft_slot **asked; /* [n_asked] of [n_slot]: those that propose now */
    int n_asked;
    memory_region memory;
};

/* ---- opening ---- */

static nib_status check_tokens(const nib_engine *with, const nib_engine *target, nib_error *err) {
    const nib_model_info *a = nib_engine_info(with), *b = nib_engine_info(target);
    if (a->n_vocab != b->n_vocab)
        return nib_fail(err, NIB_E_USAGE,
                        "expected a draft model with the target model's %lld tokens, found %lld",
                        (long long)b->n_vocab, (long long)a->n_vocab);
    for (int32_t i = 0; i < a->n_vocab && a->has_tokenizer && b->has_tokenizer; i++) {
        size_t n = 0, m = 0;
        const char *one = nib_token_piece(with, i, &n), *other = nib_token_piece(target, i, &m);
        const bool same =
            one && other ? n == m && !memcmp(one, other, n) : one == other; /* ids beyond both vocabularies */
        if (!same)
            return nib_fail(
                err, NIB_E_USAGE,
                "expected the target model's tokens in the draft model, found a different token %ld",
                (long)i);
    }
    return NIB_OK;
}

static nib_status open_sequences(draft_model *g, nib_engine *with, nib_error *err) {
    const uint64_t tokens = (uint64_t)g->n_slot * (uint64_t)g->n_ctx * sizeof(int32_t);
    sequence_memory memory;
    g->slots = mem_calloc((size_t)g->n_slot, sizeof *g->slots);
    g->asked = mem_calloc((size_t)g->n_slot, sizeof *g->asked);
    if (!g->slots || !g->asked)
        return nib_fail_nomem(err, (size_t)g->n_slot * sizeof *g->slots, "the draft model's sequences");
    NIB_TRY(driver_open(&g->driver, g->n_slot, 1, err));
    NIB_TRY(engine_sequence_memory(with, g->driver.on.kv, &memory, err));
    const int64_t n_page = kv_table_pages(g->driver.on.kv, g->n_ctx) * g->n_slot;
    const kv_amount n = kv_table_amount(kv_pool_paging(memory.pages), g->n_slot, n_page);
    NIB_TRY(kv_call_reserve(memory.pages, n, true, err));
    g->pages = memory.pages;
    g->reserved = n;
    NIB_TRY(memory_region_open(&g->memory, device_host(), g->driver.on.ledger, NIB_OWNER_ACTIVATIONS, tokens,
                               true, "the draft model's tokens", err));
    memory_region_touch(&g->memory, tokens);
    for (int32_t i = 0; i < g->n_slot; i++)
        NIB_TRY(sequence_open(&g->slots[i].on.of, &memory, g->n_ctx, (int32_t *)g->memory.at + i * g->n_ctx,
                              &g->reserved, err));
    return NIB_OK;
}

nib_status draft_model_open(nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                            draft_model **out, nib_error *err) {
    if (!engine_has_weights(with))
        return nib_fail(
            err, NIB_E_USAGE,
            "expected a draft model with weights, found one that was opened for its vocabulary only");
    NIB_TRY(check_tokens(with, target, err));
    if (model_state_bytes(engine_parts_of(with).m) > 0)
        return nib_fail(
            err, NIB_E_USAGE,
            "expected a draft model without recurrent layers, whose state cannot drop rejected tokens");
    draft_model *g = mem_calloc(1, sizeof *g);
    if (!g)
        return nib_fail_nomem(err, sizeof *g, "a draft model");
    g->driver.on = engine_parts_of(with);
    g->n_slot = n_slot;
    g->n_ctx = NUM_MIN(n_ctx, g->driver.on.n_ctx);
    const nib_status status = open_sequences(g, with, err);
    if (status == NIB_OK)
        *out = g;
    else
        draft_model_close(g);
    return engine_name_sessions(with, status, err);
}

void draft_model_close(draft_model *g) {
    if (!g)
        return;
    for (int32_t i = 0; g->slots && i < g->n_slot; i++)
        sequence_close(&g->slots[i].on.of);
    if (g->pages)
        kv_call_unreserve(g->pages, g->reserved);
    memory_region_close(&g->memory);
    driver_close(&g->driver);
    mem_free(g->asked);
    mem_free(g->slots);
    mem_free(g);
}

/* ---- proposing ---- */

int64_t draft_model_can(const draft_model *g, int64_t n, int64_t n_max) {
    return NUM_MAX(NUM_MIN(n_max, g->n_ctx - n), 0);
}

double draft_model_cost(const draft_model *g, int n) {
    return n > 0 ? draft_cost_of(&g->driver.cost, n) / n : 0;
}

static void propose(draft_model *g, int segment_index, int32_t token) {
    draft_slot *s = (draft_slot *)(void *)g->driver.now.order[segment_index];
    s->to->tokens[s->n_done++] = token;
    if (s->n_done < s->to->n)
        sequence_add(&s->on.of, token);
}

static nib_status take_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    draft_model *g = user;
    const int64_t n_vocab = model_hparams(g->driver.on.m)->n_vocab;
    const float *last = logits + (n_row - 1) * n_vocab;
    int32_t likeliest = 0;
    (void)row;
    (void)err;
    for (int32_t i = 1; i < n_vocab; i++)
        if (last[i] > last[likeliest])
            likeliest = i;
    propose(g, segment_index, likeliest);
    return NIB_OK;
}

static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    (void)row;
    (void)logits;
    (void)err;
    propose(user, segment_index, ids[n_row - 1]);
    return NIB_OK;
}

/* A few rows have the role of generated ones, since proposals may have any last bits; prompts of the draft
 * model share only prompt rows. */
static bool has_few(const draft_slot *s) {
    return s->on.of.n_token - s->on.of.n <= DRAFT_MAX + 1;
}

static void add(driver *d, draft_slot *s) {
    s->on.generated = has_few(s) ? s->on.of.n : INT64_MAX;
    if (driver_rows_left(d, &s->on) > 0)
        driver_add(d, &s->on, INT64_MAX);
}

/* Composes a pass: the few rows of all slots that propose, and rows of one prompt. Other prompts wait, since
 * they may share its pages. */
static void compose(draft_model *g) {
    draft_slot *prompt = NULL;
    driver_begin(&g->driver);
    for (int i = 0; i < g->n_asked; i++) {
        draft_slot *s = g->asked[i];
        if (s->n_done == s->to->n)
            continue;
        sequence_resume(&s->on.of);
        if (!has_few(s))
            sequence_adopt(&s->on.of);
        if (has_few(s))
            add(&g->driver, s);
        else if (!prompt)
            prompt = s;
    }
    if (prompt)
        add(&g->driver, prompt);
}

nib_status draft_model_follow(draft_model *g, driver_slot *const *slots, int n, nib_error *err) {
    driver *d = &g->driver;
    const backend_kind *kind = d->on.step->backend->kind;
    g->n_asked = 0;
    for (int i = 0; i < n; i++) {
        const sequence *text = &slots[i]->of;
        draft_slot *s = &g->slots[slots[i]->index];
        if (slots[i]->draft.kind != DRAFT_MODEL || slots[i]->draft.n == 0)
            continue;
        sequence_set(&s->on.of, text->tokens, text->n_token, text->n_token - 1);
        s->to = &slots[i]->draft;
        s->n_done = 0;
        g->asked[g->n_asked++] = s;
    }
    for (compose(g); d->now.n > 0; compose(g)) {
        const bool best = kind->max_best > 0 && d->now.n >= kind->best_from;
        const pass p = {.rows = take_logits, .n_best = best ? 1 : 0, .best = take_best, .user = g};
        NIB_TRY(driver_run(d, &p, err));
        if (d->now.n_row == d->now.n)
            draft_cost_note(&d->cost, d->now.n_row, d->now.seconds);
    }
    return NIB_OK;
}

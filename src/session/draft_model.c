/* draft_model.c - see draft_model.h. */
#include "session/draft_model.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/driver.h"

#include <string.h>

#define NEW_SHARE 0.2 /* weight of a new time in the moving average */

struct draft_model {
    driver driver; /* its passes have one slot */
    kv_pool *pages;
    int64_t n_ctx;
    kv_amount reserved;
    int32_t n_slot;
    driver_slot *slots; /* [n_slot] */
    memory_region memory;
    double seconds;    /* average time of a proposed token */
    int32_t likeliest; /* the most probable token after the last pass */
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
    if (!g->slots)
        return nib_fail_nomem(err, (size_t)g->n_slot * sizeof *g->slots, "the draft model's sequences");
    NIB_TRY(driver_open(&g->driver, 1, err));
    NIB_TRY(engine_sequence_memory(with, g->driver.on.kv, &memory, err));
    const int64_t n_page = kv_table_pages(g->driver.on.kv, g->n_ctx) * g->n_slot;
    const kv_amount n = kv_table_amount(kv_pool_paging(memory.pages), g->n_slot, n_page);
    NIB_TRY(kv_pool_reserve(memory.pages, n, true, err));
    g->pages = memory.pages;
    g->reserved = n;
    NIB_TRY(memory_region_open(&g->memory, device_host(), g->driver.on.ledger, NIB_OWNER_ACTIVATIONS, tokens,
                               true, "the draft model's tokens", err));
    memory_region_touch(&g->memory, tokens);
    for (int32_t i = 0; i < g->n_slot; i++)
        NIB_TRY(sequence_open(&g->slots[i].of, &memory, g->n_ctx, (int32_t *)g->memory.at + i * g->n_ctx,
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
        sequence_close(&g->slots[i].of);
    if (g->pages)
        kv_pool_unreserve(g->pages, g->reserved);
    memory_region_close(&g->memory);
    driver_close(&g->driver);
    mem_free(g->slots);
    mem_free(g);
}

/* ---- proposing ---- */

int64_t draft_model_can(const draft_model *g, int64_t n, int64_t n_max) {
    return NUM_MAX(NUM_MIN(n_max, g->n_ctx - n), 0);
}

double draft_model_cost(const draft_model *g) {
    return g->seconds;
}

static nib_status take_likeliest(void *user, int segment_index, int64_t row, int64_t n_row,
                                 const float *logits, nib_error *err) {
    draft_model *g = user;
    const int64_t n_vocab = model_hparams(g->driver.on.m)->n_vocab;
    const float *last = logits + (n_row - 1) * n_vocab;
    (void)segment_index;
    (void)row;
    (void)err;
    g->likeliest = 0;
    for (int64_t i = 1; i < n_vocab; i++)
        if (last[i] > last[g->likeliest])
            g->likeliest = (int32_t)i;
    return NIB_OK;
}

/* Computes tokens that are not computed yet, one pass of them. A few rows have the role of generated ones,
 * since proposals may have any last bits; prompts of the draft model share only prompt rows. */
static nib_status run_pass(draft_model *g, driver_slot *at, nib_error *err) {
    driver *d = &g->driver;
    const bool few = at->of.n_token - at->of.n <= DRAFT_MAX + 1;
    at->generated = few ? at->of.n : INT64_MAX;
    driver_begin(d);
    driver_add(d, at, INT64_MAX);
    NIB_TRY(driver_run(d, &(pass){.rows = take_likeliest, .user = g}, err));
    if (d->n_row == 1)
        g->seconds = g->seconds > 0 ? g->seconds + NEW_SHARE * (d->seconds - g->seconds) : d->seconds;
    return NIB_OK;
}

nib_status draft_model_follow(draft_model *g, int32_t slot, const int32_t *tokens, int64_t n, int64_t n_out,
                              int32_t *out, nib_error *err) {
    driver_slot *at = &g->slots[slot];
    sequence_set(&at->of, tokens, n, n - 1);
    for (int64_t i = 0; i < n_out; i++) {
        sequence_resume(&at->of);
        while (at->of.n < at->of.n_token)
            NIB_TRY(run_pass(g, at, err));
        out[i] = g->likeliest;
        if (i + 1 < n_out)
            sequence_add(&at->of, out[i]);
    }
    return NIB_OK;
}

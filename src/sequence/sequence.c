/* sequence.c - see sequence.h. */
#include "sequence/sequence.h"

#include "base/num.h"

#include <string.h>

nib_status sequence_open(sequence *s, const sequence_memory *to, int64_t n_ctx, int32_t *tokens,
                         const kv_amount *reserved, nib_error *err) {
    memset(s, 0, sizeof *s);
    NIB_TRY(kv_call_open(&s->kv, to->pages, to->layout, to->device, to->ledger, n_ctx, reserved, err));
    if (to->goes_back)
        NIB_TRY(kv_table_open_second(&s->kv, to->ledger, err));
    s->m = layout_model(to->layout);
    s->n_ctx = n_ctx;
    s->n_shared = INT64_MAX;
    s->tokens = tokens;
    return NIB_OK;
}

void sequence_close(sequence *s) {
    kv_call_close(&s->kv);
    memset(s, 0, sizeof *s);
}

nib_status sequence_check(const sequence *s, const int32_t *tokens, size_t n, nib_error *err) {
    const int64_t n_vocab = model_hparams(s->m)->n_vocab;
    if (n < 1)
        return nib_fail(err, NIB_E_USAGE, "expected at least one token, found none");
    if (n > (uint64_t)s->n_ctx)
        return nib_fail(err, NIB_E_USAGE, "expected at most %lld tokens (the context), found %llu",
                        (long long)s->n_ctx, (unsigned long long)n);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return nib_fail(err, NIB_E_USAGE, "token %llu: expected an id below %lld, found %ld",
                            (unsigned long long)i, (long long)n_vocab, (long)tokens[i]);
    return NIB_OK;
}

static void truncate_cache(sequence *s, bool extends) {
    if (!model_rope_keeps(s->m, s->longest, s->n_token, extends))
        s->n = 0;
    const int64_t kept = kv_call_keep(&s->kv, s->n);
    if (kept < s->n)
        s->reached = 0;
    s->n = kept;
}

static void note_length(sequence *s) {
    s->longest = s->n == 0 ? s->n_token : NUM_MAX(s->longest, s->n_token);
}

void sequence_set(sequence *s, const int32_t *tokens, int64_t n_token, int64_t n_reuse) {
    int64_t same = 0;
    while (same < NUM_MIN(n_token, s->n) && s->tokens[same] == tokens[same])
        same++;
    const bool extends = same == s->n;
    s->n = NUM_MIN(same, n_reuse);
    memmove(s->tokens + s->n, tokens + s->n, (size_t)(n_token - s->n) * sizeof *tokens);
    s->n_token = n_token;
    s->reached = 0;
    truncate_cache(s, extends);
    if (s->n <= s->n_shared)
        s->n_shared = INT64_MAX;
    s->n = kv_call_adopt(&s->kv, s->tokens, s->n, NUM_MIN(n_reuse, s->n_shared));
    note_length(s);
}

void sequence_clear(sequence *s) {
    s->n = kv_call_keep(&s->kv, 0);
    s->n_token = s->reached = 0;
    s->n_shared = INT64_MAX;
}

int64_t sequence_shareable(const sequence *from, const int32_t *tokens, int64_t n) {
    const int64_t max = NUM_MIN(n, NUM_MIN(from->n, from->n_shared));
    int64_t same = 0;
    while (same < max && from->tokens[same] == tokens[same])
        same++;
    return kv_pool_shares(from->kv.pool) && model_state_bytes(from->m) == 0
               ? kv_table_shareable(&from->kv, same / KV_BLOCK)
               : 0;
}

void sequence_share(sequence *s, const sequence *from, int64_t n_page) {
    kv_call_share(&s->kv, &from->kv, n_page);
    s->n = n_page * KV_BLOCK;
    memcpy(s->tokens, from->tokens, (size_t)s->n * sizeof *s->tokens);
    note_length(s);
}

int64_t sequence_met(const sequence *s, uint64_t walk) {
    const int64_t n = NUM_MIN(s->n / KV_BLOCK, s->kv.n_page);
    return n > 0 ? kv_pool_met(s->kv.pool, s->kv.pages, n, walk) : 0;
}

void sequence_adopt(sequence *s) {
    s->n = kv_call_adopt(&s->kv, s->tokens, s->n, NUM_MIN(s->n_token - 1, s->n_shared));
    note_length(s);
}

bool sequence_load(sequence *s, kv_disk *from, int64_t n_page) {
    bool more;
    s->n = kv_table_load(&s->kv, from, s->tokens, s->n, NUM_MIN(s->n_token - 1, s->n_shared), n_page, &more);
    note_length(s);
    return more;
}

void sequence_generates(sequence *s, int64_t n) {
    s->n_shared = NUM_MIN(s->n_shared, n);
}

void sequence_keeps_apart(sequence *s) {
    s->n_shared = 0;
}

int64_t sequence_described(const sequence *s) {
    return NUM_MIN(s->n, s->n_shared);
}

void sequence_add(sequence *s, int32_t token) {
    s->tokens[s->n_token++] = token;
}

void sequence_propose(sequence *s, const int32_t *tokens, int64_t n) {
    memcpy(s->tokens + s->n_token, tokens, (size_t)n * sizeof *tokens);
}

int64_t sequence_can_propose(const sequence *s, int64_t n_max, int64_t n_end) {
    int64_t n = NUM_MIN(n_max, NUM_MIN(n_end, s->n_ctx) - s->n_token);
    if (kv_formats_only_whole(kv_pool_paging(s->kv.pool)->formats))
        n = NUM_MIN(n, KV_BLOCK - 1 - s->n_token % KV_BLOCK);
    if (s->kv.state.at && !s->kv.second.at)
        return 0;
    for (int i = 0; i < model_n_rope(s->m); i++)
        if (model_rope_varies(s->m, i))
            return 0;
    return NUM_MAX(n, 0);
}

void sequence_resume(sequence *s) {
    truncate_cache(s, true);
    note_length(s);
}

segment sequence_rows(sequence *s, int64_t n_row, int64_t head_row) {
    return (segment){.kv = &s->kv,
                     .tokens = s->tokens + s->n,
                     .position = s->n,
                     .length = s->n_token,
                     .n_row = n_row,
                     .head_row = head_row};
}

void sequence_advance(sequence *s, int64_t n_row) {
    const int64_t end = NUM_MIN(s->n + n_row, s->n_shared);
    if (end > s->n)
        kv_call_learn(&s->kv, s->tokens, s->n, end);
    s->reached = NUM_MAX(s->reached, s->n + n_row);
    s->n = kv_call_advance(&s->kv, s->n + n_row);
}

int64_t sequence_reached(const sequence *s) {
    return NUM_MAX(s->n, s->reached);
}

int64_t sequence_left(const sequence *s) {
    return s->n_token - sequence_reached(s);
}

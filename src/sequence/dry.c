/* dry.c - see dry.h. */
#include "sequence/dry.h"

#include "base/mem.h"
#include "base/num.h"
#include "sequence/sampler.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const usual_breakers[] = {"\n", ":", "\"", "*"};

typedef struct breaker_list {
    const char *const *data;
    size_t n;
} breaker_list;

static breaker_list breakers_of(const nib_sampling *how) {
    return how->dry_breakers ? (breaker_list){how->dry_breakers, how->n_dry_breaker}
                             : (breaker_list){usual_breakers, NUM_COUNT(usual_breakers)};
}

nib_status dry_check(const nib_sampling *how, nib_error *err) {
    const breaker_list all = breakers_of(how);
    if (all.n > DRY_MAX_BREAKERS)
        return nib_fail(err, NIB_E_USAGE, "DRY's sequence breakers: expected at most %d, found %zu",
                        DRY_MAX_BREAKERS, all.n);
    for (size_t i = 0; i < all.n; i++) {
        const size_t n = strlen(all.data[i]);
        if (n == 0 || n > DRY_MAX_BREAKER)
            return nib_fail(err, NIB_E_USAGE, "DRY's sequence breakers: expected 1 to %d bytes, found %zu",
                            DRY_MAX_BREAKER, n);
    }
    return NIB_OK;
}

static int64_t window_of(const nib_sampling *how, int64_t n) {
    return how->dry_window < 0 ? n : NUM_MIN(how->dry_window, n);
}

uint64_t dry_bytes(const nib_sampling *how, int64_t n_vocab, int64_t n_ctx) {
    if (!sampling_has_dry(how))
        return 0;
    return (uint64_t)n_vocab * (sizeof(float) + 1) + (uint64_t)window_of(how, n_ctx) * sizeof(int32_t);
}

/* ---- breakers in the vocabulary ---- */

/* A character's middle cannot end a token's text in a breaker. */
static bool is_inside(const char *at) {
    return ((unsigned char)*at & 0xc0) == 0x80;
}

/* The rest of every breaker after its first 1, 2, ... bytes, as tokens. Its place is rests[breaker][bytes].
 */
typedef struct rest {
    size_t at, n;
} rest;

static nib_status tokenize_rests(dry *d, const tokenizer *t, const breaker_list *all,
                                 rest rests[][DRY_MAX_BREAKER], nib_error *err) {
    enum { MAX_REST = 20 /* tokens, as llama.cpp limits it */ };
    for (size_t b = 0; b < all->n; b++)
        for (size_t i = 1; all->data[b][i]; i++) {
            const size_t at = d->rests.n;
            if (is_inside(all->data[b] + i))
                continue;
            NIB_TRY(tokenizer_encode(t, all->data[b] + i, strlen(all->data[b] + i), 0, &d->rests, err));
            d->rests.n = NUM_MIN(d->rests.n, at + MAX_REST);
            rests[b][i] = (rest){at, d->rests.n - at};
        }
    return NIB_OK;
}

static nib_status add_begin(dry *d, size_t *cap, int32_t token, rest of, nib_error *err) {
    if (d->n_begin == *cap) {
        const size_t more = NUM_MAX(2 * *cap, (size_t)64);
        dry_begin *grown = mem_realloc(d->begins, more * sizeof *grown);
        if (!grown)
            return nib_fail_nomem(err, more * sizeof *grown, "DRY's sequence breakers");
        d->begins = grown;
        *cap = more;
    }
    d->begins[d->n_begin++] = (dry_begin){token, of.at, of.n};
    return NIB_OK;
}

/* Compares a token's text [n] with every breaker. */
static nib_status classify(dry *d, int32_t token, const char *text, size_t n, const breaker_list *all,
                           rest rests[][DRY_MAX_BREAKER], size_t *cap, nib_error *err) {
    for (size_t b = 0; b < all->n; b++) {
        const char *breaker = all->data[b];
        const size_t n_breaker = strlen(breaker);
        if (memmem(text, n, breaker, n_breaker)) {
            d->breaks[token] = 1;
            continue;
        }
        for (size_t i = 1; i < n_breaker && i <= n; i++)
            if (rests[b][i].n > 0 && !memcmp(text + n - i, breaker, i))
                NIB_TRY(add_begin(d, cap, token, rests[b][i], err));
    }
    return NIB_OK;
}

static nib_status find_breakers(dry *d, const tokenizer *t, nib_error *err) {
    rest rests[DRY_MAX_BREAKERS][DRY_MAX_BREAKER] = {{{0, 0}}};
    const breaker_list all = breakers_of(&d->how);
    const int64_t n = NUM_MIN((int64_t)tokenizer_n_vocab(t), d->n_vocab);
    text_buffer text = {NULL, 0, 0, NULL};
    size_t cap = 0;
    nib_status status = tokenize_rests(d, t, &all, rests, err);
    for (int32_t id = 0; id < n && status == NIB_OK; id++) {
        text.n = 0;
        status = tokenizer_bytes(t, id, &text, err);
        size_t n_piece = 0;
        const char *piece = text.n ? NULL : tokenizer_piece(t, id, &n_piece); /* special: as it is written */
        if (status == NIB_OK)
            status = piece ? classify(d, id, piece, n_piece, &all, rests, &cap, err)
                           : classify(d, id, text.data, text.n, &all, rests, &cap, err);
    }
    text_buffer_clear(&text);
    return status;
}

nib_status dry_open(dry *d, const nib_sampling *how, const tokenizer *t, int64_t n_vocab, int64_t n_ctx,
                    nib_error *err) {
    const uint64_t bytes = dry_bytes(how, n_vocab, n_ctx);
    *d = (dry){.how = *how, .n_vocab = n_vocab, .n_window = window_of(how, n_ctx)};
    if (bytes == 0)
        return NIB_OK;
    d->lower = mem_calloc(1, bytes);
    if (!d->lower)
        return nib_fail_nomem(err, bytes, "DRY");
    d->length = (int32_t *)(void *)(d->lower + n_vocab);
    d->breaks = (uint8_t *)(d->length + d->n_window);
    const nib_status status = t ? find_breakers(d, t, err) : NIB_OK;
    if (status != NIB_OK)
        dry_close(d);
    return status;
}

void dry_close(dry *d) {
    mem_free(d->lower);
    mem_free(d->begins);
    token_list_clear(&d->rests);
    *d = (dry){.lower = NULL};
}

/* ---- repetitions; back[-i] is the i-th token before the last one ---- */

/* Tokens at the end that a repetition may have: those after the last breaker. */
static int64_t find_limit(const dry *d, const int32_t *back, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t token = back[-i];
        int64_t longest = token >= 0 && token < d->n_vocab && d->breaks[token] ? 0 : -1;
        size_t at = 0;
        for (size_t end = d->n_begin; at < end;) {
            const size_t half = at + (end - at) / 2;
            if (d->begins[half].token < token)
                at = half + 1;
            else
                end = half;
        }
        for (; at < d->n_begin && d->begins[at].token == token; at++) {
            const int64_t n_rest = (int64_t)d->begins[at].n_rest;
            int64_t same = 0;
            while (same < n_rest && n_rest <= i &&
                   d->rests.data[d->begins[at].rest + (size_t)same] == back[same + 1 - i])
                same++;
            if (same == n_rest)
                longest = NUM_MAX(longest, n_rest);
        }
        if (longest >= 0)
            return i - longest;
    }
    return n;
}

/* length[k] = number of tokens before, and including, the k-th before the last that equal the last ones: the
 * Z-algorithm on the reversed tokens, in linear time. */
static void find_lengths(const int32_t *back, int64_t n, int32_t *length) {
    int64_t from = 0, end = 0; /* the match that reached furthest: [from, end) equals [0, end - from) */
    for (int64_t k = 1; k < n; k++) {
        int64_t z = k < end ? NUM_MIN((int64_t)length[k - from], end - k) : 0;
        while (k + z < n && back[-z] == back[-k - z])
            z++;
        if (k + z > end) {
            from = k;
            end = k + z;
        }
        length[k] = (int32_t)z;
    }
}

void dry_apply(dry *d, const int32_t *past, int64_t n_past) {
    const nib_sampling *how = &d->how;
    const int64_t n = NUM_MIN(n_past, d->n_window), allowed = how->dry_allowed_length;
    const int32_t *back = past + n_past - 1;
    if (!d->lower || n <= allowed)
        return;
    const int64_t limit = find_limit(d, back, n);
    if (limit < allowed)
        return;
    const float most = how->dry_base > 1.000001f ? logf(FLT_MAX) / logf(how->dry_base) : FLT_MAX;
    find_lengths(back, n, d->length);
    for (int64_t k = 1; k < n; k++) {
        const int64_t length = NUM_MIN((int64_t)d->length[k], limit);
        const int32_t next = back[1 - k];
        if (length < allowed || next < 0 || next >= d->n_vocab || d->breaks[next])
            continue;
        const float power = NUM_MIN((float)(length - allowed), most);
        d->lower[next] = fmaxf(d->lower[next], how->dry_multiplier * powf(how->dry_base, power));
    }
}

void dry_undo(dry *d, const int32_t *past, int64_t n_past) {
    for (int64_t i = NUM_MAX(n_past - d->n_window, 0); d->lower && i < n_past; i++)
        if (past[i] >= 0 && past[i] < d->n_vocab)
            d->lower[past[i]] = 0;
}

/* calibrate.c - see calibrate.h. */
#include "measure/calibrate.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"

#include <stdio.h>
#include <string.h>

#include <xxhash.h>

enum { MAX_TEXT = 16 << 20, N_ARBITRARY = 12, ARBITRARY_TOKENS = 32 };

typedef struct maker {
    const calibration_source *from;
    calibration *c;
    size_t cap_tokens, cap_begin;
    int n_cut, n_short;
    bool full;
} maker;

void calibration_clear(calibration *c) {
    mem_free(c->tokens);
    mem_free(c->begin);
    memset(c, 0, sizeof *c);
}

int64_t calibration_longest(const calibration *c) {
    int64_t max = 0;
    for (int i = 0; i < c->n_prompt; i++)
        max = NUM_MAX(max, c->begin[i + 1] - c->begin[i]);
    return max;
}

/* Adds one prompt: BOS, if the model begins texts with it, and n tokens. */
static nib_status add_prompt(maker *k, const int32_t *tokens, size_t n, bool bos, nib_error *err) {
    calibration *c = k->c;
    const size_t have = c->begin ? (size_t)c->begin[c->n_prompt] : 0;
    if (mem_grow((void **)&c->tokens, &k->cap_tokens, have + n + 1, sizeof *c->tokens) ||
        mem_grow((void **)&c->begin, &k->cap_begin, (size_t)c->n_prompt + 2, sizeof *c->begin))
        return nib_fail_nomem(err, (have + n + 1) * sizeof *c->tokens, "calibration prompts");
    if (c->n_prompt == 0)
        c->begin[0] = 0;
    if (bos)
        c->tokens[have] = tokenizer_bos(k->from->tokenizer);
    memcpy(c->tokens + have + bos, tokens, n * sizeof *tokens);
    c->begin[++c->n_prompt] = (int64_t)(have + bos + n);
    return NIB_OK;
}

/* Adds the tokens in pieces; skips pieces that are too short. */
static nib_status add_pieces(maker *k, const int32_t *tokens, size_t n_token, bool bos, nib_error *err) {
    const size_t max = MAX_CALIBRATE - (size_t)bos;
    k->n_cut += n_token > max;
    for (size_t at = 0; at < n_token && !k->full; at += max) {
        const size_t n = NUM_MIN(max, n_token - at);
        if (n + bos < MIN_CALIBRATE)
            k->n_short += at == 0;
        else if (k->c->n_prompt == CALIBRATE_MAX_PROMPT)
            k->full = true;
        else
            NIB_TRY(add_prompt(k, tokens + at, n, bos, err));
    }
    return NIB_OK;
}

static nib_status add_text(maker *k, const char *text, size_t n_byte, nib_error *err) {
    const tokenizer *t = k->from->tokenizer;
    token_list list = {0};
    nib_status status = tokenizer_encode(t, text, n_byte, 0, &list, err);
    if (status == NIB_OK)
        status = add_pieces(k, list.data, list.n, tokenizer_adds_bos(t) && tokenizer_bos(t) >= 0, err);
    token_list_clear(&list);
    return status;
}

/* Adds a line of ids that are separated by commas or spaces, for a model without a tokenizer. */
static nib_status add_ids(maker *k, const char *text, size_t n_byte, const char *path, nib_error *err) {
    const int64_t n_vocab = k->from->n_vocab;
    const size_t max_ids = n_byte / 2 + 1;
    int32_t *ids = mem_array(max_ids, sizeof *ids);
    nib_status status = ids ? NIB_OK : nib_fail_nomem(err, max_ids * sizeof *ids, "token ids");
    size_t n = 0;
    for (size_t at = 0; at < n_byte && status == NIB_OK;) {
        int64_t id = 0;
        size_t end = at;
        for (; end < n_byte && text[end] >= '0' && text[end] <= '9' && id < n_vocab; end++)
            id = id * 10 + (text[end] - '0');
        const bool ends = end == n_byte || strchr(", \t", text[end]);
        if (end > at && ends && id < n_vocab)
            ids[n++] = (int32_t)id;
        else if (end > at || !ends)
            status =
                nib_fail(err, NIB_E_USAGE,
                         "%s: the model has no tokenizer: expected token ids below %lld, found '%.*s'", path,
                         (long long)n_vocab, (int)NUM_MIN(strcspn(text + at, ", \t\r\n"), 20), text + at);
        at = end + 1;
    }
    if (status == NIB_OK)
        status = add_pieces(k, ids, n, false, err);
    mem_free(ids);
    return status;
}

static nib_status add_own(maker *k, nib_error *err) {
    static const char *const texts[] = {
#define PROMPT(topic, text) text,
#include "profile/prompts.def"
#undef PROMPT
    };
    static const char *const more[] = {
#define TEXT(topic, text) text,
#define HELD(topic, text)
#include "profile/texts.def"
#undef HELD
#undef TEXT
    };
    for (size_t i = 0; i < NUM_COUNT(texts); i++)
        NIB_TRY(add_text(k, texts[i], strlen(texts[i]), err));
    for (size_t i = 0; i < NUM_COUNT(more) && k->from->long_texts; i++)
        NIB_TRY(add_text(k, more[i], strlen(more[i]), err));
    return NIB_OK;
}

static nib_status add_file(maker *k, const char *path, nib_error *err) {
    char *text;
    size_t n, end;
    nib_status status = file_read_all(path, MAX_TEXT, &text, &n, err);
    if (status == NIB_E_NOTFOUND) /* the original message speaks of models */
        return nib_fail(err, NIB_E_IO, "%s: no such file of prompts", path);
    NIB_TRY(status);
    for (size_t at = 0; at < n && status == NIB_OK && !k->full; at = end + 1) {
        const char *stop = memchr(text + at, '\n', n - at);
        end = stop ? (size_t)(stop - text) : n;
        size_t len = end - at;
        len -= len > 0 && text[end - 1] == '\r';
        if (len > 0)
            status =
                k->from->tokenizer ? add_text(k, text + at, len, err) : add_ids(k, text + at, len, path, err);
    }
    mem_free(text);
    if (status == NIB_OK && k->c->n_prompt == 0)
        return nib_fail(err, NIB_E_USAGE, "%s: expected a line of at least %d tokens, found none", path,
                        MIN_CALIBRATE);
    return status;
}

static nib_status add_arbitrary(maker *k, nib_error *err) {
    const int64_t n_vocab = k->from->n_vocab;
    int32_t ids[ARBITRARY_TOKENS];
    uint64_t x = 1;
    if (n_vocab < 1)
        return nib_fail(err, NIB_E_USAGE, "%s: expected a model with a tokenizer, found none", k->from->path);
    for (int i = 0; i < N_ARBITRARY; i++) {
        for (int j = 0; j < ARBITRARY_TOKENS; j++) {
            x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            ids[j] = (int32_t)((x >> 33) % (uint64_t)n_vocab);
        }
        NIB_TRY(add_prompt(k, ids, ARBITRARY_TOKENS, false, err));
    }
    return NIB_OK;
}

static void describe(const maker *k, const char *path) {
    calibration *c = k->c;
    const long long n = (long long)c->begin[c->n_prompt];
    int at = snprintf(c->what, sizeof c->what, "%d prompt%s %s, %lld tokens", c->n_prompt,
                      c->n_prompt == 1 ? "" : "s",
                      path                 ? "from a file"
                      : k->from->tokenizer ? "of nibble's own"
                                           : "of arbitrary ids (the model has no tokenizer)",
                      n);
    if (k->n_cut)
        at += snprintf(c->what + at, sizeof c->what - (size_t)at, "; %d lines cut into pieces of %d",
                       k->n_cut, MAX_CALIBRATE);
    if (k->n_short)
        at += snprintf(c->what + at, sizeof c->what - (size_t)at, "; %d of fewer than %d tokens were skipped",
                       k->n_short, MIN_CALIBRATE);
    if (k->full)
        snprintf(c->what + at, sizeof c->what - (size_t)at, "; the rest of the file was skipped");
}

/* The hash includes the beginnings of the prompts. */
static void hash_tokens(calibration *c) {
    const XXH128_hash_t lengths = XXH3_128bits(c->begin, ((size_t)c->n_prompt + 1) * sizeof *c->begin);
    const XXH128_hash_t all = XXH3_128bits_withSeed(
        c->tokens, (size_t)c->begin[c->n_prompt] * sizeof *c->tokens, lengths.low64 ^ lengths.high64);
    snprintf(c->hash, sizeof c->hash, "%016llx%016llx", (unsigned long long)all.high64,
             (unsigned long long)all.low64);
}

nib_status calibrate(const calibration_source *from, const char *path, calibration *out, nib_error *err) {
    maker k = {.from = from, .c = out};
    memset(out, 0, sizeof *out);
    nib_status status = path              ? add_file(&k, path, err)
                        : from->tokenizer ? add_own(&k, err)
                                          : add_arbitrary(&k, err);
    if (status == NIB_OK && out->n_prompt == 0)
        status =
            nib_fail(err, NIB_E_USAGE,
                     "expected a calibration prompt of at least %d tokens with this vocabulary, found none",
                     MIN_CALIBRATE);
    if (status == NIB_OK)
        status = container_content_key(from->container, out->content, err);
    if (status != NIB_OK) {
        calibration_clear(out);
        return status;
    }
    hash_tokens(out);
    describe(&k, path);
    return NIB_OK;
}

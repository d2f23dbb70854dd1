/* tokenizer.c - opens, closes and queries a tokenizer. */
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* An empty tokenizer without special tokens; NULL when out of memory. Freed by tokenizer_close. */
static tokenizer *new_tokenizer(void) {
    tokenizer *t = mem_calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->bos = t->eos = t->unk = t->merges.unk = t->unigram.unk = -1;
    for (int b = 0; b < 256; b++)
        t->merges.byte_id[b] = t->unigram.byte_id[b] = -1;
    return t;
}

void tokenizer_close(tokenizer *t) {
    if (!t)
        return;
    vocab_deinit(&t->vocab);
    merges_deinit(&t->merges);
    unigram_deinit(&t->unigram);
    added_deinit(&t->added_raw);
    added_deinit(&t->added_normal);
    normalizer_deinit(&t->normalizer);
    splitter_deinit(&t->splitter);
    decoder_deinit(&t->decoder);
    mem_free(t->end);
    mem_free(t);
}

/* ---- the last part of opening ---- */

static size_t end_bytes(const tokenizer *t) {
    return (size_t)t->vocab.n / 8 + 1;
}

nib_status tokenizer_add_end(tokenizer *t, int32_t token, nib_error *err) {
    if (token < 0 || token >= t->vocab.n)
        return NIB_OK;
    if (!t->end)
        t->end = mem_calloc(end_bytes(t), 1);
    if (!t->end)
        return nib_fail_nomem(err, end_bytes(t), "the tokenizer");
    t->end[token >> 3] |= (uint8_t)(1u << (token & 7));
    return NIB_OK;
}

static nib_status add_token(tokenizer *t, normal_scratch *s, int32_t id, nib_error *err) {
    size_t n;
    const char *text = vocab_text(&t->vocab, id, &n);
    if (!(t->vocab.flags[id] & VOCAB_NORMALIZED))
        return added_put(&t->added_raw, text, n, id, err);
    t->special_normal = t->special_normal || t->vocab.flags[id] & VOCAB_CONTROL;
    if (utf8_valid_prefix(text, n) == n)
        NIB_TRY(normalizer_run(&t->normalizer, s, &text, &n, err));
    return added_put(&t->added_normal, text, n, id, err);
}

/* Adds the added tokens. Normalising them has the bound on work of one text with all of them. */
static nib_status add_tokens(tokenizer *t, nib_error *err) {
    size_t n_byte = 0, n;
    for (int32_t id = 0; id < t->vocab.n; id++)
        if (t->vocab.flags[id] & VOCAB_ADDED && vocab_text(&t->vocab, id, &n))
            n_byte += n;
    text_work work = work_of(n_byte);
    normal_scratch s;
    nib_status status = NIB_OK;
    normal_scratch_init(&s, &work);
    for (int32_t id = 0; id < t->vocab.n && status == NIB_OK; id++)
        if (t->vocab.flags[id] & VOCAB_ADDED)
            status = add_token(t, &s, id, err);
    normal_scratch_deinit(&s);
    if (status == NIB_OK)
        status = added_sort(&t->added_raw, err);
    return status == NIB_OK ? added_sort(&t->added_normal, err) : status;
}

/* Names of tokens that end a text or a turn in published models. always: the name has no other meaning in
 * texts, so the token is special even if a converter has not marked it. */
static const struct {
    const char *name;
    bool always;
} ends[] = {
    {"<|im_end|>", true},
    {"<|eot_id|>", true},
    {"<|eom_id|>", true},
    {"<end_of_turn>", true},
    {"<|end|>", true},
    {"<|endoftext|>", true},
    {"<|end_of_text|>", true},
    {"<EOT>", true},
    {"_<EOT>", true},
    {"<|EOT|>", true},
    {"[EOT]", false},
    {"<end_of_utterance>", true},
    {"<｜end▁of▁sentence｜>", true},
    {"<|END_OF_TURN_TOKEN|>", true},
    {"<|endofturn|>", true},
    {"<|end_of_turn|>", true},
    {"<|return|>", true},
    {"<|call|>", true},
    {"<turn|>", true},
    {"</s>", false},
    {"<eos>", false},
    {"[EOS]", false},
    {"<|end_of_role_turn|>", false},
};

/* Whether the model accepts bytes. A Unigram model works on characters, which an earlier step must produce.
 */
static bool model_takes_bytes(const tokenizer *t) {
    if (t->model == MODEL_UNIGRAM)
        return t->normalizer.n_step && t->normalizer.step[0].kind == NORMAL_SENTENCEPIECE;
    return t->merges.kind == MERGES_SCORES || (t->merges.kind == MERGES_CHARS && t->merges.byte_fallback);
}

/* The last step of both readers: finds end tokens by their well-known names, and sets up the added tokens. */
static nib_status finish(tokenizer *t, nib_error *err) {
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        int32_t id = vocab_find(&t->vocab, ends[i].name, strlen(ends[i].name));
        if (id < 0)
            continue;
        if (ends[i].always && t->fix_types)
            t->vocab.flags[id] |= VOCAB_CONTROL | VOCAB_ADDED;
        if (t->vocab.flags[id] & VOCAB_CONTROL)
            NIB_TRY(tokenizer_add_end(t, id, err));
    }
    NIB_TRY(tokenizer_add_end(t, t->eos, err));
    NIB_TRY(add_tokens(t, err));
    t->takes_bytes =
        normalizer_takes_bytes(&t->normalizer) && splitter_takes_bytes(&t->splitter) && model_takes_bytes(t);
    return NIB_OK;
}

/* Finishes t (may be NULL) after reading it, or frees it after an error. */
static nib_status hand_out(tokenizer *t, nib_status status, tokenizer **out, nib_error *err) {
    if (status == NIB_OK)
        status = finish(t, err);
    if (status != NIB_OK)
        tokenizer_close(t);
    else
        *out = t;
    return status;
}

nib_status tokenizer_open(const container *c, const logger *log, tokenizer **out, nib_error *err) {
    tokenizer *t = new_tokenizer();
    const nib_status status =
        t ? tokenizer_read_container(t, c, log, err) : nib_fail_nomem(err, sizeof *t, "the tokenizer");
    return hand_out(t, status, out, err);
}

nib_status tokenizer_open_json(const char *json, size_t n_byte, const char *config, size_t n_config,
                               tokenizer **out, nib_error *err) {
    tokenizer *t = new_tokenizer();
    const nib_status status = t ? tokenizer_read_json(t, json, n_byte, config, n_config, err)
                                : nib_fail_nomem(err, sizeof *t, "the tokenizer");
    return hand_out(t, status, out, err);
}

/* ---- queries ---- */

int32_t tokenizer_n_vocab(const tokenizer *t) {
    return t->vocab.n;
}

const char *tokenizer_piece(const tokenizer *t, int32_t token, size_t *n_byte) {
    return vocab_text(&t->vocab, token, n_byte);
}

int32_t tokenizer_bos(const tokenizer *t) {
    return t->bos;
}

int32_t tokenizer_eos(const tokenizer *t) {
    return t->eos;
}

bool tokenizer_adds_bos(const tokenizer *t) {
    return t->n_prefix > 0;
}

bool tokenizer_is_end(const tokenizer *t, int32_t token) {
    return t->end && token >= 0 && token < t->vocab.n && t->end[token >> 3] >> (token & 7) & 1;
}

uint64_t tokenizer_heap_bytes(const tokenizer *t) {
    return sizeof *t + vocab_heap_bytes(&t->vocab) + merges_heap_bytes(&t->merges) +
           (t->merges.score ? (uint64_t)t->vocab.n * sizeof *t->merges.score : 0) +
           unigram_heap_bytes(&t->unigram, &t->vocab) + added_heap_bytes(&t->added_raw) +
           added_heap_bytes(&t->added_normal) + splitter_heap_bytes(&t->splitter) +
           (t->end ? end_bytes(t) : 0);
}

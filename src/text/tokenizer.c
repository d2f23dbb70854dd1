/* tokenizer.c - opening, closing and asking; the way of a text from bytes to ids. */
#include "text/state.h"
#include "text/unicode.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* Positions inside a piece have 32 bits, and a normaliser may make a text longer. */
#define TEXT_MOST ((size_t)1 << 30)
/* Shorter texts repeat too few words to pay for the cache's memory. */
#define CACHE_FROM 4096

void token_list_clear(token_list *l) {
    mem_free(l->data);
    memset(l, 0, sizeof *l);
}

nib_status token_list_push(token_list *l, int32_t token, nib_error *err) {
    if (l->n == l->cap && mem_grow((void **)&l->data, &l->cap, l->n + 1, sizeof *l->data))
        return nib_fail_nomem(err, (l->n + 1) * sizeof *l->data, "the tokens");
    l->data[l->n++] = token;
    return NIB_OK;
}

tokenizer *tokenizer_new(void) {
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

/* After reading t, which may be NULL. */
static nib_status hand_out(tokenizer *t, nib_status status, tokenizer **out, nib_error *err) {
    if (status == NIB_OK)
        status = tokenizer_finish(t, err);
    if (status != NIB_OK)
        tokenizer_close(t);
    else
        *out = t;
    return status;
}

nib_status tokenizer_open(const container *c, const logger *log, tokenizer **out, nib_error *err) {
    tokenizer *t = tokenizer_new();
    const nib_status status =
        t ? tokenizer_read_container(t, c, log, err) : nib_fail_nomem(err, sizeof *t, "the tokenizer");
    return hand_out(t, status, out, err);
}

nib_status tokenizer_open_json(const char *json, size_t n_byte, const char *config, size_t n_config,
                               tokenizer **out, nib_error *err) {
    tokenizer *t = tokenizer_new();
    const nib_status status = t ? tokenizer_read_json(t, json, n_byte, config, n_config, err)
                                : nib_fail_nomem(err, sizeof *t, "the tokenizer");
    return hand_out(t, status, out, err);
}

/* ---- the last part of opening ---- */

nib_status tokenizer_add_end(tokenizer *t, int32_t token, nib_error *err) {
    if (token < 0 || token >= t->vocab.n || tokenizer_is_end(t, token))
        return NIB_OK;
    if (mem_grow((void **)&t->end, &t->cap_end, t->n_end + 1, sizeof *t->end))
        return nib_fail_nomem(err, sizeof *t->end, "the tokenizer");
    size_t i = t->n_end++;
    for (; i && t->end[i - 1] > token; i--)
        t->end[i] = t->end[i - 1];
    t->end[i] = token;
    return NIB_OK;
}

static nib_status add_token(tokenizer *t, int32_t id, nib_error *err) {
    size_t n;
    const char *text = vocab_text(&t->vocab, id, &n);
    if (!(t->vocab.flags[id] & VOCAB_NORMALIZED))
        return added_put(&t->added_raw, text, n, id, err);
    text_buffer buffer[2] = {{0}};
    nib_status status = NIB_OK;
    if (utf8_valid_prefix(text, n) == n)
        status = normalizer_run(&t->normalizer, buffer, &text, &n, err);
    if (status == NIB_OK)
        status = added_put(&t->added_normal, text, n, id, err);
    text_buffer_clear(&buffer[0]);
    text_buffer_clear(&buffer[1]);
    return status;
}

/* Names of tokens that end a text or a turn in published models. `always`: no text means anything else by it,
 * so it is special even where a converter has forgotten to say so. */
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

nib_status tokenizer_finish(tokenizer *t, nib_error *err) {
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
    for (int32_t id = 0; id < t->vocab.n; id++)
        if (t->vocab.flags[id] & VOCAB_ADDED)
            NIB_TRY(add_token(t, id, err));
    added_sort(&t->added_raw);
    added_sort(&t->added_normal);
    return NIB_OK;
}

/* ---- encoding ---- */

typedef struct encoding {
    const tokenizer *t;
    unsigned flags;
    token_list *out;
    merge_scratch merge;
    unigram_scratch unigram;
    split_scratch split;
    text_buffer normal[2];
} encoding;

static nib_status take_piece(void *user, const char *piece, size_t n, nib_error *err) {
    encoding *e = user;
    if (e->t->model == MODEL_UNIGRAM)
        return unigram_encode(&e->t->unigram, &e->t->vocab, &e->unigram, piece, n, e->out, err);
    return merges_encode(&e->t->merges, &e->t->vocab, &e->merge, piece, n, true, e->out, err);
}

/* Valid UTF-8 without raw added tokens. `first`: it begins where the input does. */
static nib_status encode_valid(encoding *e, const char *text, size_t n, bool first, nib_error *err) {
    const tokenizer *t = e->t;
    added_match m;
    NIB_TRY(normalizer_run(&t->normalizer, e->normal, &text, &n, err));
    for (size_t at = 0; at < n;) {
        bool found = added_find(&t->added_normal, &t->vocab, e->flags & TOKENIZE_SPECIAL, text, n, at, &m);
        size_t end = found ? m.begin : n;
        NIB_TRY(
            splitter_run(&t->splitter, &e->split, text + at, end - at, first && at == 0, take_piece, e, err));
        if (!found)
            break;
        NIB_TRY(token_list_push(e->out, m.id, err));
        at = m.end;
    }
    return NIB_OK;
}

/* Bytes that are no UTF-8 skip everything that works on characters. */
static nib_status encode_damaged(encoding *e, const char *text, size_t n, nib_error *err) {
    const tokenizer *t = e->t;
    if (t->model == MODEL_MERGES)
        return merges_encode(&t->merges, &t->vocab, &e->merge, text, n, false, e->out, err);
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->unigram.byte_fallback ? t->unigram.byte_id[(unsigned char)text[i]] : -1;
        if (id < 0 && t->unigram.unk < 0)
            return nib_fail(err, NIB_E_FAILED,
                            "the text is no valid UTF-8, and the vocabulary has no unknown token");
        NIB_TRY(token_list_push(e->out, id >= 0 ? id : t->unigram.unk, err));
    }
    return NIB_OK;
}

/* What lies between two added tokens: runs of valid UTF-8 and of other bytes, in turn. */
static nib_status encode_section(encoding *e, const char *text, size_t n, bool first, nib_error *err) {
    for (size_t at = 0; at < n;) {
        size_t valid = utf8_valid_prefix(text + at, n - at), bad = at + valid;
        if (valid)
            NIB_TRY(encode_valid(e, text + at, valid, first && at == 0, err));
        while (bad < n && !utf8_check(text + bad, n - bad))
            bad++;
        if (bad > at + valid)
            NIB_TRY(encode_damaged(e, text + at + valid, bad - at - valid, err));
        at = bad;
    }
    return NIB_OK;
}

static nib_status encode_text(encoding *e, const char *text, size_t n, nib_error *err) {
    const tokenizer *t = e->t;
    bool around = e->flags & TOKENIZE_BOS;
    size_t start = e->out->n;
    for (int i = 0; around && i < t->n_prefix; i++)
        NIB_TRY(token_list_push(e->out, t->prefix[i], err));
    size_t body = e->out->n;
    for (size_t at = 0; at < n;) {
        added_match m;
        bool found = added_find(&t->added_raw, &t->vocab, e->flags & TOKENIZE_SPECIAL, text, n, at, &m);
        size_t end = found ? m.begin : n;
        NIB_TRY(encode_section(e, text + at, end - at, at == 0, err));
        if (!found)
            break;
        if (e->out->n == body && body > start && m.id == t->prefix[0])
            e->out->n = start; /* the text brings its own */
        NIB_TRY(token_list_push(e->out, m.id, err));
        at = m.end;
    }
    for (int i = 0; around && i < t->n_suffix; i++)
        NIB_TRY(token_list_push(e->out, t->suffix[i], err));
    return NIB_OK;
}

nib_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_byte, unsigned flags,
                            token_list *out, nib_error *err) {
    encoding e = {.t = t, .flags = flags, .out = out};
    if (n_byte > TEXT_MOST)
        return nib_fail(err, NIB_E_USAGE, "a text of %zu bytes; at most %zu can be tokenised at once", n_byte,
                        TEXT_MOST);
    nib_status status = NIB_OK;
    if (n_byte >= CACHE_FROM && t->model == MODEL_MERGES)
        status = merge_scratch_cache(&e.merge, err);
    if (status == NIB_OK)
        status = encode_text(&e, text, n_byte, err);
    merge_scratch_deinit(&e.merge);
    unigram_scratch_deinit(&e.unigram);
    split_scratch_deinit(&e.split);
    text_buffer_clear(&e.normal[0]);
    text_buffer_clear(&e.normal[1]);
    return status;
}

/* ---- asking ---- */

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

bool tokenizer_adds_eos(const tokenizer *t) {
    return t->n_suffix > 0;
}

bool tokenizer_is_special(const tokenizer *t, int32_t token) {
    return token >= 0 && token < t->vocab.n && t->vocab.flags[token] & (VOCAB_CONTROL | VOCAB_UNKNOWN);
}

bool tokenizer_is_end(const tokenizer *t, int32_t token) {
    for (size_t i = 0; i < t->n_end; i++)
        if (t->end[i] == token)
            return true;
    return false;
}

uint64_t tokenizer_heap_bytes(const tokenizer *t) {
    return sizeof *t + vocab_heap_bytes(&t->vocab) + merges_heap_bytes(&t->merges) +
           (t->merges.score ? (uint64_t)t->vocab.n * sizeof *t->merges.score : 0) +
           unigram_heap_bytes(&t->unigram, &t->vocab) + added_heap_bytes(&t->added_raw) +
           added_heap_bytes(&t->added_normal) + splitter_heap_bytes(&t->splitter) +
           t->cap_end * sizeof *t->end;
}

/* encode.c - converts a text from bytes to ids. A text need not be valid UTF-8. Invalid bytes become the same
 * ids as in llama.cpp. Steps and models that work on bytes get them unchanged. For steps and models that work
 * on characters, each invalid byte becomes U+FFFD first; but a surrogate stays a surrogate, and an overlong
 * form becomes the character that it encodes. */
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <string.h>

/* Positions inside a piece have 32 bits, and a normaliser may make a text longer. */
#define MAX_TEXT ((size_t)1 << 30)
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

typedef struct encoding {
    const tokenizer *t;
    unsigned flags;
    token_list *out;
    text_work work;
    normal_scratch normal;
    split_scratch split;
    merge_scratch merge;
    unigram_scratch unigram;
    text_buffer repaired;
} encoding;

static nib_status take_piece(void *user, const char *piece, size_t n, nib_error *err) {
    encoding *e = user;
    if (e->t->model == MODEL_UNIGRAM)
        return unigram_encode(&e->t->unigram, &e->unigram, piece, n, e->out, err);
    return merges_encode(&e->t->merges, &e->t->vocab, &e->merge, piece, n, e->out, err);
}

static added_search search_in(encoding *e, const added_set *set, const uint8_t *mark) {
    return (added_search){set, &e->t->vocab, e->flags & TOKENIZE_SPECIAL, mark, &e->work};
}

/* Encodes a normalised text. */
static nib_status encode_normal(encoding *e, const char *text, const uint8_t *mark, size_t n, bool first,
                                nib_error *err) {
    const tokenizer *t = e->t;
    const added_search search = search_in(e, &t->added_normal, mark);
    for (size_t at = 0; at < n;) {
        added_match m;
        bool found;
        NIB_TRY(added_find(&search, text, n, at, &found, &m, err));
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

/* Encodes a text without raw added tokens. first: it begins where the input begins. */
static nib_status encode_whole(encoding *e, const char *text, size_t n, bool first, nib_error *err) {
    NIB_TRY(normalizer_run(&e->t->normalizer, &e->normal, &text, &n, err));
    return encode_normal(e, text, NULL, n, first, err);
}

/* Replaces every byte that does not begin a valid character by U+FFFD. */
static nib_status repair(const char *text, size_t n, text_buffer *out, nib_error *err) {
    out->n = 0;
    for (size_t i = 0; i < n;) {
        char utf8[4];
        uint32_t c = 0xFFFD;
        size_t valid = utf8_valid_prefix(text + i, n - i);
        NIB_TRY(text_append(out, text + i, valid, err));
        i += valid;
        if (i == n)
            break;
        size_t length = utf8_check_shape(text + i, n - i, &c);
        if (c > 0x10FFFF) {
            c = 0xFFFD;
            length = 1;
        }
        NIB_TRY(text_append(out, utf8, utf8_put(c, utf8), err));
        i += length ? length : 1;
    }
    return NIB_OK;
}

/* Encodes the text between two added tokens. */
static nib_status encode_section(encoding *e, const char *text, size_t n, bool first, nib_error *err) {
    if (e->t->takes_bytes || utf8_valid_prefix(text, n) == n)
        return encode_whole(e, text, n, first, err);
    NIB_TRY(repair(text, n, &e->repaired, err));
    return encode_whole(e, e->repaired.data, e->repaired.n, first, err);
}

/* Cuts a text where the mark changes, so that no special token is found in marked bytes. */
static nib_status encode_runs(encoding *e, const char *text, const uint8_t *mark, size_t n, bool first,
                              nib_error *err) {
    const unsigned flags = e->flags;
    nib_status status = NIB_OK;
    for (size_t at = 0, end; at < n && status == NIB_OK; at = end) {
        for (end = at + 1; end < n && mark[end] == mark[at];)
            end++;
        e->flags = mark[at] ? flags & ~(unsigned)TOKENIZE_SPECIAL : flags;
        status = encode_section(e, text + at, end - at, first && at == 0, err);
    }
    e->flags = flags;
    return status;
}

/* Marks matter where the section itself may have special tokens. A normaliser that changes a text does not
 * say where its bytes come from. */
static nib_status encode_marked(encoding *e, const char *text, const uint8_t *mark, size_t n, bool first,
                                nib_error *err) {
    const tokenizer *t = e->t;
    if (!mark || !t->special_normal || !n || !memchr(mark, 1, n))
        return encode_section(e, text, n, first, err);
    const bool same = t->normalizer.n_step == 0 && (t->takes_bytes || utf8_valid_prefix(text, n) == n);
    return same ? encode_normal(e, text, mark, n, first, err) : encode_runs(e, text, mark, n, first, err);
}

static nib_status encode_text(encoding *e, const char *text, const uint8_t *mark, size_t n, nib_error *err) {
    const tokenizer *t = e->t;
    bool around = e->flags & TOKENIZE_BOS;
    size_t start = e->out->n;
    for (int i = 0; around && i < t->n_prefix; i++)
        NIB_TRY(token_list_push(e->out, t->prefix[i], err));
    size_t body = e->out->n;
    const added_search search = search_in(e, &t->added_raw, mark);
    for (size_t at = 0; at < n;) {
        added_match m;
        bool found;
        NIB_TRY(added_find(&search, text, n, at, &found, &m, err));
        size_t end = found ? m.begin : n;
        NIB_TRY(encode_marked(e, text + at, mark ? mark + at : NULL, end - at, at == 0, err));
        if (!found)
            break;
        if (e->out->n == body && body > start && m.id == t->prefix[0])
            e->out->n = start; /* the text contains the token itself */
        NIB_TRY(token_list_push(e->out, m.id, err));
        at = m.end;
    }
    for (int i = 0; around && i < t->n_suffix; i++)
        NIB_TRY(token_list_push(e->out, t->suffix[i], err));
    return NIB_OK;
}

nib_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_byte, unsigned flags,
                            token_list *out, nib_error *err) {
    return tokenizer_encode_marked(t, text, NULL, n_byte, flags, out, err);
}

nib_status tokenizer_encode_marked(const tokenizer *t, const char *text, const uint8_t *mark, size_t n_byte,
                                   unsigned flags, token_list *out, nib_error *err) {
    encoding e = {.t = t, .flags = flags, .out = out, .work = work_of(n_byte)};
    if (n_byte > MAX_TEXT)
        return nib_fail(err, NIB_E_USAGE, "expected a text of at most %zu bytes, found %zu", MAX_TEXT,
                        n_byte);
    normal_scratch_init(&e.normal, &e.work);
    split_scratch_init(&e.split, &e.work);
    e.merge.work = e.unigram.work = &e.work;
    nib_status status = NIB_OK;
    if (n_byte >= CACHE_FROM && t->model == MODEL_MERGES)
        status = merge_scratch_cache(&e.merge, err);
    if (status == NIB_OK)
        status = encode_text(&e, text, mark, n_byte, err);
    merge_scratch_deinit(&e.merge);
    unigram_scratch_deinit(&e.unigram);
    split_scratch_deinit(&e.split);
    normal_scratch_deinit(&e.normal);
    text_buffer_clear(&e.repaired);
    return status;
}

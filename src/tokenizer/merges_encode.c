/* merges_encode.c - encodes one piece of text: splits it into initial symbols, merges them, and maps the
 * result to tokens. Most of a text consists of a few thousand words, so the tokens of short words are cached.
 */
#include "tokenizer/merge_word.h"
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

#define CACHE_KEY  16
#define CACHE_IDS  7
#define CACHE_BITS 12

struct merge_cache_entry {
    uint64_t key[CACHE_KEY / 8];
    uint16_t n_byte, n_id;
    int32_t id[CACHE_IDS];
};

void merge_scratch_deinit(merge_scratch *s) {
    mem_free(s->id);
    mem_free(s->heap);
    mem_free(s->cache);
    memset(s, 0, sizeof *s);
}

nib_status merge_scratch_cache(merge_scratch *s, nib_error *err) {
    s->cache = mem_calloc((size_t)1 << CACHE_BITS, sizeof *s->cache);
    return s->cache ? NIB_OK : nib_fail_nomem(err, sizeof *s->cache << CACHE_BITS, "the word cache");
}

static size_t add_symbol(merge_scratch *s, size_t n, int32_t id, size_t start) {
    s->id[n] = id;
    s->start[n] = (uint32_t)start;
    return n + 1;
}

/* Appends the bytes of text[0..n_byte) as symbols if the vocabulary has a token for each; returns the new
 * number of symbols. */
static size_t add_bytes(const merges *m, merge_scratch *s, size_t n, const char *text, size_t start,
                        size_t n_byte) {
    for (size_t i = 0; i < n_byte; i++)
        if (m->byte_id[(unsigned char)text[start + i]] < 0)
            return n;
    for (size_t i = 0; i < n_byte; i++)
        n = add_symbol(s, n, m->byte_id[(unsigned char)text[start + i]], start + i);
    return n;
}

/* Initial symbols of byte-level models. A byte without a token becomes the unknown token; if there is none,
 * it is dropped, now or after merging. */
static size_t symbols_of_bytes(const merge_word *w, size_t n_byte) {
    const merges *m = w->m;
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n_byte; i++) {
        int32_t id = m->byte_id[(unsigned char)w->text[i]];
        bool unknown = id < 0;
        if (unknown && m->unk >= 0 && !(after_unk && m->fuse_unk))
            id = m->unk;
        if (id >= 0 || m->keeps_unknown)
            n = add_symbol(w->s, n, id, i);
        after_unk = unknown;
    }
    return n;
}

/* Initial symbols of models with listed pairs: characters without a token become their bytes or the unknown
 * token before merging. */
static size_t symbols_of_chars(const merge_word *w, size_t n_byte) {
    const merges *m = w->m;
    size_t n = 0;
    bool after_unk = false;
    for (size_t i = 0, length; i < n_byte; i += length) {
        length = NUM_MIN(utf8_length((unsigned char)w->text[i]), n_byte - i);
        int32_t id = vocab_find_model(w->v, w->text + i, length);
        size_t before = n;
        if (id >= 0)
            n = add_symbol(w->s, n, id, i);
        else if (m->byte_fallback)
            n = add_bytes(m, w->s, n, w->text, i, length);
        if (n != before) {
            after_unk = false;
        } else if (m->unk >= 0) {
            if (!(after_unk && m->fuse_unk))
                n = add_symbol(w->s, n, m->unk, i);
            after_unk = true;
        }
    }
    return n;
}

/* Initial symbols of models with scores: all characters; those without a token have id -1. */
static size_t symbols_by_score(const merge_word *w, size_t n_byte) {
    size_t n = 0;
    for (size_t i = 0, length; i < n_byte; i += length) {
        length = NUM_MIN(utf8_length((unsigned char)w->text[i]), n_byte - i);
        int32_t id = vocab_find(w->v, w->text + i, length);
        if (id >= 0 && w->v->flags[id] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_BYTE))
            id = -1;
        n = add_symbol(w->s, n, id, i);
    }
    return n;
}

/* Appends a symbol without a token: as its bytes, else as the unknown token, else nothing. */
static nib_status push_unknown(const merge_word *w, size_t begin, size_t end, token_list *out,
                               nib_error *err) {
    const merges *m = w->m;
    for (size_t i = begin; i < end; i++) {
        int32_t id = m->byte_id[(unsigned char)w->text[i]];
        if (id < 0) {
            if (m->unk >= 0)
                return token_list_push(out, m->unk, err);
            continue;
        }
        NIB_TRY(token_list_push(out, id, err));
    }
    return NIB_OK;
}

static nib_status push_symbols(const merge_word *w, size_t n, token_list *out, nib_error *err) {
    const merge_scratch *s = w->s;
    for (size_t i = 0; i < n; i++) {
        if (s->id[i] >= 0)
            NIB_TRY(token_list_push(out, s->id[i], err));
        else
            NIB_TRY(push_unknown(w, s->start[i], s->start[i + 1], out, err));
    }
    return NIB_OK;
}

/* The id of a byte-level piece that is a token as a whole; -1: none. */
static int32_t whole_token(const merges *m, const vocab *v, const char *text, size_t n_byte) {
    char spelled[256];
    if (m->kind != MERGES_BYTES)
        return vocab_find_model(v, text, n_byte);
    size_t n = 0;
    for (size_t i = 0; i < n_byte; i++) {
        if (n + 4 > sizeof spelled)
            return -1;
        n += utf8_put(byte_to_char((unsigned char)text[i]), spelled + n);
    }
    return vocab_find_model(v, spelled, n);
}

static nib_status encode_word(const merge_word *w, size_t n_byte, token_list *out, nib_error *err) {
    const merges *m = w->m;
    if (m->whole_first) {
        int32_t id = whole_token(m, w->v, w->text, n_byte);
        if (id >= 0)
            return token_list_push(out, id, err);
    }
    NIB_TRY(merge_reserve(w->s, n_byte + 2, err));
    size_t n = m->kind == MERGES_BYTES   ? symbols_of_bytes(w, n_byte)
               : m->kind == MERGES_CHARS ? symbols_of_chars(w, n_byte)
                                         : symbols_by_score(w, n_byte);
    w->s->start[n] = (uint32_t)n_byte;
    NIB_TRY(merge_symbols(w, &n, err));
    return push_symbols(w, n, out, err);
}

/* Encodes a short word through the cache. */
static nib_status encode_cached(const merge_word *w, size_t n_byte, token_list *out, nib_error *err) {
    merge_scratch *s = w->s;
    if (!s->cache || n_byte > CACHE_KEY)
        return encode_word(w, n_byte, out, err);
    uint64_t key[2] = {0, 0};
    memcpy(key, w->text, n_byte);
    uint64_t h = (key[0] ^ (key[1] * 0x9E3779B97F4A7C15u) ^ n_byte) * 0xBF58476D1CE4E5B9u;
    struct merge_cache_entry *e = &s->cache[h >> (64 - CACHE_BITS)];
    if (e->n_byte == n_byte && e->key[0] == key[0] && e->key[1] == key[1]) {
        for (size_t i = 0; i < e->n_id; i++)
            NIB_TRY(token_list_push(out, e->id[i], err));
        return NIB_OK;
    }
    size_t before = out->n;
    NIB_TRY(encode_word(w, n_byte, out, err));
    size_t n = out->n - before;
    if (n && n <= CACHE_IDS) {
        e->key[0] = key[0];
        e->key[1] = key[1];
        e->n_byte = (uint16_t)n_byte;
        e->n_id = (uint16_t)n;
        memcpy(e->id, out->data + before, n * sizeof *e->id);
    }
    return NIB_OK;
}

/* Whether a lead byte before `at` announces bytes beyond `at` (in damaged text only). */
static bool reaches_over(const char *begin, const char *at) {
    for (int back = 1; back <= 3 && at - back >= begin; back++)
        if (utf8_length((unsigned char)at[-back]) > (size_t)back)
            return true;
    return false;
}

/* The next position at which no token of a scored vocabulary spans the cut: before a U+2581 whose preceding
 * byte does not precede U+2581 inside any token. */
static size_t next_cut(const merges *m, const char *text, size_t n) {
    for (const char *at = text; n - (size_t)(at - text) > 3;) {
        at = memmem(at + 1, n - (size_t)(at - text) - 1, "\xE2\x96\x81", 3);
        if (!at)
            break;
        unsigned char before = (unsigned char)at[-1];
        if (!(m->no_cut[before >> 3] >> (before & 7) & 1) && !reaches_over(text, at))
            return (size_t)(at - text);
    }
    return n;
}

nib_status merges_encode(const merges *m, const vocab *v, merge_scratch *s, const char *text, size_t n_byte,
                         token_list *out, nib_error *err) {
    merge_word w = {m, v, s, text};
    if (!n_byte)
        return NIB_OK;
    if (m->kind != MERGES_SCORES)
        return encode_cached(&w, n_byte, out, err);
    while (n_byte) {
        size_t cut = next_cut(m, w.text, n_byte);
        NIB_TRY(encode_cached(&w, cut, out, err));
        w.text += cut;
        n_byte -= cut;
    }
    return NIB_OK;
}

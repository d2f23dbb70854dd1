/* decode.c - converts ids back to text, token by token. A token's text goes through the decoder's steps. The
 * resulting bytes are held back only while they may still become a whole character. */
#include "tokenizer/state.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <string.h>

static const char REPLACEMENT[] = "\xEF\xBF\xBD";

nib_status decoder_add(decoder *d, decode_kind kind, decode_step **out, nib_error *err) {
    if (d->n_step == DECODE_STEPS)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected at most %d decoders", DECODE_STEPS);
    *out = &d->step[d->n_step++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    return NIB_OK;
}

nib_status decoder_add_replace(decoder *d, const char *from, const char *to, nib_error *err) {
    decode_step *step = NULL;
    NIB_TRY(decoder_add(d, DECODE_REPLACE, &step, err));
    step->n_from = strlen(from);
    step->n_to = strlen(to);
    step->from = mem_strdup(from);
    step->to = mem_strdup(to);
    return step->from && step->to ? NIB_OK : nib_fail_nomem(err, step->n_from + step->n_to, "a decoder");
}

void decoder_deinit(decoder *d) {
    for (size_t i = 0; i < d->n_step; i++) {
        mem_free(d->step[i].from);
        mem_free(d->step[i].to);
    }
    d->n_step = 0;
}

void text_buffer_clear(text_buffer *b) {
    mem_free(b->data);
    memset(b, 0, sizeof *b);
}

/* ---- bytes to whole characters ---- */

/* Whether the pending bytes can be shown: they are a whole character or no character, or the text ends. */
static bool can_show(const decode_state *state, bool last) {
    return state->n_pending && (last || !utf8_unfinished(state->pending, (size_t)state->n_pending));
}

/* Appends the whole characters of pending + text. last: the text ends, so nothing is held back. */
static nib_status put_bytes(decode_state *state, const char *text, size_t n, bool last, text_buffer *out,
                            nib_error *err) {
    while (n || can_show(state, last)) {
        if (!state->n_pending) { /* the usual case: no copying through the state */
            size_t valid = utf8_valid_prefix(text, n);
            NIB_TRY(text_append(out, text, valid, err));
            text += valid;
            n -= valid;
            if (!n)
                break;
        }
        while (n && state->n_pending < 4) {
            state->pending[state->n_pending++] = *text++;
            n--;
            if (!utf8_unfinished(state->pending, (size_t)state->n_pending))
                break;
        }
        size_t have = (size_t)state->n_pending, used = utf8_check(state->pending, have);
        if (used) {
            NIB_TRY(text_append(out, state->pending, used, err));
        } else if (utf8_unfinished(state->pending, have) && !last) {
            return NIB_OK;
        } else {
            used = utf8_damaged(state->pending, have);
            NIB_TRY(text_append(out, REPLACEMENT, 3, err));
        }
        memmove(state->pending, state->pending + used, have - used);
        state->n_pending = (int)(have - used);
    }
    return NIB_OK;
}

/* ---- the steps on one token ---- */

/* A token's text: in the vocabulary, or in the buffer that is not `next`. */
typedef struct token_text {
    text_buffer buffer[2];
    int next;
    const char *text;
    size_t n;
    size_t left; /* bytes that the steps may still write */
} token_text;

static text_buffer *begin_step(token_text *t) {
    text_buffer *b = &t->buffer[t->next];
    b->n = 0;
    return b;
}

static void end_step(token_text *t) {
    t->text = t->buffer[t->next].data;
    t->n = t->buffer[t->next].n;
    t->next = !t->next;
}

static nib_status byte_level(token_text *t, nib_error *err) {
    text_buffer *out = begin_step(t);
    if (utf8_valid_prefix(t->text, t->n) != t->n)
        return NIB_OK;
    for (const char *p = t->text; p < t->text + t->n;) {
        int b = char_to_byte(utf8_next(&p));
        char byte = (char)b;
        if (b < 0)
            return NIB_OK; /* not in the byte alphabet: keep the text */
        NIB_TRY(text_append(out, &byte, 1, err));
    }
    end_step(t);
    return NIB_OK;
}

static nib_status replace(token_text *t, const decode_step *step, const char *to, size_t n_to,
                          nib_error *err) {
    if (!step->n_from || !t->n || !memmem(t->text, t->n, step->from, step->n_from))
        return NIB_OK;
    text_buffer *out = begin_step(t);
    const char *p = t->text, *end = t->text + t->n, *hit;
    for (; p < end && (hit = memmem(p, (size_t)(end - p), step->from, step->n_from));
         p = hit + step->n_from) {
        NIB_TRY(text_append(out, p, (size_t)(hit - p), err));
        NIB_TRY(text_append(out, to, n_to, err));
    }
    NIB_TRY(text_append(out, p, (size_t)(end - p), err));
    end_step(t);
    return NIB_OK;
}

static void strip(token_text *t, const decode_step *step, int64_t start, int64_t stop) {
    while (start-- > 0 && t->n >= step->n_from && memcmp(t->text, step->from, step->n_from) == 0) {
        t->text += step->n_from;
        t->n -= step->n_from;
    }
    while (stop-- > 0 && t->n >= step->n_from &&
           memcmp(t->text + t->n - step->n_from, step->from, step->n_from) == 0)
        t->n -= step->n_from;
}

static void byte_fallback(token_text *t, char *byte) {
    int b = vocab_byte_value(t->text, t->n);
    if (b < 0)
        return;
    *byte = (char)b;
    t->text = byte;
    t->n = 1;
}

/* Runs one step. After a fuse only the front of the whole text is stripped: that of the first token with
 * text. */
static nib_status run_step(const decode_step *step, token_text *t, bool started, bool *fused, char *byte,
                           nib_error *err) {
    switch (step->kind) {
    case DECODE_BYTE_LEVEL: return byte_level(t, err);
    case DECODE_REPLACE: return replace(t, step, step->to, step->n_to, err);
    case DECODE_METASPACE: return replace(t, step, " ", started || !step->first ? 1 : 0, err);
    case DECODE_BYTE_FALLBACK: byte_fallback(t, byte); break;
    case DECODE_FUSE: *fused = true; break;
    case DECODE_STRIP:
        if (!*fused || !started)
            strip(t, step, step->start, *fused ? 0 : step->stop);
        break;
    }
    return NIB_OK;
}

static nib_status run_steps(const decoder *d, token_text *t, bool started, char *byte, nib_error *err) {
    static const char *const names[] = {
#define DECODE_X(id, name) name,
        DECODE_KINDS(DECODE_X)
#undef DECODE_X
    };
    const size_t max = work_growth(t->n);
    bool fused = false;
    t->buffer[0].left = t->buffer[1].left = &t->left;
    for (size_t i = 0; i < d->n_step; i++) {
        t->left = max;
        nib_status status = run_step(&d->step[i], t, started, &fused, byte, err);
        if (status != NIB_OK)
            return work_fail_in(status, "decoder", i, names[d->step[i].kind], err);
    }
    return NIB_OK;
}

/* Sets work->text to the token's text, or to nothing if the token is not shown. */
static nib_status token_text_of(const tokenizer *t, int32_t token, bool special, bool started,
                                token_text *work, char *byte, nib_error *err) {
    work->text = vocab_text(&t->vocab, token, &work->n);
    if (!work->text && (token < 0 || token >= t->vocab.n))
        return nib_fail(err, NIB_E_USAGE, "token ids are 0 to %d, found %d", t->vocab.n - 1, token);
    if (!work->text)
        return NIB_OK; /* an id without an entry in the vocabulary */
    unsigned flags = t->vocab.flags[token];
    if (flags & (VOCAB_CONTROL | VOCAB_UNKNOWN) && !special) {
        work->text = NULL;
        return NIB_OK;
    }
    bool raw = flags & (VOCAB_CONTROL | VOCAB_UNKNOWN) || (flags & VOCAB_ADDED && t->decoder.raw_added);
    const text_key *normalized = !raw && flags & VOCAB_NORMALIZED ? added_of(&t->added_normal, token) : NULL;
    if (normalized) { /* the normalised text by which it is found */
        work->text = normalized->text;
        work->n = normalized->n_byte;
    }
    return raw ? NIB_OK : run_steps(&t->decoder, work, started, byte, err);
}

nib_status tokenizer_decode(const tokenizer *t, decode_state *state, int32_t token, bool special,
                            text_buffer *out, nib_error *err) {
    token_text work = {0};
    char byte;
    NIB_TRY(text_append(out, "", 0, err));
    nib_status status = token_text_of(t, token, special, state->started, &work, &byte, err);
    if (status == NIB_OK && work.text) {
        if (t->decoder.join_with_spaces && state->started)
            status = put_bytes(state, " ", 1, false, out, err);
        if (status == NIB_OK)
            status = put_bytes(state, work.text, work.n, false, out, err);
        state->started = true;
    }
    text_buffer_clear(&work.buffer[0]);
    text_buffer_clear(&work.buffer[1]);
    return status;
}

nib_status tokenizer_bytes(const tokenizer *t, int32_t token, text_buffer *out, nib_error *err) {
    token_text work = {0};
    char byte;
    nib_status status = token_text_of(t, token, false, true, &work, &byte, err);
    if (status == NIB_OK && work.text && t->decoder.join_with_spaces)
        status = text_append(out, " ", 1, err);
    if (status == NIB_OK && work.text)
        status = text_append(out, work.text, work.n, err);
    text_buffer_clear(&work.buffer[0]);
    text_buffer_clear(&work.buffer[1]);
    return status;
}

nib_status tokenizer_decode_end(const tokenizer *t, decode_state *state, text_buffer *out, nib_error *err) {
    (void)t;
    NIB_TRY(text_append(out, "", 0, err));
    return put_bytes(state, "", 0, true, out, err);
}

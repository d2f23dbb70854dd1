/* normalize.c - see normalize.h. Each step reads one text and writes another. A step that changes nothing (a
 * normal form of ASCII) does not copy the text. */
#include "tokenizer/normalize.h"
#include "tokenizer/normal_form.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <string.h>
#include <utf8proc.h>

nib_status text_append(text_buffer *b, const char *text, size_t n_byte, nib_error *err) {
    if (b->left && n_byte > *b->left)
        return nib_fail(err, NIB_E_MODEL,
                        "expected a text that grows to at most %d times its length, found more", WORK_GROWTH);
    if (b->left)
        *b->left -= n_byte;
    if (mem_grow((void **)&b->data, &b->cap, b->n + n_byte + 1, 1))
        return nib_fail_nomem(err, b->n + n_byte + 1, "a text");
    if (n_byte)
        memcpy(b->data + b->n, text, n_byte);
    b->n += n_byte;
    b->data[b->n] = 0;
    return NIB_OK;
}

nib_status normalizer_add(normalizer *z, normal_kind kind, normal_step **out, nib_error *err) {
    if (z->n_step == NORMAL_STEPS)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected at most %d normalizers", NORMAL_STEPS);
    *out = &z->step[z->n_step++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    return NIB_OK;
}

void normalizer_deinit(normalizer *z) {
    for (size_t i = 0; i < z->n_step; i++) {
        mem_free(z->step[i].from);
        mem_free(z->step[i].to);
        regex_close(z->step[i].pattern);
        charsmap_close(z->step[i].map);
    }
    z->n_step = 0;
}

bool normalizer_takes_bytes(const normalizer *z) {
    for (size_t i = 0; i < z->n_step; i++) {
        const normal_step *step = &z->step[i];
        bool plain = step->kind == NORMAL_REPLACE && !step->pattern;
        if (!plain && step->kind != NORMAL_PREPEND && step->kind != NORMAL_SENTENCEPIECE)
            return false;
    }
    return true;
}

static nib_status lowercase(const char *text, size_t n, text_buffer *out, nib_error *err) {
    for (const char *p = text; p < text + n;) {
        char small[4];
        uint32_t c = utf8_next(&p);
        if (c == 0x130) { /* the only letter whose full lower case has two characters */
            NIB_TRY(text_append(out, "i\xCC\x87", 3, err));
            continue;
        }
        size_t length = utf8_put((uint32_t)utf8proc_tolower((utf8proc_int32_t)c), small);
        NIB_TRY(text_append(out, small, length, err));
    }
    return NIB_OK;
}

static nib_status strip_accents(const char *text, size_t n, text_buffer *out, nib_error *err) {
    for (const char *p = text, *begin; p < text + n;) {
        begin = p;
        if (!(unicode_class(utf8_next(&p)) & UNI_MARK))
            NIB_TRY(text_append(out, begin, (size_t)(p - begin), err));
    }
    return NIB_OK;
}

static nib_status strip(const normal_step *step, const char *text, size_t n, text_buffer *out,
                        nib_error *err) {
    const char *begin = text, *end = text + n;
    for (const char *p = begin; step->left && p < end; begin = p)
        if (!(unicode_class(utf8_next(&p)) & UNI_SPACE))
            break;
    while (step->right && end > begin) {
        const char *p = end - 1;
        while (((unsigned char)*p & 0xC0) == 0x80)
            p--;
        const char *next = p;
        if (!(unicode_class(utf8_next(&next)) & UNI_SPACE))
            break;
        end = p;
    }
    return text_append(out, begin, (size_t)(end - begin), err);
}

static nib_status replace_regex(const normal_step *step, regex_run *run, const char *text, size_t n,
                                text_buffer *out, nib_error *err) {
    size_t at = 0, last = SIZE_MAX;
    for (;;) {
        bool found;
        size_t begin, end;
        NIB_TRY(regex_find(step->pattern, run, text, n, at, last, &found, &begin, &end, err));
        if (!found)
            return text_append(out, text + at, n - at, err);
        NIB_TRY(text_append(out, text + at, begin - at, err));
        NIB_TRY(text_append(out, step->to, step->n_to, err));
        at = last = end;
    }
}

static nib_status replace(const normal_step *step, const char *text, size_t n, text_buffer *out,
                          nib_error *err) {
    const char *end = text + n;
    while (step->n_from && text < end) {
        const char *hit = step->n_from == 1 ? memchr(text, step->from[0], (size_t)(end - text))
                                            : memmem(text, (size_t)(end - text), step->from, step->n_from);
        if (!hit)
            break;
        NIB_TRY(text_append(out, text, (size_t)(hit - text), err));
        NIB_TRY(text_append(out, step->to, step->n_to, err));
        text = hit + step->n_from;
    }
    return text_append(out, text, (size_t)(end - text), err);
}

/* Like the `tokenizers` library: looks up a whole grapheme of fewer than six bytes (shortest entry),
 * otherwise each character. The reference encodings depend on it. */
static nib_status map_graphemes(const normal_step *step, const char *text, size_t n, text_buffer *out,
                                nib_error *err) {
    const char *to, *end = text + n;
    size_t n_to;
    while (text < end) {
        const char *stop = text;
        utf8proc_int32_t state = 0;
        uint32_t c = utf8_next(&stop);
        while (stop < end) {
            const char *next = stop;
            uint32_t d = utf8_next(&next);
            if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)c, (utf8proc_int32_t)d, &state))
                break;
            c = d;
            stop = next;
        }
        if (stop - text < 6 && charsmap_find(step->map, text, (size_t)(stop - text), false, &to, &n_to)) {
            NIB_TRY(text_append(out, to, n_to, err));
            text = stop;
            continue;
        }
        while (text < stop) {
            size_t length = utf8_length((unsigned char)*text);
            bool mapped = charsmap_find(step->map, text, length, false, &to, &n_to);
            NIB_TRY(text_append(out, mapped ? to : text, mapped ? n_to : length, err));
            text += length;
        }
    }
    return NIB_OK;
}

static const char SPACE_SIGN[] = "\xE2\x96\x81", REPLACEMENT[] = "\xEF\xBF\xBD";

/* Appends a normalised part of a SentencePiece text: spaces become U+2581 or are joined. */
static nib_status put_spaced(const normal_step *step, const char *text, size_t n, bool *in_word, bool *any,
                             text_buffer *out, nib_error *err) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            *in_word = false;
            if (!step->right)
                NIB_TRY(text_append(out, SPACE_SIGN, 3, err));
            continue;
        }
        if (!*in_word && ((step->left && !*any) || step->right))
            NIB_TRY(text_append(out, SPACE_SIGN, 3, err));
        *in_word = *any = true;
        NIB_TRY(text_append(out, text + i, 1, err));
    }
    return NIB_OK;
}

static nib_status sentencepiece(const normal_step *step, const char *text, size_t n, text_buffer *out,
                                nib_error *err) {
    bool in_word = false, any = false;
    for (size_t i = 0; i < n;) {
        const char *to = text + i;
        uint32_t c;
        size_t n_to, used = step->map ? charsmap_find(step->map, text + i, n - i, true, &to, &n_to) : 0;
        if (!used)
            n_to = used = utf8_check_shape(text + i, n - i, &c);
        if (!used) {
            to = REPLACEMENT;
            n_to = 3;
            used = 1;
        }
        NIB_TRY(put_spaced(step, to, n_to, &in_word, &any, out, err));
        i += used;
    }
    return NIB_OK;
}

static bool is_ascii(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] >= 0x80)
            return false;
    return true;
}

static nib_status run_step(const normal_step *step, regex_run *run, const char *text, size_t n,
                           text_buffer *out, nib_error *err) {
    switch (step->kind) {
    case NORMAL_NFC:
    case NORMAL_NFD:
    case NORMAL_NFKC:
    case NORMAL_NFKD:
        return normal_form(text, n, step->kind == NORMAL_NFKC || step->kind == NORMAL_NFKD,
                           step->kind == NORMAL_NFC || step->kind == NORMAL_NFKC, out, err);
    case NORMAL_LOWERCASE: return lowercase(text, n, out, err);
    case NORMAL_STRIP: return strip(step, text, n, out, err);
    case NORMAL_STRIP_ACCENTS: return strip_accents(text, n, out, err);
    case NORMAL_REPLACE:
        return step->pattern ? replace_regex(step, run, text, n, out, err) : replace(step, text, n, out, err);
    case NORMAL_CHARSMAP: return map_graphemes(step, text, n, out, err);
    case NORMAL_SENTENCEPIECE: return sentencepiece(step, text, n, out, err);
    case NORMAL_PREPEND: break;
    }
    if (n)
        NIB_TRY(text_append(out, step->to, step->n_to, err));
    return text_append(out, text, n, err);
}

void normal_scratch_init(normal_scratch *s, text_work *work) {
    *s = (normal_scratch){.run = {.work = work}};
    for (size_t i = 0; i < NORMAL_STEPS; i++)
        s->left[i] = work_growth(work->n_byte);
}

void normal_scratch_deinit(normal_scratch *s) {
    text_buffer_clear(&s->buffer[0]);
    text_buffer_clear(&s->buffer[1]);
    regex_run_deinit(&s->run);
}

nib_status normalizer_run(const normalizer *z, normal_scratch *s, const char **text, size_t *n_byte,
                          nib_error *err) {
    static const struct {
        const char *name;
        unsigned units;
    } kinds[] = {
#define NORMAL_X(id, name, units) {name, units},
        NORMAL_KINDS(NORMAL_X)
#undef NORMAL_X
    };
    int next = 0;
    for (size_t i = 0; i < z->n_step; i++) {
        const normal_kind kind = z->step[i].kind;
        if (kind <= NORMAL_NFKD && is_ascii(*text, *n_byte))
            continue;
        text_buffer *out = &s->buffer[next];
        out->n = 0;
        out->left = &s->left[i];
        nib_status status = work_take(s->run.work, (uint64_t)*n_byte * kinds[kind].units)
                                ? run_step(&z->step[i], &s->run, *text, *n_byte, out, err)
                                : work_over(s->run.work, "it", err);
        if (status == NIB_OK)
            status = text_append(out, "", 0, err);
        if (status != NIB_OK)
            return work_fail_in(status, "normalizer", i, kinds[kind].name, err);
        *text = out->data;
        *n_byte = out->n;
        next = !next;
    }
    return NIB_OK;
}

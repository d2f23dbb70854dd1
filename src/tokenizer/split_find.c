/* split_find.c - see split_find.h. */
#include "tokenizer/split_find.h"
#include "tokenizer/unicode.h"

#include <string.h>

static split_span find_rule(const split_step *step, const char *text, size_t n, size_t from) {
    scan_spaces seen = {0};
    for (size_t at = from; at < n; at += utf8_length((unsigned char)text[at])) {
        size_t length = scan_match(&step->rule, text + at, text + n, &seen);
        if (length)
            return (split_span){at, at + length, true};
    }
    return (split_span){n, n, false};
}

static split_span find_string(const split_step *step, const char *text, size_t n, size_t from) {
    const char *hit = from < n ? memmem(text + from, n - from, step->string, step->n_string) : NULL;
    if (!hit)
        return (split_span){n, n, false};
    return (split_span){(size_t)(hit - text), (size_t)(hit - text) + step->n_string, true};
}

static bool in_class(const split_step *step, uint32_t c) {
    return unicode_class(c) & step->classes ||
           (step->ascii_punct && c && c < 128 && strchr("$+<=>^`|~", (int)c));
}

static split_span find_class(const split_step *step, const char *text, size_t n, size_t from) {
    split_span s = {n, n, false};
    for (const char *p = text + from, *begin; p < text + n;) {
        begin = p;
        bool inside = in_class(step, utf8_next(&p));
        if (!inside && s.found)
            break;
        if (!inside)
            continue;
        if (!s.found)
            s.begin = (size_t)(begin - text);
        s.end = (size_t)(p - text);
        s.found = true;
        if (step->single)
            break;
    }
    return s;
}

/* The kind of a character for \w+|[^\w\s]+. */
static int word_kind(uint32_t c) {
    return unicode_is_word(c) ? 1 : unicode_class(c) & UNI_SPACE ? 0 : 2;
}

static split_span find_words(const char *text, size_t n, size_t from) {
    int kind = 0;
    split_span s = {n, n, false};
    for (const char *p = text + from, *begin; p < text + n;) {
        begin = p;
        int here = word_kind(utf8_next(&p));
        if (s.found && here != kind)
            break;
        if (!here)
            continue;
        if (!s.found)
            s.begin = (size_t)(begin - text);
        s.end = (size_t)(p - text);
        s.found = true;
        kind = here;
    }
    return s;
}

static split_span find_line_end(const char *text, size_t n, size_t from) {
    size_t begin = n;
    while (begin > from) {
        size_t at = begin - 1;
        while (at > from && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        const char *p = text + at;
        if (!(unicode_class(utf8_next(&p)) & UNI_SPACE))
            break;
        begin = at;
    }
    return (split_span){begin, n, begin < n};
}

static bool is_digit_at(const char *text, size_t n, size_t at) {
    const char *p = text + at;
    return at < n && unicode_class(utf8_next(&p)) & UNI_DIGIT;
}

static size_t skip_chars(const char *text, size_t at, size_t count) {
    while (count--)
        at += utf8_length((unsigned char)text[at]);
    return at;
}

/* The next position from which a multiple of three digits is left, and only digits. At the last one,
 * s->digits are left. */
static split_span find_threes(split_search *s, size_t from, size_t last) {
    size_t at = from;
    if (from == last && s->digits > 3) {
        s->digits -= 3;
        at = skip_chars(s->text, from, 3);
        return (split_span){at, at, true};
    }
    if (from == last)
        at = skip_chars(s->text, from, s->digits);
    while (at < s->n) {
        size_t end = at, count = 0;
        for (; is_digit_at(s->text, s->n, end); count++)
            end = skip_chars(s->text, end, 1);
        if (count >= 3) {
            at = skip_chars(s->text, at, count % 3);
            s->digits = count - count % 3;
            return (split_span){at, at, true};
        }
        at = count ? end : skip_chars(s->text, at, 1);
    }
    return (split_span){s->n, s->n, false};
}

nib_status split_find(const split_step *step, regex_run *run, split_search *s, size_t from, size_t last,
                      split_span *out, nib_error *err) {
    const char *text = s->text;
    const size_t n = s->n;
    *out = (split_span){n, n, false};
    switch (step->kind) {
    case SPLIT_RULE: *out = find_rule(step, text, n, from); break;
    case SPLIT_REGEX:
        return regex_find(step->pattern, run, text, n, from, last, &out->found, &out->begin, &out->end, err);
    case SPLIT_STRING:
    case SPLIT_METASPACE: *out = find_string(step, text, n, from); break;
    case SPLIT_CLASS: *out = find_class(step, text, n, from); break;
    case SPLIT_LINE_END: *out = find_line_end(text, n, from); break;
    case SPLIT_THREES: *out = find_threes(s, from, last); break;
    case SPLIT_WORDS: *out = find_words(text, n, from); break;
    case SPLIT_PREFIX: break;
    }
    return NIB_OK;
}

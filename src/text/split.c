/* split.c - see split.h. The steps are walked depth first: a piece goes through all of them before the next
 * one is cut, so nothing is collected; a step that rewrites text has one buffer, which lives as long as its
 * pieces. */
#include "text/split.h"
#include "text/unicode.h"

#include "base/mem.h"

#include <string.h>

nib_status splitter_add(splitter *z, split_kind kind, split_step **out, nib_error *err) {
    if (z->n_step == SPLIT_STEPS)
        return nib_fail(err, NIB_E_MODEL, "tokenizer: expected at most %d pre-tokenizers", SPLIT_STEPS);
    *out = &z->step[z->n_step++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = kind;
    (*out)->behavior = SPLIT_ISOLATED;
    return NIB_OK;
}

nib_status splitter_add_regex(splitter *z, const char *pattern, size_t n_byte, split_behavior behavior,
                              bool invert, nib_error *err) {
    split_step *step = NULL;
    NIB_TRY(splitter_add(z, SPLIT_REGEX, &step, err));
    step->behavior = behavior;
    step->invert = invert;
    if (scan_compile(pattern, n_byte, &step->rule)) {
        step->kind = SPLIT_RULE;
        return NIB_OK;
    }
    if (n_byte == 4 && memcmp(pattern, "\\s+$", 4) == 0) {
        step->kind = SPLIT_LINE_END;
        return NIB_OK;
    }
    return regex_open(pattern, n_byte, &step->pattern, err);
}

bool splitter_takes_bytes(const splitter *z) {
    for (size_t i = 0; i < z->n_step; i++) {
        split_kind kind = z->step[i].kind;
        if (kind != SPLIT_STRING && kind != SPLIT_PREFIX && kind != SPLIT_METASPACE)
            return false;
    }
    return true;
}

void splitter_deinit(splitter *z) {
    for (size_t i = 0; i < z->n_step; i++) {
        regex_close(z->step[i].pattern);
        mem_free(z->step[i].string);
    }
    z->n_step = 0;
}

size_t splitter_heap_bytes(const splitter *z) {
    size_t bytes = 0;
    for (size_t i = 0; i < z->n_step; i++)
        bytes += z->step[i].n_string + (z->step[i].pattern ? regex_heap_bytes(z->step[i].pattern) : 0);
    return bytes;
}

void split_scratch_deinit(split_scratch *s) {
    regex_run_deinit(&s->run);
    for (int i = 0; i < SPLIT_STEPS; i++)
        text_buffer_clear(&s->text[i]);
}

/* ---- one step's matches ---- */

typedef struct span {
    size_t begin, end;
    bool found;
} span;

static span find_rule(const split_step *step, const char *text, size_t n, size_t from) {
    for (size_t at = from; at < n; at += utf8_length((unsigned char)text[at])) {
        size_t length = scan_match(&step->rule, text + at, text + n);
        if (length)
            return (span){at, at + length, true};
    }
    return (span){n, n, false};
}

static bool in_class(const split_step *step, uint32_t c) {
    return unicode_class(c) & step->classes ||
           (step->ascii_punct && c && c < 128 && strchr("$+<=>^`|~", (int)c));
}

static span find_class(const split_step *step, const char *text, size_t n, size_t from) {
    span s = {n, n, false};
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

/* \w+|[^\w\s]+ */
static int word_kind(uint32_t c) {
    return unicode_is_word(c) ? 1 : unicode_class(c) & UNI_SPACE ? 0 : 2;
}

static span find_words(const char *text, size_t n, size_t from) {
    int kind = 0;
    span s = {n, n, false};
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

static span find_line_end(const char *text, size_t n, size_t from) {
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
    return (span){begin, n, begin < n};
}

static nib_status find(const split_step *step, split_scratch *s, const char *text, size_t n, size_t from,
                       size_t last, span *out, nib_error *err) {
    *out = (span){n, n, false};
    switch (step->kind) {
    case SPLIT_RULE: *out = find_rule(step, text, n, from); break;
    case SPLIT_REGEX:
        return regex_find(step->pattern, &s->run, text, n, from, last, &out->found, &out->begin, &out->end,
                          err);
    case SPLIT_STRING:
    case SPLIT_METASPACE: {
        const char *hit = from < n ? memmem(text + from, n - from, step->string, step->n_string) : NULL;
        if (hit)
            *out = (span){(size_t)(hit - text), (size_t)(hit - text) + step->n_string, true};
        break;
    }
    case SPLIT_CLASS: *out = find_class(step, text, n, from); break;
    case SPLIT_LINE_END: *out = find_line_end(text, n, from); break;
    case SPLIT_WORDS: *out = find_words(text, n, from); break;
    case SPLIT_PREFIX: break;
    }
    return NIB_OK;
}

/* ---- the walk ---- */

typedef struct walk {
    const splitter *z;
    split_scratch *s;
    split_take take;
    void *user;
} walk;

/* The pieces of one text at one step; the last range waits because the next may be joined to it. */
typedef struct cutter {
    const walk *w;
    size_t step;
    split_behavior behavior;
    const char *text;
    bool first, waiting, after_match;
    size_t begin, end;
} cutter;

static nib_status run_from(const walk *w, size_t step, const char *text, size_t n, bool first,
                           nib_error *err);

static nib_status emit(const cutter *c, size_t begin, size_t end, nib_error *err) {
    if (begin == end)
        return NIB_OK;
    if (c->step + 1 == c->w->z->n_step)
        return c->w->take(c->w->user, c->text + begin, end - begin, err);
    return run_from(c->w, c->step + 1, c->text + begin, end - begin, c->first && begin == 0, err);
}

static nib_status add_range(cutter *c, size_t begin, size_t end, bool is_match, nib_error *err) {
    if (c->behavior == SPLIT_ISOLATED)
        return emit(c, begin, end, err);
    if (c->behavior == SPLIT_REMOVED)
        return is_match ? NIB_OK : emit(c, begin, end, err);
    bool join = false;
    if (c->waiting && c->behavior == SPLIT_MERGED_WITH_PREVIOUS)
        join = is_match && !c->after_match;
    else if (c->waiting && c->behavior == SPLIT_MERGED_WITH_NEXT)
        join = !is_match && c->after_match;
    else if (c->waiting)
        join = is_match == c->after_match;
    if (!join && c->waiting)
        NIB_TRY(emit(c, c->begin, c->end, err));
    if (!join)
        c->begin = begin;
    c->end = end;
    c->waiting = true;
    c->after_match = is_match;
    return NIB_OK;
}

static nib_status cut(const walk *w, size_t i, const char *text, size_t n, bool first, nib_error *err) {
    const split_step *step = &w->z->step[i];
    cutter c = {.w = w, .step = i, .behavior = step->behavior, .text = text, .first = first};
    size_t at = 0, last = SIZE_MAX;
    for (;;) {
        span s;
        NIB_TRY(find(step, w->s, text, n, at, last, &s, err));
        if (!s.found)
            break;
        if (s.begin > at)
            NIB_TRY(add_range(&c, at, s.begin, step->invert, err));
        NIB_TRY(add_range(&c, s.begin, s.end, !step->invert, err));
        at = last = s.end;
    }
    if (at < n)
        NIB_TRY(add_range(&c, at, n, step->invert, err));
    return c.waiting ? emit(&c, c.begin, c.end, err) : NIB_OK;
}

static nib_status metaspace(const walk *w, size_t i, const char *text, size_t n, bool first, nib_error *err) {
    const split_step *step = &w->z->step[i];
    text_buffer *b = &w->s->text[i];
    b->n = 0;
    bool has = (n >= step->n_string && memcmp(text, step->string, step->n_string) == 0) || *text == ' ';
    if (!has && (step->prepend == PREPEND_ALWAYS || (step->prepend == PREPEND_FIRST && first)))
        NIB_TRY(text_append(b, step->string, step->n_string, err));
    for (const char *p = text, *end = text + n; p < end;) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        NIB_TRY(text_append(b, p, (size_t)((space ? space : end) - p), err));
        if (!space)
            break;
        NIB_TRY(text_append(b, step->string, step->n_string, err));
        p = space + 1;
    }
    return step->cut ? cut(w, i, b->data, b->n, first, err) : run_from(w, i + 1, b->data, b->n, first, err);
}

static nib_status run_from(const walk *w, size_t i, const char *text, size_t n, bool first, nib_error *err) {
    if (i == w->z->n_step)
        return w->take(w->user, text, n, err);
    if (w->z->step[i].kind == SPLIT_METASPACE)
        return metaspace(w, i, text, n, first, err);
    if (w->z->step[i].kind != SPLIT_PREFIX)
        return cut(w, i, text, n, first, err);
    if (*text == ' ')
        return run_from(w, i + 1, text, n, first, err);
    text_buffer *b = &w->s->text[i];
    b->n = 0;
    NIB_TRY(text_append(b, " ", 1, err));
    NIB_TRY(text_append(b, text, n, err));
    return run_from(w, i + 1, b->data, b->n, first, err);
}

nib_status splitter_run(const splitter *z, split_scratch *s, const char *text, size_t n_byte, bool first,
                        split_take take, void *user, nib_error *err) {
    walk w = {z, s, take, user};
    return n_byte ? run_from(&w, 0, text, n_byte, first, err) : NIB_OK;
}

/* split.c - see split.h. Steps are applied depth first: a piece goes through all steps before the next piece
 * is cut, so no list of pieces is needed. A step that rewrites text has one buffer, which stays valid while
 * its pieces are processed. */
#include "tokenizer/split.h"
#include "tokenizer/split_find.h"

#include "base/mem.h"
#include "base/num.h"

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

/* Published patterns that regex engines do not match in linear time. */
static const struct {
    const char *pattern;
    split_kind kind;
} by_hand[] = {{"\\s+$", SPLIT_LINE_END}, {"(?=(\\d{3})+(?!\\d))", SPLIT_THREES}};

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
    for (size_t i = 0; i < NUM_COUNT(by_hand); i++) {
        if (strlen(by_hand[i].pattern) == n_byte && memcmp(pattern, by_hand[i].pattern, n_byte) == 0) {
            step->kind = by_hand[i].kind;
            return NIB_OK;
        }
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

void split_scratch_init(split_scratch *s, text_work *work) {
    *s = (split_scratch){.run = {.work = work}};
    for (int i = 0; i < SPLIT_STEPS; i++) {
        s->left[i] = work_growth(work->n_byte);
        s->text[i].left = &s->left[i];
    }
}

void split_scratch_deinit(split_scratch *s) {
    regex_run_deinit(&s->run);
    for (int i = 0; i < SPLIT_STEPS; i++)
        text_buffer_clear(&s->text[i]);
}

typedef struct walk {
    const splitter *z;
    split_scratch *s;
    split_take take;
    void *user;
} walk;

/* Cuts one text at one step. The last range is held back, because the next one may be joined to it. */
typedef struct cutter {
    const walk *w;
    size_t step;
    split_behavior behavior;
    split_search search;
    bool first, waiting, after_match;
    size_t begin, end;
} cutter;

static nib_status run_from(const walk *w, size_t step, const char *text, size_t n, bool first,
                           nib_error *err);

/* Prefixes a step's own error with its name; errors of later steps have theirs already. */
static nib_status fail_in(const walk *w, size_t i, nib_status status, nib_error *err) {
    static const char *const names[] = {
#define SPLIT_X(id, name) name,
        SPLIT_KINDS(SPLIT_X)
#undef SPLIT_X
    };
    return status == NIB_OK ? status
                            : work_fail_in(status, "pre-tokenizer", i, names[w->z->step[i].kind], err);
}

static nib_status emit(const cutter *c, size_t begin, size_t end, nib_error *err) {
    if (begin == end)
        return NIB_OK;
    if (c->step + 1 == c->w->z->n_step)
        return c->w->take(c->w->user, c->search.text + begin, end - begin, err);
    return run_from(c->w, c->step + 1, c->search.text + begin, end - begin, c->first && begin == 0, err);
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
    cutter c = {.w = w, .step = i, .behavior = step->behavior, .search = {text, n, 0}, .first = first};
    size_t at = 0, last = SIZE_MAX;
    for (;;) {
        split_span s;
        NIB_TRY(fail_in(w, i, split_find(step, &w->s->run, &c.search, at, last, &s, err), err));
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

/* Writes the text with the step's sign instead of spaces. */
static nib_status put_signs(const split_step *step, const char *text, size_t n, bool first, text_buffer *b,
                            nib_error *err) {
    bool has = (n >= step->n_string && memcmp(text, step->string, step->n_string) == 0) || *text == ' ';
    b->n = 0;
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
    return NIB_OK;
}

static nib_status put_space(const char *text, size_t n, text_buffer *b, nib_error *err) {
    b->n = 0;
    NIB_TRY(text_append(b, " ", 1, err));
    return text_append(b, text, n, err);
}

static nib_status run_from(const walk *w, size_t i, const char *text, size_t n, bool first, nib_error *err) {
    if (i == w->z->n_step)
        return w->take(w->user, text, n, err);
    const split_step *step = &w->z->step[i];
    text_buffer *b = &w->s->text[i];
    if (step->kind == SPLIT_METASPACE) {
        NIB_TRY(fail_in(w, i, put_signs(step, text, n, first, b, err), err));
        return step->cut ? cut(w, i, b->data, b->n, first, err)
                         : run_from(w, i + 1, b->data, b->n, first, err);
    }
    if (step->kind != SPLIT_PREFIX)
        return cut(w, i, text, n, first, err);
    if (*text == ' ')
        return run_from(w, i + 1, text, n, first, err);
    NIB_TRY(fail_in(w, i, put_space(text, n, b, err), err));
    return run_from(w, i + 1, b->data, b->n, first, err);
}

nib_status splitter_run(const splitter *z, split_scratch *s, const char *text, size_t n_byte, bool first,
                        split_take take, void *user, nib_error *err) {
    walk w = {z, s, take, user};
    return n_byte ? run_from(&w, 0, text, n_byte, first, err) : NIB_OK;
}

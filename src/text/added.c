/* added.c - see added.h. The items are sorted; the range of those that agree with the text so far is narrowed
 * byte by byte, so a position costs no more than the longest agreement. */
#include "text/added.h"
#include "text/unicode.h"

#include "base/mem.h"

#include <string.h>

nib_status added_put(added_set *s, const char *text, size_t n_byte, int32_t id, nib_error *err) {
    if (!n_byte)
        return NIB_OK;
    if (mem_grow((void **)&s->item, &s->cap, s->n + 1, sizeof *s->item))
        return nib_fail_nomem(err, (s->n + 1) * sizeof *s->item, "the added tokens");
    char *copy = mem_strndup(text, n_byte);
    if (!copy)
        return nib_fail_nomem(err, n_byte, "an added token");
    s->item[s->n++] = (text_key){copy, (uint32_t)n_byte, id};
    return NIB_OK;
}

void added_sort(added_set *s) {
    text_key_sort(s->item, s->n, s->first);
}

void added_deinit(added_set *s) {
    for (size_t i = 0; i < s->n; i++)
        mem_free((char *)(uintptr_t)s->item[i].text);
    mem_free(s->item);
}

size_t added_heap_bytes(const added_set *s) {
    size_t bytes = s->cap * sizeof *s->item;
    for (size_t i = 0; i < s->n; i++)
        bytes += s->item[i].n_byte + 1;
    return bytes;
}

/* The list doubles, which takes the old and the new one; texts are blocks of the heap. */
uint64_t added_bytes(uint64_t n, uint64_t text_bytes) {
    enum { BLOCK = 32 };
    return 3 * n * sizeof(text_key) + n * BLOCK + text_bytes;
}

/* In [low, high), all equal up to `depth`: the first whose byte there is at least b; ended ones come first.
 */
static size_t lower(const added_set *s, size_t low, size_t high, size_t depth, int b) {
    while (low < high) {
        size_t mid = (low + high) / 2;
        int here = s->item[mid].n_byte > depth ? (unsigned char)s->item[mid].text[depth] : -1;
        if (here < b)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool is_word_before(const char *text, size_t at) {
    if (!at)
        return false;
    size_t begin = at - 1;
    while (begin && at - begin < 4 && ((unsigned char)text[begin] & 0xC0) == 0x80)
        begin--;
    const char *p = text + begin;
    return utf8_check(p, at - begin) == at - begin && unicode_is_word(utf8_next(&p));
}

static bool is_word_at(const char *text, size_t n, size_t at) {
    const char *p = text + at;
    return at < n && utf8_check(p, n - at) && unicode_is_word(utf8_next(&p));
}

static bool allowed(const vocab *v, int32_t id, bool special, const char *text, size_t n, size_t begin,
                    size_t end) {
    if (v->flags[id] & VOCAB_CONTROL && !special)
        return false;
    return !(v->flags[id] & VOCAB_WORD) || !(is_word_before(text, begin) || is_word_at(text, n, end));
}

/* The longest allowed token at `at`. */
static bool match_at(const added_set *s, const vocab *v, bool special, const char *text, size_t n, size_t at,
                     added_match *out) {
    unsigned char b = (unsigned char)text[at];
    size_t low = s->first[b], high = s->first[b + 1];
    bool found = false;
    for (size_t depth = 1; low < high; depth++) {
        for (; low < high && s->item[low].n_byte == depth; low++) {
            if (!allowed(v, s->item[low].id, special, text, n, at, at + depth))
                continue;
            *out = (added_match){at, at + depth, s->item[low].id};
            found = true;
        }
        if (at + depth >= n)
            break;
        int next = (unsigned char)text[at + depth];
        low = lower(s, low, high, depth, next);
        high = lower(s, low, high, depth, next + 1);
    }
    return found;
}

static size_t space_before(const char *text, size_t from, size_t at) {
    while (at > from) {
        size_t begin = at - 1;
        while (begin > from && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        const char *p = text + begin;
        if (utf8_check(p, at - begin) != at - begin || !(unicode_class(utf8_next(&p)) & UNI_SPACE))
            break;
        at = begin;
    }
    return at;
}

static size_t space_after(const char *text, size_t n, size_t at) {
    while (at < n) {
        const char *p = text + at;
        if (!utf8_check(p, n - at) || !(unicode_class(utf8_next(&p)) & UNI_SPACE))
            break;
        at = (size_t)(p - text);
    }
    return at;
}

bool added_find(const added_set *s, const vocab *v, bool special, const char *text, size_t n, size_t from,
                added_match *out) {
    if (!s->n)
        return false;
    for (size_t at = from; at < n; at++) {
        unsigned char b = (unsigned char)text[at];
        if (s->first[b] == s->first[b + 1] || !match_at(s, v, special, text, n, at, out))
            continue;
        if (v->flags[out->id] & VOCAB_LSTRIP)
            out->begin = space_before(text, from, out->begin);
        if (v->flags[out->id] & VOCAB_RSTRIP)
            out->end = space_after(text, n, out->end);
        return true;
    }
    return false;
}

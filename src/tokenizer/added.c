/* added.c - see added.h. */
#include "tokenizer/added.h"
#include "tokenizer/unicode.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

nib_status added_put(added_set *s, const char *text, size_t n_byte, int32_t id, nib_error *err) {
    text_keys *k = &s->keys;
    if (!n_byte)
        return NIB_OK;
    if (mem_grow((void **)&k->item, &k->cap, k->n + 1, sizeof *k->item))
        return nib_fail_nomem(err, (k->n + 1) * sizeof *k->item, "the added tokens");
    char *copy = mem_strndup(text, n_byte);
    if (!copy)
        return nib_fail_nomem(err, n_byte, "an added token");
    k->item[k->n++] = (text_key){copy, (uint32_t)n_byte, id};
    return NIB_OK;
}

static int compare_ids(const void *left, const void *right, void *keys) {
    const text_key *item = ((const text_keys *)keys)->item;
    const int32_t a = item[*(const uint32_t *)left].id, b = item[*(const uint32_t *)right].id;
    return (a > b) - (a < b);
}

nib_status added_sort(added_set *s, nib_error *err) {
    text_keys *k = &s->keys;
    text_keys_sort(k);
    s->by_id = mem_array(k->n, sizeof *s->by_id);
    if (!s->by_id)
        return nib_fail_nomem(err, k->n * sizeof *s->by_id, "the added tokens");
    for (uint32_t i = 0; i < k->n; i++)
        s->by_id[i] = i;
    qsort_r(s->by_id, k->n, sizeof *s->by_id, compare_ids, k);
    return NIB_OK;
}

/* The list doubles, during which the old and the new one exist. Texts are heap blocks. The order by id is
 * allocated later, in the space that the old list has freed. */
uint64_t added_bytes(uint64_t n, uint64_t text_bytes) {
    enum { BLOCK = 32 };
    return 3 * n * sizeof(text_key) + n * BLOCK + text_bytes;
}

const text_key *added_of(const added_set *s, int32_t id) {
    size_t low = 0, high = s->keys.n;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (s->keys.item[s->by_id[mid]].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    const text_key *found = low < s->keys.n ? &s->keys.item[s->by_id[low]] : NULL;
    return found && found->id == id ? found : NULL;
}

void added_deinit(added_set *s) {
    for (size_t i = 0; i < s->keys.n; i++)
        mem_free((char *)(uintptr_t)s->keys.item[i].text);
    mem_free(s->keys.item);
    mem_free(s->by_id);
}

size_t added_heap_bytes(const added_set *s) {
    size_t bytes = s->keys.cap * sizeof *s->keys.item + s->keys.n * sizeof *s->by_id;
    for (size_t i = 0; i < s->keys.n; i++)
        bytes += s->keys.item[i].n_byte + 1;
    return bytes;
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

static bool allowed(const added_search *search, int32_t id, const char *text, size_t n, size_t begin,
                    size_t end) {
    const uint8_t flags = search->vocab->flags[id];
    if (flags & VOCAB_CONTROL &&
        (!search->special || (search->mark && memchr(search->mark + begin, 1, end - begin))))
        return false;
    return !(flags & VOCAB_WORD) || !(is_word_before(text, begin) || is_word_at(text, n, end));
}

/* Finds the longest allowed token at `at`. */
static nib_status match_at(const added_search *search, const char *text, size_t n, size_t at, bool *found,
                           added_match *out, nib_error *err) {
    text_walk walk = text_walk_of(&search->set->keys, text + at);
    for (const text_key *key; (key = text_walk_next(&walk, &search->set->keys, text + at, n - at));) {
        if (!allowed(search, key->id, text, n, at, at + key->n_byte))
            continue;
        *out = (added_match){at, at + key->n_byte, key->id};
        *found = true;
    }
    return work_take(search->work, walk.units)
               ? NIB_OK
               : work_over(search->work, "tokenizer: the search for added tokens", err);
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

/* Extends a match by the white space that the token strips. */
static void widen(const vocab *v, const char *text, size_t n, size_t from, added_match *m) {
    if (v->flags[m->id] & VOCAB_LSTRIP)
        m->begin = space_before(text, from, m->begin);
    if (v->flags[m->id] & VOCAB_RSTRIP)
        m->end = space_after(text, n, m->end);
}

nib_status added_find(const added_search *search, const char *text, size_t n, size_t from, bool *found,
                      added_match *out, nib_error *err) {
    const text_keys *k = &search->set->keys;
    *found = false;
    for (size_t at = k->n ? from : n; at < n && !*found; at++) {
        unsigned char b = (unsigned char)text[at];
        if (k->first[b] != k->first[b + 1])
            NIB_TRY(match_at(search, text, n, at, found, out, err));
    }
    if (*found)
        widen(search->vocab, text, n, from, out);
    return NIB_OK;
}

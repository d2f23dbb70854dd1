/* text_key.c - see text_key.h. */
#include "tokenizer/text_key.h"

#include "base/num.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *left, const void *right) {
    const text_key *a = left, *b = right;
    int order = memcmp(a->text, b->text, NUM_MIN(a->n_byte, b->n_byte));
    if (order)
        return order;
    if (a->n_byte != b->n_byte)
        return a->n_byte < b->n_byte ? -1 : 1;
    return (a->id > b->id) - (a->id < b->id);
}

void text_keys_sort(text_keys *k) {
    if (k->n)
        qsort(k->item, k->n, sizeof *k->item, compare);
    size_t i = 0;
    for (int b = 0; b <= 256; b++) {
        while (i < k->n && (unsigned char)k->item[i].text[0] < b)
            i++;
        k->first[b] = (uint32_t)i;
    }
}

/* The first key in [low, high) whose byte at `depth` is at least b. All of them are longer than `depth` and
 * equal up to it. */
static uint32_t lower(text_walk *w, const text_keys *k, uint32_t low, int b) {
    uint32_t high = w->high;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        w->units++;
        if ((unsigned char)k->item[mid].text[w->depth] < b)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Skips the bytes that all possible keys have in common; false: the text differs there. */
static bool pass_common(text_walk *w, const text_keys *k, const char *text, size_t n) {
    const text_key *first = &k->item[w->low], *last = &k->item[w->high - 1];
    const size_t max = NUM_MIN(first->n_byte, last->n_byte), from = w->depth;
    bool same = true;
    while (same && w->depth < max && first->text[w->depth] == last->text[w->depth]) {
        same = w->depth < n && text[w->depth] == first->text[w->depth];
        w->depth += same;
    }
    w->units += (w->depth - from) / 2;
    return same;
}

const text_key *text_walk_next(text_walk *w, const text_keys *k, const char *text, size_t n) {
    for (; w->low < w->high; w->units++) {
        if (k->item[w->low].n_byte == w->depth) {
            w->units += 2; /* one for the caller's own look at the key */
            return &k->item[w->low++];
        }
        if (!pass_common(w, k, text, n))
            return NULL;
        if (k->item[w->low].n_byte == w->depth)
            continue;
        if (w->depth == n)
            return NULL;
        const int next = (unsigned char)text[w->depth];
        w->low = lower(w, k, w->low, next);
        w->high = lower(w, k, w->low, next + 1);
        w->depth++;
    }
    return NULL;
}

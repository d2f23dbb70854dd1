/* text_key.c - see text_key.h. */
#include "text/text_key.h"

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

void text_key_sort(text_key *key, size_t n, uint32_t first[257]) {
    if (n)
        qsort(key, n, sizeof *key, compare);
    size_t i = 0;
    for (int b = 0; b <= 256; b++) {
        while (i < n && (unsigned char)key[i].text[0] < b)
            i++;
        first[b] = (uint32_t)i;
    }
}

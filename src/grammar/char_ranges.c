/* char_ranges.c - see char_ranges.h. */
#include "grammar/char_ranges.h"

#include "base/num.h"

#include <stdlib.h>

static int by_start(const void *a, const void *b) {
    const char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

size_t char_ranges_merge(char_range *ranges, size_t n) {
    size_t kept = 0;
    if (n > 0)
        qsort(ranges, n, sizeof *ranges, by_start);
    for (size_t i = 0; i < n; i++)
        if (kept > 0 && ranges[i].lo <= ranges[kept - 1].hi + 1)
            ranges[kept - 1].hi = NUM_MAX(ranges[kept - 1].hi, ranges[i].hi);
        else
            ranges[kept++] = ranges[i];
    return kept;
}

size_t char_ranges_gaps(const char_range *ranges, size_t n, char_range *out) {
    uint32_t next = 0;
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].lo > next)
            out[n_out++] = (char_range){next, ranges[i].lo - 1};
        next = ranges[i].hi + 1;
    }
    if (next <= CHAR_LAST)
        out[n_out++] = (char_range){next, CHAR_LAST};
    return n_out;
}

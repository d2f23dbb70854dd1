/* interval.c - see interval.h. */
#include "base/interval.h"

#include "base/num.h"

#include <stdlib.h>

static int by_begin(const void *a, const void *b) {
    const double x = ((const interval *)a)->from, y = ((const interval *)b)->from;
    return (x > y) - (x < y);
}

double interval_cover(interval *list, size_t n) {
    double covered = 0;
    if (n == 0)
        return 0;
    qsort(list, n, sizeof *list, by_begin);
    interval now = list[0];
    for (size_t i = 1; i < n; i++) {
        if (list[i].from > now.to) {
            covered += now.to - now.from;
            now = list[i];
        }
        now.to = NUM_MAX(now.to, list[i].to);
    }
    return covered + now.to - now.from;
}

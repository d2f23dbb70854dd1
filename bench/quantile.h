/* quantile.h - quantiles of measured figures, for the benchmarks. */
#ifndef NIB_BENCH_QUANTILE_H
#define NIB_BENCH_QUANTILE_H

#include <stdlib.h>

static inline int quantile_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile of n values, which it sorts; it interpolates between two values. share: 0 is the minimum, 0.5
 * the median, 1 the maximum. 0 if n is 0. */
static inline double quantile(double *values, int n, double share) {
    if (n == 0)
        return 0;
    qsort(values, (size_t)n, sizeof *values, quantile_compare);
    const double at = share * (n - 1);
    const int below = (int)at, above = below + (below + 1 < n);
    return values[below] + (at - below) * (values[above] - values[below]);
}

#endif

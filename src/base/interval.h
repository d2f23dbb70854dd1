/* interval.h - time intervals that may overlap. */
#ifndef NIB_BASE_INTERVAL_H
#define NIB_BASE_INTERVAL_H

#include <stddef.h>

typedef struct interval {
    double from, to; /* from <= to */
} interval;

/* Returns the length of the union of n intervals. Sorts the list in place. */
double interval_cover(interval *list, size_t n);

#endif

/* interval.h - time intervals that may overlap. */
#ifndef NIB_BASE_INTERVAL_H
#define NIB_BASE_INTERVAL_H

#include <stddef.h>

typedef struct interval {
    double from, to; /* from <= to */
} interval;

/* The length of their union. Sorts them. */
double interval_cover(interval *list, size_t n);

#endif

/* ahead.h - finds the distance of software prefetches with which this machine is fastest.
 *
 * Products with few rows are bound by memory, and prefetch weights some KiB before they read them. The best
 * distance depends on the processor's own prefetchers and on its memory: it differs by a factor of four
 * between two Xeons, and costs up to a third of the speed (docs/optimisation-log.md). So while an engine
 * generates, some layers take turns with a few distances. The one with the lowest lower quartile of a layer's
 * time for a byte of weights is used from then on (other load only adds to times, so a median says less). The
 * first layers are not counted: weights come into the caches, and all distances take up to half as long
 * again. A shorter distance than the longest must be 7 % faster. No bit of a result depends on it. */
#ifndef NIB_EXEC_CPU_AHEAD_H
#define NIB_EXEC_CPU_AHEAD_H

#include <stdint.h>

enum {
    AHEAD_CHOICES = 3,
    AHEAD_FIRST = 300,  /* layers that are not counted: ten tokens of a model with 30 */
    AHEAD_SAMPLES = 40, /* of each choice: four tokens of a model with 30 layers */
    AHEAD_QUARTER = AHEAD_SAMPLES / 4,
    AHEAD_MAX_ROWS = 4 /* rows of a cell that is timed: with more rows arithmetic is the bound */
};

/* All zero: nothing is measured yet. */
typedef struct ahead {
    int64_t chosen; /* bytes; 0: not yet */
    int n_first;    /* layers before the first sample */
    int n_sample;
    double min_seconds[AHEAD_CHOICES][AHEAD_QUARTER]; /* the smallest seconds for a byte, ascending */
} ahead;

/* Returns the distance in bytes for the next cell that is timed. */
int64_t ahead_next(const ahead *a);
/* Adds the time of a cell with ahead_next's distance; seconds: for a byte of its weights. To be called
 * until `chosen` is set. */
void ahead_add(ahead *a, double seconds);

#endif

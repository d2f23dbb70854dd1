/* ahead.h - finds the distance of software prefetches with which this machine is fastest.
 *
 * Products with few rows are bound by memory, and prefetch weights some KiB before they read them. The best
 * distance depends on the processor's own prefetchers and on its memory: it differs by a factor of four
 * between two Xeons, and costs up to a third of the speed (docs/optimisation-log.md). So while an engine
 * generates, its first layers take turns with a few distances. The one whose best layer took the least time
 * for a byte of weights is used from then on (other load only adds to times, so a median says less). No bit
 * of a result depends on it. */
#ifndef NIB_EXEC_CPU_AHEAD_H
#define NIB_EXEC_CPU_AHEAD_H

#include <stdint.h>

enum {
    AHEAD_CHOICES = 3,
    AHEAD_SAMPLES = 40, /* of each choice: four tokens of a model with 30 layers */
    AHEAD_MAX_ROWS = 4  /* rows of a cell that is timed: with more rows arithmetic is the bound */
};

/* All zero: nothing is measured yet. */
typedef struct ahead {
    int64_t chosen; /* bytes; 0: not yet */
    int n_sample;
    double best[AHEAD_CHOICES]; /* least seconds for a byte */
} ahead;

/* Returns the distance in bytes for the next cell that is timed. */
int64_t ahead_next(const ahead *a);
/* Adds the time of a cell with ahead_next's distance; seconds: for a byte of its weights. To be called
 * until `chosen` is set. */
void ahead_add(ahead *a, double seconds);

#endif

/* kernel_grid.h - what was measured of a model's products, every shape with every number of rows, and what
 * each way to choose strategies would gain or lose there (ADAngel's ablations, section 6.4). */
#ifndef NIB_MEASURE_KERNEL_GRID_H
#define NIB_MEASURE_KERNEL_GRID_H

#include "kernels/policy.h"
#include "profile/trial.h"

#include <jansson.h>

typedef struct kernel_point {
    trial_shape shape;
    int bucket, map; /* index of the map's choice; -1: there is no map, or it says nothing here */
    trial_result result;
} kernel_point;

typedef struct kernel_grid {
    policy map;
    bool has_map;
    kernel_point *points;
    int n;
} kernel_grid;

/* A kernel_profile_fn (kernel_profile.h); user: the grid, whose points have room for all. */
nib_status kernel_grid_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                            nib_error *err);

/* The shapes of which every point is measured. A new reference; NULL: out of memory. */
json_t *kernel_grid_shapes(const kernel_grid *g);
/* Seconds and regrets of each way to choose. resident: over the points of resident packings only, those that
 * a map has to do with. A new reference; NULL: out of memory. */
json_t *kernel_grid_ablations(const kernel_grid *g, bool resident);
/* Candidates at all points together, and how many of them were not timed. */
int kernel_grid_choices(const kernel_grid *g, int *n_pruned);

#endif

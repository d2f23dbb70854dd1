/* kernel_grid.h - the measurements of a model's products for every shape and number of rows, and the loss of
 * each way to choose strategies (ADAngel's ablations, section 6.4). */
#ifndef NIB_MEASURE_KERNEL_GRID_H
#define NIB_MEASURE_KERNEL_GRID_H

#include "kernels/kernel_map.h"
#include "measure/trial.h"

#include <jansson.h>

typedef struct kernel_point {
    trial_shape shape;
    int bucket, map; /* index of the map's choice; -1: no map, or no choice for this point */
    trial_result result;
} kernel_point;

typedef struct kernel_grid {
    kernel_map map;
    bool has_map;
    kernel_point *points;
    int n;
} kernel_grid;

/* Stores a result. A kernel_profile_fn (kernel_profile.h); user: the grid, whose points are allocated. */
nib_status kernel_grid_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                            nib_error *err);

/* The shapes whose points are all measured. A new reference; NULL: out of memory. */
json_t *kernel_grid_shapes(const kernel_grid *g);
/* Seconds and regrets of each way to choose. resident: only points in the packing that the matrix has. A new
 * reference; NULL: out of memory. */
json_t *kernel_grid_ablations(const kernel_grid *g, bool resident);
/* Number of candidates at all points together; *n_pruned: those that were not timed. */
int kernel_grid_choices(const kernel_grid *g, int *n_pruned);

#endif

/* kernel_profile.h - measures the grid of shapes and rows of a kernel map within a time limit: first the
 * packing of a matrix, then the strategy for each number of rows. */
#ifndef NIB_MEASURE_KERNEL_PROFILE_H
#define NIB_MEASURE_KERNEL_PROFILE_H

#include "measure/trial.h"

typedef struct kernel_profile_options {
    const kernel_table *table;
    pool *threads;
    uint64_t n_byte;      /* bytes of rotating weights: trial_bytes() */
    double seconds;       /* of the whole measurement; each point gets an equal part of the remaining time */
    kernel_map *packings; /* gets the packing of each shape, whose grid is then measured in that packing
                         alone; NULL: shapes are measured as they are */
    nib_progress_fn progress; /* NULL: none; false cancels */
    void *user;               /* of progress */
    const canceller *cancel;  /* NULL: none */
    const trial_kind *kind;   /* the kind of `trial`, which is open: threads and n_byte are ignored; NULL: a
                                 trial of this processor is opened */
    void *trial;
} kernel_profile_options;

/* Called for each measured point: a shape and a bucket of rows. */
typedef nib_status (*kernel_profile_fn)(void *user, const trial_shape *shape, int bucket,
                                        const trial_result *result, nib_error *err);
/* Measures all points and calls fn for each; blocks for about options->seconds. */
nib_status kernel_profile(const kernel_profile_options *options, const trial_shape *shapes, int n_shape,
                          kernel_profile_fn fn, void *user, nib_error *err);

/* The time by which a packing is chosen: seconds of the workload of `nibble bench`, 512 rows at once and then
 * 128 one by one. one, many: seconds of a product with 1 row and with 512. */
double kernel_profile_mix(double one, double many);

/* A kernel_profile_fn that adds the choice to a kernel_map, which is its `user`. */
nib_status kernel_profile_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                               nib_error *err);

#endif

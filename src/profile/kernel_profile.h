/* kernel_profile.h - measures the grid of shapes and rows of a kernel map within a time limit: first the
 * packing of a matrix, then the strategy for each number of rows. */
#ifndef NIB_PROFILE_KERNEL_PROFILE_H
#define NIB_PROFILE_KERNEL_PROFILE_H

#include "profile/trial.h"

typedef struct kernel_profile_options {
    const kernel_table *table;
    pool *threads;
    uint64_t n_byte;          /* of rotating weights: trial_bytes() */
    double seconds;           /* for everything; each point gets an equal part of what is left */
    policy *packings;         /* gets the packing of each shape, whose grid is then measured in that packing
                                 alone; NULL: shapes are measured as they are */
    nib_progress_fn progress; /* NULL: none; false cancels */
    void *user;               /* of progress */
    const canceller *cancel;  /* NULL: none */
    const trial_kind *kind;   /* of `trial`, which is open: threads and n_byte are not looked at; NULL: one of
                                 this processor's is opened */
    void *trial;
} kernel_profile_options;

/* Called for each point when it is measured: a shape and the rows that stand for a bucket. */
typedef nib_status (*kernel_profile_fn)(void *user, const trial_shape *shape, int bucket,
                                        const trial_result *result, nib_error *err);
nib_status kernel_profile(const kernel_profile_options *options, const trial_shape *shapes, int n_shape,
                          kernel_profile_fn fn, void *user, nib_error *err);

/* What decides between packings: seconds of the workload that `nibble bench` measures, 512 rows at once and
 * then 128 one by one, from those of one product of 1 and of 512 rows. */
double kernel_profile_mix(double one, double many);

/* A kernel_profile_fn: puts what was chosen into the policy that is the user. */
nib_status kernel_profile_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                               nib_error *err);

#endif

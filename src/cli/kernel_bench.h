/* kernel_bench.h - what `profile --kernels` and `bench --kernels` share: a model's shapes, the machine, and
 * the comparison of strategies. */
#ifndef NIB_CLI_KERNEL_BENCH_H
#define NIB_CLI_KERNEL_BENCH_H

#include "cli/cli.h"
#include "profile/kernel_profile.h"
#include "profile/machine.h"

typedef struct kernel_bench {
    machine machine;
    const kernel_table *table;
    pool *threads;
    uint64_t n_byte; /* of rotating weights */
    trial_shape shapes[TRIAL_MAX_SHAPES];
    int n_shape;
} kernel_bench;

/* Shapes of args->model, or a set of usual ones without a model. An exit code; said already when not 0. */
int kernel_bench_open(kernel_bench *b, const cli_args *args);
void kernel_bench_close(kernel_bench *b);

/* nibble bench --kernels */
int kernel_bench_run(const cli_args *args);

#endif

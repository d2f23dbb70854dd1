/* kernels.h - timing the strategies of products: nibble bench --kernels, nibble profile --kernels. */
#ifndef NIB_CLI_BENCH_KERNELS_H
#define NIB_CLI_BENCH_KERNELS_H

#include "cli/cli.h"
#include "nib_tools.h"

/* Options of both commands. map: the kernel map's file; NULL: this machine's own. */
nib_kernels_options cli_kernels_options(const cli_args *args, const char *map);

int kernel_bench_run(const cli_args *args); /* nibble bench --kernels; returns an exit code */

#endif

/* batch.h - nibble bench -np: many sequences decoding together. */
#ifndef NIB_CLI_BENCH_BATCH_H
#define NIB_CLI_BENCH_BATCH_H

#include "cli/cli.h"

/* Times each number of sequences in args->parallel, each with a prompt of -p tokens and an answer of -n
 * tokens. Returns an exit code, after printing the error if it is not 0. */
int bench_batch_run(cli_args *args);

#endif

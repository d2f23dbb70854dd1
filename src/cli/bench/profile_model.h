/* profile_model.h - the parts of nibble profile that measure a model's weights: importance of layers, and the
 * cost of lower precision. */
#ifndef NIB_CLI_BENCH_PROFILE_MODEL_H
#define NIB_CLI_BENCH_PROFILE_MODEL_H

#include "cli/cli.h"

int profile_channels_run(const cli_args *args); /* the activations of each channel */
int profile_experts_run(const cli_args *args);  /* which experts are chosen */
int profile_model_run(const cli_args *args);    /* returns an exit code */

#endif

/* hardware_profile.h - the machine's profile, stored or measured now. */
#ifndef NIB_CLI_BENCH_HARDWARE_PROFILE_H
#define NIB_CLI_BENCH_HARDWARE_PROFILE_H

#include "cli/cli.h"

/* Reads the stored profile, or measures it (always with `again`), which takes some seconds. The caller frees
 * *out with json_decref. Returns an exit code. */
int hardware_profile_get(const cli_args *args, bool again, json_t **out);
int hardware_profile_run(const cli_args *args); /* nibble profile --hardware; returns an exit code */
/* Prints the rates of memory, disk and products. */
void hardware_profile_print(const json_t *doc);

#endif

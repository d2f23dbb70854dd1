/* hardware_profile.h - the machine's profile, stored or measured now. */
#ifndef NIB_CLI_HARDWARE_PROFILE_H
#define NIB_CLI_HARDWARE_PROFILE_H

#include "cli/cli.h"

/* again: measured although one is kept. *out is json_decref'd. An exit code. */
int hardware_profile_get(const cli_args *args, bool again, json_t **out);
int hardware_profile_run(const cli_args *args); /* nibble profile --hardware; an exit code */
/* Rates of memory, disk and products, for people. */
void hardware_profile_print(const json_t *doc);

#endif

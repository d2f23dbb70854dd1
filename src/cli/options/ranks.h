/* ranks.h - the plan of ranks, for people. */
#ifndef NIB_CLI_OPTIONS_RANKS_H
#define NIB_CLI_OPTIONS_RANKS_H

#include "cli/cli.h"

#include <jansson.h>

/* Prints the document of nib_plan_ranks. */
void ranks_print(const cli_args *args, const json_t *plan);

#endif

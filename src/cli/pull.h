/* pull.h - fetching a model onto this machine. */
#ifndef NIB_CLI_PULL_H
#define NIB_CLI_PULL_H

#include "cli/cli.h"

/* Fetches what `name` names when it is not there yet. An exit code; the reason of a failure has been said. */
int pull_model(const cli_args *args, const char *name);

#endif

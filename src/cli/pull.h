/* pull.h - resolves a model by its name, and downloads it if it is not on this machine. */
#ifndef NIB_CLI_PULL_H
#define NIB_CLI_PULL_H

#include "cli/cli.h"

/* Models that are fetched by a plain name, with a space between. */
#define PULL_NAMES "smollm2 gemma3-270m"

/* `name`: one of PULL_NAMES, or USER/REPO[:QUANT] (hub/names.h). *path: the caller frees with mem_free; NULL
 * with another exit code than 0, whose reason has been said. */
int pull_path(const cli_args *args, const char *name, char **path);
/* The same, and the path goes to stdout. */
int pull_model(const cli_args *args, const char *name);

#endif

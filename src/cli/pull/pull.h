/* pull.h - resolves a model by its name, and downloads it if it is not on this machine. */
#ifndef NIB_CLI_PULL_PULL_H
#define NIB_CLI_PULL_PULL_H

#include "cli/cli.h"

/* Models with a plain name, separated by spaces. */
#define PULL_NAMES "smollm2 gemma3-270m"

/* name: one of PULL_NAMES, or USER/REPO[:QUANT] (hub/names.h). Downloads it if necessary. Returns an exit
 * code, after printing the error if it is not 0; *path is NULL then, else the caller frees it with mem_free.
 */
int pull_path(const cli_args *args, const char *name, char **path);
/* The same, and prints the path to stdout. */
int pull_model(const cli_args *args, const char *name);

#endif

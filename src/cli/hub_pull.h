/* hub_pull.h - downloads models of the Hugging Face hub, or of the hub that HF_ENDPOINT names. */
#ifndef NIB_CLI_HUB_PULL_H
#define NIB_CLI_HUB_PULL_H

#include "cli/cli.h"
#include "hub/names.h"

/* The model's files, into the models folder as USER/REPO/FILE. *path: of the model; the caller frees with
 * mem_free. An empty file of a token is no token; $HF_TOKEN, $HF_TOKEN_PATH and $HF_HOME/token are looked at.
 */
nib_status hub_pull(const cli_args *args, const hub_name *name, char **path, nib_error *err);

#endif

/* hub_pull.h - downloads models of the Hugging Face hub, or of the hub that HF_ENDPOINT names. */
#ifndef NIB_CLI_PULL_HUB_PULL_H
#define NIB_CLI_PULL_HUB_PULL_H

#include "cli/cli.h"
#include "hub/names.h"

/* Downloads the model's files to USER/REPO/FILE in the models folder. Blocks. *path: of the model; the caller
 * frees with mem_free. The token is read from $HF_TOKEN, $HF_TOKEN_PATH or $HF_HOME/token; an empty file
 * counts as none. */
nib_status hub_pull(const cli_args *args, const hub_name *name, char **path, nib_error *err);

#endif

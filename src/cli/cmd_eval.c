/* cmd_eval.c - nibble eval: figures of quality, computed as llama.cpp's tools compute them so that they
 * compare. The measures themselves are in eval_*.c. */
#include "cli/eval.h"

static int run(cli_args *args) {
    if (!args->ppl == !args->hellaswag)
        return cli_usage_error("eval needs one of --ppl FILE and --hellaswag FILE");
    if (args->kld_base && !args->ppl)
        return cli_usage_error("--kld-base goes with --ppl");
    return args->ppl ? eval_perplexity(args) : eval_hellaswag(args);
}

const cli_command cmd_eval = {
    .name = "eval",
    .usage = "MODEL --ppl FILE | --hellaswag FILE [options]",
    .summary = "perplexity, distance between distributions, HellaSwag",
    .details =
        "--ppl scores the second half of each chunk of -c tokens (default 512); --kld-base keeps or "
        "compares\n"
        "whole distributions; --hellaswag counts the tasks whose right ending is the likeliest per token.\n\n"
        "  nibble eval smollm2 --ppl wikitext2-valid.txt --chunks 20\n"
        "  nibble eval model-f16.gguf --ppl text.txt --kld-base base.kld\n"
        "  nibble eval model-q4.gguf --ppl text.txt --kld-base base.kld\n",
    .groups = CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED | CLI_EVAL,
    .run = run,
};

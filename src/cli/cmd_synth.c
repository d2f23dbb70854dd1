/* cmd_synth.c - nibble synth: a model with random weights in the true shapes of a known one. */
#include "cli/cli.h"

#include "base/num.h"
#include "nib_tools.h"

static int run(cli_args *args) {
    const nib_synth_options options = {.shape = args->rest.n ? args->rest.data[0] : NULL,
                                       .type = args->type,
                                       .n_layer = args->layers,
                                       .routing = args->routing,
                                       .tokenizer = args->tokenizer,
                                       .seed = args->seed >= 0 ? (uint64_t)args->seed : 0,
                                       .progress = cli_progress,
                                       .cancel = cli_cancel,
                                       .user = args};
    nib_synth_report r;
    nib_error err;
    char size[32];
    if (options.shape && !args->output)
        return cli_usage_error("synth needs -o FILE");
    if (nib_synth(&options, args->output, &r, &err))
        return cli_fail(&err);
    cli_note(args, "nibble: %s: %s, %lld layers, %s, %s", args->output, r.shape, (long long)r.n_layer, r.type,
             num_format_size(r.bytes, size));
    return args->json ? cli_write_json(json_pack("{s:s, s:s, s:I, s:s, s:I}", "file", args->output, "shape",
                                                 r.shape, "n_layer", (json_int_t)r.n_layer, "format", r.type,
                                                 "bytes", (json_int_t)r.bytes),
                                       args)
                      : 0;
}

const cli_command cmd_synth = {
    .name = "synth",
    .usage = "SHAPE -o FILE [--type q4_0] [--layers N] [--tokenizer MODEL]",
    .summary = "write a model with random weights in the shapes of a known one, for timing",
    .details =
        "SHAPE is one of smollm2-135m, llama-3.2-1b, llama-3.2-3b, llama-3-8b, llama-3-70b, llama-2-7b,\n"
        "llama-2-13b, mistral-7b, qwen2.5-0.5b, qwen2.5-7b, phi-3-medium, opt-125m, opt-6.7b, opt-30b,\n"
        "opt-175b, qwen3-30b-a3b, qwen3-235b-a22b, qwen3.5-35b-a3b, gpt-oss-20b, gpt-oss-120b,\n"
        "glm-4.5-air, deepseek-v3, gemma-4-26b-a4b, lfm2-8b-a1b, granite-4-h-small. Without\n"
        "--tokenizer the file has none: use it with bench, or with run --tokens.\n\n"
        "Routers of mixtures choose as --routing says: fitted (hits, repetitions and popularity of recorded\n"
        "choices of real models, the default), flat (memory, but little preference) or uniform (neither). "
        "The\n"
        "memory is along the numbers of tokens: give consecutive ones. Greedy answers go on with them.\n\n"
        "  nibble synth llama-3.2-1b -o 1b.gguf\n"
        "  nibble synth llama-3-8b -o 8b-part.gguf --type q8_0 --layers 4\n"
        "  nibble bench 1b.gguf\n",
    .groups = CLI_SYNTH,
    .n_rest = 1,
    .run = run,
};

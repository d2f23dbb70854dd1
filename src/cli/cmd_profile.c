/* cmd_profile.c - nibble profile: measurements for later runs. The kernel map (the fastest strategy for each
 * of the model's products on this machine) is here; profile_model.h measures the weights. */
#include "cli/cli.h"
#include "cli/fields.h"
#include "cli/bench/hardware_profile.h"
#include "cli/bench/kernels.h"
#include "cli/bench/profile_model.h"

static int profile_kernels(const cli_args *args) {
    const nib_kernels_options options = cli_kernels_options(args, args->output);
    nib_error err;
    char *text;
    json_t *doc;
    if (nib_kernels_profile(args->model, &options, &text, &err))
        return cli_fail(&err);
    const int code = cli_document(text, &doc);
    if (code || args->json)
        return code ? code : cli_write_json(doc, args);
    char with[32] = "on the GPU";
    if (field_int(doc, "threads"))
        snprintf(with, sizeof with, "with %lld threads", field_int(doc, "threads"));
    printf("%lld shapes, %lld of them in planes, %lld choices in %.1f s %s; in %lld of them the map differs "
           "from the rule\n",
           field_int(doc, "shapes"), field_int(doc, "planes"), field_int(doc, "choices"),
           field_real(doc, "seconds"), with, field_int(doc, "other_than_rule"));
    if (field_text(doc, "map"))
        printf("kept in %s\n", field_text(doc, "map"));
    json_decref(doc);
    return 0;
}

static int run(cli_args *args) {
    if (args->hardware)
        return hardware_profile_run(args);
    if (!args->model)
        return cli_usage_error("which model? give a file, a folder or a name from 'nibble models'");
    if (args->experts)
        return profile_experts_run(args);
    if (args->channels)
        return profile_channels_run(args);
    return args->kernels ? profile_kernels(args) : profile_model_run(args);
}

const cli_command cmd_profile = {
    .name = "profile",
    .usage = "MODEL [--costs | --channels | --experts | --kernels] [-t N], or --hardware",
    .summary = "measure once for later runs: importance of layers, costs, the fastest kernels",
    .details =
        "Without other options: the importance of each layer (norms of its activations on calibration\n"
        "prompts, with about one layer in memory). --costs: the cost of lower precision in each block, as "
        "KL\n"
        "divergence at the logits. Both depend on the weights alone, are stored for later runs, and are "
        "valid\n"
        "on any machine.\n\n"
        "--channels: the activations that products read, by channel: a few channels with outliers decide "
        "what\n"
        "4-bit activations cost (quantize --permute). Stored, too.\n\n"
        "--experts: how often the routers of a mixture choose each expert. Stored, too: a run whose memory\n"
        "does not hold all experts begins with the most popular ones of each layer.\n\n"
        "--kernels times every strategy of each of the model's products, for 1 to 512 rows, with weights "
        "that\n"
        "are in no cache, and stores the choice for this machine and number of threads. Later runs use it;\n"
        "the answers have the same bits. With --backend cuda it is the GPU's map, for up to 64 rows.\n\n"
        "--hardware needs no model: it measures memory, the disk (of --scratch, else of the cache folder) "
        "and\n"
        "products in less than ten seconds, for 'nibble plan'.\n\n"
        "  nibble profile --hardware\n"
        "  nibble profile smollm2 --costs\n"
        "  nibble profile smollm2 --calib prompts.txt   one prompt a line\n"
        "  nibble profile smollm2 --kernels [--backend cuda]\n"
        "  nibble run smollm2 --kernel-map none   the rule instead of the map\n",
    .groups = CLI_MODEL | CLI_MODEL_OPTIONAL | CLI_MEMORY | CLI_KERNELS | CLI_PROFILE,
    .run = run,
};

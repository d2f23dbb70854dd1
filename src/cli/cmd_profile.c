/* cmd_profile.c - nibble profile: measures what later runs use. Here the kernel map: which strategy computes
 * which of the model's products fastest on this machine; profile_model.h has what is about the weights. */
#include "cli/cli.h"
#include "cli/hardware_profile.h"
#include "cli/kernel_bench.h"
#include "cli/profile_model.h"

#include "base/mem.h"
#include "profile/kernel_map.h"

#include <string.h>

/* What the map says about the model's shapes: choices other than the rule's, shapes packed in planes. */
static void count_choices(const policy *map, const kernel_bench *b, int *n_other, int *n_planes) {
    *n_other = *n_planes = 0;
    for (int i = 0; i < b->n_shape; i++) {
        kernel_choice rule;
        char format[PACK_NAME];
        const trial_shape *s = &b->shapes[i];
        pack_format f = s->format;
        f.packing = (uint8_t)policy_packing(map, s->n, s->k, &f, s->act_bits);
        *n_planes += f.packing == PACK_PLANES;
        policy_choice(NULL, b->table, s->n, s->k, &f, s->act_bits, &rule);
        pack_name(&f, format);
        const policy_shape *of = policy_find(map, s->n, s->k, format, s->act_bits);
        for (int j = 0; of && j < POLICY_BUCKETS; j++)
            *n_other += of->by_bucket[j] && of->by_bucket[j] != rule.by_bucket[j];
    }
}

/* path: where the map is kept; NULL: nowhere. */
static int report(const cli_args *args, const kernel_bench *b, const policy *map, const char *path,
                  double s) {
    const int all = b->n_shape * POLICY_BUCKETS;
    int other, planes;
    count_choices(map, b, &other, &planes);
    if (args->json)
        return cli_write_json(json_pack("{s:s?, s:i, s:i, s:i, s:i, s:f, s:i, s:I}", "map", path, "shapes",
                                        b->n_shape, "choices", all, "other_than_rule", other, "planes",
                                        planes, "seconds", s, "threads", pool_size(b->threads),
                                        "rotated_bytes", (json_int_t)b->n_byte),
                              args);
    printf("%d shapes, %d of them in planes, %d choices in %.1f s with %d threads; in %d of them the map "
           "differs from "
           "the rule\n",
           b->n_shape, planes, all, s, pool_size(b->threads), other);
    if (path)
        printf("kept in %s\n", path);
    return 0;
}

/* What an older map of this machine says about other models' shapes is kept. */
static nib_status measure(const cli_args *args, const kernel_bench *b, const char *path, policy *map,
                          nib_error *err) {
    const kernel_map_key key = {&b->machine, b->table, pool_size(b->threads)};
    kernel_map_report before;
    if (kernel_map_load(path, &key, map, &before, NULL))
        policy_clear(map); /* none, or none that can be read: a new one */
    const canceller cancel = {cli_cancel, NULL};
    const kernel_profile_options options = {.table = b->table,
                                            .threads = b->threads,
                                            .n_byte = b->n_byte,
                                            .seconds = args->seconds,
                                            .packings = map,
                                            .progress = cli_progress,
                                            .user = (void *)args,
                                            .cancel = &cancel};
    return kernel_profile(&options, b->shapes, b->n_shape, kernel_profile_keep, map, err);
}

static int run(cli_args *args) {
    kernel_bench b;
    nib_error err;
    policy map = {0};
    if (args->hardware)
        return hardware_profile_run(args);
    if (!args->model)
        return cli_usage_error("which model? give a file, a folder or a name from 'nibble models'");
    if (args->activity)
        return profile_activity_run(args);
    if (!args->kernels)
        return profile_model_run(args);
    int code = kernel_bench_open(&b, args);
    if (code)
        return code;
    const kernel_map_key key = {&b.machine, b.table, pool_size(b.threads)};
    char *path = args->output ? mem_strdup(args->output) : kernel_map_path(&key);
    const double start = time_now();
    if (!path)
        code = cli_usage_error("where is the map to be kept? give -o FILE");
    else if (measure(args, &b, path, &map, &err))
        code = cli_fail(&err);
    else {
        const double seconds = time_now() - start;
        const nib_status kept = kernel_map_save(path, &key, &map, &err);
        code = cli_goes_on(args, args->output, kept, &err)
                   ? report(args, &b, &map, kept == NIB_OK ? path : NULL, seconds)
                   : cli_fail(&err);
    }
    mem_free(path);
    policy_clear(&map);
    kernel_bench_close(&b);
    return code;
}

const cli_command cmd_profile = {
    .name = "profile",
    .usage = "MODEL [--costs | --activity | --kernels] [-t N], or --hardware",
    .summary = "measure once what later runs use: the layers' importance, costs, the fastest kernels",
    .details =
        "Without more: how much each layer matters (norms of its activations on calibration prompts, read\n"
        "through about one layer of memory). --costs: what lower precision costs in each block, as\n"
        "KL divergence at the logits. Both belong to the weights alone: they are kept, found again,\n"
        "and good on any machine.\n\n"
        "--activity counts which parts of the layers (attention, groups of neurons) do anything for a token "
        "and\n"
        "which do so together: all of them, always, in most models; not where neurons are exactly zero "
        "(ReLU).\n\n"
        "--kernels times every way of computing each of the model's products, for 1 to 512 rows, with "
        "weights "
        "that are in no\n"
        "cache, and keeps the choice for this machine and number of threads. Runs pick it up by "
        "themselves; the\n"
        "answers stay the same to the bit.\n\n"
        "--hardware needs no model: memory, the disk (of --scratch, else of the cache folder) and products, "
        "in\n"
        "less than ten seconds; 'nibble plan' counts with it.\n\n"
        "  nibble profile --hardware\n"
        "  nibble profile smollm2 --costs\n"
        "  nibble profile smollm2 --calib prompts.txt   one prompt a line\n"
        "  nibble profile smollm2 --kernels\n"
        "  nibble run smollm2 --kernel-map none   the rule instead of the map\n",
    .groups = CLI_MODEL | CLI_MODEL_OPTIONAL | CLI_MEMORY | CLI_KERNELS | CLI_PROFILE,
    .run = run,
};

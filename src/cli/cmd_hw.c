/* cmd_hw.c - nibble hw: describes this machine, with its measured rates. */
#include "cli/bench/hardware_profile.h"

#include "base/num.h"
#include "cli/fields.h"

#include <string.h>

static void print_words(const json_t *list, const char *used) {
    const json_t *word;
    size_t i;
    json_array_foreach(list, i, word) printf(" %s%s", json_string_value(word),
                                             used && !strcmp(json_string_value(word), used) ? " (used)" : "");
    putchar('\n');
}

static void print_gpus(const json_t *gpus) {
    const json_t *gpu;
    char size[32];
    size_t i;
    json_array_foreach(gpus, i, gpu) printf(
        "GPU            %s, %s, compute capability %s, %lld multiprocessors\n", field_text(gpu, "name"),
        num_format_size(field_bytes(gpu, "memory"), size), field_text(gpu, "compute"), field_int(gpu, "sm"));
    if (!json_array_size(gpus))
        printf("GPU            none that can be used\n");
}

static void print_text(const json_t *doc) {
    const json_t *cache = json_object_get(doc, "cache"), *ram = json_object_get(doc, "ram");
    char a[32], b[32], c[32];
    printf("processor      %s\n", field_text(doc, "cpu"));
    printf("cores          %lld (%lld logical)\n", field_int(doc, "cores"), field_int(doc, "cpus"));
    printf("features      ");
    print_words(json_object_get(doc, "features"), NULL);
    printf("kernels       ");
    print_words(json_object_get(doc, "kernels"), field_text(doc, "isa"));
    printf("caches         L1 %s, L2 %s, L3 %s\n", num_format_size(field_bytes(cache, "l1d"), a),
           num_format_size(field_bytes(cache, "l2"), b), num_format_size(field_bytes(cache, "l3"), c));
    printf("memory         %s, %s available\n", num_format_size(field_bytes(ram, "total"), a),
           num_format_size(field_bytes(ram, "available"), b));
    hardware_profile_print(doc);
    print_gpus(json_object_get(doc, "gpus"));
}

static int run(cli_args *args) {
    json_t *doc;
    const int code = hardware_profile_get(args, false, &doc);
    if (code || args->json)
        return code ? code : cli_write_json(doc, args);
    print_text(doc);
    json_decref(doc);
    return 0;
}

const cli_command cmd_hw = {
    .name = "hw",
    .usage = "[--json]",
    .summary = "this machine: cores, instruction sets, memory, and its measured read rate",
    .details = "Rates are measured: the first call takes some seconds, later calls show the stored result.\n"
               "'nibble profile --hardware' measures again.\n\n"
               "  nibble hw\n",
    .groups = 0,
    .run = run,
};

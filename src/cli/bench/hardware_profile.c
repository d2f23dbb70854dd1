/* hardware_profile.c - nibble profile --hardware, and its results as nibble hw prints them. */
#include "cli/bench/hardware_profile.h"

#include "cli/fields.h"
#include "nib_tools.h"

int hardware_profile_get(const cli_args *args, bool again, json_t **out) {
    const nib_hardware_options options = {.again = again,
                                          .file = args->output,
                                          .folder = args->scratch,
                                          .progress = cli_progress,
                                          .log = cli_log,
                                          .cancel = cli_cancel,
                                          .user = (void *)args};
    nib_error err;
    char *text;
    *out = NULL;
    return nib_hardware(&options, &text, &err) ? cli_fail(&err) : cli_document(text, out);
}

static void print_rate(const char *what, const json_t *rate, const char *name) {
    printf("%-14s %8.2f %s (median %.2f, worst %.2f)\n", what, field_real(rate, "best") / 1e9, name,
           field_real(rate, "median") / 1e9, field_real(rate, "worst") / 1e9);
}

static double best_of(const json_t *of, const char *key) {
    return field_real(json_object_get(of, key), "best") / 1e9;
}

void hardware_profile_print(const json_t *doc) {
    const json_t *disk = json_object_get(doc, "disk"), *rates = json_object_get(disk, "rates"), *one;
    char what[48];
    size_t i;
    json_array_foreach(json_object_get(doc, "memory"), i, one) {
        snprintf(what, sizeof what, "memory, %lld", field_int(one, "threads"));
        print_rate(what, json_object_get(one, "read"), "GB/s");
    }
    json_array_foreach(rates, i, one) {
        snprintf(what, sizeof what, "disk, %lld x %lldK", field_int(one, "depth"),
                 field_int(one, "block") / 1024);
        print_rate(what, json_object_get(one, "read"), "GB/s");
    }
    json_array_foreach(json_object_get(doc, "products"), i, one) {
        snprintf(what, sizeof what, "%lld bits%s", field_int(one, "bits"),
                 field_is_set(one, "asym") ? ", minima" : "");
        printf("%-14s %8.2f GB/s of weights with one row, %.2f with two; %.0f G multiply-adds/s with many\n",
               what, best_of(one, "one_row"), best_of(one, "two_rows"), best_of(one, "many_rows"));
    }
    json_array_foreach(json_object_get(doc, "attention"), i, one) {
        snprintf(what, sizeof what, "attention, %lld", field_int(one, "bits"));
        printf("%-14s %8.2f GB/s of keys and values of so many bits, %.2f with one thread\n", what,
               best_of(one, "all_threads"), best_of(one, "one_thread"));
    }
    print_rate("packing", json_object_get(doc, "pack"), "GB/s of one thread");
    if (json_is_number(json_object_get(doc, "link")))
        printf("%-14s %.2f GB/s from RAM to the GPU\n", "link",
               json_number_value(json_object_get(doc, "link")) / 1e9);
    if (json_is_number(json_object_get(doc, "gpu_read")))
        printf("%-14s %.2f GB/s of its memory; %.0f G multiply-adds/s with many rows\n", "GPU",
               field_real(doc, "gpu_read") / 1e9, field_real(doc, "gpu_macs") / 1e9);
    printf("%-14s %8.2f us for %lld threads\n", "barrier", field_real(doc, "barrier_s") * 1e6,
           field_int(doc, "threads"));
    if (json_array_size(rates))
        printf("measured in %.1f s; disk: %s%s%s\n", field_real(doc, "seconds"), field_text(disk, "folder"),
               field_is_set(disk, "ring") ? ", io_uring" : "",
               field_is_set(disk, "direct") ? ", O_DIRECT" : ", through the page cache");
    else
        printf("measured in %.1f s, without the disk\n", field_real(doc, "seconds"));
}

int hardware_profile_run(const cli_args *args) {
    json_t *doc;
    const int code = hardware_profile_get(args, true, &doc);
    if (code || args->json)
        return code ? code : cli_write_json(doc, args);
    hardware_profile_print(doc);
    json_decref(doc);
    return 0;
}

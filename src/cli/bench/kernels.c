/* kernels.c - nibble bench --kernels: the speed of every strategy for each of a model's products, the
 * choice of the kernel map, and how much slower the map, the rule and fixed choices are than the fastest. */
#include "cli/bench/kernels.h"

#include "cli/fields.h"

#include <stdlib.h>
#include <string.h>

nib_kernels_options cli_kernels_options(const cli_args *args, const char *map) {
    return (nib_kernels_options){.n_thread = (int)args->threads,
                                 .ram = args->ram,
                                 .seconds = args->seconds,
                                 .map = map,
                                 .backend = args->backend,
                                 .vram = args->vram,
                                 .progress = cli_progress,
                                 .log = cli_log,
                                 .cancel = cli_cancel,
                                 .user = (void *)args};
}

static bool is_named(const json_t *point, const char *key, const char *name) {
    const char *text = field_text(point, key);
    return text && !strcmp(text, name);
}

static void print_point(const json_t *point) {
    const json_t *s;
    size_t i;
    json_array_foreach(json_object_get(point, "strategies"), i, s) {
        const char *name = field_text(s, "name");
        const json_t *quarters = json_object_get(s, "peak_share_quarters");
        printf(
            "  M %-4lld %-30s %10.1f us +%2.0f %% %7.2f GB/s %5.2f (%.2f..%.2f) of read %8.1f GMAC/s%s%s%s\n",
            field_int(point, "m"), name, field_real(s, "us"), field_real(s, "spread") * 100,
            field_real(s, "gb_s"), field_real(s, "peak_share"), field_real_at(quarters, 0),
            field_real_at(quarters, 1), field_real(s, "gmac_s"),
            is_named(point, "fastest", name) ? "  fastest" : "",
            is_named(point, "rule", name) ? "  rule" : "", is_named(point, "map", name) ? "  map" : "");
    }
}

/* Prints the crossovers: "fastest by rows: 1-4 avx512/padding.direct, 5- avx512/padding.blocked". */
static void print_crossovers(const json_t *points) {
    const size_t n = json_array_size(points);
    printf("  fastest by rows:");
    for (size_t b = 0, e; b < n; b = e + 1) {
        const char *name = field_text(json_array_get(points, b), "fastest");
        for (e = b; e + 1 < n && is_named(json_array_get(points, e + 1), "fastest", name);)
            e++;
        /* rows: "1", "5-8", "129-" */
        const char *first = field_text(json_array_get(points, b), "rows");
        const char *last = field_text(json_array_get(points, e), "rows"), *dash = strchr(last, '-');
        printf("%s %ld-%s %s", b ? "," : "", strtol(first, NULL, 10), dash ? dash + 1 : last, name);
    }
    putchar('\n');
}

/* True for a GPU's document, which has no number of threads. */
static bool is_gpu(const json_t *doc) {
    return field_int(doc, "threads") == 0;
}

static void print_shapes(const json_t *doc) {
    const json_t *shape, *point;
    char who[32] = "the GPU reads";
    size_t i, j;
    if (!is_gpu(doc))
        snprintf(who, sizeof who, "%lld threads read", field_int(doc, "threads"));
    json_array_foreach(json_object_get(doc, "shapes"), i, shape) {
        const json_t *points = json_object_get(shape, "points"), *first = json_array_get(points, 0);
        printf("%s %lld x %lld, %s, %lld in a token; %s %.1f GB/s meanwhile (spread %.0f %%)\n",
               field_text(shape, "format"), field_int(shape, "n"), field_int(shape, "k"),
               field_text(shape, "activation"), field_int(shape, "count"), who,
               field_real(first, "read_gb_s"), field_real(first, "read_spread") * 100);
        json_array_foreach(points, j, point) print_point(point);
        print_crossovers(points);
    }
}

static void print_units(const json_t *doc) {
    const json_t *unit;
    size_t i;
    json_array_foreach(json_object_get(doc, "units"), i, unit) printf(
        "unit %s/%s: %lld-bit weights, %lld-bit activations, %.1f G products a second and %s\n",
        field_text(unit, "isa"), field_text(unit, "name"), field_int(unit, "w_bits"),
        field_int(unit, "a_bits"), field_real(unit, "rate") * 1e-9, is_gpu(doc) ? "multiprocessor" : "core");
    printf("%lld of %lld choices were not timed: by the rate of their unit they are too slow\n",
           field_int(doc, "choices_not_timed"), field_int(doc, "choices"));
}

/* True if `planes` is the format of `parts` packed in planes: "u4g64p" for u4g64, "q8_0.planes" for q8_0. */
static bool are_packings_of_one(const json_t *parts, const json_t *planes) {
    const char *a = field_text(parts, "format"), *b = field_text(planes, "format");
    const size_t n = strlen(a);
    return field_int(parts, "n") == field_int(planes, "n") &&
           field_int(parts, "k") == field_int(planes, "k") && !strncmp(a, b, n) &&
           (!strcmp(b + n, "p") || !strcmp(b + n, ".planes"));
}

/* A matrix has one packing. Prints which one is faster for 512 rows together and then 128 single rows, and
 * the map's choice. */
static void print_packings(const json_t *shapes) {
    const json_t *a, *b;
    size_t i, j;
    json_array_foreach(shapes, i, a) json_array_foreach(shapes, j, b) {
        if (!are_packings_of_one(a, b))
            continue;
        const double parts = field_real(a, "mix_seconds"), planes = field_real(b, "mix_seconds");
        const char *map = field_text(a, "map_packing");
        printf("%s %lld x %lld: 512 rows and 128 single ones in parts %.2f ms, in planes %.2f ms: %s; "
               "the map: %s\n",
               field_text(a, "format"), field_int(a, "n"), field_int(a, "k"), parts * 1e3, planes * 1e3,
               planes < parts ? "planes" : "parts", map ? map : "nothing");
    }
}

static void print_ablations(const cli_args *args, const json_t *doc, const json_t *list, const char *which) {
    const json_t *a, *last = json_array_get(list, json_array_size(list) - 1);
    bool has_map = false;
    size_t i;
    printf("\n%-36s %12s %9s %9s %9s   (%lld points, %s)\n", "choosing", "whole grid", "regret", "mean",
           "worst", field_int(last, "points"), which);
    json_array_foreach(list, i, a) {
        const long long able = field_int(a, "able"), n = field_int(a, "points");
        printf("%-36s %9.3f ms %7.1f %% %7.1f %% %7.1f %%", field_text(a, "choosing"),
               field_real(a, "seconds") * 1e3, field_real(a, "regret") * 100, field_real(a, "mean") * 100,
               field_real(a, "worst") * 100);
        printf(able < n ? "   (it can do %lld of %lld points)\n" : "\n", able, n);
        has_map = has_map || is_named(a, "choosing", "the map");
    }
    if (!has_map)
        printf("%-36s there is none: nibble profile %s --kernels%s\n", "the map",
               args->model ? args->model : "MODEL", is_gpu(doc) ? " --backend cuda" : "");
}

static void print_text(const cli_args *args, const json_t *doc) {
    const json_t *resident = json_object_get(doc, "resident"), *both = json_object_get(doc, "ablations");
    print_shapes(doc);
    print_units(doc);
    print_packings(json_object_get(doc, "shapes"));
    print_ablations(args, doc, resident, "in the packings that matrices live in");
    if (field_int(json_array_get(both, 0), "points") != field_int(json_array_get(resident, 0), "points"))
        print_ablations(args, doc, both, "in both packings");
}

int kernel_bench_run(const cli_args *args) {
    const nib_kernels_options options = cli_kernels_options(args, args->kernel_map);
    nib_error err;
    char *text = NULL;
    json_t *doc;
    const nib_status status = nib_kernels_compare(args->model, &options, &text, &err);
    const int code = cli_document_of(status, text, &err, &doc);
    if (code || args->json)
        return code ? code : cli_write_json(doc, args);
    print_text(args, doc);
    json_decref(doc);
    return 0;
}

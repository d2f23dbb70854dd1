/* kernel_trials.c - times a model's products on this machine, for the kernel map and for comparing ways to
 * choose strategies (kernel_grid.h); see nib_tools.h. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "exec/backend.h"
#include "hub/find.h"
#include "kernels/dpr.h"
#include "measure/kernel_grid.h"
#include "profile/kernel_map_file.h"
#include "measure/kernel_profile.h"
#include "measure/trial_cuda.h"

#include <stdio.h>
#include <string.h>

typedef struct bench {
    const nib_kernels_options *options;
    logger log;
    canceller cancel;
    machine machine;
    const kernel_table *table;
    pool *threads;      /* of the processor's trials */
    gpu_kernels *gpu;   /* NULL: the processor's products are timed */
    trial_cuda *on_gpu; /* the GPU's trials */
    uint64_t n_byte;    /* bytes of rotating weights */
    trial_shape shapes[TRIAL_MAX_SHAPES];
    int n_shape;
} bench;

/* Products that are timed without a model: one layer of an 8B model in the most important widths. */
static const struct {
    const char *format;
    int64_t n, k;
} usual[] = {
    {"q4_0", 4096, 4096},    {"q4_0", 14336, 4096},  {"q4_0", 4096, 14336},   {"u2g128", 4096, 4096},
    {"u2g128p", 4096, 4096}, {"u3g128", 4096, 4096}, {"u3g128p", 4096, 4096}, {"u4g128", 4096, 4096},
    {"u4g128p", 4096, 4096}, {"u5g128", 4096, 4096}, {"u6g128", 4096, 4096},  {"u8g128", 4096, 4096},
};

/* The shapes that a strategy of the table computes. */
static void usual_shapes(bench *b, int act_bits) {
    for (size_t i = 0; i < NUM_COUNT(usual); i++) {
        type_id type;
        trial_shape *s = &b->shapes[b->n_shape];
        *s = (trial_shape){.n = usual[i].n, .k = usual[i].k, .act_bits = act_bits, .count = 1};
        if (!pack_from_name(usual[i].format, s->k, &s->format) &&
            (!type_from_name(usual[i].format, &type) || !pack_choose(type, s->k, &s->format)))
            continue;
        b->n_shape += row_bucket_can(row_bucket_rule(b->table, &s->format, 0), &s->format, 0);
    }
}

static nib_status model_shapes(const char *name, bench *b, nib_error *err) {
    char *path = NULL;
    model *m = NULL;
    NIB_TRY(model_find(name, &path, err));
    const nib_status status =
        b->gpu ? model_open_headers(path, &b->log, NULL, true, &m, err) : model_open(path, &b->log, &m, err);
    mem_free(path);
    NIB_TRY(status);
    b->n_shape = trial_shapes_of(m, b->shapes);
    model_close(m);
    return b->n_shape
               ? NIB_OK
               : nib_fail(err, NIB_E_USAGE,
                          "%s: expected packed weights, found none: its products have only one strategy",
                          name);
}

/* Adds each shape in planes if some strategy computes planes only. */
static void add_planes(bench *b) {
    for (int i = 0, n = b->n_shape; i < n && b->n_shape < TRIAL_MAX_SHAPES; i++) {
        trial_shape s = b->shapes[i];
        bool there = !trial_has_planes(b->table, &s);
        s.format.packing = PACK_PLANES;
        for (int j = 0; j < n; j++)
            there = there || (b->shapes[j].n == s.n && b->shapes[j].k == s.k &&
                              !memcmp(&b->shapes[j].format, &s.format, sizeof s.format));
        if (!there)
            b->shapes[b->n_shape++] = s;
    }
}

static nib_status open_processor(bench *b, nib_error *err) {
    const nib_kernels_options *o = b->options;
    b->table = kernels_table();
    b->n_byte = trial_bytes(b->machine.l3, b->machine.ram_free, o->ram);
    if (!b->n_byte)
        return nib_fail(err, NIB_E_NOFIT,
                        "expected 64 MiB for weights beside 128 MiB of other memory under --ram");
    if (b->n_byte < 2 * b->machine.l3)
        log_line(&b->log, "the rotating weights are not larger than the last cache, so times are not those "
                          "of cold weights");
    return pool_open(o->n_thread > 0 ? o->n_thread : thread_physical_cores(), &b->threads, err);
}

static nib_status open_gpu(bench *b, nib_error *err) {
    const nib_kernels_options *o = b->options;
    b->gpu = mem_calloc(1, sizeof *b->gpu);
    if (!b->gpu)
        return nib_fail_nomem(err, sizeof *b->gpu, "timing kernels");
    NIB_TRY(gpu_kernels_probe(b->gpu, err));
    b->table = &b->gpu->table;
    b->machine = b->gpu->machine;
    NIB_TRY(trial_cuda_open(b->gpu, o->vram, &b->cancel, &b->on_gpu, err));
    b->n_byte = trial_cuda_bytes(b->on_gpu);
    return NIB_OK;
}

static void bench_close(bench *b) {
    trial_cuda_close(b->on_gpu);
    mem_free(b->gpu);
    pool_close(b->threads);
}

static nib_status bench_open(bench *b, const char *name, const nib_kernels_options *o, nib_error *err) {
    const backend_kind *kind;
    const bool gpu =
        o->backend && backend_find(o->backend, &kind, NULL) == NIB_OK && kind->map == KERNEL_MAP_DEVICE;
    *b = (bench){.options = o, .log = {.fn = o->log, .user = o->user}, .cancel = {o->cancel, o->user}};
    machine_detect(&b->machine);
    NIB_TRY(gpu ? open_gpu(b, err) : open_processor(b, err));
    if (name)
        return model_shapes(name, b, err);
    usual_shapes(b, 8);
    if (gpu)
        usual_shapes(b, 4);
    return NIB_OK;
}

static int n_thread(const bench *b) {
    return b->gpu ? 0 : pool_size(b->threads);
}

static kernel_map_key key_of(const bench *b) {
    return (kernel_map_key){&b->machine, b->table, n_thread(b)};
}

static nib_status run_trials(const bench *b, kernel_map *packings, kernel_profile_fn fn, void *user,
                             nib_error *err) {
    const nib_kernels_options *o = b->options;
    const kernel_profile_options options = {.table = b->table,
                                            .threads = b->threads,
                                            .n_byte = b->n_byte,
                                            .seconds = o->seconds,
                                            .packings = packings,
                                            .progress = o->progress,
                                            .user = o->user,
                                            .cancel = &b->cancel,
                                            .kind = b->gpu ? &trial_cuda_kind : NULL,
                                            .trial = b->on_gpu};
    return kernel_profile(&options, b->shapes, b->n_shape, fn, user, err);
}

static nib_status give(json_t *doc, char **json, nib_error *err) {
    *json = doc ? jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(doc);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "what was measured");
}

/* ---- the map ---- */

/* Counts of the map for the model's shapes: choices other than the rule's, shapes packed in planes. */
static void count_choices(const kernel_map *map, const bench *b, int *n_other, int *n_planes) {
    *n_other = *n_planes = 0;
    for (int i = 0; i < b->n_shape; i++) {
        kernel_choice rule;
        char format[PACK_NAME];
        const trial_shape *s = &b->shapes[i];
        pack_format f = s->format;
        f.packing = (uint8_t)kernel_map_packing(map, s->n, s->k, &f, s->act_bits);
        *n_planes += f.packing == PACK_PLANES;
        kernel_map_choice(NULL, b->table, s->n, s->k, &f, s->act_bits, &rule);
        pack_name(&f, format);
        const kernel_map_shape *of = kernel_map_find(map, s->n, s->k, format, s->act_bits);
        for (int j = 0; of && j < ROW_BUCKETS; j++)
            *n_other += of->by_bucket[j] && of->by_bucket[j] != rule.by_bucket[j];
    }
}

/* Choices of an older map of this machine for other models' shapes are kept. */
static nib_status measure_map(const bench *b, const char *path, kernel_map *map, nib_error *err) {
    const kernel_map_key key = key_of(b);
    kernel_map_report before;
    if (kernel_map_load(path, &key, map, &before, NULL))
        kernel_map_clear(map); /* no valid map exists: begin a new one */
    return run_trials(b, map, kernel_profile_keep, map, err);
}

/* Saves the map. *kept: it was stored in its file. */
static nib_status save_map(const bench *b, const char *path, const kernel_map *map, bool *kept,
                           nib_error *err) {
    const kernel_map_key key = key_of(b);
    nib_error why;
    const nib_status status = kernel_map_save(path, &key, map, &why);
    *kept = status == NIB_OK;
    if (status != NIB_OK && b->options->map)
        return nib_fail(err, status, "%s", why.message);
    if (status != NIB_OK)
        log_line(&b->log, "the measurements were not stored: %s", why.message);
    return NIB_OK;
}

static nib_status profile(const bench *b, const char *path, kernel_map *map, char **json, nib_error *err) {
    const double start = time_now();
    bool kept;
    int other, planes;
    NIB_TRY(measure_map(b, path, map, err));
    const double seconds = time_now() - start;
    NIB_TRY(save_map(b, path, map, &kept, err));
    count_choices(map, b, &other, &planes);
    return give(json_pack("{s:o, s:i, s:i, s:i, s:i, s:f, s:i, s:I}", "map",
                          kept ? jsonx_string(path, strlen(path)) : json_null(), "shapes", b->n_shape,
                          "choices", b->n_shape * ROW_BUCKETS, "other_than_rule", other, "planes", planes,
                          "seconds", seconds, "threads", n_thread(b), "rotated_bytes", (json_int_t)b->n_byte),
                json, err);
}

nib_status nib_kernels_profile(const char *name, const nib_kernels_options *options, char **json,
                               nib_error *err) {
    bench b;
    kernel_map map = {0};
    *json = NULL;
    nib_status status = bench_open(&b, name, options, err);
    if (status == NIB_OK) {
        const kernel_map_key key = key_of(&b);
        char *path = options->map ? mem_strdup(options->map) : kernel_map_path(&key);
        status = path ? profile(&b, path, &map, json, err)
                      : nib_fail(err, NIB_E_USAGE,
                                 "expected a cache folder for the map, found none: give -o FILE");
        mem_free(path);
    }
    kernel_map_clear(&map);
    bench_close(&b);
    return status;
}

/* The measured units of this processor or of the GPU, as JSON. */
static json_t *units_json(const bench *b) {
    dpr_unit units[DPR_MAX_UNIT];
    const int n = b->gpu ? trial_cuda_units(b->on_gpu, units) : dpr_measure(units, DPR_MAX_UNIT);
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; i < n; i++)
        ok = jsonx_add(list, json_pack("{s:s, s:s, s:i, s:i, s:f}", "isa", units[i].isa, "name",
                                       units[i].name, "w_bits", (int)units[i].w_bits, "a_bits",
                                       (int)units[i].a_bits, "rate", units[i].rate)) &&
             ok;
    return jsonx_whole(list, ok);
}

static json_t *document_of(const kernel_grid *g, const bench *b) {
    int n_pruned;
    const int n_all = kernel_grid_choices(g, &n_pruned);
    return json_pack("{s:s, s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:i, s:i}", "cpu", b->machine.cpu, "isa",
                     b->table->isa, "threads", n_thread(b), "rotated_bytes", (json_int_t)b->n_byte, "shapes",
                     kernel_grid_shapes(g), "resident", kernel_grid_ablations(g, true), "ablations",
                     kernel_grid_ablations(g, false), "units", units_json(b), "choices", n_all,
                     "choices_not_timed", n_pruned);
}

/* Loads the map that a run with these options would use. */
static nib_status load_map(kernel_grid *g, const bench *b, nib_error *err) {
    const kernel_map_key key = key_of(b);
    const char *named = b->options->map;
    kernel_map_report report;
    if (named && !strcmp(named, "none"))
        return NIB_OK;
    char *path = named ? mem_strdup(named) : kernel_map_path(&key);
    const nib_status status = path ? kernel_map_load(path, &key, &g->map, &report, err) : NIB_E_NOTFOUND;
    mem_free(path);
    if (status == NIB_OK && report.other[0])
        log_line(&b->log, "the map is not used: %s", report.other);
    return named ? status : NIB_OK;
}

static nib_status compare(bench *b, kernel_grid *g, char **json, nib_error *err) {
    add_planes(b);
    g->points = mem_calloc((size_t)b->n_shape * ROW_BUCKETS, sizeof *g->points);
    if (!g->points)
        return nib_fail_nomem(err, (size_t)b->n_shape * ROW_BUCKETS * sizeof *g->points, "the grid");
    NIB_TRY(load_map(g, b, err));
    const nib_status status = run_trials(b, NULL, kernel_grid_keep, g, err);
    if (status == NIB_OK)
        return give(document_of(g, b), json, err);
    (void)give(json_pack("{s:o}", "shapes", kernel_grid_shapes(g)), json, NULL);
    return status;
}

nib_status nib_kernels_compare(const char *name, const nib_kernels_options *options, char **json,
                               nib_error *err) {
    bench b;
    kernel_grid g = {0};
    *json = NULL;
    nib_status status = bench_open(&b, name, options, err);
    if (status == NIB_OK)
        status = compare(&b, &g, json, err);
    mem_free(g.points);
    kernel_map_clear(&g.map);
    bench_close(&b);
    return status;
}

/* kernel_trials.c - times a model's products on this machine: the kernel map, and the gain and loss of every
 * choice of strategies (ADAngel's ablations, section 6.4); see nib_tools.h. */
#include "nib_tools.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "hub/find.h"
#include "kernels/dpr.h"
#include "profile/kernel_map.h"
#include "profile/kernel_profile.h"
#include "profile/trial_cuda.h"

#include <stdio.h>
#include <string.h>

typedef struct bench {
    const nib_kernels_options *options;
    logger log;
    canceller cancel;
    machine machine;
    const kernel_table *table;
    pool *threads;    /* of the processor's trials */
    gpu_kernels *gpu; /* NULL: the processor's products are timed; and the GPU's trials: */
    trial_cuda *on_gpu;
    uint64_t n_byte; /* of rotating weights */
    trial_shape shapes[TRIAL_MAX_SHAPES];
    int n_shape;
} bench;

/* Without a model: one layer of an 8B model in the widths that matter. */
static const struct {
    const char *format;
    int64_t n, k;
} usual[] = {
    {"q4_0", 4096, 4096},    {"q4_0", 14336, 4096},  {"q4_0", 4096, 14336},   {"u2g128", 4096, 4096},
    {"u2g128p", 4096, 4096}, {"u3g128", 4096, 4096}, {"u3g128p", 4096, 4096}, {"u4g128", 4096, 4096},
    {"u4g128p", 4096, 4096}, {"u5g128", 4096, 4096}, {"u6g128", 4096, 4096},  {"u8g128", 4096, 4096},
};

/* Those that something in the table computes. */
static void usual_shapes(bench *b, int act_bits) {
    for (size_t i = 0; i < NUM_COUNT(usual); i++) {
        type_id type;
        trial_shape *s = &b->shapes[b->n_shape];
        *s = (trial_shape){.n = usual[i].n, .k = usual[i].k, .act_bits = act_bits, .count = 1};
        if (!pack_from_name(usual[i].format, s->k, &s->format) &&
            (!type_from_name(usual[i].format, &type) || !pack_choose(type, s->k, &s->format)))
            continue;
        b->n_shape += policy_can(policy_rule(b->table, &s->format, 0), &s->format, 0);
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
    return b->n_shape ? NIB_OK
                      : nib_fail(err, NIB_E_USAGE,
                                 "%s has no packed weights: its products are computed in one way only", name);
}

/* Beside each shape the same in planes, where some strategy computes those only. */
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
        log_line(&b->log, "the weights that rotate are no larger than the last cache: times are not cold");
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
    const bool gpu = o->backend && !strcmp(o->backend, "cuda");
    *b = (bench){.options = o, .log = {o->log, o->user}, .cancel = {o->cancel, o->user}};
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

static nib_status run_trials(const bench *b, policy *packings, kernel_profile_fn fn, void *user,
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

/* What the map says about the model's shapes: choices other than the rule's, shapes packed in planes. */
static void count_choices(const policy *map, const bench *b, int *n_other, int *n_planes) {
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

/* What an older map of this machine says about other models' shapes is kept. */
static nib_status measure_map(const bench *b, const char *path, policy *map, nib_error *err) {
    const kernel_map_key key = key_of(b);
    kernel_map_report before;
    if (kernel_map_load(path, &key, map, &before, NULL))
        policy_clear(map); /* none, or none that can be read: a new one */
    return run_trials(b, map, kernel_profile_keep, map, err);
}

/* *kept: the map is in its file. */
static nib_status save_map(const bench *b, const char *path, const policy *map, bool *kept, nib_error *err) {
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

static nib_status profile(const bench *b, const char *path, policy *map, char **json, nib_error *err) {
    const double start = time_now();
    bool kept;
    int other, planes;
    NIB_TRY(measure_map(b, path, map, err));
    const double seconds = time_now() - start;
    NIB_TRY(save_map(b, path, map, &kept, err));
    count_choices(map, b, &other, &planes);
    return give(json_pack("{s:o, s:i, s:i, s:i, s:i, s:f, s:i, s:I}", "map",
                          kept ? jsonx_string(path, strlen(path)) : json_null(), "shapes", b->n_shape,
                          "choices", b->n_shape * POLICY_BUCKETS, "other_than_rule", other, "planes", planes,
                          "seconds", seconds, "threads", n_thread(b), "rotated_bytes", (json_int_t)b->n_byte),
                json, err);
}

nib_status nib_kernels_profile(const char *name, const nib_kernels_options *options, char **json,
                               nib_error *err) {
    bench b;
    policy map = {0};
    *json = NULL;
    nib_status status = bench_open(&b, name, options, err);
    if (status == NIB_OK) {
        const kernel_map_key key = key_of(&b);
        char *path = options->map ? mem_strdup(options->map) : kernel_map_path(&key);
        status = path ? profile(&b, path, &map, json, err)
                      : nib_fail(err, NIB_E_USAGE, "the map has no default place here: give -o FILE");
        mem_free(path);
    }
    policy_clear(&map);
    bench_close(&b);
    return status;
}

/* ---- the grid ---- */

typedef struct point {
    trial_shape shape;
    int bucket, map; /* index of the map's choice; -1: there is no map, or it says nothing here */
    trial_result result;
} point;

typedef struct grid {
    policy map;
    bool has_map;
    point *points;
    int n;
} grid;

static int index_of(const trial_result *r, const strategy *s) {
    for (int i = 0; i < r->n; i++)
        if (r->times[i].strategy == s)
            return i;
    return -1;
}

static nib_status keep_point(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                             nib_error *err) {
    grid *g = user;
    char format[PACK_NAME];
    (void)err;
    pack_name(&shape->format, format);
    const policy_shape *of = policy_find(&g->map, shape->n, shape->k, format, shape->act_bits);
    point *p = &g->points[g->n++];
    *p = (point){*shape, bucket, of ? index_of(result, of->by_bucket[bucket]) : -1, *result};
    g->has_map = g->has_map || p->map >= 0;
    return NIB_OK;
}

/* What would run: the map's choice, else the rule's. */
static int in_use(const point *p) {
    return p->map >= 0 ? p->map : p->result.rule;
}

static double seconds_of(const point *p, int i) {
    const double best = p->result.times[i].best;
    return best > 0 ? best : p->result.times[p->result.rule].best; /* dropped at the first look: not told */
}

static double regret_of(const point *p, int i) {
    return seconds_of(p, i) / seconds_of(p, p->result.fastest) - 1;
}

/* ---- ablations ---- */

/* The fastest of a family ("padding", "split", "bitwise"); -1: it has none for this point. */
static int best_of_family(const point *p, const char *family) {
    int best = -1;
    const size_t n = strlen(family);
    for (int i = 0; i < p->result.n; i++) {
        const trial_time *t = &p->result.times[i];
        if (strncmp(t->strategy->name, family, n) || (t->strategy->name[n] && t->strategy->name[n] != '.') ||
            t->best <= 0)
            continue;
        if (best < 0 || t->best < p->result.times[best].best)
            best = i;
    }
    return best;
}

typedef enum { BY_PADDING, BY_SPLIT, BY_BITWISE, BY_PAPER, BY_RULE, BY_MAP, BY_FASTEST, N_ABLATION } ablation;
static const char *const ablation_names[N_ABLATION] = {"padding everywhere",
                                                       "split where it can, else padding",
                                                       "bitwise where it can, else padding",
                                                       "the paper's rule",
                                                       "nibble's rule",
                                                       "the map",
                                                       "the fastest"};

static int choice_of(const point *p, ablation a) {
    const int64_t m = policy_bucket_last(p->bucket);
    int i = -1;
    switch (a) {
    case BY_RULE: return p->result.rule;
    case BY_MAP: return in_use(p);
    case BY_FASTEST: return p->result.fastest;
    case BY_SPLIT: i = best_of_family(p, "split"); break;
    case BY_BITWISE: i = best_of_family(p, "bitwise"); break;
    case BY_PAPER:
        i = m <= 8 ? best_of_family(p, "bitwise") : m <= 64 ? best_of_family(p, "split") : -1;
        break;
    default: break;
    }
    i = i < 0 ? best_of_family(p, "padding") : i;
    return i < 0 ? p->result.rule : i;
}

/* Whether the matrices of this shape live in its packing: what the map says for them, or parts. */
static bool is_resident(const grid *g, const point *p) {
    pack_format parts = p->shape.format;
    parts.packing = PACK_PARTS;
    return p->shape.format.packing ==
           policy_packing(&g->map, p->shape.n, p->shape.k, &parts, p->shape.act_bits);
}

typedef struct ablation_result {
    int n;                       /* points that count */
    int n_able;                  /* points where the family could do it */
    double seconds, mean, worst; /* the whole grid; regrets of single points */
} ablation_result;

/* resident: over the points of resident packings only, those that a map has to do with. */
static ablation_result ablate(const grid *g, ablation a, bool resident) {
    ablation_result r = {0};
    for (int i = 0; i < g->n; i++) {
        const point *p = &g->points[i];
        const int c = choice_of(p, a);
        const double regret = regret_of(p, c);
        if (resident && !is_resident(g, p))
            continue;
        r.n++;
        r.n_able += (a != BY_SPLIT || best_of_family(p, "split") >= 0) &&
                    (a != BY_BITWISE || best_of_family(p, "bitwise") >= 0);
        r.seconds += seconds_of(p, c) * p->shape.count;
        r.mean += regret;
        r.worst = NUM_MAX(r.worst, regret);
    }
    r.mean /= NUM_MAX(r.n, 1);
    return r;
}

/* ---- the document ---- */

static void full_name(const trial_time *t, char *out, size_t size) {
    snprintf(out, size, "%s/%s", t->isa, t->strategy->name);
}

static double macs_of(const point *p) {
    return (double)p->shape.n * (double)p->shape.k * (double)trial_rows_of(p->bucket);
}

static const char *packing_name(pack_kind f) {
    return f == PACK_PLANES ? "planes" : "parts";
}

/* Of the shape whose points begin at `first`, by its fastest strategies. */
static double mix_of(const grid *g, int first) {
    const point *one = &g->points[first], *many = &g->points[first + POLICY_BUCKETS - 1];
    return kernel_profile_mix(seconds_of(one, one->result.fastest), seconds_of(many, many->result.fastest));
}

static json_t *pruned_json(const trial_result *r) {
    json_t *list = json_array();
    bool ok = list != NULL;
    char name[96];
    for (int i = 0; i < r->n; i++)
        if (r->times[i].pruned) {
            full_name(&r->times[i], name, sizeof name);
            ok = jsonx_add(list, json_string(name)) && ok;
        }
    return jsonx_whole(list, ok);
}

static json_t *point_json(const point *p) {
    json_t *list = json_array();
    bool ok = list != NULL;
    char name[96];
    const trial_result *r = &p->result;
    for (int i = 0; i < r->n; i++) {
        const trial_time *t = &r->times[i];
        if (t->best <= 0)
            continue;
        full_name(t, name, sizeof name);
        ok = jsonx_add(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:[ff], s:f}", "name", name, "us",
                                       t->best * 1e6, "spread", t->spread, "gb_s", r->bytes / t->best * 1e-9,
                                       "peak_share", t->share.median, "peak_share_quarters", t->share.low,
                                       t->share.high, "gmac_s", macs_of(p) / t->best * 1e-9)) &&
             ok;
    }
    json_t *out = json_pack("{s:I, s:s, s:f, s:f, s:o, s:o}", "m", (json_int_t)trial_rows_of(p->bucket),
                            "rows", policy_bucket_name(p->bucket), "read_gb_s", r->read * 1e-9, "read_spread",
                            r->read_spread, "strategies", list, "not_timed", pruned_json(r));
    const struct {
        const char *key;
        int at;
    } names[] = {{"fastest", r->fastest}, {"rule", r->rule}, {"map", p->map}};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        if (names[i].at >= 0)
            full_name(&r->times[names[i].at], name, sizeof name);
        ok = jsonx_put(out, names[i].key, names[i].at >= 0 ? json_string(name) : json_null()) && ok;
    }
    return jsonx_whole(out, jsonx_put(out, "regret", json_real(regret_of(p, in_use(p)))) && ok);
}

static json_t *ablations_json(const grid *g, bool resident) {
    json_t *list = json_array();
    bool ok = list != NULL;
    const double fastest = ablate(g, BY_FASTEST, resident).seconds;
    for (int a = 0; a < N_ABLATION; a++) {
        const ablation_result r = ablate(g, (ablation)a, resident);
        if (a != BY_MAP || g->has_map)
            ok = jsonx_add(list,
                           json_pack("{s:s, s:f, s:f, s:f, s:f, s:i, s:i}", "choosing", ablation_names[a],
                                     "seconds", r.seconds, "regret", r.seconds / fastest - 1, "mean", r.mean,
                                     "worst", r.worst, "able", r.n_able, "points", r.n)) &&
                 ok;
    }
    return jsonx_whole(list, ok);
}

/* Those of which every point is measured. */
static json_t *shapes_json(const grid *g) {
    json_t *shapes = json_array();
    bool ok = shapes != NULL;
    for (int i = 0; i + POLICY_BUCKETS <= g->n; i += POLICY_BUCKETS) {
        char format[PACK_NAME], activation[8];
        const trial_shape *s = &g->points[i].shape;
        json_t *points = json_array();
        for (int j = 0; j < POLICY_BUCKETS; j++)
            ok = jsonx_add(points, point_json(&g->points[i + j])) && ok;
        pack_name(&s->format, format);
        const policy_shape *of = policy_find(&g->map, s->n, s->k, format, s->act_bits);
        snprintf(activation, sizeof activation, "a%d", s->act_bits);
        ok = jsonx_add(shapes,
                       json_pack("{s:I, s:I, s:s, s:s, s:i, s:s*, s:f, s:o}", "n", (json_int_t)s->n, "k",
                                 (json_int_t)s->k, "format", format, "activation", activation, "count",
                                 s->count, "map_packing", of ? packing_name(of->packing) : NULL,
                                 "mix_seconds", mix_of(g, i), "points", points)) &&
             ok;
    }
    return jsonx_whole(shapes, ok);
}

/* What this processor, or the GPU, multiplies with. */
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

static json_t *document_of(const grid *g, const bench *b) {
    int n_pruned = 0, n_all = 0;
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < g->points[i].result.n; j++, n_all++)
            n_pruned += g->points[i].result.times[j].pruned;
    return json_pack("{s:s, s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:i, s:i}", "cpu", b->machine.cpu, "isa",
                     b->table->isa, "threads", n_thread(b), "rotated_bytes", (json_int_t)b->n_byte, "shapes",
                     shapes_json(g), "resident", ablations_json(g, true), "ablations",
                     ablations_json(g, false), "units", units_json(b), "choices", n_all, "choices_not_timed",
                     n_pruned);
}

/* The map that a run with these options would use. */
static nib_status load_map(grid *g, const bench *b, nib_error *err) {
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

static nib_status compare(bench *b, grid *g, char **json, nib_error *err) {
    add_planes(b);
    g->points = mem_calloc((size_t)b->n_shape * POLICY_BUCKETS, sizeof *g->points);
    if (!g->points)
        return nib_fail_nomem(err, (size_t)b->n_shape * POLICY_BUCKETS * sizeof *g->points, "the grid");
    NIB_TRY(load_map(g, b, err));
    const nib_status status = run_trials(b, NULL, keep_point, g, err);
    if (status == NIB_OK)
        return give(document_of(g, b), json, err);
    (void)give(json_pack("{s:o}", "shapes", shapes_json(g)), json, NULL);
    return status;
}

nib_status nib_kernels_compare(const char *name, const nib_kernels_options *options, char **json,
                               nib_error *err) {
    bench b;
    grid g = {0};
    *json = NULL;
    nib_status status = bench_open(&b, name, options, err);
    if (status == NIB_OK)
        status = compare(&b, &g, json, err);
    mem_free(g.points);
    policy_clear(&g.map);
    bench_close(&b);
    return status;
}

/* kernel_bench.c - nibble bench --kernels: what every strategy gives for each of a model's products, what the
 * map chose, and what it, the rule and fixed choices (ADAngel's ablations, section 6.4) lose. */
#include "cli/kernel_bench.h"

#include "base/mem.h"
#include "base/num.h"
#include "kernels/dpr.h"
#include "hub/find.h"
#include "profile/kernel_map.h"

#include <stdlib.h>
#include <string.h>

/* Without a model: one layer of an 8B model in the widths that matter. */
static const struct {
    const char *format;
    int64_t n, k;
} usual[] = {
    {"q4_0", 4096, 4096},    {"q4_0", 14336, 4096},  {"q4_0", 4096, 14336},   {"u2g128", 4096, 4096},
    {"u2g128p", 4096, 4096}, {"u3g128", 4096, 4096}, {"u3g128p", 4096, 4096}, {"u4g128", 4096, 4096},
    {"u4g128p", 4096, 4096}, {"u5g128", 4096, 4096}, {"u6g128", 4096, 4096},  {"u8g128", 4096, 4096},
};

static int usual_shapes(trial_shape *out) {
    int n = 0;
    for (size_t i = 0; i < NUM_COUNT(usual); i++) {
        type_id type;
        trial_shape *s = &out[n];
        *s = (trial_shape){.n = usual[i].n, .k = usual[i].k, .act_bits = 8, .count = 1};
        n += pack_from_name(usual[i].format, s->k, &s->format) ||
             (type_from_name(usual[i].format, &type) && pack_choose(type, s->k, &s->format));
    }
    return n;
}

static nib_status model_shapes(const cli_args *args, kernel_bench *b, nib_error *err) {
    char *path = NULL;
    model *m = NULL;
    const logger log = {cli_log, (void *)args};
    NIB_TRY(model_find(args->model, &path, err));
    const nib_status status = model_open(path, &log, &m, err);
    mem_free(path);
    NIB_TRY(status);
    b->n_shape = trial_shapes_of(m, b->shapes);
    model_close(m);
    return b->n_shape ? NIB_OK
                      : nib_fail(err, NIB_E_USAGE,
                                 "%s has no packed weights: its products are computed in one "
                                 "way only",
                                 args->model);
}

/* Beside each shape the same in planes, where some strategy computes those only. */
static void add_planes(kernel_bench *b) {
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

int kernel_bench_open(kernel_bench *b, const cli_args *args) {
    nib_error err;
    memset(b, 0, sizeof *b);
    machine_look(&b->machine);
    b->table = kernels_table();
    b->n_byte = trial_bytes(b->machine.l3, b->machine.ram_free, args->ram);
    if (!b->n_byte) {
        nib_fail(&err, NIB_E_NOFIT,
                 "expected room for 64 MiB of weights beside 128 MiB of others under --ram");
        return cli_fail(&err);
    }
    if (b->n_byte < 2 * b->machine.l3)
        cli_note(args,
                 "nibble: the weights that rotate are no larger than the last cache: times are not cold");
    if (!args->model)
        b->n_shape = usual_shapes(b->shapes);
    else if (model_shapes(args, b, &err))
        return cli_fail(&err);
    if (pool_open(args->threads ? (int)args->threads : thread_physical_cores(), &b->threads, &err))
        return cli_fail(&err);
    return 0;
}

void kernel_bench_close(kernel_bench *b) {
    pool_close(b->threads);
}

/* ---- the grid ---- */

typedef struct point {
    trial_shape shape;
    int bucket, map; /* index of the map's choice; -1: there is no map, or it says nothing here */
    trial_result result;
} point;

typedef struct grid {
    const cli_args *args;
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

/* ---- what is said ---- */

static void full_name(const trial_time *t, char *out, size_t size) {
    snprintf(out, size, "%s/%s", t->isa, t->strategy->name);
}

static double macs_of(const point *p) {
    return (double)p->shape.n * (double)p->shape.k * (double)trial_rows_of(p->bucket);
}

static void print_point(const point *p) {
    const trial_result *r = &p->result;
    for (int i = 0; i < r->n; i++) {
        char name[96];
        const trial_time *t = &r->times[i];
        if (t->best <= 0)
            continue;
        full_name(t, name, sizeof name);
        printf(
            "  M %-4lld %-30s %10.1f us +%2.0f %% %7.2f GB/s %5.2f (%.2f..%.2f) of read %8.1f GMAC/s%s%s%s\n",
            (long long)trial_rows_of(p->bucket), name, t->best * 1e6, t->spread * 100,
            r->bytes / t->best * 1e-9, t->share.median, t->share.low, t->share.high,
            macs_of(p) / t->best * 1e-9, i == r->fastest ? "  fastest" : "", i == r->rule ? "  rule" : "",
            i == p->map ? "  map" : "");
    }
}

/* "fastest: 1-4 avx512/padding.direct, 5- avx512/padding.blocked": where the crossovers lie. */
static void print_crossovers(const grid *g, int first) {
    printf("  fastest by rows:");
    for (int b = 0; b < POLICY_BUCKETS;) {
        char name[96];
        int e = b;
        const trial_result *r = &g->points[first + b].result;
        while (e + 1 < POLICY_BUCKETS &&
               g->points[first + e + 1].result.times[g->points[first + e + 1].result.fastest].strategy ==
                   r->times[r->fastest].strategy)
            e++;
        full_name(&r->times[r->fastest], name, sizeof name);
        printf("%s %lld", b ? "," : "", (long long)policy_bucket_first(b));
        if (e == POLICY_BUCKETS - 1)
            printf("- %s", name);
        else
            printf("-%lld %s", (long long)policy_bucket_last(e), name);
        b = e + 1;
    }
    putchar('\n');
}

static const char *packing_name(pack_kind f) {
    return f == PACK_PLANES ? "planes" : "parts";
}

/* Of the shape whose points begin at `first`, by its fastest strategies. */
static double mix_of(const grid *g, int first) {
    const point *one = &g->points[first], *many = &g->points[first + POLICY_BUCKETS - 1];
    return kernel_profile_mix(seconds_of(one, one->result.fastest), seconds_of(many, many->result.fastest));
}

/* A matrix lives in one packing: which is faster for 512 rows at once and then 128 one by one, and what does
 * the map say? */
static void print_packings(const grid *g) {
    for (int i = 0; i < g->n; i += POLICY_BUCKETS)
        for (int j = 0; j < g->n; j += POLICY_BUCKETS) {
            pack_format f = g->points[i].shape.format;
            const trial_shape *a = &g->points[i].shape, *b = &g->points[j].shape;
            if (f.packing == PACK_PLANES)
                continue;
            f.packing = PACK_PLANES;
            if (a->n != b->n || a->k != b->k || memcmp(&b->format, &f, sizeof f))
                continue;
            char name[PACK_NAME];
            pack_name(&a->format, name);
            const policy_shape *of = policy_find(&g->map, a->n, a->k, name, a->act_bits);
            const double parts = mix_of(g, i), planes = mix_of(g, j);
            printf("%s %lld x %lld: 512 rows and 128 single ones in parts %.2f ms, in planes %.2f ms: %s; "
                   "the map: %s\n",
                   name, (long long)a->n, (long long)a->k, parts * 1e3, planes * 1e3,
                   planes < parts ? "planes" : "parts", !of ? "nothing" : packing_name(of->packing));
        }
}

static void print_ablations(const grid *g, bool resident) {
    const ablation_result fastest = ablate(g, BY_FASTEST, resident);
    if (!resident && fastest.n == ablate(g, BY_FASTEST, true).n)
        return;
    printf("\n%-36s %12s %9s %9s %9s   (%d points, %s)\n", "choosing", "whole grid", "regret", "mean",
           "worst", fastest.n, resident ? "in the packings that matrices live in" : "in both packings");
    for (int a = 0; a < N_ABLATION; a++) {
        const ablation_result r = ablate(g, (ablation)a, resident);
        if (a == BY_MAP && !g->has_map) {
            printf("%-36s there is none: nibble profile %s --kernels\n", ablation_names[a],
                   g->args->model ? g->args->model : "MODEL");
            continue;
        }
        printf("%-36s %9.3f ms %7.1f %% %7.1f %% %7.1f %%", ablation_names[a], r.seconds * 1e3,
               (r.seconds / fastest.seconds - 1) * 100, r.mean * 100, r.worst * 100);
        printf(r.n_able < r.n ? "   (it can do %d of %d points)\n" : "\n", r.n_able, r.n);
    }
}

/* What this processor multiplies with, and which strategies that left untimed. */
static void print_units(const grid *g) {
    dpr_unit units[DPR_MAX_UNIT];
    const int n = dpr_measure(units, DPR_MAX_UNIT);
    int n_pruned = 0, n_all = 0;
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < g->points[i].result.n; j++, n_all++)
            n_pruned += g->points[i].result.times[j].pruned;
    for (int i = 0; i < n; i++)
        printf("unit %s/%s: %d-bit weights, %d-bit activations, %.1f G products a second and core\n",
               units[i].isa, units[i].name, units[i].w_bits, units[i].a_bits, units[i].rate * 1e-9);
    printf("%d of %d choices were not timed: by their unit's rate they cannot come near\n", n_pruned, n_all);
}

static void print_grid(const grid *g, const kernel_bench *b) {
    for (int i = 0; i < g->n; i += POLICY_BUCKETS) {
        char format[PACK_NAME];
        const trial_shape *s = &g->points[i].shape;
        pack_name(&s->format, format);
        printf("%s %lld x %lld, a%d, %d in a token; %d threads read %.1f GB/s meanwhile (spread %.0f %%)\n",
               format, (long long)s->n, (long long)s->k, s->act_bits, s->count, pool_size(b->threads),
               g->points[i].result.read * 1e-9, g->points[i].result.read_spread * 100);
        for (int j = 0; j < POLICY_BUCKETS; j++)
            print_point(&g->points[i + j]);
        print_crossovers(g, i);
    }
    print_units(g);
    print_packings(g);
    print_ablations(g, true);
    print_ablations(g, false);
}

static json_t *pruned_json(const trial_result *r) {
    json_t *list = json_array();
    char name[96];
    for (int i = 0; i < r->n; i++)
        if (r->times[i].pruned) {
            full_name(&r->times[i], name, sizeof name);
            json_array_append_new(list, json_string(name));
        }
    return list;
}

static json_t *point_json(const point *p) {
    json_t *list = json_array();
    char name[96];
    const trial_result *r = &p->result;
    for (int i = 0; i < r->n; i++) {
        const trial_time *t = &r->times[i];
        if (t->best <= 0)
            continue;
        full_name(t, name, sizeof name);
        json_array_append_new(list,
                              json_pack("{s:s, s:f, s:f, s:f, s:f, s:[ff], s:f}", "name", name, "us",
                                        t->best * 1e6, "spread", t->spread, "gb_s", r->bytes / t->best * 1e-9,
                                        "peak_share", t->share.median, "peak_share_quarters", t->share.low,
                                        t->share.high, "gmac_s", macs_of(p) / t->best * 1e-9));
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
        json_object_set_new(out, names[i].key, names[i].at >= 0 ? json_string(name) : json_null());
    }
    json_object_set_new(out, "regret", json_real(regret_of(p, in_use(p))));
    return out;
}

static json_t *ablations_json(const grid *g, bool resident) {
    json_t *list = json_array();
    const double fastest = ablate(g, BY_FASTEST, resident).seconds;
    for (int a = 0; a < N_ABLATION; a++) {
        const ablation_result r = ablate(g, (ablation)a, resident);
        if (a != BY_MAP || g->has_map)
            json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:f, s:f, s:i, s:i}", "choosing",
                                                  ablation_names[a], "seconds", r.seconds, "regret",
                                                  r.seconds / fastest - 1, "mean", r.mean, "worst", r.worst,
                                                  "able", r.n_able, "points", r.n));
    }
    return list;
}

/* Those of which every point is measured. */
static json_t *shapes_json(const grid *g) {
    json_t *shapes = json_array();
    for (int i = 0; i + POLICY_BUCKETS <= g->n; i += POLICY_BUCKETS) {
        char format[PACK_NAME], activation[8];
        const trial_shape *s = &g->points[i].shape;
        json_t *points = json_array();
        for (int j = 0; j < POLICY_BUCKETS; j++)
            json_array_append_new(points, point_json(&g->points[i + j]));
        pack_name(&s->format, format);
        const policy_shape *of = policy_find(&g->map, s->n, s->k, format, s->act_bits);
        snprintf(activation, sizeof activation, "a%d", s->act_bits);
        json_array_append_new(shapes, json_pack("{s:I, s:I, s:s, s:s, s:i, s:s*, s:f, s:o}", "n",
                                                (json_int_t)s->n, "k", (json_int_t)s->k, "format", format,
                                                "activation", activation, "count", s->count, "map_packing",
                                                of ? packing_name(of->packing) : NULL, "mix_seconds",
                                                mix_of(g, i), "points", points));
    }
    return shapes;
}

static int print_json(const grid *g, const kernel_bench *b) {
    return cli_write_json(json_pack("{s:s, s:s, s:i, s:I, s:o, s:o, s:o}", "cpu", b->machine.cpu, "isa",
                                    b->table->isa, "threads", pool_size(b->threads), "rotated_bytes",
                                    (json_int_t)b->n_byte, "shapes", shapes_json(g), "resident",
                                    ablations_json(g, true), "ablations", ablations_json(g, false)),
                          g->args);
}

/* The map that a run with these options would use. */
static nib_status load_map(grid *g, const kernel_bench *b, nib_error *err) {
    const kernel_map_key key = {&b->machine, b->table, pool_size(b->threads)};
    const char *named = g->args->kernel_map;
    kernel_map_report report;
    if (named && !strcmp(named, "none"))
        return NIB_OK;
    char *path = named ? mem_strdup(named) : kernel_map_path(&key);
    const nib_status status = path ? kernel_map_load(path, &key, &g->map, &report, err) : NIB_E_NOTFOUND;
    mem_free(path);
    if (status == NIB_OK && report.other[0])
        cli_note(g->args, "nibble: the map is not used: %s", report.other);
    return named ? status : NIB_OK;
}

int kernel_bench_run(const cli_args *args) {
    kernel_bench b;
    nib_error err;
    grid g = {.args = args};
    int code = kernel_bench_open(&b, args);
    if (code)
        return code;
    add_planes(&b);
    const canceller cancel = {cli_cancel, NULL};
    const kernel_profile_options options = {.table = b.table,
                                            .threads = b.threads,
                                            .n_byte = b.n_byte,
                                            .seconds = args->seconds,
                                            .progress = cli_progress,
                                            .user = (void *)args,
                                            .cancel = &cancel};
    g.points = mem_calloc((size_t)b.n_shape * POLICY_BUCKETS, sizeof *g.points);
    if (!g.points)
        code = cli_usage_error("out of memory");
    else if (load_map(&g, &b, &err))
        code = cli_fail(&err);
    else if (kernel_profile(&options, b.shapes, b.n_shape, keep_point, &g, &err)) {
        cli_made(json_pack("{s:o}", "shapes", shapes_json(&g)));
        code = cli_fail(&err);
    } else if (args->json)
        code = print_json(&g, &b);
    else
        print_grid(&g, &b);
    mem_free(g.points);
    policy_clear(&g.map);
    kernel_bench_close(&b);
    return code;
}

/* kernel_grid.c - see kernel_grid.h. */
#include "measure/kernel_grid.h"

#include "base/jsonx.h"
#include "base/num.h"
#include "measure/kernel_profile.h"

#include <stdio.h>
#include <string.h>

static int index_of(const trial_result *r, const strategy *s) {
    for (int i = 0; i < r->n; i++)
        if (r->times[i].strategy == s)
            return i;
    return -1;
}

nib_status kernel_grid_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                            nib_error *err) {
    kernel_grid *g = user;
    char format[PACK_NAME];
    (void)err;
    pack_name(&shape->format, format);
    const kernel_map_shape *of = kernel_map_find(&g->map, shape->n, shape->k, format, shape->act_bits);
    kernel_point *p = &g->points[g->n++];
    *p = (kernel_point){*shape, bucket, of ? index_of(result, of->by_bucket[bucket]) : -1, *result};
    g->has_map = g->has_map || p->map >= 0;
    return NIB_OK;
}

/* Index of the strategy that would run: the map's choice, else the rule's. */
static int in_use(const kernel_point *p) {
    return p->map >= 0 ? p->map : p->result.rule;
}

static double seconds_of(const kernel_point *p, int i) {
    const double best = p->result.times[i].best;
    return best > 0 ? best
                    : p->result.times[p->result.rule]
                          .best; /* 0 means it was dropped at the first look, so its time is unknown */
}

static double regret_of(const kernel_point *p, int i) {
    return seconds_of(p, i) / seconds_of(p, p->result.fastest) - 1;
}

/* ---- ablations ---- */

/* The fastest strategy of a family ("padding", "split", "bitwise"); -1: none for this point. */
static int best_of_family(const kernel_point *p, const char *family) {
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

static int choice_of(const kernel_point *p, ablation a) {
    const int64_t m = row_bucket_last(p->bucket);
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

/* Whether the model's matrices of this shape are held in this packing: the map's packing, or parts. */
static bool is_resident(const kernel_grid *g, const kernel_point *p) {
    pack_format parts = p->shape.format;
    parts.packing = PACK_PARTS;
    return p->shape.format.packing ==
           kernel_map_packing(&g->map, p->shape.n, p->shape.k, &parts, p->shape.act_bits);
}

typedef struct ablation_result {
    int n;                       /* points that are counted */
    int n_able;                  /* points that the family can compute */
    double seconds, mean, worst; /* seconds of the whole grid; mean and worst regret of single points */
} ablation_result;

/* Evaluates one way to choose. resident: only over points in the packings that the model's matrices have. */
static ablation_result ablate(const kernel_grid *g, ablation a, bool resident) {
    ablation_result r = {0};
    for (int i = 0; i < g->n; i++) {
        const kernel_point *p = &g->points[i];
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

static double macs_of(const kernel_point *p) {
    return (double)p->shape.n * (double)p->shape.k * (double)trial_rows_of(p->bucket);
}

static const char *packing_name(pack_kind f) {
    return f == PACK_PLANES ? "planes" : "parts";
}

/* The mixed workload's seconds (kernel_profile_mix) for the shape whose points begin at `first`, by its
 * fastest strategies. */
static double mix_of(const kernel_grid *g, int first) {
    const kernel_point *one = &g->points[first], *many = &g->points[first + ROW_BUCKETS - 1];
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

static json_t *point_json(const kernel_point *p) {
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
                            "rows", row_bucket_name(p->bucket), "read_gb_s", r->read * 1e-9, "read_spread",
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

json_t *kernel_grid_ablations(const kernel_grid *g, bool resident) {
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

/* Lists the shapes whose points are all measured. */
json_t *kernel_grid_shapes(const kernel_grid *g) {
    json_t *shapes = json_array();
    bool ok = shapes != NULL;
    for (int i = 0; i + ROW_BUCKETS <= g->n; i += ROW_BUCKETS) {
        char format[PACK_NAME], activation[8];
        const trial_shape *s = &g->points[i].shape;
        json_t *points = json_array();
        for (int j = 0; j < ROW_BUCKETS; j++)
            ok = jsonx_add(points, point_json(&g->points[i + j])) && ok;
        pack_name(&s->format, format);
        const kernel_map_shape *of = kernel_map_find(&g->map, s->n, s->k, format, s->act_bits);
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

int kernel_grid_choices(const kernel_grid *g, int *n_pruned) {
    int n = 0;
    *n_pruned = 0;
    for (int i = 0; i < g->n; i++)
        for (int j = 0; j < g->points[i].result.n; j++, n++)
            *n_pruned += g->points[i].result.times[j].pruned;
    return n;
}

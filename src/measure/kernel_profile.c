/* kernel_profile.c - see kernel_profile.h. */
#include "measure/kernel_profile.h"

#include "base/num.h"

/* Points that a shape counts for: its grid, and at most PACKING_POINTS for choosing its packing. */
enum { PACKING_POINTS = 4 };
#define PACKING_MARGIN 0.02 /* planes are chosen only if they are faster by more than this share */

nib_status kernel_profile_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                               nib_error *err) {
    char format[PACK_NAME];
    kernel_map_shape *of;
    pack_name(&shape->format, format);
    NIB_TRY(kernel_map_add(user, shape->n, shape->k, format, shape->act_bits, &of, err));
    of->by_bucket[bucket] = result->times[result->chosen].strategy;
    return NIB_OK;
}

static nib_status set_own(void *t, const trial_shape *shape, nib_error *err) {
    return trial_set(t, shape, err);
}
static nib_status rows_own(void *t, int64_t n_row, double seconds, trial_result *out, nib_error *err) {
    return trial_rows(t, n_row, seconds, out, err);
}
static const trial_kind own_kind = {set_own, rows_own};

typedef struct grid {
    const kernel_profile_options *options;
    const trial_kind *kind;
    void *t;       /* a trial of that kind */
    int done, all; /* points */
    double end;
} grid;

/* Measures one point of the current shape, with its share of the remaining time. */
static nib_status one_point(grid *g, int64_t n_row, trial_result *out, nib_error *err) {
    const kernel_profile_options *o = g->options;
    const double left = g->end - time_now();
    if (o->progress && !o->progress(o->user, "timing kernels", (uint64_t)g->done, (uint64_t)g->all))
        return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    NIB_TRY(g->kind->rows(g->t, n_row, NUM_MAX(left, 0) / NUM_MAX(g->all - g->done, 1), out, err));
    g->done++;
    return NIB_OK;
}

static nib_status one_shape(grid *g, const trial_shape *shape, kernel_profile_fn fn, void *user,
                            nib_error *err) {
    NIB_TRY(g->kind->set(g->t, shape, err));
    for (int b = 0; b < ROW_BUCKETS; b++) {
        trial_result result;
        NIB_TRY(one_point(g, trial_rows_of(b), &result, err));
        NIB_TRY(fn(user, shape, b, &result, err));
    }
    return NIB_OK;
}

/* ---- packings ---- */

double kernel_profile_mix(double one, double many) {
    return many + 128 * one;
}

/* Seconds of the fastest strategy for n_row rows, in each packing. */
static nib_status both_packings(grid *g, const trial_shape *in_parts, const trial_shape *in_planes,
                                int64_t n_row, double *parts, double *planes, nib_error *err) {
    trial_result result;
    NIB_TRY(g->kind->set(g->t, in_parts, err));
    NIB_TRY(one_point(g, n_row, &result, err));
    *parts = result.times[result.fastest].best;
    NIB_TRY(g->kind->set(g->t, in_planes, err));
    NIB_TRY(one_point(g, n_row, &result, err));
    *planes = result.times[result.fastest].best;
    return NIB_OK;
}

/* Chooses the packing. Planes that are not faster with one row cannot be faster with many, because then they
 * are converted to parts first. */
static nib_status choose_packing(grid *g, trial_shape *shape, nib_error *err) {
    char format[PACK_NAME];
    kernel_map_shape *of;
    trial_shape planes = *shape;
    double one[2] = {0}, many[2] = {0};
    planes.format.packing = PACK_PLANES;
    pack_name(&shape->format, format);
    NIB_TRY(kernel_map_add(g->options->packings, shape->n, shape->k, format, shape->act_bits, &of, err));
    of->packing = (pack_kind)shape->format.packing;
    if (!trial_has_planes(g->options->table, shape))
        return NIB_OK;
    NIB_TRY(both_packings(g, shape, &planes, 1, &one[0], &one[1], err));
    if (one[1] < one[0])
        NIB_TRY(both_packings(g, shape, &planes, trial_rows_of(ROW_BUCKETS - 1), &many[0], &many[1], err));
    else
        g->all -= PACKING_POINTS / 2;
    if (one[1] < one[0] &&
        kernel_profile_mix(one[1], many[1]) < kernel_profile_mix(one[0], many[0]) * (1 - PACKING_MARGIN)) {
        of->packing = PACK_PLANES;
        shape->format.packing = PACK_PLANES;
    }
    return NIB_OK;
}

nib_status kernel_profile(const kernel_profile_options *o, const trial_shape *shapes, int n_shape,
                          kernel_profile_fn fn, void *user, nib_error *err) {
    trial *own = NULL;
    grid g = {.options = o, .end = time_now() + o->seconds, .all = n_shape * ROW_BUCKETS};
    nib_status status = NIB_OK;
    for (int i = 0; o->packings && i < n_shape; i++)
        g.all += trial_has_planes(o->table, &shapes[i]) ? PACKING_POINTS : 0;
    if (!o->kind)
        NIB_TRY(trial_open(o->table, o->threads, o->n_byte, o->cancel, &own, err));
    g.kind = o->kind ? o->kind : &own_kind;
    g.t = o->kind ? o->trial : own;
    for (int i = 0; i < n_shape && status == NIB_OK; i++) {
        trial_shape shape = shapes[i];
        if (o->packings)
            status = choose_packing(&g, &shape, err);
        if (status == NIB_OK)
            status = one_shape(&g, &shape, fn, user, err);
    }
    trial_close(own);
    return status;
}

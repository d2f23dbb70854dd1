/* offload.c - see offload.h. */
#include "plan/offload.h"

#include "base/num.h"

/* Seconds of a pass of so many rows through all layers. What one row's products take is in the rate of
 * reading weights. */
static double seconds_of(const plan_rates *r, const offload_layer *l, int n_layer, int n_come,
                         int64_t n_row) {
    const double read = (double)l->bytes / r->one_row[l->bits] * (l->two ? r->two_slices : 1);
    const double multiply = (double)(n_row - 1) * (double)l->macs / r->many_rows[l->bits];
    const double here = (n_layer - n_come) * (read + multiply);
    const double link = n_come * ((double)l->bytes / r->link);
    return NUM_MAX(here, link);
}

void offload_choose(const plan_rates *r, const offload_layer *each, int n_layer, int64_t max_rows,
                    offload *out) {
    *out = (offload){.seconds = seconds_of(r, each, n_layer, 0, 1)};
    for (int n = 1; n <= n_layer; n++) {
        const double s = seconds_of(r, each, n_layer, n, 1);
        if (s < out->seconds)
            *out = (offload){.n_come = n, .seconds = s};
    }
    const double all = seconds_of(r, each, n_layer, n_layer, 1);
    while (out->n_come < n_layer && out->max_rows < max_rows &&
           seconds_of(r, each, n_layer, out->n_come, out->max_rows + 1) <= all)
        out->max_rows++;
}

bool offload_comes(int n_come, int n_layer, int i) {
    return (int64_t)(i + 1) * n_come / n_layer != (int64_t)i * n_come / n_layer;
}

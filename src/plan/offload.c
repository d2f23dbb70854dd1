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

/* Of n things, those that stand in front of place i of `places`, evenly. */
static int before(int n, int places, int i) {
    return (int)((int64_t)i * n / places);
}

void offload_place_all(int n_layer, int n_stay, int n_come, offload_place *out) {
    const int n_away = n_layer - n_stay;
    int at = 0, group = 0;
    for (int i = 0; i < n_away; i++) {
        const bool comes = before(n_come, n_away, i + 1) != before(n_come, n_away, i);
        out[at++] = comes ? OFFLOAD_COMES : OFFLOAD_IN_PLACE;
        if (!comes)
            continue;
        for (int n = before(n_stay, n_come, group + 1) - before(n_stay, n_come, group); n > 0; n--)
            out[at++] = OFFLOAD_STAYS;
        group++;
    }
    while (at < n_layer)
        out[at++] = OFFLOAD_STAYS;
}

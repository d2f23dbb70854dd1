/* rates.h - the rates that a plan is computed with: from the hardware profile, or guesses that are reported
 * as such. */
#ifndef NIB_PLAN_RATES_H
#define NIB_PLAN_RATES_H

#include "plan/planner.h"
#include "profile/hardware.h"

/* h NULL: nothing was measured. page, part: bytes of one read from a packed file, and from the model's
 * files. */
void plan_rates_of(const hardware *h, const machine *m, int n_thread, uint64_t page, uint64_t part,
                   plan_rates *out);

/* Bytes a second with reads of that size, interpolated over the logarithm of the size. 0: nothing was
 * measured. */
double plan_disk_rate(const plan_rates *r, double size);

#endif

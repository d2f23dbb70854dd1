/* rates.h - what a plan counts with, from the hardware profile; without one, stated guesses. */
#ifndef NIB_PLAN_RATES_H
#define NIB_PLAN_RATES_H

#include "plan/planner.h"
#include "profile/hardware.h"

/* h NULL: nothing was measured. page, part: bytes that are read at a time from a packed file, and from the
 * model's files. */
void plan_rates_of(const hardware *h, const machine *m, int n_thread, uint64_t page, uint64_t part,
                   plan_rates *out);

/* Bytes a second with reads of that size: between two sizes that were measured the rate goes with the
 * logarithm of the size. 0 when none was measured. */
double plan_disk_rate(const plan_rates *r, double size);

#endif

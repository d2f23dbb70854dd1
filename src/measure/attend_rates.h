/* attend_rates.h - measures attention on the processor: the bytes of keys and values a second to which rows
 * of many sequences attend, by format (profile/hardware.h). */
#ifndef NIB_MEASURE_ATTEND_RATES_H
#define NIB_MEASURE_ATTEND_RATES_H

#include "base/thread.h"
#include "profile/hardware.h"

/* Fills out->attend, with one thread and with all of the pool, in about `seconds`; needs n_byte of memory
 * meanwhile, which should be several times the last cache. */
nib_status attend_rates_measure(pool *threads, uint64_t n_byte, double seconds, const canceller *cancel,
                                hardware *out, nib_error *err);

#endif

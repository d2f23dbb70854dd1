/* hardware_rates.h - measures a machine: the rates of memory, disk, products and packing
 * (profile/hardware.h), and the time of a barrier. */
#ifndef NIB_MEASURE_HARDWARE_RATES_H
#define NIB_MEASURE_HARDWARE_RATES_H

#include "base/cancel.h"
#include "base/log.h"
#include "profile/hardware.h"

typedef struct hardware_options {
    const char *folder; /* a file is written there, read and removed; NULL: $XDG_CACHE_HOME/nibble, where that
                           is possible */
    const char *file;   /* read this file instead; NULL: none */
    double seconds;     /* approximate duration, at least 1 */
    nib_progress_fn progress; /* NULL: none */
    void *user;
    const canceller *cancel; /* NULL: none */
    const logger *log;       /* NULL: silent */
} hardware_options;

/* Measures all rates; blocks for about o->seconds. NIB_E_CANCELLED, NIB_E_NOMEM, and errors of the disk. */
nib_status hardware_measure(const machine *m, const hardware_options *o, hardware *out, nib_error *err);

#endif

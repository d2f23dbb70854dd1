/* order.h - which samplers run, and in which order. Each has the letter that llama.cpp gives it. */
#ifndef NIB_SEQUENCE_ORDER_H
#define NIB_SEQUENCE_ORDER_H

#include "base/status.h"

#define ORDER_DEFAULT "edskypmxt"

typedef enum sampler_letter {
    SAMPLER_PENALTIES = 'e',
    SAMPLER_DRY = 'd',
    SAMPLER_TOP_N_SIGMA = 's',
    SAMPLER_TOP_K = 'k',
    SAMPLER_TYPICAL = 'y',
    SAMPLER_TOP_P = 'p',
    SAMPLER_MIN_P = 'm',
    SAMPLER_XTC = 'x',
    SAMPLER_TEMPERATURE = 't'
} sampler_letter;

/* NIB_E_USAGE for letters that are no sampler's. */
nib_status order_check(const char *letters, nib_error *err);
/* Turns off the samplers that how->samplers leaves out, and removes from it those without an effect; "" if
 * the others run in the default order. */
void order_reduce(nib_sampling *how);

#endif

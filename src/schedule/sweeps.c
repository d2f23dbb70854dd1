/* sweeps.c - see sweeps.h. */
#include "schedule/sweeps.h"

bool sweeps_admits(sweeps *s, int64_t n_running) {
    if (n_running >= s->width)
        return false;
    if (s->kind != SWEEP_REFILL)
        return s->filling;
    return s->spacing == 0 || s->n_begun * s->spacing <= s->n_sweep * s->width;
}

void sweeps_enter(sweeps *s) {
    s->n_begun++;
}

void sweeps_next(sweeps *s, int64_t n_running) {
    s->filling = n_running == 0;
    s->n_sweep += s->n_begun > 0;
}

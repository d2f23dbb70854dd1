/* ahead.c - see ahead.h. */
#include "exec/cpu/ahead.h"

static const int64_t choices[AHEAD_CHOICES] = {2048, 4096, 8192};

/* Every three samples have each choice once, in an order that moves on, so that no choice always gets the
 * same layers. */
static int choice_of(int n_sample) {
    return (n_sample + n_sample / AHEAD_CHOICES) % AHEAD_CHOICES;
}

int64_t ahead_next(const ahead *a) {
    return a->chosen ? a->chosen : choices[choice_of(a->n_sample)];
}

void ahead_add(ahead *a, double seconds) {
    double *best = &a->best[choice_of(a->n_sample)];
    if (a->n_sample < AHEAD_CHOICES || seconds < *best)
        *best = seconds;
    if (++a->n_sample < AHEAD_CHOICES * AHEAD_SAMPLES)
        return;
    int fastest = 0;
    for (int i = 1; i < AHEAD_CHOICES; i++)
        fastest = a->best[i] < a->best[fastest] ? i : fastest;
    a->chosen = choices[fastest];
}

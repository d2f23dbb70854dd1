/* ahead.c - see ahead.h. */
#include "exec/cpu/ahead.h"

static const int64_t choices[AHEAD_CHOICES] = {2048, 4096, 8192};

/* A shorter distance than the longest is chosen only if it takes at most this share of its time: where the
 * shares are closer, whole tokens were fastest with the longest (docs/optimisation-log.md). */
#define SHORTER 0.93

/* Every three samples have each choice once, in an order that moves on, so that no choice always gets the
 * same layers. */
static int choice_of(int n_sample) {
    return (n_sample + n_sample / AHEAD_CHOICES) % AHEAD_CHOICES;
}

/* Adds a sample to the smallest of n samples. */
static void insert(double min[AHEAD_QUARTER], int n, double seconds) {
    int i = n < AHEAD_QUARTER ? n : AHEAD_QUARTER;
    if (i == AHEAD_QUARTER && seconds >= min[--i])
        return;
    for (; i > 0 && min[i - 1] > seconds; i--)
        min[i] = min[i - 1];
    min[i] = seconds;
}

int64_t ahead_next(const ahead *a) {
    if (a->n_first < AHEAD_FIRST)
        return choices[AHEAD_CHOICES / 2];
    return a->chosen ? a->chosen : choices[choice_of(a->n_sample)];
}

void ahead_add(ahead *a, double seconds) {
    if (a->n_first < AHEAD_FIRST) {
        a->n_first++;
        return;
    }
    insert(a->min_seconds[choice_of(a->n_sample)], a->n_sample / AHEAD_CHOICES, seconds);
    if (++a->n_sample < AHEAD_CHOICES * AHEAD_SAMPLES)
        return;
    int fastest = AHEAD_CHOICES - 1;
    double time = a->min_seconds[fastest][AHEAD_QUARTER - 1] * SHORTER;
    for (int i = 0; i < AHEAD_CHOICES - 1; i++)
        if (a->min_seconds[i][AHEAD_QUARTER - 1] < time) {
            fastest = i;
            time = a->min_seconds[i][AHEAD_QUARTER - 1];
        }
    a->chosen = choices[fastest];
}

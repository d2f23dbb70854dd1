/* routing.c - see routing.h. */
#include "synth/routing.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static const routing_regime regimes[] = {{"uniform", 0, 0, 0, 1.2, 0, 0.4},
                                         {"fitted", 0.98, 0.2, 1, 1.05, 0.95, 0.4},
                                         {"flat", 0.93, 0, 0.8, 1.3, 0.1, 0.4}};

const routing_regime *routing_find(const char *name) {
    for (size_t i = 0; i < sizeof regimes / sizeof regimes[0]; i++)
        if (!strcmp(name, regimes[i].name))
            return &regimes[i];
    return NULL;
}

void routing_begin(routing *r, const routing_regime *regime, uint64_t seed) {
    memset(r, 0, sizeof *r);
    r->regime = regime;
    synth_random_seed(&r->random, seed);
    for (int i = 0; i < ROUTING_SLOW; i++)
        r->slow[i] = (float)synth_random_normal(&r->random);
    for (int i = 0; i < ROUTING_FAST; i++)
        r->fast[i] = (float)synth_random_normal(&r->random);
}

static void step(synth_random *random, float *x, int n, double keeps) {
    const double new = sqrt(1 - keeps * keeps);
    for (int i = 0; i < n; i++)
        x[i] = (float)(keeps * (double)x[i] + new *synth_random_normal(random));
}

static void put_code(uint64_t token, float *to) {
    for (int i = 0; i < ROUTING_CODE; i++)
        to[i] = synth_random_mix(token * ROUTING_CODE + (uint64_t)i) & 1 ? 1 : -1;
}

void routing_embed(routing *r, uint64_t token, float *row) {
    step(&r->random, r->slow, ROUTING_SLOW, r->regime->keeps_slow);
    step(&r->random, r->fast, ROUTING_FAST, r->regime->keeps_fast);
    memcpy(row, r->slow, sizeof r->slow);
    memcpy(row + ROUTING_SLOW, r->fast, sizeof r->fast);
    row[ROUTING_SLOW + ROUTING_FAST] = 1;
    put_code(token, row + ROUTING_WIDTH - ROUTING_CODE);
}

void routing_head(uint64_t token, uint64_t n_vocab, float *row) {
    memset(row, 0, (ROUTING_WIDTH - ROUTING_CODE) * sizeof *row);
    put_code((token + n_vocab - 1) % n_vocab, row + ROUTING_WIDTH - ROUTING_CODE);
}

void routing_router(routing *r, double noise, int64_t d_model, float *row) {
    const routing_regime *g = r->regime;
    const double slow = g->slow / sqrt(ROUTING_SLOW), fast = g->fast / sqrt(ROUTING_FAST);
    const double other = g->other / (noise * sqrt((double)(d_model - ROUTING_WIDTH)));
    int64_t i = 0;
    for (; i < ROUTING_SLOW; i++)
        row[i] = (float)(slow * synth_random_normal(&r->random));
    for (; i < ROUTING_SLOW + ROUTING_FAST; i++)
        row[i] = (float)(fast * synth_random_normal(&r->random));
    row[i++] = (float)(g->popularity * synth_random_normal(&r->random));
    for (; i < ROUTING_WIDTH; i++)
        row[i] = 0;
    for (; i < d_model; i++)
        row[i] = (float)(other * synth_random_normal(&r->random));
}

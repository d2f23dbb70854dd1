/* routing.h - routers of synthetic mixtures that choose experts as those of real models do: some experts are
 * chosen more often than others, and what was chosen lately is chosen again.
 *
 * The first ROUTING_WIDTH columns of the residual stream belong to routing. The embedding alone writes them;
 * matrices of layers have rows of zeros there. They have, for each token,
 * - a slow and a fast vector. Along the numbers of the tokens each is a random walk around 0 that keeps a
 * part of itself from one token to the next;
 * - a column that is 1;
 * - a code of the token. The output head reads the code of token n in row n + 1, so a greedy answer is the
 *   next number each time, and its vectors take the walk.
 * A router's logits are random combinations of both vectors, a popularity of each expert, and the other
 * columns of the stream. The latter are what layers compute: no guess from an earlier layer knows them. */
#ifndef NIB_SYNTH_ROUTING_H
#define NIB_SYNTH_ROUTING_H

#include "synth/random.h"

enum { ROUTING_SLOW = 32, ROUTING_FAST = 31, ROUTING_CODE = 128, ROUTING_WIDTH = 192 };

typedef struct routing_regime {
    const char *name;
    double keeps_slow, keeps_fast;        /* correlation of the vectors of consecutive tokens */
    double slow, fast, popularity, other; /* standard deviations of the parts of a logit */
} routing_regime;

/* "uniform": each token chooses anew, and no expert is preferred; "fitted": hits, repetitions and popularity
 * of the recorded choices of Qwen3-30B-A3B and Gemma 4 26B-A4B (docs/experts.md); "flat": memory, but little
 * preference, as models with 512 experts report. NULL: an unknown name. */
const routing_regime *routing_find(const char *name);

typedef struct routing {
    const routing_regime *regime;
    synth_random random;
    float slow[ROUTING_SLOW], fast[ROUTING_FAST]; /* of the last token */
} routing;

void routing_begin(routing *r, const routing_regime *regime, uint64_t seed);
/* The embedding's columns [ROUTING_WIDTH] of a token; one call for each token, in their order. */
void routing_embed(routing *r, uint64_t token, float *row);
/* The head's columns [ROUTING_WIDTH] for a token of n_vocab. */
void routing_head(uint64_t token, uint64_t n_vocab, float *row);
/* A router's row [d_model] of one expert. noise: the root mean square that the other columns of the stream
 * have when the first ones have 1. */
void routing_router(routing *r, double noise, int64_t d_model, float *row);

#endif

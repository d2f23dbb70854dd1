/* sampler.h - draws a token from logits. Everything is allocated at open; sampling allocates nothing.
 *
 * The order is llama.cpp's default: penalties, DRY (sequence/dry.h), top-n-sigma, top-k, typical, top-p,
 * min-p, XTC, temperature, then one draw, unless another one is given (sequence/order.h); with mirostat only
 * temperature, mirostat, and the draw. Equal
 * logits are ordered by id, so that the same seed gives the same tokens anywhere. The generator is
 * xoshiro256** (Blackman and Vigna 2018) seeded by splitmix64. */
#ifndef NIB_SEQUENCE_SAMPLER_H
#define NIB_SEQUENCE_SAMPLER_H

#include "base/status.h"
#include "kernels/logit_change.h"
#include "sequence/order.h"

#include <string.h>

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

typedef struct sampler {
    nib_sampling how; /* what has no effect beside the rest is off */
    int64_t n_vocab;
    int64_t n_list;  /* candidates that are considered: top_k or n_vocab; 0: greedy */
    candidate *list; /* [n_list]; NULL when greedy without penalties needs none */
    float *weight;   /* [n_list] of the candidates, scratch */
    int32_t *count; /* [n_vocab]: occurrences of each token, all zero between calls; NULL without penalties */
    const float
        *lower; /* [n_vocab], set by the caller: subtracted from logits after the penalties; NULL: none */
    int64_t n;  /* candidates at the start of the list */
    int64_t n_sorted, from, to; /* of these, by rank: those in order, and those that the cuts left */
    double t;                   /* the temperature by which their logits are to be divided; 0: the best one */
    double surprise;            /* mirostat: the largest surprise of a token, in bits */
    uint64_t state[4];
    uint64_t bytes; /* of list, weight and count together */
} sampler;

/* Whether XTC may remove tokens. Above a threshold of a half at most one token can be. */
static inline bool sampling_has_xtc(const nib_sampling *s) {
    return s->xtc_probability > 0 && s->xtc_threshold <= 0.5f;
}
/* Whether DRY may lower logits (sequence/dry.h). */
static inline bool sampling_has_dry(const nib_sampling *s) {
    return s->mirostat == 0 && s->dry_multiplier > 0 && s->dry_base >= 1 && s->dry_window != 0 &&
           (!*s->samplers || strchr(s->samplers, SAMPLER_DRY));
}
static inline bool sampling_penalises(const nib_sampling *s) {
    return s->penalty_window != 0 &&
           (s->repeat_penalty != 1 || s->frequency_penalty != 0 || s->presence_penalty != 0);
}

/* NIB_E_USAGE for invalid values (top_p above 1, a negative temperature, ...). */
nib_status sampler_check(const nib_sampling *how, nib_error *err);
uint64_t sampler_bytes(const nib_sampling *how, int64_t n_vocab); /* memory that open allocates */
nib_status sampler_open(sampler *s, const nib_sampling *how, int64_t n_vocab, nib_error *err);
void sampler_close(sampler *s); /* zeroed is fine */

/* Draws a token from logits [n_vocab]. past[0..n_past): the sequence so far, for the penalties. A NaN is
 * never drawn. */
int32_t sampler_draw(sampler *s, const float *logits, const int32_t *past, int64_t n_past);

/* Number of the largest logits that it reads, penalties and bias included; 0: all, or more than max. */
int32_t sampler_n_best(const sampler *s, int32_t max);
/* Maximum number of logits that the penalties change after n_past tokens. */
int64_t sampler_max_changes(const sampler *s, int64_t n_past);
/* Writes the changes by penalties and bias, for a back end that selects the largest logits after them: at
 * most n_bias + sampler_max_changes. bias: each token at most once. Returns their number. */
int64_t sampler_changes(sampler *s, const int32_t *past, int64_t n_past, const nib_logit_bias *bias,
                        int64_t n_bias, logit_change *out);
/* Draws the same token from the largest logits only [at least sampler_n_best], largest first, of equal ones
 * the smaller id first; already changed. */
int32_t sampler_draw_best(sampler *s, const int32_t *ids, const float *logits);

#endif

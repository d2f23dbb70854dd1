/* cuts.h - samplers that act on the candidates: top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature,
 * and penalties and DRY where they are not the first ones. Each leaves a range of ranks of the candidates
 * sorted by their logits, so nothing is moved. Ranks are sorted only as far as a cut looks. */
#ifndef NIB_SEQUENCE_CUTS_H
#define NIB_SEQUENCE_CUTS_H

#include "sequence/sampler.h"

/* What the usual order does after it has chosen candidates. */
#define CUTS_USUAL "ypmxt"
/* Draws a token from the candidates in s->list, of which the first n_sorted ranks are in order, after these
 * samplers (sequence/order.h). */
int32_t cuts_draw(sampler *s, int64_t n_sorted, const char *order);
/* Puts the best candidates first: a heap whose root has the largest logit, of equal ones the smaller id. */
void candidates_heap(candidate *heap, int64_t n);
/* Moves the best of a heap of n to its end, and leaves a heap of n - 1. */
void candidates_pop(candidate *heap, int64_t n);
/* Whether a is before b in the order of ranks. */
static inline bool candidate_better(candidate a, candidate b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}
/* One token's logit after the penalties, or after DRY. */
float sampler_penalised(const sampler *s, float logit, int32_t id);
float sampler_lowered(const sampler *s, float logit, int32_t id);
double sampler_unit(sampler *s); /* the next random number, in [0, 1) */

#endif

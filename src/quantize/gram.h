/* gram.h - X^T X of the inputs of one block's products, or its diagonal alone. GPTQ needs the correlation of
 * columns; AWQ needs their squares only, and k floats instead of k * k. One sum for each input (products of
 * one input share it), for one block at a time. */
#ifndef NIB_QUANTIZE_GRAM_H
#define NIB_QUANTIZE_GRAM_H

#include "engine/saliency.h"
#include "tiers/ledger.h"

typedef struct gram_site {
    int site, w; /* the input, and the first weight that reads it */
    int64_t k, n_row;
    bool diagonal;
    float *sum; /* diagonal: [k]; else [k, k], its lower triangle in column-major order */
} gram_site;

/* The mean square of input channel c. */
static inline float gram_mean_square(const gram_site *s, int64_t c) {
    return s->sum[s->diagonal ? c : c * s->k + c] / (float)(s->n_row > 1 ? s->n_row : 1);
}

enum { GRAM_SITES = 16 /* inputs of one block, at most */ };

typedef struct gram {
    const layout *layout;
    saliency_sites sites;
    bool diagonal;
    int block; /* -1: none */
    gram_site of[GRAM_SITES];
    int n;
    ledger *ledger; /* NULL: nothing is charged */
    uint64_t charged;
    bool failed; /* no memory */
    nib_error why;
    probe probe; /* for a pass; belongs to this place in memory */
} gram;

/* Bytes that the sums of the largest block take. */
uint64_t gram_bytes(const model *m, bool diagonal);
nib_status gram_open(gram *g, const layout *lay, bool diagonal, ledger *l, nib_error *err);
/* Before another block: what was summed is dropped. */
void gram_clear(gram *g);
void gram_close(gram *g); /* zeroed is fine */
/* What weight w of the block reads; NULL: nothing was seen. */
const gram_site *gram_of(const gram *g, int w);

#endif

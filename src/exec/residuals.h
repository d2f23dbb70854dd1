/* residuals.h - what products get back of what rounding took (QDEC: quant/residual.h, kernels/salient.h), as
 * a back end is told of it: the residuals of a model's matrices, and how a row's channels are chosen. Each
 * row has channels of its own, so that it has the same bits alone and among others. */
#ifndef NIB_EXEC_RESIDUALS_H
#define NIB_EXEC_RESIDUALS_H

#include "kernels/salient.h"
#include "quant/residual.h"

typedef struct residual_use {
    const residual *of; /* [first[n_block]]: weight w of block b has first[b] + w; k 0: none */
    const int *first;   /* [n_block + 1] */
    int64_t k_chunk;    /* channels of each 1,024; at least 1 */
    salient_rule rule;
    void *memory; /* all of them */
    uint64_t n_byte;
} residual_use;

/* NULL: none. r NULL: there are no residuals at all. */
static inline const residual *residuals_of(const residual_use *r, int b, int w) {
    const residual *of = r ? &r->of[r->first[b] + w] : NULL;
    return of && of->k > 0 ? of : NULL;
}

#endif

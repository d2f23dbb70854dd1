/* residuals.h - rounding residuals of products (QDEC: numbers/residual.h, kernels/salient.h) as input of a
 * back end: the residuals of a model's matrices, and the rule that chooses a row's channels. Each row chooses
 * its own channels, so it has the same bits alone and among others. */
#ifndef NIB_EXEC_RESIDUALS_H
#define NIB_EXEC_RESIDUALS_H

#include "exec/residual_reader.h"

typedef struct residual_use {
    const residual *of; /* [first[n_block]]: weight w of block b has entry first[b] + w; k 0: no residual */
    const int *first;   /* [n_block + 1] */
    const int32_t *k_chunk; /* entries as in `of`: channels of each 1,024 that get residuals in the weight's
                               products, the same for all weights with one input; 0: none */
    const int32_t *n_tb; /* entries as in `of`: thread blocks of a GPU that fetch the residuals; 0: the back
                            end decides */
    int64_t max_k_chunk; /* maximum of k_chunk, also for later choices; at least 1 */
    uint64_t choice;     /* changes whenever the two arrays change, between passes */
    salient_rule rule;
    /* Entries as in `of`. SALIENT_WEIGHTED: [k] factors of the magnitudes in the choice of channels;
     * SALIENT_STATIC: [k] numbers in place of the magnitudes; otherwise NULL. */
    const float *const *by;
    void *memory; /* memory of all residuals; with readers, of their scales only */
    uint64_t n_byte;
    residual_reader *const
        *readers; /* [n_thread], if the codes are in a file (then `rows` is NULL); NULL: they are in memory */
    const uint64_t *at; /* with readers, entries as in `of`: offset of a weight's codes in the file */
} residual_use;

/* The residual of weight w of block b; NULL: it has none. r may be NULL: there are no residuals. */
static inline const residual *residuals_of(const residual_use *r, int b, int w) {
    const int i = r ? r->first[b] + w : 0;
    return r && r->of[i].k > 0 && r->k_chunk[i] > 0 ? &r->of[i] : NULL;
}

#endif

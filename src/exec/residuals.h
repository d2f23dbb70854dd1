/* residuals.h - rounding residuals of products (QDEC: quant/residual.h, kernels/salient.h) as input of a back
 * end: the residuals of a model's matrices, and the rule that chooses a row's channels. Each row has channels
 * of its own, so it has the same bits alone and among others. */
#ifndef NIB_EXEC_RESIDUALS_H
#define NIB_EXEC_RESIDUALS_H

#include "exec/residual_reader.h"

typedef struct residual_use {
    const residual *of;     /* [first[n_block]]: weight w of block b has first[b] + w; k 0: none */
    const int *first;       /* [n_block + 1] */
    const int32_t *k_chunk; /* as `of`: channels of each 1,024 that the weight's products get, the same for
                               all weights of one input; 0: none */
    const int32_t *n_tb;    /* as `of`: blocks of a GPU that fetch them; 0: the back end decides */
    int64_t max_k_chunk;    /* of k_chunk, whatever is chosen later; at least 1 */
    uint64_t choice;        /* changes whenever the two arrays change, between passes */
    salient_rule rule;
    const float *const *by; /* as `of`, with SALIENT_WEIGHTED and SALIENT_STATIC: [k], factors of the
                                magnitudes, or their replacement, in the choice of channels; else NULL */
    void *memory;           /* all of them, or with readers their scales */
    uint64_t n_byte;
    residual_reader *const
        *readers; /* [n_thread], if the codes are in a file (then `rows` is NULL); NULL: they are in memory */
    const uint64_t *at; /* as `of`, with readers: offset of a weight's codes in the file */
} residual_use;

/* NULL: none. r NULL: there are no residuals at all. */
static inline const residual *residuals_of(const residual_use *r, int b, int w) {
    const int i = r ? r->first[b] + w : 0;
    return r && r->of[i].k > 0 && r->k_chunk[i] > 0 ? &r->of[i] : NULL;
}

#endif

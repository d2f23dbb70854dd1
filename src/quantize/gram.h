/* gram.h - sums X^T X of the inputs of one block's products, or only its diagonal. GPTQ needs the correlation
 * of columns; AWQ needs their squares only, and k floats instead of k * k. One sum for each input (products
 * of one input share it), for one block at a time.
 *
 * The probe of a pass adds rows; when it sees another block, it drops the sums of the one before. A probe
 * cannot return an error, so a failure is kept in `failed` and `why`. One thread calls. */
#ifndef NIB_QUANTIZE_GRAM_H
#define NIB_QUANTIZE_GRAM_H

#include "base/thread.h"
#include "engine/imatrix.h"
#include "memory/ledger.h"

typedef struct gram_site {
    int site, w;      /* the input (sites_of), and the first weight of the block that reads it */
    int64_t k, n_row; /* channels; rows that were added */
    bool diagonal;
    float *sum; /* diagonal: [k]; otherwise [k, k]: the lower triangle in column-major order, and after
                   gram_complete both triangles */
} gram_site;

/* The mean square of input channel c over the rows. */
static inline float gram_mean_square(const gram_site *s, int64_t c) {
    return s->sum[s->diagonal ? c : c * s->k + c] / (float)(s->n_row > 1 ? s->n_row : 1);
}

enum { GRAM_SITES = 16 /* maximum inputs of one block */ };

typedef struct gram {
    const layout *layout; /* borrowed */
    model_sites sites;
    bool diagonal;
    int block; /* the block whose inputs were summed; -1: none */
    gram_site of[GRAM_SITES];
    int n;
    pool *threads;  /* borrowed; idle while the probe is called */
    ledger *ledger; /* borrowed; charged for the sums. NULL: nothing is charged */
    uint64_t charged;
    bool failed;   /* the memory or the cap did not suffice, and the sums are incomplete */
    nib_error why; /* with failed */
    probe probe;   /* for a pass; it points to this struct, which must not move */
} gram;

/* Bytes of the largest block's sums. */
uint64_t gram_bytes(const model *m, bool diagonal);
/* Allocates no sums yet. X^T X needs lapack_check. NIB_E_NOMEM. */
nib_status gram_open(gram *g, const layout *lay, bool diagonal, pool *threads, ledger *l, nib_error *err);
/* To be called when all rows of the block were added: fills the other triangle of each sum. */
void gram_complete(gram *g);
/* Drops and frees the sums of the block that was seen. */
void gram_clear(gram *g);
void gram_close(gram *g); /* zeroed is fine */
/* The input of weight w of the block that was seen; NULL: nothing was seen. Valid until gram_clear, or until
 * a pass enters another block. */
const gram_site *gram_of(const gram *g, int w);

#endif

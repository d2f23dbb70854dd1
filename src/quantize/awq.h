/* awq.h - AWQ (Lin et al. 2023, arXiv 2306.00978): channels with large activations are multiplied by a factor
 * before their columns are rounded, and the tensor that produces the channel is divided by it, so the model
 * stays the same.
 *
 * The place for the division is found in the block's program: the weights of the preceding norm, the rows of
 * the `up` product before a gate, or those of the value product before attention (query heads that share a
 * value head then share factors). An input with other readers, or from elsewhere, keeps its scale. Factors
 * are mean magnitudes to a power between 0 and 1, which is searched for on some rows (the paper's section
 * 3.2).
 *
 * One thread calls; awq_open uses the pool. Results are for one block and die with awq_close. */
#ifndef NIB_QUANTIZE_AWQ_H
#define NIB_QUANTIZE_AWQ_H

#include "base/thread.h"
#include "model/as_gguf.h"
#include "model/sites.h"
#include "quantize/gram.h"

/* One scaled input of the block. */
typedef struct awq_site {
    int site; /* as in sites_of */
    site_source source;
    int64_t k, n_made; /* channels; elements of the source that produce them */
    float *factor;     /* [k]: columns are multiplied by it; owned */
    float *made;       /* [n_made]: elements of the source are divided by it; owned */
    double power;      /* the best exponent found; 0: scaling does not help, so nothing is scaled */
} awq_site;

typedef struct awq {
    const model *m;              /* borrowed */
    const gram *inputs;          /* borrowed; still needed by awq_times */
    const gguf_tensors *tensors; /* borrowed */
    const type_id *types;        /* borrowed: [tensors->n] */
    int block;
    awq_site of[GRAM_SITES];
    int n;
} awq;

/* Bytes that an awq takes for inputs of at most k channels, those of awq_open included. */
uint64_t awq_bytes(int64_t k, int n_thread);
/* Finds the factors of the block whose inputs `inputs` has. types: [tensors->n], the format that
 * each of `tensors` becomes. Both are borrowed until awq_close. Reads some rows of the block's matrices.
 * Blocks outside layers get no factors. NIB_E_NOMEM; NIB_E_IO: a row cannot be read. Call awq_close after an
 * error too. */
nib_status awq_open(awq *a, const model *m, const gram *inputs, const gguf_tensors *tensors,
                    const type_id *types, pool *threads, nib_error *err);
void awq_close(awq *a); /* zeroed is fine */
/* The factors [k] that the columns of weight w of the block are multiplied by. NULL: none. Valid until
 * awq_close. */
const float *awq_times(const awq *a, int w);
/* The factors [n_made] that the rows of weight w (of a vector: its elements) are divided by. NULL: none.
 * Valid until awq_close. */
const float *awq_over(const awq *a, int w);

#endif

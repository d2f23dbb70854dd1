/* awq.h - AWQ (Lin et al. 2023): channels with large activations are multiplied by a factor before their
 * columns are rounded, and the tensor that produces the channel is divided by it, so the model stays the
 * same.
 *
 * The place for the division is found in the block's program: the weights of the preceding norm, the rows of
 * the `up` product before a gate, or those of the value product before attention (query heads that share a
 * value head then share factors). An input with other readers, or from elsewhere, keeps its scale. Factors
 * are mean magnitudes to a power, which is searched for on some rows. */
#ifndef NIB_QUANTIZE_AWQ_H
#define NIB_QUANTIZE_AWQ_H

#include "base/thread.h"
#include "quantize/gram.h"

/* Who makes an input, and may be divided. */
typedef struct awq_source {
    int w, b;               /* a norm's or a product's weights of the block; b -1: no bias */
    bool rows;              /* a product: factors are for its rows; a norm: for its elements */
    int64_t n_share, width; /* channel c is made by element c / (n_share * width) * width + c % width */
} awq_source;
/* False: the input of weight w cannot be scaled. */
bool awq_find_source(const block *b, int w, awq_source *out);

typedef struct awq_site {
    int site;
    awq_source source;
    int64_t k, n_made; /* channels; elements of the source that make them */
    float *factor;     /* [k]: columns times it */
    float *made;       /* [n_made]: elements of the source divided by it */
    double power;      /* that was found; 0: nothing is gained */
} awq_site;

typedef struct awq {
    const model *m;
    const gram *inputs;
    int block;
    awq_site of[GRAM_SITES];
    int n;
} awq;

/* Finds factors for a block whose inputs were seen. types: [n_tensor], what each becomes. */
nib_status awq_open(awq *a, const model *m, const gram *inputs, const type_id *types, pool *threads,
                    nib_error *err);
void awq_close(awq *a); /* zeroed is fine */
/* What becomes of weight w of the block, NULL: nothing: its columns times this, [k]; its rows (a vector's
 * elements) over this. */
const float *awq_times(const awq *a, int w);
const float *awq_over(const awq *a, int w);

#endif

/* gptq.h - GPTQ (Frantar et al. 2022): columns are rounded one after the other, and later columns compensate
 * the error of earlier ones, by X^T X of the inputs.
 *
 * Columns are in the order of falling importance (act-order), while every block of a row keeps the scales of
 * the original row, so blocks have the file format's layout. */
#ifndef NIB_QUANTIZE_GPTQ_H
#define NIB_QUANTIZE_GPTQ_H

#include "quant/encode.h"
#include "quantize/gram.h"

typedef struct gptq {
    const encode_shape *shape;
    int64_t k;
    int32_t *order; /* [k]: columns as they are rounded */
    float *factor;  /* [k, k]: row j has, from its diagonal on, what column order[j]'s error adds to others */
    float *columns; /* [k]: mean squares */
    float *row;     /* [n_thread, k] */
    encode_block *blocks; /* [n_thread, k / elems] */
    uint64_t n_byte;
} gptq;

uint64_t gptq_bytes(const encode_shape *s, int64_t k, int n_thread); /* while it is made, too */
/* NIB_E_MODEL: the inputs do not determine it, whatever is added to the diagonal. */
nib_status gptq_open(gptq *g, const encode_shape *s, const gram_site *inputs, int n_thread, nib_error *err);
void gptq_close(gptq *g); /* zeroed is fine */
/* A row_task's `round`: by is the gptq. */
void gptq_round(const void *by, int thread, float *x, void *out);

#endif

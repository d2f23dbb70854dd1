/* fakecuda.h - a table of CUDA kernels without a GPU: host memory under addresses that the host cannot read,
 * and kernels that are the processor's (their bits are the scalar reference's). It tests the work of a back
 * end around the kernels (layouts, tables, order) on every machine.
 *
 * Its clock, which gives the times of events, advances by a microsecond with each call.
 *
 * It is strict where a GPU is not. A call fails if an address is of the wrong side, or if a launch could
 * start before its inputs are ready (cuda_kernels.h says which launches start early). */
#ifndef NIB_TESTS_FAKECUDA_H
#define NIB_TESTS_FAKECUDA_H

#include "kernels/cuda/cuda_kernels.h"

enum { FAKE_CUDA_LOST = 719 /* cudaErrorLaunchFailure */ };

/* Makes a table of one device with this many bytes. Calls are counted from here. From the fail_at-th on (1:
 * the first; 0: none) all calls fail with `error`, except those that free something. */
const cuda_kernels *fake_cuda(size_t memory, long fail_at, int error);
void fake_cuda_fail_in(long n);   /* the n-th call from now on, and all later ones, fail; 0: none fails */
void fake_cuda_fail_once(long n); /* the n-th call from now on fails, and no later one */
/* From now on another program has this much of the device's memory. */
void fake_cuda_others(size_t bytes);
void fake_cuda_driver(size_t bytes); /* the bytes that opening the device takes; 0 until this is called */
/* From now on the kernels of prompts (`wide`, `attend_prompt`) give results that are a little larger than
 * those of few rows, and products of many sequences (`batch`) a little smaller ones, so that a row which
 * takes the wrong ones has other bits. */
void fake_cuda_prompts_differ(bool differ);
void fake_cuda_without_wide(void); /* the device has none of them, as of compute capability 8 */
long fake_cuda_calls(void);
long fake_cuda_taken(void);    /* products that used the codes that the previous launch had left */
long fake_cuda_replayed(void); /* launches that were part of a graph */
long fake_cuda_fetched(void);  /* rows that residuals were fetched for, and */
long fake_cuda_fetched_first(
    void);                   /* those of them whose products were in the second stream; graphs do not count */
long fake_cuda_wide(void);   /* rows of products by `wide` */
long fake_cuda_batch(void);  /* rows of products by `batch` */
long fake_cuda_mixed(void);  /* rows of products by `mixed` */
long fake_cuda_sparse(void); /* rows to which outliers of weights were added */
enum { FAKE_BY_RULE, FAKE_BY_SPLIT, FAKE_BY_BITS };
long fake_cuda_by(int way);    /* rows that this strategy multiplied */
long fake_cuda_embedded(void); /* rows that were looked up */
long fake_cuda_sampled(void);  /* rows whose best logits were searched for */
long fake_cuda_short(void);    /* rows whose head was computed in two steps */
long fake_cuda_prompt(void);   /* rows of attention of prompts */
long fake_cuda_moved(void);    /* pages that were copied between the host and the device */
/* out [w->n] = (outliers of w) . x, where x is a row of floats. The order of the sum is that of
 * kernels/cuda/sparse.cu: the even outliers of a row, the odd ones, then both sums. w has the processor's or
 * the GPU's order. */
void fake_cuda_outliers(const view *w, const float *x, float *out);
/* From now on copies in streams of their own are late (fakecuda_streams.c). seed: of the times; 0: none is.
 */
void fake_cuda_late(uint32_t seed);
size_t fake_cuda_stored(void);     /* bytes that such streams copied to the host */
size_t fake_cuda_sent(void);       /* bytes that were copied from the host to the device */
size_t fake_cuda_held(void);       /* memory, pins, streams and graphs that were not freed */
size_t fake_cuda_peak(void);       /* maximum of bytes allocated at the same time */
const char *fake_cuda_wrong(void); /* a use of the table that no GPU allows; NULL: none */

#endif

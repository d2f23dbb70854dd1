/* fakecuda.h - a table of CUDA kernels without a GPU: memory of the host under addresses that nobody can
 * read, kernels that are the scalar reference. What a back end does around the kernels (layouts, tables,
 * order) is tested with it on every machine.
 *
 * Its clock, which events have the time of, advances by a microsecond with each call.
 *
 * It is strict where a GPU is not: an address of the wrong side fails the call, and so does a launch that
 * could start before what it reads is there (cuda_kernels.h says what starts early). */
#ifndef NIB_TESTS_FAKECUDA_H
#define NIB_TESTS_FAKECUDA_H

#include "kernels/cuda/cuda_kernels.h"

enum { FAKE_CUDA_LOST = 719 /* cudaErrorLaunchFailure */ };

/* Of one device with so many bytes. Calls are counted from here; from the fail_at-th on (1: the first; 0:
 * none) all of them fail with `error`, but those that give back. */
const cuda_kernels *fake_cuda(size_t memory, long fail_at, int error);
void fake_cuda_fail_in(long n); /* the n-th call from now on, and all behind it, fail; 0: none does */
/* Another program takes so much of the device's memory, from now on. */
void fake_cuda_others(size_t bytes);
void fake_cuda_driver(size_t bytes); /* what opening it takes; 0 until it is called */
/* From now on the kernels of prompts (`wide`, `attend_prompt`) give results that are a little larger than
 * those of few rows, and products of many sequences (`batch`) a little smaller ones, so that a row which
 * takes the wrong ones has other bits. */
void fake_cuda_prompts_differ(bool differ);
void fake_cuda_without_wide(void); /* the device has none of them, as of compute capability 8 */
long fake_cuda_calls(void);
long fake_cuda_taken(void);    /* products that took the codes which the launch before them had left */
long fake_cuda_replayed(void); /* launches that were part of a graph */
long fake_cuda_fetched(void);  /* rows that residuals were fetched for, */
long fake_cuda_fetched_first(
    void);                   /* of them those whose products were in the second stream; none of a graph */
long fake_cuda_wide(void);   /* rows of products of many */
long fake_cuda_batch(void);  /* rows of products of many sequences */
long fake_cuda_sparse(void); /* rows to which outliers of weights were added */
enum { FAKE_BY_RULE, FAKE_BY_SPLIT, FAKE_BY_BITS };
long fake_cuda_by(int way);    /* rows that one of these multiplied */
long fake_cuda_embedded(void); /* rows that were looked up */
long fake_cuda_sampled(void);  /* rows whose best logits were looked for */
long fake_cuda_short(void);    /* rows whose head was computed in two steps */
long fake_cuda_prompt(void);   /* rows of attention of prompts */
long fake_cuda_moved(void);    /* pages that moved between the host and the device */
/* out [w->n] = outliers of w . x, where x is a row of floats, in the order of kernels/cuda/sparse.cu: the
 * even ones of a row, the odd ones, then the two sums. w: in the processor's order or in the GPU's. */
void fake_cuda_outliers(const view *w, const float *x, float *out);
size_t fake_cuda_held(void);       /* memory, pins, streams and graphs that were not given back */
size_t fake_cuda_peak(void);       /* bytes taken at the same time, at most */
const char *fake_cuda_wrong(void); /* what the back end did that no GPU allows; NULL: nothing */

#endif

/* product.h - a product for the benchmarks: copies of a matrix in rotation, enough to exceed every cache,
 * rows of activations for it, and a call that runs on a pool, each thread with a share of the outputs.
 * Between product_open and product_close one thread at a time may use it. */
#ifndef NIB_BENCH_PRODUCT_H
#define NIB_BENCH_PRODUCT_H

#include "base/thread.h"
#include "kernels/strategy.h"
#include "support/matrix.h"

/* Computes outputs [n0, n1) of *a by the strategy or table that `by` points at. */
typedef void product_fn(const void *by, const linear_args *a, int64_t n0, int64_t n1);

typedef struct product {
    view *copies; /* [n_copy] */
    int n_copy;
    uint64_t bytes;   /* of one copy */
    linear_args args; /* w and scratch are set for each call; n_row: at most the rows it was opened with */
    float *x, *y;
    void *q; /* the codes of x, if the matrix is multiplied with codes */
    void **scratch;
    int n_thread;
    /* Set before a run; product_open sets all outputs, and each copy once. */
    product_fn *run;
    const void *by;
    int64_t n_output;  /* number of outputs that all threads compute together, from the first one on */
    int first, n_call; /* calls of one run, with the copies from number `first` on */
} product;

/* Makes n_row random rows of activations for w, and as many copies of w as fill rotate_bytes, at least one. w
 * may be closed afterwards. n_thread: maximum number of threads of a run. */
product product_open(const matrix *w, int64_t n_row, int64_t rotate_bytes, int n_thread);
void product_close(product *p);

/* The name of its strategy. */
void product_use(product *p, const strategy *s);
/* A pool_fn: the n_call calls of a product *. */
void product_run(void *arg, int thread, int n_thread);
/* Seconds of one call of a run, by product_clock. */
double product_time(product *p, pool *threads);

/* Seconds: processor time with one thread, which other load disturbs less; wall-clock time with several. */
double product_clock(const pool *threads);

#endif

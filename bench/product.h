/* product.h - a product for the benchmarks: copies of a matrix in rotation, as many as it takes to be out of
 * every cache, rows of activations for it, and a call that runs on a pool, each thread with a share of the
 * outputs. Between product_open and product_close one thread at a time may use it. */
#ifndef NIB_BENCH_PRODUCT_H
#define NIB_BENCH_PRODUCT_H

#include "base/thread.h"
#include "kernels/strategy.h"
#include "support/matrix.h"

/* Outputs [n0, n1) of *a by what `by` points at. */
typedef void product_fn(const void *by, const linear_args *a, int64_t n0, int64_t n1);

typedef struct product {
    view *copies; /* [n_copy] */
    int n_copy;
    uint64_t bytes;   /* of one copy */
    linear_args args; /* w and scratch come with each call; n_row: up to those it was opened with */
    float *x, *y;
    void *q; /* the codes of x, where the matrix is packed to be multiplied with codes */
    void **scratch;
    int n_thread;
    /* To be set before it runs; product_open leaves all outputs, and each copy once. */
    product_fn *run;
    const void *by;
    int64_t n_output;  /* computed by all threads together, the first of the matrix's */
    int first, n_call; /* calls of one run, with the copies from the first-th on */
} product;

/* Random activations, n_row of them, for w, and as many copies of w as make up rotate_bytes, at least one. w
 * may be closed at once. n_thread: the most that it runs on. */
product product_open(const matrix *w, int64_t n_row, int64_t rotate_bytes, int n_thread);
void product_close(product *p);

/* Names the strategy that it runs by. */
void product_use(product *p, const strategy *s);
/* A pool_fn: the n_call calls of a product *. */
void product_run(void *arg, int thread, int n_thread);
/* Seconds of one call of a run, by product_clock. */
double product_time(product *p, pool *threads);

/* Seconds: of one thread the processor's, which neighbours disturb less; of several the wall clock's. */
double product_clock(const pool *threads);

#endif

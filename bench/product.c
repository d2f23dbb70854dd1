/* product.c - see product.h. */
#include "product.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

static void copy_weights(product *p, const matrix *w, int64_t rotate_bytes) {
    pack_bytes(&w->view.format, w->n, w->k, &p->bytes);
    p->n_copy = (int)NUM_MAX(num_div_up(rotate_bytes, (int64_t)p->bytes), 1);
    char *memory = mem_map((size_t)p->bytes * (size_t)p->n_copy);
    p->copies = mem_array((size_t)p->n_copy, sizeof *p->copies);
    for (int i = 0; i < p->n_copy; i++) {
        p->copies[i] = w->view;
        p->copies[i].data = memcpy(memory + (size_t)i * p->bytes, w->view.data, (size_t)p->bytes);
    }
}

product product_open(const matrix *w, int64_t n_row, int64_t rotate_bytes, int n_thread) {
    const bool coded = w->view.format.layout == PACK_TILE;
    const act_format f = coded ? act_format_for(&w->view.format, w->act_bits, 0) : (act_format){0};
    const size_t each = coded ? act_row_bytes(f, w->k) : 0;
    product p = {.n_output = w->n, .n_thread = n_thread};
    copy_weights(&p, w, rotate_bytes);
    p.n_call = p.n_copy;
    p.x = random_rows(n_row * w->k, 5, 1);
    p.y = mem_array((size_t)(n_row * w->n), sizeof *p.y);
    p.q = coded ? mem_alloc_aligned(64, each * (size_t)n_row) : NULL;
    for (int64_t m = 0; m < n_row && coded; m++)
        kernels_table()->act_quantize(f, p.x + m * w->k, w->k, (char *)p.q + (size_t)m * each);
    p.args = (linear_args){
        .x = p.x, .ldx = w->k, .q = {p.q, n_row, w->k, f}, .y = p.y, .ldy = w->n, .n_row = n_row};
    p.scratch = mem_array((size_t)n_thread, sizeof *p.scratch);
    for (int i = 0; i < n_thread; i++)
        p.scratch[i] = mem_alloc_aligned(64, linear_scratch_bytes(true));
    return p;
}

void product_close(product *p) {
    for (int i = 0; i < p->n_thread; i++)
        mem_free(p->scratch[i]);
    mem_free(p->scratch);
    mem_free(p->q);
    mem_free(p->y);
    free(p->x);
    mem_unmap((void *)(uintptr_t)p->copies->data, (size_t)p->bytes * (size_t)p->n_copy);
    mem_free(p->copies);
}

static void by_strategy(const void *by, const linear_args *a, int64_t n0, int64_t n1) {
    ((const strategy *)by)->run(a, n0, n1);
}

void product_use(product *p, const strategy *s) {
    p->run = by_strategy;
    p->by = s;
}

void product_run(void *arg, int thread, int n_thread) {
    const product *p = arg;
    linear_args a = p->args;
    int64_t n0, n1;
    a.q.n_row = a.n_row;
    a.scratch = p->scratch[thread];
    pool_split(p->n_output, PACK_PANEL, thread, n_thread, &n0, &n1);
    for (int i = 0; i < p->n_call && n0 < n1; i++) {
        a.w = &p->copies[(p->first + i) % p->n_copy];
        p->run(p->by, &a, n0, n1);
    }
}

double product_time(product *p, pool *threads) {
    const double start = product_clock(threads);
    pool_run(threads, product_run, p);
    return (product_clock(threads) - start) / p->n_call;
}

double product_clock(const pool *threads) {
    return pool_size(threads) > 1 ? time_now() : time_thread();
}

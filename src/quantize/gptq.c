/* gptq.c - see gptq.h. Rows do not depend on each other: threads take GPTQ_ROWS of them at a time. */
#include "quantize/gptq.h"

#include "base/mem.h"
#include "base/num.h"
#include "quantize/lapack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 128,    /* columns of a block; its corrections by other blocks are one matrix product */
    MIN_ELEMS = 32, /* values of the smallest block of a format */
    SUMS = BLOCK * (GPTQ_ROWS + BLOCK) /* floats of scratch for a block of columns */
};

static uint64_t factor_bytes(int64_t k) {
    return (uint64_t)k * (uint64_t)k * sizeof(double);
}

uint64_t gptq_bytes(int64_t k, int n_thread) {
    const uint64_t n = (uint64_t)k, of_row = n * sizeof(float) + n / MIN_ELEMS * sizeof(encode_block);
    return factor_bytes(k) + n * (sizeof(int32_t) + sizeof(float)) +
           (uint64_t)n_thread * (GPTQ_ROWS * of_row + SUMS * sizeof(float));
}

static int by_importance(const void *a, const void *b, void *user) {
    const float *mean = user;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return mean[i] < mean[j] ? -1 : mean[i] > mean[j] ? 1 : i > j ? -1 : i < j;
}

/* ---- the factor ---- */

typedef struct factoring {
    const gptq *g;
    double *a;    /* [k, k]: column-major lower triangle, so row i has its columns from i on in one run */
    double added; /* value added to the diagonal */
    int64_t from, to;
} factoring;

static void arrange_rows(void *arg, int thread, int n_thread) {
    const factoring *f = arg;
    const int64_t k = f->g->k;
    const int32_t *order = f->g->order;
    for (int64_t i = thread; i < k; i += n_thread) {
        const float *row = f->g->inputs->sum + order[i] * k;
        double *a = f->a + i * k;
        for (int64_t j = i; j < k; j++)
            a[j] = (double)row[order[j]];
        a[i] += f->added;
    }
}

/* Divides rows [from, to) by their diagonal and stores them as floats at the front of the same memory. */
static void narrow_rows(void *arg, int thread, int n_thread) {
    const factoring *f = arg;
    const int64_t k = f->g->k;
    for (int64_t i = f->from + thread; i < f->to; i += n_thread) {
        const double diagonal = f->a[i * k + i];
        for (int64_t j = i; j < k; j++) {
            double from;
            memcpy(&from, f->a + i * k + j, sizeof from);
            const float to = (float)(from / diagonal);
            memcpy(f->g->factor + i * k + j, &to, sizeof to);
        }
    }
}

/* Converts all rows. Row i of floats ends where row (i + 1) / 2 of doubles begins. So when the rows before m
 * are done, rows m to 2 m of floats overwrite nothing that is still needed, and threads convert them in
 * parallel. */
static void narrow(factoring *f, pool *threads) {
    const uint64_t half = factor_bytes(f->g->k) / 2;
    f->from = 0;
    f->to = 1;
    narrow_rows(f, 0, 1);
    for (f->from = 1; f->from < f->g->k; f->from = f->to) {
        f->to = NUM_MIN(2 * f->from, f->g->k);
        pool_run(threads, narrow_rows, f);
    }
    mem_discard((char *)f->a + half, half);
}

/* Factorises X^T X with the smallest addition to the diagonal that makes it positive definite. */
static nib_status factorise(gptq *g, pool *threads, nib_error *err) {
    static const double parts[] = {0.01, 0.1, 1}; /* the first is GPTQ's own */
    factoring f = {.g = g, .a = (double *)(void *)g->factor};
    double mean = 0;
    bool made = false;
    for (int64_t i = 0; i < g->k; i++)
        mean += (double)g->inputs->sum[i * g->k + i] / (double)g->k;
    for (size_t i = 0; i < NUM_COUNT(parts) && !made; i++) {
        f.added = mean > 0 ? parts[i] * mean : 1;
        pool_run(threads, arrange_rows, &f);
        made = lapack_cholesky(f.a, g->k, threads);
    }
    if (made)
        narrow(&f, threads);
    return made ? NIB_OK
                : nib_fail(
                      err, NIB_E_MODEL,
                      "expected calibration inputs whose X^T X can be factorised, found a singular matrix");
}

nib_status gptq_open(gptq *g, const gram_site *in, pool *threads, ledger *l, nib_error *err) {
    const int64_t k = in->k, n_row = (int64_t)pool_size(threads) * GPTQ_ROWS;
    const uint64_t bytes = gptq_bytes(k, pool_size(threads));
    *g = (gptq){.k = k};
    NIB_TRY(lapack_check(err));
    if (l)
        NIB_TRY(ledger_charge(l, PLACE_RAM, NIB_OWNER_ACTIVATIONS, bytes, err));
    g->inputs = in;
    g->ledger = l;
    g->charged = bytes;
    g->order = mem_array((size_t)k, sizeof *g->order);
    g->factor = mem_map((size_t)factor_bytes(k));
    g->imatrix = mem_array((size_t)k, sizeof *g->imatrix);
    g->rows = mem_array((size_t)(k * n_row), sizeof *g->rows);
    g->sums = mem_array((size_t)pool_size(threads) * SUMS, sizeof *g->sums);
    g->blocks = mem_array((size_t)(k / MIN_ELEMS * n_row), sizeof *g->blocks);
    if (!g->order || !g->factor || !g->imatrix || !g->rows || !g->sums || !g->blocks)
        return nib_fail_nomem(err, (size_t)bytes, "gptq");
    for (int64_t i = 0; i < k; i++) {
        g->order[i] = (int32_t)i;
        g->imatrix[i] = gram_mean_square(in, i);
    }
    qsort_r(g->order, (size_t)k, sizeof *g->order, by_importance, g->imatrix);
    return factorise(g, threads, err);
}

void gptq_close(gptq *g) {
    if (g->factor)
        mem_unmap(g->factor, (size_t)factor_bytes(g->k));
    if (g->ledger)
        ledger_release(g->ledger, PLACE_RAM, NIB_OWNER_ACTIVATIONS, g->charged);
    mem_free(g->order);
    mem_free(g->imatrix);
    mem_free(g->rows);
    mem_free(g->sums);
    mem_free(g->blocks);
    memset(g, 0, sizeof *g);
}

void gptq_set_shape(gptq *g, const encode_shape *s) {
    g->shape = s;
}

/* ---- rows ---- */

/* Rows that are being rounded, in the columns' order. Weights are replaced by differences, last column first.
 */
typedef struct rounding {
    const gptq *g;
    int64_t n, n_block; /* rows; blocks of a row */
    float *rows;        /* [GPTQ_ROWS, k] */
    float *sums;        /* [BLOCK, GPTQ_ROWS]: corrections of columns by later ones */
    float *parts;       /* [BLOCK, BLOCK]: the factor within the block of columns, transposed */
    encode_block *blocks;
} rounding;

/* Rounds column `at` of all rows. sum [GPTQ_ROWS] is added to the column; d [GPTQ_ROWS] gets the differences.
 */
static void round_column(const rounding *r, int64_t at, const float *sum, float *d) {
    const gptq *g = r->g;
    const encode_shape *s = g->shape;
    const int column = g->order[at], in_block = column % s->elems, group = in_block / s->group;
    for (int64_t i = 0; i < r->n; i++) {
        encode_block *b = &r->blocks[i * r->n_block + column / s->elems];
        float *w = r->rows + i * g->k + at;
        const int level = encode_nearest(s, b, group, *w + sum[i]);
        b->level[in_block] = (int8_t)level;
        *w -= encode_value(s, b, group, level);
        d[i] = *w;
    }
}

static void round_columns(const rounding *r, int64_t begin, int64_t end) {
    const gptq *g = r->g;
    const int64_t k = g->k, n = end - begin;
    float d[GPTQ_ROWS] = {0};
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            r->parts[j * BLOCK + i] = g->factor[(begin + i) * k + begin + j];
    memset(r->sums, 0, (size_t)n * GPTQ_ROWS * sizeof *r->sums);
    if (end < k)
        lapack_dots(r->sums, GPTQ_ROWS, r->rows + end, r->n, g->factor + begin * k + end, n, k - end, k);
    for (int64_t j = n - 1; j >= 0; j--) {
        round_column(r, begin + j, r->sums + j * GPTQ_ROWS, d);
        for (int64_t i = 0; i < j; i++)
            for (int at = 0; at < GPTQ_ROWS; at++)
                r->sums[i * GPTQ_ROWS + at] += r->parts[j * BLOCK + i] * d[at];
    }
}

void gptq_round(const void *by, int thread, const float *x, int64_t n, void *out) {
    const gptq *g = by;
    const encode_shape *s = g->shape;
    const int64_t k = g->k, n_block = k / s->elems;
    const size_t block_bytes = type_get(s->type)->block_bytes;
    const rounding r = {.g = g,
                        .n = n,
                        .n_block = n_block,
                        .rows = g->rows + thread * GPTQ_ROWS * k,
                        .sums = g->sums + (int64_t)thread * SUMS,
                        .parts = g->sums + (int64_t)thread * SUMS + BLOCK * GPTQ_ROWS,
                        .blocks = g->blocks + thread * GPTQ_ROWS * (k / MIN_ELEMS)};
    for (int64_t i = 0; i < n; i++) {
        for (int64_t b = 0; b < n_block; b++)
            encode_scales(s, x + i * k + b * s->elems, g->imatrix + b * s->elems, &r.blocks[i * n_block + b]);
        for (int64_t j = 0; j < k; j++)
            r.rows[i * k + j] = x[i * k + g->order[j]];
    }
    for (int64_t end = k; end > 0; end -= NUM_MIN(end, (int64_t)BLOCK))
        round_columns(&r, NUM_MAX(end - BLOCK, (int64_t)0), end);
    for (int64_t b = 0; b < n * n_block; b++)
        encode_put(s, &r.blocks[b], (uint8_t *)out + (size_t)b * block_bytes);
}

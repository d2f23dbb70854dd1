/* gptq.c - see gptq.h. Rows do not depend on each other: threads take them as they come. */
#include "quantize/gptq.h"

#include "base/mem.h"
#include "base/num.h"
#include "quantize/lapack.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

uint64_t gptq_bytes(const encode_shape *s, int64_t k, int n_thread) {
    const uint64_t n = (uint64_t)k;
    return n * n * (sizeof(double) + sizeof(float)) + n * (sizeof(int32_t) + sizeof(float)) +
           (uint64_t)n_thread * (n * sizeof(float) + n / (uint64_t)s->elems * sizeof(encode_block));
}

static int by_importance(const void *a, const void *b, void *user) {
    const float *mean = user;
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return mean[i] > mean[j] ? -1 : mean[i] < mean[j] ? 1 : i < j ? -1 : i > j;
}

/* X^T X in the columns' order, its diagonal raised by `part` of its mean: column-major, lower triangle. */
static void arrange(const gptq *g, const gram_site *in, double part, double *a) {
    const int64_t k = g->k;
    double mean = 0;
    for (int64_t i = 0; i < k; i++)
        mean += (double)in->sum[i * k + i] / (double)k;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = i; j < k; j++) {
            const int64_t p = g->order[i], q = g->order[j];
            a[i * k + j] = (double)in->sum[NUM_MIN(p, q) * k + NUM_MAX(p, q)];
        }
    for (int64_t i = 0; i < k; i++)
        a[i * k + i] += mean > 0 ? part * mean : 1;
}

/* The factor, with as little added to the diagonal as makes it one. Row j is divided by its diagonal. */
static nib_status factorise(gptq *g, const gram_site *in, nib_error *err) {
    static const double parts[] = {0.01, 0.1, 1}; /* the first is GPTQ's own */
    const int64_t k = g->k;
    double *a = mem_array((size_t)(k * k), sizeof *a);
    bool made = false;
    if (!a)
        return nib_fail_nomem(err, (size_t)(k * k) * sizeof *a, "a factorisation");
    for (size_t i = 0; i < NUM_COUNT(parts) && !made; i++) {
        arrange(g, in, parts[i], a);
        made = lapack_inverse_factor(a, (int)k);
    }
    for (int64_t i = 0; i < k && made; i++)
        for (int64_t j = i; j < k; j++)
            g->factor[i * k + j] = (float)(a[i * k + j] / a[i * k + i]);
    mem_free(a);
    return made ? NIB_OK : nib_fail(err, NIB_E_MODEL, "the calibration does not determine the inputs");
}

nib_status gptq_open(gptq *g, const encode_shape *s, const gram_site *in, int n_thread, nib_error *err) {
    const int64_t k = in->k;
    *g = (gptq){.shape = s, .k = k, .n_byte = gptq_bytes(s, k, n_thread)};
    NIB_TRY(lapack_check(err));
    g->order = mem_array((size_t)k, sizeof *g->order);
    g->factor = mem_array((size_t)(k * k), sizeof *g->factor);
    g->columns = mem_array((size_t)k, sizeof *g->columns);
    g->row = mem_array((size_t)(k * n_thread), sizeof *g->row);
    g->blocks = mem_array((size_t)(k / s->elems * n_thread), sizeof *g->blocks);
    if (!g->order || !g->factor || !g->columns || !g->row || !g->blocks)
        return nib_fail_nomem(err, (size_t)g->n_byte, "gptq");
    for (int64_t i = 0; i < k; i++) {
        g->order[i] = (int32_t)i;
        g->columns[i] = gram_mean_square(in, i);
    }
    qsort_r(g->order, (size_t)k, sizeof *g->order, by_importance, g->columns);
    return factorise(g, in, err);
}

void gptq_close(gptq *g) {
    mem_free(g->order);
    mem_free(g->factor);
    mem_free(g->columns);
    mem_free(g->row);
    mem_free(g->blocks);
    memset(g, 0, sizeof *g);
}

void gptq_round(const void *by, int thread, float *x, void *out) {
    const gptq *g = by;
    const encode_shape *s = g->shape;
    const int64_t k = g->k, n_block = k / s->elems;
    float *row = g->row + thread * k; /* in the columns' order */
    encode_block *blocks = g->blocks + thread * n_block;
    for (int64_t b = 0; b < n_block; b++)
        encode_scales(s, x + b * s->elems, g->columns + b * s->elems, &blocks[b]);
    for (int64_t j = 0; j < k; j++)
        row[j] = x[g->order[j]];
    for (int64_t j = 0; j < k; j++) {
        const int at = g->order[j], in_block = at % s->elems, group = in_block / s->group;
        encode_block *b = &blocks[at / s->elems];
        const int level = encode_nearest(s, b, group, row[j]);
        const float error = row[j] - encode_value(s, b, group, level), *others = g->factor + j * k;
        b->level[in_block] = (int8_t)level;
        for (int64_t l = j + 1; l < k; l++)
            row[l] -= error * others[l];
    }
    for (int64_t b = 0; b < n_block; b++)
        encode_put(s, &blocks[b], (uint8_t *)out + b * type_get(s->type)->block_bytes);
}

/* permute.c - see permute.h: the orders, and what they mean for a tensor. */
#include "quantize/permute.h"

#include "base/mem.h"
#include "base/num.h"
#include "quantize/permute_n8.h"
#include "quantize/rows.h"

#include <stdlib.h>
#include <string.h>

/* ---- orders ---- */

static int by_strength(const void *a, const void *b, void *user) {
    const float *strength = user;
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (strength[x] != strength[y])
        return strength[x] > strength[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

int permute_order(const float *strength, int64_t n, double factor, int32_t *order) {
    float *scratch = mem_array((size_t)n + 1, sizeof *scratch);
    int n_out = 0;
    if (!scratch)
        return -1;
    const double bound = factor * (double)channels_median(strength, n, scratch);
    mem_free(scratch);
    for (int64_t i = 0; i < n; i++)
        if ((double)strength[i] > bound)
            order[n_out++] = (int32_t)i;
    for (int64_t i = 0, at = n_out; i < n; i++)
        if (!((double)strength[i] > bound))
            order[at++] = (int32_t)i;
    qsort_r(order, (size_t)n_out, sizeof *order, by_strength, (void *)(uintptr_t)strength);
    return n_out;
}

/* The strength of each channel of an axis: the largest, over the sites of the axis, of what it is there
 * relative to the site's median. So all sites of the residual stream count alike. */
static void add_strength(const float *stat, int64_t k, float *scratch, float *strength) {
    const float middle = channels_median(stat, k, scratch);
    for (int64_t i = 0; i < k && middle > 0; i++)
        strength[i] = NUM_MAX(strength[i], stat[i] / middle);
}

static nib_status order_axis(permutation *p, int axis, const model_sites *sites, const channel_stats *stats,
                             double factor, nib_error *err) {
    const int64_t n = p->axes.size[axis];
    float *strength = mem_calloc(2 * (size_t)n + 1, sizeof *strength);
    int32_t *order = mem_array((size_t)n + 1, sizeof *order);
    int n_site = 0, n_out = 0;
    int last = -1;
    for (int b = 0; strength && order && b < model_n_block(p->m); b++)
        for (int w = 0; w < model_block(p->m, b)->n_weight; w++) {
            const int site = sites->of[sites->first[b] + w];
            if (site < 0 || site == last || axes_of(&p->axes, b, w).col != axis || sites->k[site] != n)
                continue;
            add_strength(stats->upper.mean + stats->upper.first[site], n, strength + n, strength);
            last = site;
            n_site++;
        }
    if (strength && order && n_site)
        n_out = permute_order(strength, n, factor, order);
    mem_free(strength);
    if (!strength || !order || n_out < 0) {
        mem_free(order);
        return nib_fail_nomem(err, (size_t)n * sizeof *order, "the order of channels");
    }
    if (n_out > 0)
        p->order[axis] = order;
    else
        mem_free(order);
    p->n_outlier += n_out;
    return NIB_OK;
}

static nib_status find_orders(permutation *p, const model_sites *sites, const channel_stats *stats,
                              double factor, nib_error *err) {
    for (int i = 0; i < p->axes.n; i++)
        if (!p->axes.fixed[i])
            NIB_TRY(order_axis(p, i, sites, stats, factor, err));
    return NIB_OK;
}

nib_status permute_open(permutation *p, const model *m, const char *name, const nib_engine_options *options,
                        const calibration *c, const permute_options *how, nib_error *err) {
    channel_stats stats;
    model_sites sites;
    *p = (permutation){.m = m};
    NIB_TRY(axes_open(&p->axes, m, err));
    p->order = mem_calloc((size_t)p->axes.n + 1, sizeof *p->order);
    if (!p->order)
        return nib_fail_nomem(err, (size_t)p->axes.n * sizeof *p->order, "the orders of channels");
    NIB_TRY(sites_open(&sites, m, err));
    p->n_site = sites.n_site;
    p->n8 = mem_calloc((size_t)sites.n_site + 1, sizeof *p->n8);
    nib_status status = p->n8 ? channels_get(name, options, c, m, &stats, err)
                              : nib_fail_nomem(err, (size_t)sites.n_site * sizeof *p->n8, "blocks of sites");
    if (p->n8) {
        if (status == NIB_OK)
            status = find_orders(p, &sites, &stats, how->outlier, err);
        channels_clear(&stats);
    }
    if (status == NIB_OK)
        status = permute_choose_n8(p, &sites, name, options, c, how->share, err);
    sites_close(&sites);
    return status;
}

void permute_close(permutation *p) {
    for (int i = 0; p->order && i < p->axes.n; i++)
        mem_free(p->order[i]);
    mem_free(p->order);
    mem_free(p->n8);
    axes_close(&p->axes);
    memset(p, 0, sizeof *p);
}

/* ---- tensors ---- */

static const int32_t *order_of(const permutation *p, int b, int w, bool row) {
    const axis_pair a = axes_of(&p->axes, b, w);
    return p->order[row ? a.row : a.col];
}

/* Fills [tensor's rows, or elements] of `to` for a weight of `n` rows (elements) that are pieces of it.
 * where: scratch [n], the tensor's row of each row of the weight. */
static void map_weight(const gguf_tensor *t, const weight *of, const int32_t *order, int64_t each,
                       int32_t *where, int32_t *to) {
    int64_t from = 0;
    for (int k = 0; k < of->n_piece; from += of->pieces[k++].n_row) {
        int64_t at = 0;
        for (int i = 0; i < t->n_piece; at += t->pieces[i++].n_row) {
            const weight_piece *a = &t->pieces[i], *b = &of->pieces[k];
            if (a->tensor != b->tensor)
                continue;
            const int64_t begin = NUM_MAX(a->first_row, b->first_row),
                          end = NUM_MIN(a->first_row + a->n_row, b->first_row + b->n_row);
            for (int64_t r = begin; r < end; r++)
                where[from + r - b->first_row] = (int32_t)(at + r - a->first_row);
        }
    }
    /* Behind the rows of each expert there may be some that only pad them. */
    const int64_t n_expert = NUM_MAX(of->n_expert, 1), all = from / n_expert;
    const int64_t own = of->n_expert > 1 ? of->expert_n : all;
    for (int64_t r = 0; r < from; r++) {
        const int64_t in = r % all;
        if (where[r] >= 0 && in < own)
            to[where[r]] = where[r - in + in / each * each + order[in % each]];
    }
}

static int64_t rows_of(const weight *of) {
    int64_t n = 0;
    for (int k = 0; k < of->n_piece; k++)
        n += of->pieces[k].n_row;
    return n;
}

/* Adds the order of one of the tensor's weights to rows, or, of a vector, to cols. */
static nib_status add_rows(const permutation *p, int b, int w, const gguf_tensor *t, int32_t **to,
                           nib_error *err) {
    const weight *of = &model_block(p->m, b)->weights[w];
    const int32_t *order = order_of(p, b, w, !of->vector);
    const axis_pair axes = axes_of(&p->axes, b, w);
    const int64_t n = t->as.n_dim == 1 ? tensor_columns(&t->as) : tensor_rows(&t->as), n_row = rows_of(of);
    if (!order)
        return NIB_OK;
    int32_t *where = mem_array((size_t)n_row + 1, sizeof *where);
    const bool begins = !*to;
    if (begins)
        *to = mem_array((size_t)n + 1, sizeof **to);
    if (!where || !*to) {
        mem_free(where);
        return nib_fail_nomem(err, (size_t)n * sizeof **to, "the rows of a tensor");
    }
    for (int64_t i = 0; i < n && begins; i++)
        (*to)[i] = (int32_t)i;
    memset(where, -1, (size_t)n_row * sizeof *where);
    map_weight(t, of, order, p->axes.size[of->vector ? axes.col : axes.row], where, *to);
    mem_free(where);
    return NIB_OK;
}

bool permute_moves_columns(const permutation *p, const gguf_tensor *t) {
    for (int w = 0; t->block >= 0 && !t->vector && w < model_block(p->m, t->block)->n_weight; w++) {
        const weight *of = &model_block(p->m, t->block)->weights[w];
        if (!of->vector && gguf_tensor_is_of(t, of) && order_of(p, t->block, w, false))
            return true;
    }
    return false;
}

nib_status permute_tensor(const permutation *p, const gguf_tensor *t, permuted *out, nib_error *err) {
    memset(out, 0, sizeof *out);
    for (int w = 0; t->block >= 0 && w < model_block(p->m, t->block)->n_weight; w++) {
        const weight *of = &model_block(p->m, t->block)->weights[w];
        const int32_t *cols = of->vector ? NULL : order_of(p, t->block, w, false);
        const int64_t k = tensor_columns(&t->as);
        if (!gguf_tensor_is_of(t, of))
            continue;
        nib_status status = add_rows(p, t->block, w, t, of->vector ? &out->cols : &out->rows, err);
        if (status == NIB_OK && cols && !out->cols) {
            out->cols = mem_array((size_t)k + 1, sizeof *out->cols);
            if (out->cols)
                memcpy(out->cols, cols, (size_t)k * sizeof *cols);
            else
                status = nib_fail_nomem(err, (size_t)k * sizeof *cols, "the columns of a tensor");
        }
        if (status != NIB_OK) {
            mem_free(out->rows);
            mem_free(out->cols);
            memset(out, 0, sizeof *out);
            return status;
        }
    }
    return NIB_OK;
}

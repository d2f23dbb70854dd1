/* permute_n8.c - see permute_n8.h. The loss of a site is that of its output, sum over channels of the squared
 * error times the squares of the channel's column in all matrices that read it: errors of channels are taken
 * to be unrelated. */
#include "quantize/permute_n8.h"

#include "base/mem.h"
#include "base/num.h"
#include "exec/acts.h"
#include "kernels/act8.h"
#include "quantize/rows.h"

#include <math.h>
#include <string.h>

typedef struct losing {
    permutation *p;
    const model_sites *sites;
    const layout *layout;
    site_loss *of;         /* [n_site] */
    int *reader;           /* [n_site], as in measure/channels.c */
    double *energy;        /* [n_site]: of the outputs */
    float **column;        /* [n_site][k]: squares of the columns, in the model's order */
    const int32_t **order; /* [n_site] */
    float *row;            /* [longest] */
    char *codes;
    probe probe;
} losing;

/* ---- the choice ---- */

double n8_choose(const site_loss *of, int n, double share, int64_t *n8) {
    double all = 0, used = 0;
    for (int s = 0; s < n; s++) {
        all += of[s].cost * (double)of[s].n_block;
        n8[s] = 0;
    }
    for (;;) {
        double best = -INFINITY;
        int site = -1;
        int64_t more = 0;
        for (int s = 0; s < n; s++) {
            double gain = 0;
            for (int64_t b = n8[s]; b < NUM_MIN(of[s].n_block, UINT8_MAX); b++) {
                const double cost = of[s].cost * (double)(b + 1 - n8[s]);
                gain += of[s].four[b] - of[s].eight[b];
                if (used + cost > share * all * (1 + 1e-12))
                    break;
                if (gain / cost > best) {
                    best = gain / cost;
                    site = s;
                    more = b + 1 - n8[s];
                }
            }
        }
        if (site < 0)
            return all > 0 ? used / all : 0;
        n8[site] += more;
        used += of[site].cost * (double)more;
    }
}

/* ---- measuring ---- */

/* Adds a row's errors in one number of bits. */
static void add_errors(const losing *l, int site, act_format f, const float *x, int64_t k, double *to) {
    const act8_layout at = act_layout_of(f, k);
    const float *scale = (const float *)(const void *)(l->codes + at.scale);
    const int32_t *order = l->order[site];
    kernels_table()->act_quantize(f, x, k, l->codes);
    for (int64_t i = 0; i < k; i++) {
        const double e = (double)(x[i] - scale[i / f.group] * (float)(int8_t)l->codes[i]);
        to[i / ACT_BLOCK] += e * e * (double)l->column[site][order ? order[i] : i];
    }
}

static void see_input(void *user, const probe_input *in) {
    losing *l = user;
    const int site = sites_of(l->sites, l->layout, in->block, in->w);
    outlier outliers[ACT_OUTLIERS];
    if (site < 0)
        return;
    if (l->reader[site] < 0)
        l->reader[site] = in->w;
    if (l->reader[site] != in->w)
        return;
    const int32_t *order = l->order[site];
    for (int64_t r = 0; r < in->n_row; r++) {
        const float *x = in->x + r * in->k;
        for (int64_t i = 0; i < in->k; i++) {
            l->row[i] = x[order ? order[i] : i];
            l->energy[site] += (double)x[i] * (double)x[i] * (double)l->column[site][i];
        }
        act_extract_outliers(kernels_table(), 4, l->row, in->k, l->row, outliers);
        add_errors(l, site, (act_format){.bits = 4, .group = ACT_BLOCK}, l->row, in->k, l->of[site].four);
        add_errors(l, site, (act_format){.bits = 8, .group = ACT_BLOCK}, l->row, in->k, l->of[site].eight);
    }
}

/* Adds the squares of a matrix's columns to its site. */
static nib_status add_columns(losing *l, const weight *w, int site, void *raw, nib_error *err) {
    for (int i = 0; i < w->n_piece; i++)
        for (int64_t r = 0; r < w->pieces[i].n_row; r++) {
            const weight_piece *p = &w->pieces[i];
            NIB_TRY(tensor_read(model_container(l->p->m), p->tensor, p->first_row + r, raw, l->row, err));
            for (int64_t c = 0; c < w->k; c++)
                l->column[site][c] += l->row[c] * l->row[c];
        }
    l->of[site].cost += (double)w->n * ACT_BLOCK;
    return NIB_OK;
}

static nib_status read_columns(losing *l, nib_error *err) {
    const model *m = l->p->m;
    for (int b = 0; b < model_n_block(m); b++)
        for (int w = 0; w < model_block(m, b)->n_weight; w++) {
            const weight *of = &model_block(m, b)->weights[w];
            const int site = l->sites->of[l->sites->first[b] + w];
            if (site < 0 || of->vector || of->shared_block >= 0 || of->transposed)
                continue;
            l->order[site] = l->p->order[axes_of(&l->p->axes, b, w).col];
            NIB_TRY(add_columns(l, of, site, l->codes, err));
        }
    return NIB_OK;
}

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    losing *l = user;
    (void)err;
    l->layout = e->layout;
    l->probe = (probe){.input = see_input, .user = l};
    return NIB_OK;
}

static nib_status allocate(losing *l, nib_error *err) {
    const size_t n = (size_t)l->sites->n_site + 1;
    int64_t longest = 1;
    l->of = mem_calloc(n, sizeof *l->of);
    l->reader = mem_alloc(n * sizeof *l->reader);
    l->energy = mem_calloc(n, sizeof *l->energy);
    l->column = mem_calloc(n, sizeof *l->column);
    l->order = mem_calloc(n, sizeof *l->order);
    bool good = l->of && l->reader && l->energy && l->column && l->order;
    for (int s = 0; good && s < l->sites->n_site; s++) {
        const int64_t k = l->sites->k[s];
        longest = NUM_MAX(longest, k);
        l->of[s].n_block = num_div_up(k, ACT_BLOCK);
        l->of[s].four = mem_calloc((size_t)l->of[s].n_block + 1, sizeof(double));
        l->of[s].eight = mem_calloc((size_t)l->of[s].n_block + 1, sizeof(double));
        l->column[s] = mem_calloc((size_t)k + 1, sizeof(float));
        good = l->of[s].four && l->of[s].eight && l->column[s];
    }
    l->row = mem_array((size_t)longest, sizeof *l->row);
    l->codes =
        mem_alloc((size_t)longest * 8 + act_row_bytes((act_format){.bits = 8, .group = ACT8_GROUP}, longest));
    if (!good || !l->row || !l->codes)
        return nib_fail_nomem(err, (size_t)longest * sizeof(float), "the loss of sites");
    memset(l->reader, -1, n * sizeof *l->reader);
    return NIB_OK;
}

static void release(losing *l) {
    for (int s = 0; l->of && s < l->sites->n_site; s++) {
        mem_free(l->of[s].four);
        mem_free(l->of[s].eight);
        mem_free(l->column ? l->column[s] : NULL);
    }
    mem_free(l->of);
    mem_free(l->reader);
    mem_free(l->energy);
    mem_free(l->column);
    mem_free(l->order);
    mem_free(l->row);
    mem_free(l->codes);
}

nib_status permute_choose_n8(permutation *p, const model_sites *sites, const char *name,
                             const nib_engine_options *options, const calibration *c, double share,
                             nib_error *err) {
    losing l = {.p = p, .sites = sites};
    const product_watch how = {
        .begin = begin, .probe = &l.probe, .what = "measuring 4-bit activations", .user = &l};
    nib_status status = allocate(&l, err);
    if (status == NIB_OK)
        status = read_columns(&l, err);
    if (status == NIB_OK)
        status = measure_product_inputs(name, options, c, &how, err);
    for (int s = 0; status == NIB_OK && s < sites->n_site; s++)
        for (int64_t b = 0; b < l.of[s].n_block; b++) {
            l.of[s].four[b] /= NUM_MAX(l.energy[s], 1e-30);
            l.of[s].eight[b] /= NUM_MAX(l.energy[s], 1e-30);
        }
    if (status == NIB_OK)
        p->share8 = n8_choose(l.of, sites->n_site, share, p->n8);
    release(&l);
    return status;
}

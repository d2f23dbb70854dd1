/* channels.c - see channels.h. */
#include "measure/channels.h"

#include "base/mem.h"
#include "base/num.h"
#include "engine/imatrix.h"
#include "profile/profile_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_STAT = 3, UPPER_OF = 1000 /* one value of so many is above the percentile */, MAX_TOP = 64 };

static const char *const ENDINGS[N_STAT] = {"-squares.nibimx", "-largest.nibimx", "-upper.nibimx"};

static model_imatrix *stat_at(channel_stats *c, int i) {
    return i == 0 ? &c->square : i == 1 ? &c->largest : &c->upper;
}

typedef struct watching {
    channel_stats *out;
    const calibration *c;
    const layout *layout;
    ledger *ledger;
    uint64_t charged;
    model_sites sites;
    int64_t *n_row; /* [n_site] */
    int *reader;    /* [n_site]: the product whose input counts; the others have the same. -1: none yet */
    float *top;     /* [channels][n_top]: the largest values of each channel, descending */
    int n_top;
    probe probe;
} watching;

/* Values above the percentile, and it. */
static int top_of(int64_t n_row) {
    return (int)NUM_MIN(n_row / UPPER_OF + 1, MAX_TOP);
}

static void keep_top(float *top, int n, float x) {
    if (x <= top[n - 1])
        return;
    int at = n - 1;
    for (; at > 0 && top[at - 1] < x; at--)
        top[at] = top[at - 1];
    top[at] = x;
}

static void see_input(void *user, const probe_input *in) {
    watching *w = user;
    const int site = sites_of(&w->sites, w->layout, in->block, in->w);
    if (site < 0)
        return;
    if (w->reader[site] < 0)
        w->reader[site] = in->w;
    if (w->reader[site] != in->w)
        return;
    const uint64_t first = w->out->square.first[site];
    w->n_row[site] += in->n_row;
    for (int64_t r = 0; r < in->n_row; r++)
        for (int64_t i = 0; i < in->k; i++) {
            const float x = in->x[r * in->k + i];
            w->out->square.mean[first + (uint64_t)i] += x * x;
            keep_top(w->top + (first + (uint64_t)i) * (size_t)w->n_top, w->n_top, fabsf(x));
        }
}

static uint64_t bytes_of(void *user, const engine_parts *e) {
    const watching *w = user;
    const int64_t n_token = w->c->n_prompt ? w->c->begin[w->c->n_prompt] : 0;
    uint64_t bytes = 0;
    if (imatrix_model_bytes(e->m, &bytes, NULL) != NIB_OK)
        return 0;
    return bytes * (uint64_t)(N_STAT + top_of(n_token));
}

static nib_status begin(void *user, const engine_parts *e, nib_error *err) {
    watching *w = user;
    const uint64_t bytes = bytes_of(w, e);
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    w->ledger = e->ledger;
    w->charged = bytes;
    w->layout = e->layout;
    w->n_top = top_of(w->c->n_prompt ? w->c->begin[w->c->n_prompt] : 0);
    w->probe = (probe){.input = see_input, .user = w};
    NIB_TRY(sites_open(&w->sites, e->m, err));
    for (int i = 0; i < N_STAT; i++)
        NIB_TRY(imatrix_begin(stat_at(w->out, i), w->sites.k, w->sites.n_site, err));
    const size_t n = (size_t)w->out->square.first[w->sites.n_site], n_site = (size_t)w->sites.n_site + 1;
    w->n_row = mem_calloc(n_site, sizeof *w->n_row);
    w->reader = mem_alloc(n_site * sizeof *w->reader);
    w->top = mem_calloc(n * (size_t)w->n_top + 1, sizeof *w->top);
    if (!w->n_row || !w->reader || !w->top)
        return nib_fail_nomem(err, (size_t)bytes, "statistics of channels");
    memset(w->reader, -1, n_site * sizeof *w->reader);
    return NIB_OK;
}

static void end(void *user) {
    watching *w = user;
    for (int s = 0; w->top && w->reader && s < w->sites.n_site; s++)
        for (uint64_t i = w->out->square.first[s]; i < w->out->square.first[s + 1]; i++) {
            const float *top = w->top + i * (size_t)w->n_top;
            w->out->square.mean[i] /= (float)NUM_MAX(w->n_row[s], 1);
            w->out->largest.mean[i] = top[0];
            w->out->upper.mean[i] = top[NUM_MIN(top_of(w->n_row[s]), w->n_top) - 1];
        }
    if (w->ledger)
        ledger_release(w->ledger, PLACE_RAM, NIB_OWNER_TABLES, w->charged);
    sites_close(&w->sites);
    mem_free(w->n_row);
    mem_free(w->reader);
    mem_free(w->top);
}

static nib_status measure(const char *name, const nib_engine_options *options, const calibration *c,
                          channel_stats *out, nib_error *err) {
    watching w = {.out = out, .c = c};
    const product_watch how = {.begin = begin,
                               .end = end,
                               .bytes = bytes_of,
                               .probe = &w.probe,
                               .what = "measuring channels",
                               .user = &w};
    NIB_TRY(measure_product_inputs(name, options, c, &how, err));
    for (int i = 0; i < N_STAT; i++) {
        memcpy(stat_at(out, i)->content, c->content, sizeof out->square.content);
        memcpy(stat_at(out, i)->prompts, c->hash, sizeof out->square.prompts);
    }
    return NIB_OK;
}

/* Loads or saves all statistics. */
static nib_status with_files(const model_sites *sites, const calibration *c, channel_stats *of, bool saves,
                             nib_error *err) {
    nib_status status = NIB_OK;
    for (int i = 0; i < N_STAT && status == NIB_OK; i++) {
        char *path = profile_path(c->content, c->hash, ENDINGS[i]);
        if (!path)
            return nib_fail_nomem(err, 64, "a file name");
        status = saves ? imatrix_save(path, stat_at(of, i), err)
                       : imatrix_load(path, c->content, sites->k, sites->n_site, stat_at(of, i), err);
        mem_free(path);
    }
    return status;
}

nib_status channels_get(const char *name, const nib_engine_options *options, const calibration *c,
                        const model *m, channel_stats *out, nib_error *err) {
    const logger log = {.fn = options->log, .user = options->user};
    model_sites sites;
    nib_error why;
    memset(out, 0, sizeof *out);
    NIB_TRY(sites_open(&sites, m, err));
    nib_status status = with_files(&sites, c, out, false, NULL);
    if (status != NIB_OK) {
        channels_clear(out);
        status = measure(name, options, c, out, err);
        if (status == NIB_OK && with_files(&sites, c, out, true, &why) != NIB_OK)
            log_line(&log, "the statistics of channels were not stored: %s", why.message);
    }
    sites_close(&sites);
    return status;
}

void channels_clear(channel_stats *c) {
    for (int i = 0; i < N_STAT; i++)
        imatrix_clear(stat_at(c, i));
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

float channels_median(const float *x, int64_t n, float *scratch) {
    memcpy(scratch, x, (size_t)n * sizeof *x);
    qsort(scratch, (size_t)n, sizeof *scratch, by_value);
    return n % 2 ? scratch[n / 2] : (scratch[n / 2 - 1] + scratch[n / 2]) / 2;
}

/* imatrix.c - see imatrix.h. */
#include "engine/imatrix.h"

#include "base/mem.h"
#include "model/layout.h"
#include "model/page_layout.h"

#include <string.h>

nib_status imatrix_model_bytes(const model *m, uint64_t *bytes, nib_error *err) {
    model_sites s;
    NIB_TRY(sites_open(&s, m, err));
    const bool fits = imatrix_bytes(s.k, s.n_site + s.n_stack, bytes);
    sites_close(&s);
    return fits ? NIB_OK
                : nib_fail(err, NIB_E_NOFIT, "the channels of the products' inputs overflow 64 bits");
}

/* ---- measuring ---- */

static void add(const probe_input *in, float *sum, int64_t *n_row) {
    *n_row += in->n_row;
    for (int64_t r = 0; r < in->n_row; r++)
        for (int64_t i = 0; i < in->k; i++)
            sum[i] += in->x[r * in->k + i] * in->x[r * in->k + i];
}

/* Adds a product's input. Products of one site have the same input, and each is counted. */
static void see_product(void *user, const probe_input *in) {
    imatrix_watch *w = user;
    const int site = sites_of(&w->sites, w->layout, in->block, in->w);
    add(in, w->sums->mean + w->sums->first[site], &w->n_row[site]);
}

static void see_expert(void *user, const probe_input *in, int64_t e) {
    imatrix_watch *w = user;
    const model_sites *s = &w->sites;
    const int entry = s->stack[s->first[in->block] + in->w];
    add(in, w->sums->mean + w->sums->first[entry] + e * in->k,
        &w->n_row[s->n_site + (entry - s->n_site) * w->n_expert + e]);
}

nib_status imatrix_watch_open(imatrix_watch *w, const layout *lay, ledger *l, model_imatrix *sums,
                              nib_error *err) {
    uint64_t bytes;
    *w = (imatrix_watch){.layout = lay,
                         .ledger = l,
                         .sums = sums,
                         .n_expert = model_hparams(layout_model(lay))->n_expert,
                         .probe = {.input = see_product, .expert = see_expert, .user = w}};
    NIB_TRY(imatrix_model_bytes(layout_model(lay), &bytes, err));
    NIB_TRY(ledger_charge(l, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    w->charged = bytes;
    NIB_TRY(sites_open(&w->sites, layout_model(lay), err));
    NIB_TRY(imatrix_begin(sums, w->sites.k, w->sites.n_site + w->sites.n_stack, err));
    const size_t n = (size_t)w->sites.n_site + (size_t)w->sites.n_stack * (size_t)w->n_expert;
    w->n_row = mem_calloc(n + 1, sizeof *w->n_row);
    return w->n_row ? NIB_OK : nib_fail_nomem(err, n * sizeof *w->n_row, "channels");
}

void imatrix_watch_finish(imatrix_watch *w) {
    const model_imatrix *c = w->sums;
    for (int s = 0; s < w->sites.n_stack; s++) {
        const uint64_t *first = c->first + w->sites.n_site + s;
        imatrix_experts_mean(c->mean + first[0], (int64_t)(first[1] - first[0]) / w->n_expert,
                             w->n_row + w->sites.n_site + s * w->n_expert, w->n_expert);
    }
    for (int s = 0; s < w->sites.n_site; s++)
        for (uint64_t i = c->first[s]; i < c->first[s + 1] && w->n_row[s] > 0; i++)
            c->mean[i] /= (float)w->n_row[s];
}

void imatrix_watch_close(imatrix_watch *w) {
    if (w->ledger)
        ledger_release(w->ledger, PLACE_RAM, NIB_OWNER_TABLES, w->charged);
    sites_close(&w->sites);
    mem_free(w->n_row);
    memset(w, 0, sizeof *w);
}

const float *imatrix_watch_of(const imatrix_watch *w, int b, int i) {
    const int site = sites_of(&w->sites, w->layout, b, i);
    return site < 0 ? NULL : w->sums->mean + w->sums->first[site];
}

/* ---- statistics of an engine ---- */

static bool is_asked_for(const layout *lay) {
    for (int b = 0; b < layout_n_block(lay); b++)
        for (int i = 0; i < layout_block(lay, b)->n_weight; i++)
            if (layout_block(lay, b)->weights[i].uses_imatrix)
                return true;
    return false;
}

static nib_status load(engine_core *e, const model_sites *s, const char *prompts, nib_error *err) {
    char content[CONTENT_KEY];
    uint64_t bytes;
    NIB_TRY(container_content_key(e->container, content, err));
    if (!imatrix_bytes(s->k, s->n_site + s->n_stack, &bytes))
        return nib_fail(err, NIB_E_MODEL, "the channels of the products overflow 64 bits");
    NIB_TRY(ledger_charge(e->ledger, PLACE_RAM, NIB_OWNER_TABLES, bytes, err));
    char *path = prompts[0] ? imatrix_path(content, prompts) : imatrix_find(content);
    if (!path)
        return nib_fail(err, NIB_E_NOTFOUND, "expected a profile of these weights in the cache, found none");
    nib_status status = imatrix_load(path, content, s->k, s->n_site + s->n_stack, &e->channels, err);
    mem_free(path);
    return status;
}

typedef struct attaching {
    const engine_core *e;
    const model_sites *sites;
} attaching;

static const float *imatrix_of(const void *user, int b, int w) {
    const attaching *a = user;
    const model_imatrix *c = &a->e->channels;
    const int site = sites_of(a->sites, a->e->layout, b, w);
    return site < 0 ? NULL : c->mean + c->first[site];
}

static nib_status attach(engine_core *e, const model_sites *s, const char *prompts, nib_error *err) {
    const attaching a = {e, s};
    layout *with;
    const nib_status status = load(e, s, prompts, err);
    if (status != NIB_OK)
        return nib_fail_prefix(err, status,
                               "formats with an importance matrix (u4g64w) are rounded by what 'nibble "
                               "profile MODEL --costs' measures of "
                               "channels");
    NIB_TRY(layout_with_imatrix(e->layout, imatrix_of, &a, &with, err));
    return core_set_layout(e, with, err);
}

nib_status imatrix_attach(engine_core *e, const char *prompts, nib_error *err) {
    model_sites sites;
    if (!is_asked_for(e->layout))
        return NIB_OK;
    NIB_TRY(sites_open(&sites, e->m, err));
    const nib_status status = attach(e, &sites, prompts, err);
    sites_close(&sites);
    return status;
}
